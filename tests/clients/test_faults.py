"""What faults do to clients that nobody here wrote, where more is to be seen than in a cell of test_fault_table.py."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import pytest

confluent_kafka = pytest.importorskip("confluent_kafka")
aiokafka = pytest.importorskip("aiokafka")
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition  # noqa: E402

from minibroker import Minibroker  # noqa: E402
from minibroker.control import TOKEN_VARIABLE  # noqa: E402
from minibroker.faults import (  # noqa: E402
    ApplyThenError,
    BlackHole,
    Close,
    Corrupt,
    Delay,
    Do,
    DropReply,
    Duplicate,
    Error,
    Hold,
    Reorder,
    Reset,
    Throttle,
    Truncate,
)

pytestmark = pytest.mark.clients

SECONDS = 30.0


@pytest.fixture(scope="module")
def shared() -> Iterator[Minibroker]:
    with Minibroker() as broker:
        yield broker


@pytest.fixture
def broker(shared: Minibroker) -> Iterator[Minibroker]:
    yield shared
    shared.faults.clear()
    shared.state.release_markers()


@pytest.fixture
def topic(broker: Minibroker, unique: Callable[[str], str]) -> str:
    name = unique("faults")
    broker.state.create_topic(topic=name)
    return name


def producer(broker: Minibroker, **config: Any) -> Producer:
    defaults = {
        "bootstrap.servers": broker.bootstrap_servers,
        "linger.ms": 0,
        "enable.idempotence": True,
        "log_level": 0,
    }
    return Producer({**defaults, **{key.replace("_", "."): value for key, value in config.items()}})


def send(sender: Producer, topic: str, *values: bytes, seconds: float = SECONDS) -> list[Any]:
    """Send one after the other; the errors that were reported."""
    failed: list[Any] = []
    for value in values:
        sender.produce(topic, value, on_delivery=lambda error, _: failed.append(error) if error else None)
        assert sender.flush(seconds) == 0
    return failed


def read(broker: Minibroker, topic: str, isolation: str = "read_committed") -> list[bytes]:
    """Everything in partition 0, to its end."""
    reader = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "none",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 50,
            "log_level": 0,
        }
    )
    reader.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes] = []
    deadline = time.monotonic() + SECONDS
    try:
        while time.monotonic() < deadline:
            message = reader.poll(0.2)
            if message is None:
                continue
            if message.error() is None:
                found.append(message.value())
            elif message.error().code() == KafkaError._PARTITION_EOF:
                return found
        raise AssertionError(f"no end of {topic} after {found}")
    finally:
        reader.close()


def ends_of_transactions(broker: Minibroker, topic: str) -> int:
    """Markers in the log of partition 0: offsets that hold no record of a client."""
    log = broker.cluster.run(lambda c: c.brokers[1].partition(topic, 0).log.log_end_offset)
    return int(log) - len(read(broker, topic, "read_uncommitted"))


# -- Produce: what it does to batches ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "action",
    [
        Error("NOT_LEADER_OR_FOLLOWER"),
        Error("NOT_ENOUGH_REPLICAS"),
        ApplyThenError("REQUEST_TIMED_OUT"),
        ApplyThenError("NOT_ENOUGH_REPLICAS_AFTER_APPEND"),
        DropReply(),
        Delay(200),
        Delay(200, when="after"),
        Duplicate(),
        Duplicate(copies=2, after_ms=50),
        Corrupt(of="request"),
        Truncate(),
        Close(),
        Reset(),
        Throttle(100),
        Do("lose_producer_state", {"topic": "other", "partition": 0}),
    ],
    ids=lambda action: repr(action)[:50],
)
def test_an_idempotent_producer_loses_and_doubles_nothing(broker: Minibroker, topic: str, action: Any) -> None:
    if isinstance(action, Do):
        broker.state.create_topic(topic="other")
    sender = producer(broker)
    with broker.faults.inject("Produce", action, topic=topic, nth=2) as fault:
        assert send(sender, topic, b"1", b"2", b"3") == []
        assert fault.fired == 1
    assert read(broker, topic) == [b"1", b"2", b"3"]


def test_without_idempotence_a_lost_reply_doubles(broker: Minibroker, topic: str) -> None:
    sender = producer(broker, enable_idempotence=False, acks="all")
    with broker.faults.inject("Produce", DropReply(), topic=topic):
        assert send(sender, topic, b"1") == []
    assert read(broker, topic) == [b"1", b"1"]


def test_a_fatal_error_reaches_the_application(broker: Minibroker, topic: str) -> None:
    with broker.faults.inject("Produce", Error("TOPIC_AUTHORIZATION_FAILED"), topic=topic):
        failed = send(producer(broker), topic, b"1")
    assert [error.code() for error in failed] == [KafkaError.TOPIC_AUTHORIZATION_FAILED]
    assert read(broker, topic) == []


def test_held_requests_wait_for_the_release(broker: Minibroker, topic: str) -> None:
    sender = producer(broker)
    with broker.faults.inject("Produce", Hold(), topic=topic) as fault:
        sender.produce(topic, b"1")
        sender.poll(0)
        fault.wait(1)
        assert sender.flush(0.3) == 1
        assert fault.release() == 1
        assert sender.flush(SECONDS) == 0
    assert read(broker, topic) == [b"1"]


def test_requests_in_another_order_than_they_were_sent(broker: Minibroker, topic: str) -> None:
    """The broker refuses the sequence that came too early; librdkafka gives up rather than change the order."""
    sender = producer(broker, batch_num_messages=1, max_in_flight=5)
    send(sender, topic, b"0")
    delivered: list[bytes] = []
    with broker.faults.inject("Produce", Reorder(), topic=topic):
        for number in range(1, 4):
            sender.produce(
                topic, b"%d" % number, on_delivery=lambda error, m: error or delivered.append(m.value()) if m else None
            )
        with pytest.raises(KafkaException) as raised:
            sender.flush(SECONDS)
    assert raised.value.args[0].code() == KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER
    found = read(broker, topic)
    assert found == sorted(found)
    assert set(delivered) <= set(found)
    assert found[:2] == [b"0", b"1"]


def test_a_damaged_answer_is_reported_and_the_record_is_there(broker: Minibroker, topic: str) -> None:
    with broker.faults.inject("Produce", Corrupt(at=-1), topic=topic):
        failed = send(producer(broker), topic, b"1")
    assert [error.code() for error in failed] == [KafkaError._UNDERFLOW]
    assert read(broker, topic) == [b"1"]


def test_a_client_in_a_black_hole_times_out_and_others_go_on(broker: Minibroker, topic: str) -> None:
    lost = producer(broker, client_id="lost", message_timeout_ms=1500, enable_idempotence=False)
    with broker.faults.inject(None, BlackHole(), client_id="lost"):
        failed = send(lost, topic, b"1")
        assert [error.code() for error in failed] == [KafkaError._MSG_TIMED_OUT]
        assert send(producer(broker, client_id="other"), topic, b"2") == []
    assert read(broker, topic) == [b"2"]


@pytest.mark.parametrize(
    ("match", "fires"),
    [
        ({"topic": True, "partition": 0}, True),
        ({"topic": True, "partition": 1}, False),
        ({"client_id": "matched"}, True),
        ({"client_id": "somebody"}, False),
        ({"sequence": [1, 1], "topic": True}, True),
        ({"sequence": [7, 9], "topic": True}, False),
        ({"producer_epoch": 0, "topic": True}, True),
        ({"producer_epoch": 3, "topic": True}, False),
        ({"versions": [3, 13], "topic": True}, True),
    ],
    ids=repr,
)
def test_each_kind_of_target(broker: Minibroker, topic: str, match: dict[str, Any], fires: bool) -> None:
    wanted = {name: topic if name == "topic" else value for name, value in match.items()}
    fault = broker.faults.inject("Produce", Error("NOT_ENOUGH_REPLICAS"), expected=fires, **wanted)
    assert send(producer(broker, client_id="matched"), topic, b"1", b"2") == []
    assert fault.fired == fires
    assert read(broker, topic) == [b"1", b"2"]


# -- transactions ------------------------------------------------------------------------------------------------------


def transaction(sender: Producer, topic: str, value: bytes) -> None:
    sender.begin_transaction()
    sender.produce(topic, value)
    sender.commit_transaction(SECONDS)


@pytest.mark.parametrize(
    ("api", "action"),
    [
        ("EndTxn", Error("NOT_COORDINATOR")),
        ("Produce", DropReply()),
        ("Produce", Close()),
    ],
    ids=lambda value: value if isinstance(value, str) else repr(value)[:40],
)
def test_one_transaction_stays_one(
    broker: Minibroker, topic: str, unique: Callable[[str], str], api: str, action: Any
) -> None:
    transactional_id = unique("tx")
    sender = producer(broker, transactional_id=transactional_id)
    sender.init_transactions(SECONDS)
    with broker.faults.inject(api, action, transactional_id=transactional_id) as fault:
        transaction(sender, topic, b"1")
        assert fault.hits[0]["api"] == api
    transaction(sender, topic, b"2")
    assert read(broker, topic) == [b"1", b"2"]
    assert ends_of_transactions(broker, topic) == 2


def test_a_lost_end_txn_reply_is_retried_and_commits_once(
    broker: Minibroker, topic: str, unique: Callable[[str], str]
) -> None:
    transactional_id = unique("tx")
    sender = producer(broker, transactional_id=transactional_id)
    sender.init_transactions(SECONDS)
    broker.control.record(200)
    with broker.faults.inject("EndTxn", DropReply(), transactional_id=transactional_id):
        transaction(sender, topic, b"1")
    ends = [exchange for exchange in broker.control.exchanges(200) if exchange["api"] == "EndTxn"]
    broker.control.record(0)
    assert [end["outcome"].split(":")[0] for end in ends] == ["closed", "answered"]
    assert ends[1]["errors"] == []
    assert read(broker, topic) == [b"1"]
    assert ends_of_transactions(broker, topic) == 1


def test_held_markers_keep_a_transaction_in_between(
    broker: Minibroker, topic: str, unique: Callable[[str], str]
) -> None:
    transactional_id = unique("tx")
    sender = producer(broker, transactional_id=transactional_id)
    sender.init_transactions(SECONDS)
    broker.state.hold_markers(transactional_id=transactional_id)
    transaction(sender, topic, b"1")
    assert broker.state.held_markers() == [transactional_id]
    assert read(broker, topic) == []
    assert broker.state.release_markers() == [transactional_id]
    assert read(broker, topic) == [b"1"]


def test_an_epoch_near_its_end_gives_a_new_producer_id(
    broker: Minibroker, topic: str, unique: Callable[[str], str]
) -> None:
    transactional_id = unique("tx")
    producer(broker, transactional_id=transactional_id).init_transactions(SECONDS)
    broker.state.set_producer_epoch(transactional_id=transactional_id, epoch=32766)
    broker.control.record(50)
    sender = producer(broker, transactional_id=transactional_id)
    sender.init_transactions(SECONDS)
    answers = [e["response"] for e in broker.control.exchanges(50) if e["api"] == "InitProducerId"]
    broker.control.record(0)
    assert answers[-1]["producer_epoch"] == 0
    transaction(sender, topic, b"1")
    assert read(broker, topic) == [b"1"]


def test_sequences_wrap_near_their_end(broker: Minibroker, topic: str) -> None:
    asyncio.run(asyncio.wait_for(_wrap(broker, topic), SECONDS))


async def _wrap(broker: Minibroker, topic: str) -> None:
    from aiokafka.structs import TopicPartition as Partition

    async with aiokafka.AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers, enable_idempotence=True) as sender:
        await sender.send_and_wait(topic, b"1", partition=0)
        state = sender._txn_manager
        await asyncio.to_thread(
            broker.state.set_sequence,
            topic=topic,
            partition=0,
            producer_id=state.producer_id,
            last_sequence=2**31 - 2,
        )
        state._sequence_numbers[Partition(topic, 0)] = 2**31 - 1
        await sender.send_and_wait(topic, b"2", partition=0)
    known = broker.cluster.run(lambda c: c.brokers[1].partition(topic, 0).log.producers.entry(state.producer_id))
    assert known.last_sequence == 2**31 - 1


def test_an_expired_transactional_id_starts_anew(broker: Minibroker, unique: Callable[[str], str]) -> None:
    transactional_id = unique("tx")
    sender = producer(broker, transactional_id=transactional_id)
    sender.init_transactions(SECONDS)
    broker.state.expire_transactional_id(transactional_id=transactional_id)
    sender.begin_transaction()
    sender.produce(unique("t"), b"1")
    with pytest.raises(KafkaException) as raised:
        sender.commit_transaction(SECONDS)
    assert raised.value.args[0].code() in (KafkaError.INVALID_PRODUCER_ID_MAPPING, KafkaError._FATAL, KafkaError._STATE)


# -- logs and disks ----------------------------------------------------------------------------------------------------


def test_lost_producer_state_is_no_loss_under_kafka(broker: Minibroker, topic: str) -> None:
    sender = producer(broker)
    assert send(sender, topic, b"1") == []
    assert broker.state.lose_producer_state(topic=topic, partition=0) != []
    assert send(sender, topic, b"2") == []
    assert read(broker, topic) == [b"1", b"2"]


def test_producer_state_lost_between_append_and_reply_doubles(broker: Minibroker, topic: str) -> None:
    sender = producer(broker)
    assert send(sender, topic, b"1") == []
    broker.faults.inject("Produce", ApplyThenError("REQUEST_TIMED_OUT"), topic=topic)
    lost = Do("lose_producer_state", {"topic": topic, "partition": 0}, when="before")
    broker.faults.inject("Produce", lost, topic=topic)
    assert send(sender, topic, b"2") == []
    assert read(broker, topic) == [b"1", b"2", b"2"]
    broker.faults.verify()


def test_records_deleted_and_truncated(broker: Minibroker, topic: str) -> None:
    assert send(producer(broker), topic, b"1", b"2", b"3", b"4") == []
    assert broker.state.delete_records(topic=topic, partition=0, offset=1) == 1
    assert broker.state.truncate_tail(topic=topic, partition=0, offset=3) == 3
    assert read(broker, topic) == [b"2", b"3"]


def test_a_disk_that_fails_and_heals(broker: Minibroker, topic: str) -> None:
    sender = producer(broker, message_timeout_ms=1500, enable_idempotence=False)
    assert send(sender, topic, b"1") == []
    broker.state.fail_disk(topic=topic, partition=0)
    assert len(send(sender, topic, b"2")) == 1
    assert read(broker, topic) == [b"1"]
    broker.state.heal_disk(topic=topic, partition=0)
    assert send(sender, topic, b"3") == []
    assert read(broker, topic) == [b"1", b"3"]


# -- the clock ---------------------------------------------------------------------------------------------------------


@dataclass
class ByCommandLine:
    """The clock of a broker, moved by `minibroker control`."""

    address: str
    token: str

    def __getattr__(self, name: str) -> Callable[..., int]:
        return partial(self._ask, name)

    @property
    def now_ms(self) -> int:
        return self._ask("get")

    def _ask(self, name: str, **jump: int) -> int:
        ms = 1000 * (3600 * jump.get("hours", 0) + 86_400 * jump.get("days", 0))
        argv = [sys.executable, "-m", "minibroker", "control", "--control", self.address, f"clock.{name}"]
        environment = {**os.environ, TOKEN_VARIABLE: self.token, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        done = subprocess.run(
            [*argv, *([f"ms={ms}"] if jump else [])], capture_output=True, text=True, env=environment, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return int(json.loads(done.stdout)["now_ms"])


@pytest.mark.parametrize("way", ["Python", "HTTP", "command line"])
def test_a_live_group_and_producer_survive_freeze_an_hour_and_eight_days(
    way: str, unique: Callable[[str], str]
) -> None:
    with Minibroker(topics={"t": 1}, process=way != "Python", page=way == "command line") as broker:
        clock: Any = broker.clock
        if way == "command line":
            served = urlsplit(broker.page_url)
            clock = ByCommandLine(served.netloc, served.fragment.removeprefix("token="))
        sender = producer(broker, transactional_id=unique("tx"))
        sender.init_transactions(SECONDS)
        member = Consumer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "group.id": "g",
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "session.timeout.ms": 45000,
                "log_level": 0,
            }
        )
        member.subscribe(["t"])
        seen = []
        revoked: list[Any] = []
        member.subscribe(["t"], on_revoke=lambda _, partitions: revoked.append(partitions))
        for number, jump in enumerate([{}, {"hours": 1}, {"days": 8}, {}]):
            if number == 0:
                clock.freeze()
            if jump:
                before = clock.now_ms
                after = clock.advance(**jump)  # frozen, so nothing is added
                assert after - before == 1000 * (3600 * jump.get("hours", 0) + 86_400 * jump.get("days", 0))
            if number == 3:
                clock.unfreeze()
            try:
                transaction(sender, "t", b"%d" % number)
            except KafkaException as error:
                # Eight idle days are more than transactional.id.expiration.ms: the id is gone, and Kafka says so.
                assert number == 2, error  # noqa: PT017
                sender = producer(broker, transactional_id=unique("tx"))
                sender.init_transactions(SECONDS)
                transaction(sender, "t", b"%d" % number)
            message = member.poll(SECONDS)
            assert message is not None
            assert message.error() is None
            seen.append(message.value())
        assert seen == [b"0", b"1", b"2", b"3"]
        assert revoked == []
        member.close()


def test_a_transaction_times_out_when_the_clock_says_so(
    broker: Minibroker, topic: str, unique: Callable[[str], str]
) -> None:
    transactional_id = unique("tx")
    sender = producer(broker, transactional_id=transactional_id, transaction_timeout_ms=60_000)
    sender.init_transactions(SECONDS)
    sender.begin_transaction()
    sender.produce(topic, b"1")
    sender.flush(SECONDS)
    broker.clock.advance(71)
    with pytest.raises(KafkaException) as raised:
        sender.commit_transaction(SECONDS)
    assert raised.value.args[0].fatal() or raised.value.args[0].txn_requires_abort()
    assert read(broker, topic) == []
