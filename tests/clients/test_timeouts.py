"""The loop of KIP-588 with clients nobody here wrote: a transaction that times out in the middle.

The loop aborts on any error that is not fatal and sends the same records again. Each broker here has its own clock,
which is moved past the timeout.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from minibroker import Minibroker
from minibroker.config.keys import SEMANTICS_PREFIX
from minibroker_protocol.errors import ErrorCode

pytestmark = pytest.mark.clients

SECONDS = 10.0
TIMEOUT_MS = 60_000
PAST_IT_MS = TIMEOUT_MS + 15_000
INPUT = [str(number) for number in range(6)]
ENTRIES = ("produce", "end")
CODES = f"{SEMANTICS_PREFIX}timed_out_codes"


@dataclass
class Story:
    """What became of a loop. fatal: why it ended before its input did; refused: errors it aborted on."""

    fatal: str = ""
    refused: list[str] = field(default_factory=list)


def time_out(broker: Minibroker) -> None:
    broker.cluster.run(lambda cluster: cluster.clock.advance(PAST_IT_MS))


def epochs(broker: Minibroker) -> tuple[int, int]:
    """(current, last) epoch that the coordinator has of the loop's transactional id."""

    def look(cluster: Any) -> tuple[int, int]:
        entry = cluster.brokers[1].coordinators.transactions.describe("x")
        return entry.epoch, entry.last_epoch

    found: tuple[int, int] = broker.cluster.run(look)
    return found


def committed(broker: Minibroker) -> list[str]:
    """Values of partition 0 of ``t`` as a read_committed consumer sees them."""
    from confluent_kafka import Consumer, TopicPartition

    reader = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
    )
    found: list[str] = []
    try:
        reader.assign([TopicPartition("t", 0, 0)])
        while True:
            message = reader.poll(SECONDS)
            assert message is not None, "no end of the partition"
            if message.error():
                return found
            found.append(message.value().decode())
    finally:
        reader.close()


# -- confluent-kafka ---------------------------------------------------------------------------------------------------


class _Confluent:
    """The loop over confluent-kafka; two records a transaction."""

    def __init__(self, broker: Minibroker, **config: Any) -> None:
        from confluent_kafka import Producer

        self.broker = broker
        self.errors: list[Any] = []
        self.producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "transactional.id": "x",
                "transaction.timeout.ms": TIMEOUT_MS,
                "linger.ms": 0,
                "log_level": 0,
                "error_cb": lambda error: None,  # without one, a fatal error comes out of flush()
                **config,
            }
        )
        self.producer.init_transactions(SECONDS)

    def send(self, value: str) -> None:
        self.producer.produce("t", value.encode(), on_delivery=lambda error, _: self.errors.append(error))
        try:
            self.producer.flush(SECONDS)
        except SystemError as wrong:  # 2.16.1 may call on_delivery while its fatal KafkaException is being raised
            if wrong.__cause__ is None:
                raise
            raise wrong.__cause__ from None

    def loop(self, disturb: Callable[[str], None]) -> Story:
        """disturb(point) is called in the second transaction: "produce" before its second record, "end" before its
        commit."""
        from confluent_kafka import KafkaException

        story, position, undisturbed = Story(), 0, True
        while position < len(INPUT):
            try:
                self.producer.begin_transaction()
                self.send(INPUT[position])
                if position == 2 and undisturbed:
                    disturb("produce")
                self.send(INPUT[position + 1])
                if position == 2 and undisturbed:
                    undisturbed = False
                    disturb("end")
                self.producer.commit_transaction(SECONDS)
                position += 2
            except KafkaException as raised:
                error = raised.args[0]
                undisturbed = False
                if error.fatal():
                    story.fatal = error.name()
                    return story
                story.refused.append(error.name())
                assert len(story.refused) < 5, story
                self.producer.abort_transaction(SECONDS)
        return story


