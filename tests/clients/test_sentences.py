"""Single sentences of the texts, each in the loop that the text itself shows, with clients nobody here wrote."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest

pytest.importorskip("confluent_kafka")
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from minibroker import Minibroker
from minibroker.config.keys import SEMANTICS_PREFIX
from minibroker.faults import Hold
from minibroker.faults.operations import hold_markers, release_markers

pytestmark = pytest.mark.clients

SECONDS = 30.0
TIMEOUT_MS = 60_000
ENDS_IN_CALLBACK = (
    KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)
SEMANTICS = pytest.mark.parametrize("semantics", ["kafka", "kip"])


def _producer(broker: Minibroker, name: str = "tx") -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "transactional.id": name,
            "transaction.timeout.ms": TIMEOUT_MS,
            "linger.ms": 0,
            "log_level": 0,
            "retry.backoff.ms": 20,
            "error_cb": lambda _: None,
        }
    )
    producer.init_transactions(SECONDS)
    return producer


def _consumer(broker: Minibroker, group: str = "g") -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": group,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )


def _next(consumer: Consumer) -> bytes | None:
    """The next value; None at the end of the partition."""
    message = consumer.poll(SECONDS)
    assert message is not None
    if message.error() is not None:
        assert message.error().code() == KafkaError._PARTITION_EOF
        return None
    value: bytes = message.value()
    return value


def _read(broker: Minibroker, topic: str = "t") -> list[bytes]:
    reader = _consumer(broker, "reader")
    reader.assign([TopicPartition(topic, 0, 0)])
    found = []
    try:
        while (value := _next(reader)) is not None:
            found.append(value)
    finally:
        reader.close()
    return found


# -- KIP-588: the callback of the sample -------------------------------------------------------------------------------


@SEMANTICS
@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.seed("588-10", semantics="kafka kip", how="confluent-kafka")
def test_the_callback_of_the_sample(semantics: str, level: int) -> None:
    """Sample.java: nothing flushed, a callback that ends the loop on OutOfOrderSequence and authorization, and the
    catch blocks. The clock passes the timeout before the record of the second transaction is written."""
    with Minibroker(semantics=semantics, transaction_version=level, topics={"t": 1}) as broker:
        asked = broker.faults.inject("Produce", Hold(), topic="t", nth=2)
        with asked as held, ThreadPoolExecutor(1) as pool:
            running = pool.submit(_sample, _producer(broker))
            held.wait(1)
            broker.clock.advance(ms=TIMEOUT_MS + 15_000)
            held.release()
            story = running.result(SECONDS)
        if semantics == "kip":
            assert story == _Story("", 4, ["INVALID_PRODUCER_ID_MAPPING"])
            assert _read(broker) == [b"0", b"1", b"2", b"3"]
        else:
            assert (story.ended, story.position) == ("_FENCED", 1)
            assert _read(broker) == [b"0"]


class _Story(NamedTuple):
    """Why the sample ended ("" when its input did), how many transactions are committed, the callback's errors."""

    ended: str
    position: int
    in_callback: list[str]


def _sample(producer: Producer) -> _Story:
    in_callback: list[str] = []
    is_running, position = True, 0

    def callback(error: KafkaError | None, _: Any) -> None:
        nonlocal is_running
        if error is not None:
            in_callback.append(error.name())
            is_running = is_running and error.code() not in ENDS_IN_CALLBACK

    while is_running and position < 4:
        try:
            producer.begin_transaction()
            producer.produce("t", b"%d" % position, on_delivery=callback)
            producer.commit_transaction(SECONDS)
            position += 1
        except KafkaException as raised:
            if raised.args[0].fatal():
                return _Story(raised.args[0].name(), position, in_callback)
            producer.abort_transaction(SECONDS)
    return _Story("" if is_running else "closed in the callback", position, in_callback)


# -- the blog: assigned partitions, a group id alone -------------------------------------------------------------------


