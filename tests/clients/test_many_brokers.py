"""Real clients go on while brokers stop, die and come back, leaders and coordinators move, and replicas change."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from minibroker import Minibroker

pytestmark = pytest.mark.clients

TOPIC = "events"
CONFIG = {
    "default.replication.factor": "3",
    "min.insync.replicas": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "replica.fetch.backoff.ms": "100",
    "broker.heartbeat.interval.ms": "200",
    "broker.session.timeout.ms": "1000",
}
# What librdkafka waits before it tries again is made for networks; here it is most of a test's time.
PATIENCE: dict[str, Any] = {
    "retry.backoff.ms": 20,
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 100,
    "topic.metadata.refresh.interval.ms": 1000,
    "log_level": 0,
}

# librdkafka looks for a coordinator over the connection on which a fetch may be waiting.
EAGER: dict[str, Any] = {**PATIENCE, "fetch.wait.max.ms": 20}

Event = Callable[[Minibroker], None]


def _leader(broker: Minibroker) -> int:
    leader = broker.cluster.leader(TOPIC)
    assert leader is not None
    return leader


def kill_leader(broker: Minibroker) -> None:
    leader = _leader(broker)
    broker.cluster.kill_broker(leader)
    time.sleep(0.3)
    broker.cluster.start_broker(leader)
    wait_for_isr(broker)


def stop_leader(broker: Minibroker) -> None:
    leader = _leader(broker)
    broker.cluster.stop_broker(leader)
    time.sleep(0.3)
    broker.cluster.start_broker(leader)
    wait_for_isr(broker)


def hang_leader(broker: Minibroker) -> None:
    """It answers nobody until its session has ended and another one leads, and then takes itself for the leader."""
    leader = _leader(broker)
    broker.cluster.pause_broker(leader)
    wait_for(lambda: broker.cluster.leader(TOPIC) not in (None, leader))
    time.sleep(0.3)
    broker.cluster.resume_broker(leader)
    wait_for_isr(broker)


def kill_leader_without_controller(broker: Minibroker) -> None:
    """Nobody is elected until there is a controller again."""
    leader = _leader(broker)
    broker.cluster.stop_controller()
    broker.cluster.kill_broker(leader)
    time.sleep(0.5)
    broker.cluster.start_controller()
    broker.cluster.start_broker(leader)
    wait_for_isr(broker)


def restart_all_in_turn(broker: Minibroker) -> None:
    for node in broker.cluster.broker_ids:
        broker.cluster.stop_broker(node)
        broker.cluster.start_broker(node)
        wait_for_isr(broker)


def move_leader(broker: Minibroker) -> None:
    broker.cluster.move_leader(TOPIC, 0, _leader(broker) % 3 + 1)


def move_coordinators(broker: Minibroker) -> None:
    for kind, key in (("transaction", "tx"), ("group", "group")):
        now = broker.cluster.coordinator(kind, key)  # type: ignore[arg-type]
        if now is not None:
            broker.cluster.move_coordinator(kind, key, now % 3 + 1)  # type: ignore[arg-type]


def kill_coordinator(broker: Minibroker) -> None:
    for kind, key in (("transaction", "tx"), ("group", "group")):
        now = broker.cluster.coordinator(kind, key)  # type: ignore[arg-type]
        if now is not None:
            broker.cluster.kill_broker(now)
            time.sleep(0.2)
            broker.cluster.start_broker(now)
            wait_for_isr(broker)


def kill_transaction_coordinator(broker: Minibroker) -> None:
    now = broker.cluster.coordinator("transaction", "tx")
    assert now is not None
    broker.cluster.kill_broker(now)
    time.sleep(0.2)
    broker.cluster.start_broker(now)
    wait_for_isr(broker)


def add_and_reassign(broker: Minibroker) -> None:
    added = broker.cluster.add_broker()
    broker.cluster.reassign(TOPIC, 0, [added])
    broker.cluster.reassign(TOPIC, 0, [1, 2, 3])
    broker.cluster.remove_broker(added)


EVENTS = {
    event.__name__: event
    for event in (
        kill_leader,
        stop_leader,
        hang_leader,
        kill_leader_without_controller,
        restart_all_in_turn,
        move_leader,
        move_coordinators,
        kill_coordinator,
        add_and_reassign,
    )
}


def wait_for_isr(broker: Minibroker, seconds: float = 30) -> None:
    """Until all replicas of the topic are in sync again: the next event must not meet a lonely leader."""
    wait_for(lambda: len(broker.cluster.isr(TOPIC)) == 3, seconds)


def wait_for(reached: Callable[[], bool], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def broker() -> Iterator[Minibroker]:
    with Minibroker(brokers=3, topics={TOPIC: 1, "output": 1}, config=CONFIG, ephemeral=True) as running:
        yield running


def consume(broker: Minibroker, topic: str, count: int, seconds: float = 20) -> list[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "judge",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            **EAGER,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes] = []
    end = time.monotonic() + seconds
    quiet = 0
    while time.monotonic() < end and (len(values) < count or quiet < 2):
        message = consumer.poll(0.2)
        if message is None:
            quiet += 1
        elif message.error() is None:
            value = message.value()
            assert isinstance(value, bytes)
            values.append(value)
            quiet = 0
    consumer.close()
    return values


@pytest.mark.parametrize("name", EVENTS)
def test_an_idempotent_producer_loses_and_doubles_nothing(broker: Minibroker, name: str) -> None:
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True, "linger.ms": 1, **PATIENCE}
    )
    failures: list[Any] = []
    sent = 0
    done = threading.Event()

    def produce() -> None:
        nonlocal sent
        while not done.is_set():
            producer.produce(
                TOPIC, b"%d" % sent, on_delivery=lambda error, _: failures.append(error) if error else None
            )
            producer.poll(0.002)
            sent += 1

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        time.sleep(0.2)
        EVENTS[name](broker)
        time.sleep(0.2)
    finally:
        done.set()
        thread.join()
    assert producer.flush(30) == 0
    assert failures == []
    assert consume(broker, TOPIC, sent) == [b"%d" % number for number in range(sent)]


@pytest.mark.parametrize("name", EVENTS)
def test_a_transactional_producer_commits_all_and_nothing_twice(broker: Minibroker, name: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "tx", **PATIENCE})
    producer.init_transactions(30)
    committed: list[bytes] = []
    happening = threading.Thread(target=lambda: (time.sleep(0.2), EVENTS[name](broker)))
    happening.start()
    number = 0
    while happening.is_alive() or number < 20:
        number += 1
        values = [b"%d-%d" % (number, part) for part in range(3)]
        abort = number % 4 == 0
        try:
            producer.begin_transaction()
            for value in values:
                producer.produce(TOPIC, value)
            if abort:
                # librdkafka ends a transaction whose AddPartitionsToTxn has not been accepted yet and is refused with
                # INVALID_TXN_STATE (confluentinc/librdkafka#4849); what was acknowledged is in the transaction.
                producer.flush(30)
                producer.abort_transaction(30)
            else:
                retry(lambda: producer.commit_transaction(30))
                committed += values
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            producer.abort_transaction(30)
    happening.join()
    assert consume(broker, TOPIC, len(committed)) == committed


def retry(step: Callable[[], None]) -> None:
    for attempt in range(20):
        try:
            step()
        except KafkaException as error:
            if not error.args[0].retriable() or attempt == 19:
                raise
        else:
            return


# The group's coordinator stays (confluentinc/librdkafka#5511); test_a_group_goes_on_without_its_coordinator kills it.
@pytest.mark.parametrize(
    "event",
    [
        kill_leader,
        stop_leader,
        hang_leader,
        move_leader,
        move_coordinators,
        kill_transaction_coordinator,
        add_and_reassign,
    ],
)
def test_a_group_reads_processes_and_writes_exactly_once(broker: Minibroker, event: Event) -> None:
    source = Producer({"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True, **PATIENCE})
    total = 200
    for number in range(total):
        source.produce(TOPIC, b"%d" % number)
    assert source.flush(30) == 0
    first = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "group", **EAGER})
    first.committed([TopicPartition(TOPIC, 0)], 10)
    first.close()
    broker.cluster.move_coordinator("group", "group", 3)
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "group",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "session.timeout.ms": 10_000,
            **EAGER,
        }
    )
    consumer.subscribe([TOPIC])
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "tx", **PATIENCE})
    producer.init_transactions(30)
    # Leader, transaction coordinator and group coordinator on a broker of their own.
    assert broker.cluster.leader(TOPIC) == 1
    broker.cluster.move_coordinator("transaction", "tx", 2)
    happening = threading.Thread(target=lambda: (time.sleep(0.5), event(broker)))
    happening.start()
    written = 0
    end = time.monotonic() + 60
    while written < total:
        assert time.monotonic() < end, f"{written} of {total}"
        messages = [m for m in consumer.consume(10, 0.2) if m.error() is None]
        if not messages:
            continue
        try:
            producer.begin_transaction()
            for message in messages:
                producer.produce("output", message.value())
            offsets = [TopicPartition(TOPIC, 0, messages[-1].offset() + 1)]
            retry(lambda o=offsets: producer.send_offsets_to_transaction(o, consumer.consumer_group_metadata(), 30))  # type: ignore[misc]
            retry(lambda: producer.commit_transaction(30))
            written += len(messages)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            producer.abort_transaction(30)
            # What was read and not committed must be read again.
            consumer.seek(TopicPartition(TOPIC, 0, messages[0].offset()))
        time.sleep(0.02)
    happening.join()
    consumer.close()
    assert consume(broker, "output", total) == [b"%d" % number for number in range(total)]


@pytest.mark.parametrize("name", EVENTS)
def test_a_group_goes_on_without_its_coordinator(broker: Minibroker, name: str) -> None:
    """Offsets that were committed are there after every event, and no record is passed over."""
    source = Producer({"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True, **PATIENCE})
    total = 60
    for number in range(total):
        source.produce(TOPIC, b"%d" % number)
    assert source.flush(30) == 0
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "group",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 10_000,
            **EAGER,
        }
    )
    consumer.subscribe([TOPIC])
    seen: set[int] = set()
    happening: threading.Thread | None = None
    end = time.monotonic() + 60
    while len(seen) < total:
        assert time.monotonic() < end, len(seen)
        message = consumer.poll(0.2)
        if message is None or message.error() is not None:
            continue
        value = message.value()
        assert isinstance(value, bytes)
        seen.add(int(value))
        with contextlib.suppress(KafkaException):  # a rebalance or an election: the next commit covers it
            consumer.commit(message, asynchronous=False)
        if happening is None:
            happening = threading.Thread(target=lambda: EVENTS[name](broker))
            happening.start()
        time.sleep(0.02)
    assert happening is not None
    happening.join()
    for attempt in range(50):
        try:
            consumer.commit(offsets=[TopicPartition(TOPIC, 0, total)], asynchronous=False)
            break
        except KafkaException:
            assert attempt < 49
            time.sleep(0.1)
            consumer.poll(0)
    consumer.close()
    assert seen == set(range(total))
    again = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "group", **EAGER})
    assert again.committed([TopicPartition(TOPIC, 0)], 10)[0].offset == total
    again.close()