def _confluent_story(broker: Minibroker, entry: str, *, keeps_last_epoch: bool = True) -> Story:
    """The loop with a timeout at `entry`, which bumps the epoch and keeps or forgets the one before."""
    pytest.importorskip("confluent_kafka")

    def disturb(point: str) -> None:
        if point == entry:
            held, _ = epochs(broker)
            time_out(broker)
            assert epochs(broker) == (held + 1, held if keeps_last_epoch else -1)

    return _Confluent(broker).loop(disturb)


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.seed(
    "588-1", "588-2", "588-3", "588-8", "588-9", semantics="kip", how="confluent-kafka, a loop that flushes"
)
def test_confluent_lives_through_a_timeout(entry: str) -> None:
    with Minibroker(topics={"t": 1}, semantics="kip") as broker:
        story = _confluent_story(broker, entry)
        assert story == Story(refused=["INVALID_PRODUCER_ID_MAPPING"])
        assert committed(broker) == INPUT


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.seed("588-1", "588-2", "588-8", "588-9", semantics="kafka", how="confluent-kafka, a loop that flushes")
def test_confluent_ends_fenced_as_with_kafka(entry: str, level: int) -> None:
    with Minibroker(topics={"t": 1}, transaction_version=level) as broker:
        assert _confluent_story(broker, entry, keeps_last_epoch=level == 2) == Story(fatal="_FENCED")
        assert committed(broker) == INPUT[:2]
        # A new instance takes over and loses nothing.
        assert _Confluent(broker).loop(lambda _: None) == Story()
        assert committed(broker) == INPUT[:2] + INPUT


@pytest.mark.parametrize("code", [45, 47, 49, 59, 120])
@pytest.mark.seed("588-5", semantics="kip", how="confluent-kafka, a loop that flushes")
def test_which_codes_confluent_takes_from_produce(code: int) -> None:
    """librdkafka ends for good on INVALID_PRODUCER_EPOCH, which is why `recoverable` has another code for it."""
    table = f"Produce:0={code},AddPartitionsToTxn:0=49,EndTxn:0=49"
    with Minibroker(topics={"t": 1}, semantics="kip", config={CODES: table}) as broker:
        story = _confluent_story(broker, "produce")
        if code in (49, 59, 120):
            assert story == Story(refused=[ErrorCode(code).name])
            assert committed(broker) == INPUT
        else:
            assert story.fatal
            assert committed(broker) == INPUT[:2]


@pytest.mark.seed("588-4", semantics="kafka kip", how="confluent-kafka, a loop that flushes")
def test_confluent_is_fenced_by_a_later_instance() -> None:
    for semantics in ("kafka", "kip"):
        with Minibroker(topics={"t": 1}, semantics=semantics) as broker:

            def replaced(point: str, broker: Minibroker = broker) -> None:
                if point == "produce":
                    time_out(broker)
                    _Confluent(broker)

            assert _Confluent(broker).loop(replaced).fatal == "_FENCED"
            assert committed(broker) == INPUT[:2]


# -- confluent-kafka and producers that the broker forgot --------------------------------------------------------------


@pytest.mark.parametrize("cause", ["expiration", "retention", "delete-records", "lost-tail"])
@pytest.mark.seed("oos-1", "360-10", "360-11", semantics="kafka kip", how="confluent-kafka")
def test_confluent_goes_on_after_its_state_is_gone(cause: str) -> None:
    """kip: UNKNOWN_PRODUCER_ID, abort, a bumped epoch, and on. kafka: the batch is taken as it comes."""
    for semantics in ("kafka", "kip"):
        with Minibroker(topics={"t": 1}, semantics=semantics) as broker:
            client = _Confluent(broker)
            client.producer.begin_transaction()
            client.send("before")
            client.producer.commit_transaction(SECONDS)
            offset = 0 if cause == "lost-tail" else None
            assert len(broker.cluster.lose_producers("t", cause=cause, offset=offset)) == 1  # type: ignore[arg-type]
            story = client.loop(lambda _: None)
            assert not story.fatal
            assert [value for value in committed(broker) if value != "before"] == INPUT
            told = [refusal.error for refusal in broker.refusals() if refusal.api == "Produce"]
            assert told == (["UNKNOWN_PRODUCER_ID"] if semantics == "kip" else [])
            assert len(story.refused) == len(told)  # one transaction was aborted and sent again