@SEMANTICS
@pytest.mark.seed("447-8", semantics="kafka kip", how="aiokafka")
async def test_offsets_with_a_group_id_alone(semantics: str) -> None:
    """The loop of the blog before KIP-447: assign(), process, sendOffsetsToTransaction(offsets, groupId)."""
    aiokafka = pytest.importorskip("aiokafka")
    place = aiokafka.TopicPartition("in", 0)
    async with Minibroker(semantics=semantics, topics={"in": 1, "t": 1}) as broker:
        servers: dict[str, Any] = {"bootstrap_servers": broker.bootstrap_servers}
        async with aiokafka.AIOKafkaProducer(**servers) as feeder:
            for number in range(3):
                await feeder.send_and_wait("in", b"%d" % number, partition=0)
        consumer = aiokafka.AIOKafkaConsumer(
            **servers, group_id="g", enable_auto_commit=False, auto_offset_reset="earliest"
        )
        producer = aiokafka.AIOKafkaProducer(**servers, transactional_id="tx")
        async with consumer, producer:
            consumer.assign([place])
            for number, aborts in ((0, False), (1, True), (1, False), (2, False)):
                record = await consumer.getone(place)
                assert record.value == b"%d" % number
                await producer.begin_transaction()
                await producer.send_and_wait("t", record.value, partition=0)
                await producer.send_offsets_to_transaction({place: record.offset + 1}, "g")
                if aborts:
                    await producer.abort_transaction()
                    consumer.seek(place, await consumer.committed(place) or 0)
                else:
                    await producer.commit_transaction()
                    assert await consumer.committed(place) == record.offset + 1
        assert [r for r in broker.refusals() if r.api == "TxnOffsetCommit"] == []


# -- the blog: a consumer waits, and the commit goes through -----------------------------------------------------------


@SEMANTICS
@pytest.mark.seed("447-9", "447-3", semantics="kafka kip", how="confluent-kafka")
def test_a_consumer_waits_until_the_commit_is_through(semantics: str) -> None:
    with Minibroker(semantics=semantics, topics={"in": 1, "t": 1}) as broker:
        feeder = Producer({"bootstrap.servers": broker.bootstrap_servers})
        for number in range(3):
            feeder.produce("in", b"%d" % number, partition=0)
        assert feeder.flush(SECONDS) == 0
        first, dead = _consumer(broker), _producer(broker)
        first.subscribe(["in"])
        assert _next(first) == b"0"
        broker.cluster.run(lambda cluster: hold_markers(cluster, transactional_id="tx"))
        dead.begin_transaction()
        dead.produce("t", b"0")
        dead.send_offsets_to_transaction([TopicPartition("in", 0, 2)], first.consumer_group_metadata(), SECONDS)
        dead.commit_transaction(SECONDS)  # decided, and through nowhere yet
        first.close()
        survivor = _consumer(broker)
        survivor.subscribe(["in"])
        try:
            with ThreadPoolExecutor(1) as pool:
                waiting = pool.submit(_next, survivor)
                while not any(r.api == "OffsetFetch" for r in broker.refusals()):
                    assert not waiting.done()
                assert broker.cluster.run(release_markers) == ["tx"]
                assert waiting.result(SECONDS) == b"2"
        finally:
            survivor.close()
        assert {r.error for r in broker.refusals() if r.api == "OffsetFetch"} == {"UNSTABLE_OFFSET_COMMIT"}


# -- the blog: what a broker before 2.5 forgot -------------------------------------------------------------------------


@SEMANTICS
@pytest.mark.seed("447-10", semantics="kafka kip", how="confluent-kafka")
def test_what_a_broker_before_2_5_forgot(semantics: str) -> None:
    """Every record is gone, and with it the producer: the end for a client of a broker that has no bump."""
    forgets = {f"{SEMANTICS_PREFIX}forget_with_records": True}
    kind: dict[str, Any] = {"as_version": "2.3"} if semantics == "kafka" else {"semantics": "kip", "config": forgets}
    with Minibroker(topics={"t": 1}, **kind) as broker:
        producer = _producer(broker)

        def transaction(value: bytes) -> None:
            producer.begin_transaction()
            producer.produce("t", value)
            producer.commit_transaction(SECONDS)

        transaction(b"1")
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        for future in admin.delete_records([TopicPartition("t", 0, -1)]).values():
            future.result(SECONDS)
        with pytest.raises(KafkaException) as raised:
            transaction(b"lost")
        assert [r.error for r in broker.refusals() if r.api == "Produce"] == ["UNKNOWN_PRODUCER_ID"]
        assert raised.value.args[0].txn_requires_abort()
        if semantics == "kafka":
            with pytest.raises(KafkaException, match="KIP-360") as raised:
                producer.abort_transaction(SECONDS)
            assert raised.value.args[0].fatal()
            return
        producer.abort_transaction(SECONDS)
        transaction(b"2")
        assert _read(broker) == [b"2"]
