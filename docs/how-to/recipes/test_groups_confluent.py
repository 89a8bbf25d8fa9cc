"""Four recipes for groups and coordinators, with confluent-kafka and the pytest plugin: copy what you need."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from minibroker import Minibroker

SECONDS = 20
Factory = Callable[..., Any]


def feed(producer: Any, topic: str, *values: bytes) -> None:
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(SECONDS) == 0


def poll_until(consumer: Any, reached: Callable[[], object]) -> None:
    """Heartbeats, joins and callbacks happen while the consumer is polled."""
    end = time.monotonic() + SECONDS
    while not reached():
        assert time.monotonic() < end
        consumer.poll(0.1)


def next_message(consumer: Any) -> Any:
    """The next message; errors that the client overcomes by itself are passed over."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            return message
    raise TimeoutError


def test_a_rebalance_in_the_middle_of_a_transaction(
    minibroker: Minibroker,
    confluent_producer: Factory,
    confluent_consumer: Factory,
    unique_name: Callable[[str], str],
    unique_topic: str,
    unique_group: str,
    unique_transactional_id: str,
) -> None:
    feed(confluent_producer(), unique_topic, b"in")
    output = unique_name("output")
    minibroker.state.create_topic(topic=output)
    assigned: list[object] = []
    consumer = confluent_consumer({"enable.auto.commit": False, "heartbeat.interval.ms": 100})
    consumer.subscribe([unique_topic], on_assign=lambda _, partitions: assigned.append(partitions))
    producer = confluent_producer({"transactional.id": unique_transactional_id})
    producer.init_transactions(SECONDS)

    def process(in_the_middle: Callable[[], object]) -> None:
        message = next_message(consumer)
        producer.begin_transaction()
        producer.produce(output, message.value())
        generation = consumer.consumer_group_metadata()
        in_the_middle()
        done = [TopicPartition(message.topic(), message.partition(), message.offset() + 1)]
        producer.send_offsets_to_transaction(done, generation, SECONDS)
        producer.commit_transaction(SECONDS)

    def rebalance() -> None:
        minibroker.state.rebalance_group(group=unique_group)
        poll_until(consumer, lambda: len(assigned) == 2)

    with pytest.raises(KafkaException) as raised:
        process(rebalance)
    assert raised.value.args[0].code() == KafkaError.ILLEGAL_GENERATION
    assert raised.value.args[0].txn_requires_abort()
    producer.abort_transaction(SECONDS)
    consumer.seek(TopicPartition(unique_topic, 0, 0))  # it had been read, and is not committed
    process(lambda: None)
    minibroker.wait_for_records(output, isolation="read_committed", timeout=SECONDS)
    assert [record.value for record in minibroker.records(output, isolation="read_committed")] == [b"in"]
    assert minibroker.committed(unique_group) == {(unique_topic, 0): 1}


def test_a_member_is_thrown_out(
    minibroker: Minibroker,
    confluent_producer: Factory,
    confluent_consumer: Factory,
    unique_topic: str,
    unique_group: str,
) -> None:
    feed(confluent_producer(), unique_topic, b"1")
    lost: list[object] = []
    consumer = confluent_consumer({"client.id": "worker-1", "enable.auto.commit": False, "heartbeat.interval.ms": 100})
    consumer.subscribe([unique_topic], on_lost=lambda _, partitions: lost.append(partitions))
    message = next_message(consumer)
    minibroker.state.remove_member(group=unique_group, member="worker-1")
    with pytest.raises(KafkaException) as raised:
        consumer.commit(message, asynchronous=False)
    assert raised.value.args[0].code() == KafkaError.UNKNOWN_MEMBER_ID
    assert next_message(consumer).offset() == 0  # it is back, and begins where the group stands
    assert len(lost) == 1  # what it held could have been another's in between
    minibroker.clock.advance(minutes=1, sessions=True)  # the same by time: no heartbeat for a minute
    assert next_message(consumer).offset() == 0
    assert len(lost) == 2
    assert minibroker.committed(unique_group) == {}


@pytest.mark.minibroker(config={"broker.session.timeout.ms": "1000", "broker.heartbeat.interval.ms": "100"})
def test_two_coordinators_with_one_transactional_id(
    minibroker_cluster: Minibroker, confluent_producer: Factory, unique_topic: str, unique_transactional_id: str
) -> None:
    """The old coordinator cannot hear the cluster and still serves the old producer; a new one serves its successor."""
    cluster = minibroker_cluster.cluster
    config = {"transactional.id": unique_transactional_id, "transaction.timeout.ms": 60_000}
    first = confluent_producer(config)
    first.init_transactions(SECONDS)
    first.begin_transaction()
    first.produce(unique_topic, b"zombie")
    assert first.flush(SECONDS) == 0
    old = cluster.coordinator("transaction", unique_transactional_id)
    assert old is not None
    for other in (-1, *(node for node in cluster.broker_ids if node != old)):
        cluster.cut_link(old, other)
    end = time.monotonic() + SECONDS
    while cluster.coordinator("transaction", unique_transactional_id) in (None, old):
        assert time.monotonic() < end
        time.sleep(0.05)
    addresses = zip(cluster.broker_ids, minibroker_cluster.bootstrap_servers.split(","), strict=True)
    others = ",".join(address for node, address in addresses if node != old)  # the old one still names itself
    successor = confluent_producer({**config, "bootstrap.servers": others})
    successor.init_transactions(SECONDS)  # aborts what the zombie left, by the new coordinator's word
    minibroker_cluster.state.restore()
    with pytest.raises(KafkaException) as raised:
        first.commit_transaction(SECONDS)
    assert raised.value.args[0].fatal()
    successor.begin_transaction()
    successor.produce(unique_topic, b"successor")
    successor.commit_transaction(SECONDS)
    minibroker_cluster.wait_for_records(unique_topic, isolation="read_committed", timeout=SECONDS)
    found = minibroker_cluster.records(unique_topic, isolation="read_committed")
    assert [record.value for record in found] == [b"successor"]


@pytest.mark.minibroker(config={"group.min.session.timeout.ms": "100", "group.initial.rebalance.delay.ms": "0"})
def test_a_consumer_slower_than_max_poll_interval(
    minibroker: Minibroker,
    confluent_producer: Factory,
    confluent_consumer: Factory,
    unique_topic: str,
    unique_group: str,
) -> None:
    """This time is the client's own, and real: the slow one leaves the group by itself after a second."""
    feed(confluent_producer(), unique_topic, b"1")
    config = {"enable.auto.commit": False, "heartbeat.interval.ms": 100}
    slow = confluent_consumer({**config, "max.poll.interval.ms": 1000, "session.timeout.ms": 1000})
    slow.subscribe([unique_topic])
    message = next_message(slow)  # and works at it for too long
    other = confluent_consumer({**config, "session.timeout.ms": 6000})
    other.subscribe([unique_topic])
    again = next_message(other)
    assert again.value() == message.value() == b"1"
    with pytest.raises(KafkaException):
        slow.commit(message, asynchronous=False)
    assert slow.poll(SECONDS).error().code() == KafkaError._MAX_POLL_EXCEEDED
    other.commit(again, asynchronous=False)
    assert minibroker.committed(unique_group) == {(unique_topic, 0): 1}