@pytest.mark.seed("360-13", semantics="kafka", how="confluent-kafka")
def test_confluent_cannot_bump_with_an_older_broker() -> None:
    """2.3 has no InitProducerId that takes an epoch. librdkafka then gives up instead of skipping the bump, which the
    Java client does."""
    from confluent_kafka import KafkaException

    with Minibroker(topics={"t": 1}, as_version="2.3") as broker:
        client = _Confluent(broker)
        client.producer.begin_transaction()
        client.send("before")
        client.producer.commit_transaction(SECONDS)
        broker.cluster.lose_producers("t", cause="delete-records")
        with pytest.raises(KafkaException, match="KIP-360") as raised:
            client.loop(lambda _: None)
        assert raised.value.args[0].fatal()
        assert [refusal.error for refusal in broker.refusals()] == ["UNKNOWN_PRODUCER_ID"]


# -- aiokafka ----------------------------------------------------------------------------------------------------------


async def _aiokafka_loop(broker: Minibroker, disturb: Callable[[str], None]) -> Story:
    aiokafka = pytest.importorskip("aiokafka")
    from aiokafka.errors import KafkaError

    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=broker.bootstrap_servers, transactional_id="x", transaction_timeout_ms=TIMEOUT_MS
    )
    await producer.start()
    story, position, undisturbed = Story(), 0, True
    try:
        while position < len(INPUT):
            try:
                await producer.begin_transaction()
                await producer.send_and_wait("t", INPUT[position].encode())
                if position == 2 and undisturbed:
                    await asyncio.to_thread(disturb, "produce")
                await producer.send_and_wait("t", INPUT[position + 1].encode())
                if position == 2 and undisturbed:
                    undisturbed = False
                    await asyncio.to_thread(disturb, "end")
                await asyncio.wait_for(producer.commit_transaction(), SECONDS)
                position += 2
            except KafkaError as error:
                undisturbed = False
                story.refused.append(type(error).__name__)
                try:
                    await asyncio.wait_for(producer.abort_transaction(), SECONDS)
                except Exception as failed:  # whatever it is, this instance is at its end
                    story.fatal = type(failed).__name__
                    return story
    finally:
        try:
            await asyncio.wait_for(producer.stop(), SECONDS)
        except KafkaError as error:
            logging.getLogger(__name__).info("stopped with %r", error)
    return story


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("code", [0, 47, 48, 49, 59, 120])
@pytest.mark.seed("588-8", "588-9", semantics="kip", how="aiokafka, a loop that flushes")
async def test_no_code_brings_aiokafka_back(entry: str, code: int) -> None:
    """aiokafka calls InitProducerId once in its life and ends on every error of EndTxn: only a new instance goes on.
    Nothing is lost or doubled either way."""
    table = "recoverable" if code == 0 else f"Produce:0={code},AddPartitionsToTxn:0={code},EndTxn:0={code}"
    async with Minibroker(topics={"t": 1}, semantics="kip", config={CODES: table}) as broker:
        story = await _aiokafka_loop(broker, lambda point: time_out(broker) if point == entry else None)
        assert story.fatal
        assert await asyncio.to_thread(committed, broker) == INPUT[:2]
        assert await _aiokafka_loop(broker, lambda _: None) == Story()
        assert await asyncio.to_thread(committed, broker) == INPUT[:2] + INPUT


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.seed("588-8", semantics="kafka", how="aiokafka, a loop that flushes")
async def test_aiokafka_ends_fenced_as_with_kafka(entry: str, level: int) -> None:
    async with Minibroker(topics={"t": 1}, transaction_version=level) as broker:
        story = await _aiokafka_loop(broker, lambda point: time_out(broker) if point == entry else None)
        assert story.refused == ["ProducerFenced"]
        assert story.fatal
        assert await asyncio.to_thread(committed, broker) == INPUT[:2]
