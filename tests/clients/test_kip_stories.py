"""What KIP-360 and KIP-447 tell about failovers, with real clients on several brokers, in both semantics."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from minibroker import Minibroker

pytestmark = pytest.mark.clients

CONFIG = {
    "default.replication.factor": "3",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "replica.fetch.backoff.ms": "100",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}
QUIET: dict[str, Any] = {"log_level": 0, "retry.backoff.ms": 20, "reconnect.backoff.ms": 10}


@pytest.fixture(params=["kafka", "kip"])
def broker(request: pytest.FixtureRequest) -> Iterator[Minibroker]:
    topics = {"tp": 2, "out": 1, "events": 1}
    with Minibroker(brokers=3, topics=topics, config=CONFIG, ephemeral=True, semantics=request.param) as running:
        yield running


def make_producer(broker: Minibroker, transactional_id: str, **config: Any) -> Producer:
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": transactional_id, **QUIET, **config}
    )
    producer.init_transactions(30)
    return producer


def make_consumer(broker: Minibroker, group: str = "group", **config: Any) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "session.timeout.ms": 6000,
            "fetch.wait.max.ms": 20,
            **QUIET,
            **config,
        }
    )


def read_all(broker: Minibroker, topic: str, partitions: int, count: int) -> list[bytes]:
    judge = make_consumer(broker, "judge")
    judge.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    values: list[bytes] = []
    end = time.monotonic() + 20
    quiet = 0
    while time.monotonic() < end and (len(values) < count or quiet < 3):
        message = judge.poll(0.2)
        if message is None:
            quiet += 1
        elif message.error() is None:
            value = message.value()
            assert isinstance(value, bytes)
            values.append(value)
    judge.close()
    return values


@pytest.mark.seed("447-3", "447-5", semantics="kafka kip", how="confluent-kafka")
def test_a_producer_dies_mid_transaction_and_the_group_goes_on_from_the_right_offset(broker: Minibroker) -> None:
    """The failover story of KIP-447: P2 dies with an open transaction that holds offset 10 of tp-1. The group
    rebalances, P1 gets tp-1, waits until that transaction is decided, and goes on where nothing is processed twice."""
    source = Producer({"bootstrap.servers": broker.bootstrap_servers, **QUIET})
    for index in range(2):
        for number in range(20):
            source.produce("tp", b"%d-%d" % (index, number), partition=index)
    assert source.flush(20) == 0

    # P2 has processed tp-1 up to offset 10: its offset is in a transaction that it never ends.
    doomed_consumer = make_consumer(broker)
    doomed_consumer.assign([TopicPartition("tp", 1, 0)])
    doomed = make_producer(broker, "P2", **{"transaction.timeout.ms": 300_000})  # ends when the clock is moved, below
    doomed.begin_transaction()
    processed = 0
    while processed < 10:
        message = doomed_consumer.poll(0.5)
        if message is not None and message.error() is None:
            doomed.produce("out", message.value())
            processed += 1
    doomed.send_offsets_to_transaction([TopicPartition("tp", 1, 10)], doomed_consumer.consumer_group_metadata(), 20)
    doomed.flush(20)
    pending = make_consumer(broker)
    with pytest.raises(KafkaException) as unstable:
        pending.committed([TopicPartition("tp", 1)], 1)
    assert unstable.value.args[0].code() in (KafkaError.UNSTABLE_OFFSET_COMMIT, KafkaError._TIMED_OUT)
    pending.close()

    # The group's coordinator dies: the one after it finds the undecided offset in its log.
    group_coordinator = broker.cluster.coordinator("group", "group")
    assert group_coordinator is not None
    broker.cluster.kill_broker(group_coordinator)
    broker.cluster.start_broker(group_coordinator)

    # P1 takes over both partitions, and gets nothing before the transaction is decided.
    survivor_consumer = make_consumer(broker, **{"session.timeout.ms": 45_000})
    survivor_consumer.subscribe(["tp"])
    survivor = make_producer(broker, "P1")
    end = time.monotonic() + 60
    while len(survivor_consumer.assignment()) < 2:
        assert time.monotonic() < end
        assert [m for m in survivor_consumer.consume(20, 0.2) if m.error() is None] == []
    assert [m for m in survivor_consumer.consume(20, 0.5) if m.error() is None] == []
    broker.clock.advance(seconds=301)
    written = 0
    end = time.monotonic() + 60
    while written < 40:
        assert time.monotonic() < end, written
        messages = [m for m in survivor_consumer.consume(20, 0.5) if m.error() is None]
        if not messages:
            continue
        survivor.begin_transaction()
        for message in messages:
            survivor.produce("out", message.value())
        survivor.send_offsets_to_transaction(
            survivor_consumer.position(survivor_consumer.assignment()),
            survivor_consumer.consumer_group_metadata(),
            20,
        )
        survivor.commit_transaction(20)
        written += len(messages)
    survivor_consumer.close()
    expected = sorted(b"%d-%d" % (index, number) for index in range(2) for number in range(20))
    assert sorted(read_all(broker, "out", 1, 40)) == expected


@pytest.mark.seed("360-5", semantics="kafka kip", how="confluent-kafka")
def test_a_coordinator_dies_while_a_producer_goes_on(broker: Minibroker) -> None:
    """KIP-360: a transactional producer aborts, which bumps its epoch, while its coordinator fails over."""
    producer = make_producer(broker, "bumped")
    committed = []
    for number in range(12):
        coordinator = broker.cluster.coordinator("transaction", "bumped")
        assert coordinator is not None
        producer.begin_transaction()
        producer.produce("events", b"%d" % number)
        producer.flush(20)
        if number % 3 == 1:
            broker.cluster.move_coordinator("transaction", "bumped", coordinator % 3 + 1)
        if number % 4 == 3:
            producer.abort_transaction(20)
        else:
            producer.commit_transaction(20)
            committed.append(b"%d" % number)
    assert read_all(broker, "events", 1, len(committed)) == committed


@pytest.mark.seed("360-10", semantics="kafka kip", how="confluent-kafka")
def test_a_replica_that_knows_nothing_of_a_producer(broker: Minibroker) -> None:
    """KIP-360: records deleted, partition moved to an empty replica, and an idempotent producer that goes on."""
    from confluent_kafka.admin import AdminClient

    # librdkafka bumps its epoch on UNKNOWN_PRODUCER_ID only when that is the first it hears of a batch: it must know
    # the new leader before it sends.
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "enable.idempotence": True,
            "topic.metadata.refresh.interval.ms": 100,
            **QUIET,
        }
    )
    failures: list[Any] = []

    def send(first: int, last: int) -> None:
        for number in range(first, last):
            producer.produce("events", b"%d" % number, on_delivery=lambda e, _: failures.append(e) if e else None)
        assert producer.flush(30) == 0

    broker.cluster.reassign("events", 0, [1])
    send(0, 10)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, **QUIET})
    for future in admin.delete_records([TopicPartition("events", 0, 10)]).values():
        future.result(20)
    broker.cluster.reassign("events", 0, [2])
    time.sleep(1)
    send(10, 20)
    assert failures == []
    judge = make_consumer(broker, "judge")
    judge.assign([TopicPartition("events", 0, 10)])
    values: list[Any] = []
    end = time.monotonic() + 20
    while len(values) < 10 and time.monotonic() < end:
        message = judge.poll(0.5)
        if message is not None and message.error() is None:
            values.append(message.value())
    judge.close()
    assert values == [b"%d" % number for number in range(10, 20)]


@pytest.mark.seed("360-5", semantics="kafka kip", how="confluent-kafka")
def test_the_coordinators_fail_over_between_any_two_steps(broker: Minibroker) -> None:
    """After begin, after the records, after the offsets, after the commit: who coordinates the transaction and who the
    group is killed, one after the other, and the next one goes on from its log."""
    source = Producer({"bootstrap.servers": broker.bootstrap_servers, **QUIET})
    total = 8
    for number in range(total):
        source.produce("events", b"%d" % number)
    assert source.flush(20) == 0
    consumer = make_consumer(broker, "stepwise")
    consumer.assign([TopicPartition("events", 0, 0)])
    producer = make_producer(broker, "stepwise")
    for number in range(total):
        kind: Any = "transaction" if number < total // 2 else "group"

        def fail_over(step: int, number: int = number, kind: Any = kind) -> None:
            if number % 4 == step:
                coordinator = broker.cluster.coordinator(kind, "stepwise")
                if kind == "group":
                    # librdkafka does not find a group's coordinator that vanished (confluentinc/librdkafka#5511).
                    broker.cluster.move_coordinator(kind, "stepwise", (coordinator or 0) % 3 + 1)
                else:
                    broker.cluster.kill_broker(coordinator or 0)
                    broker.cluster.start_broker(coordinator or 0)

        producer.begin_transaction()
        fail_over(0)
        producer.produce("out", b"%d" % number)
        assert producer.flush(20) == 0
        fail_over(1)
        offsets = [TopicPartition("events", 0, number + 1)]
        patiently(lambda: producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), 20))  # noqa: B023
        fail_over(2)
        patiently(lambda: producer.commit_transaction(20))
        fail_over(3)
    assert read_all(broker, "out", 1, total) == [b"%d" % number for number in range(total)]
    committed = make_consumer(broker, "stepwise")
    assert committed.committed([TopicPartition("events", 0)], 20)[0].offset == total
    committed.close()
    consumer.close()


def patiently(step: Callable[[], None]) -> None:
    """Until it is done; what librdkafka calls retriable is the caller's to repeat."""
    for attempt in range(20):
        try:
            step()
        except KafkaException as error:
            if not error.args[0].retriable() or attempt == 19:
                raise
        else:
            return


def test_a_producer_learns_of_what_an_unclean_election_lost(broker: Minibroker) -> None:
    """Who was out of sync leads: what only the lost leader had is gone, and the producer's sequence has a gap there.
    librdkafka ends with that error, as acknowledged records are lost; the next instance goes on, nothing is doubled."""

    def start() -> Producer:
        return Producer({"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True, **QUIET})

    def send(producer: Producer, first: int, last: int) -> None:
        for number in range(first, last):
            producer.produce("events", b"%d" % number)
        assert producer.flush(30) == 0

    broker.cluster.move_leader("events", 0, 1)
    producer = start()
    send(producer, 0, 5)
    broker.cluster.kill_broker(2)
    broker.cluster.kill_broker(3)
    send(producer, 5, 10)
    broker.cluster.kill_broker(1)
    broker.cluster.start_broker(2)
    assert broker.cluster.leader("events") is None
    broker.cluster.elect("events", 0, unclean=True)
    assert broker.cluster.leader("events") == 2
    broker.cluster.start_broker(1)
    broker.cluster.start_broker(3)
    with pytest.raises(KafkaException) as told:
        send(producer, 10, 15)
    assert told.value.args[0].code() == KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER
    send(start(), 15, 20)
    kept = [b"%d" % number for number in (*range(5), *range(15, 20))]
    assert read_all(broker, "events", 1, len(kept)) == kept
