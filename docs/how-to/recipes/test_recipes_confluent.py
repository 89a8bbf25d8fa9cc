"""Ten recipes, each for one failure, with confluent-kafka and the pytest plugin: copy what you need."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from minibroker import Minibroker
from minibroker.faults import ApplyThenError, Delay, Do, DropReply, Error, Hold

SECONDS = 20
Factory = Callable[..., Any]


@pytest.fixture
def producer(confluent_producer: Factory, unique_transactional_id: str) -> Any:
    """A transactional producer that has been initialised."""
    made = confluent_producer({"transactional.id": unique_transactional_id, "transaction.timeout.ms": 60_000})
    made.init_transactions(SECONDS)
    return made


def committed(broker: Minibroker, topic: str, wanted: int = 1) -> list[bytes | None]:
    """What a read_committed consumer would find, once there are `wanted` records: markers come after the commit."""
    broker.wait_for_records(topic, wanted, isolation="read_committed", timeout=SECONDS)
    return [record.value for record in broker.records(topic, isolation="read_committed")]


def send(producer: Any, topic: str, *values: bytes) -> None:
    """One committed transaction."""
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value)
    producer.commit_transaction(SECONDS)


def test_1_timeout_in_the_middle_of_a_transaction(minibroker: Minibroker, producer: Any, unique_topic: str) -> None:
    producer.begin_transaction()
    producer.produce(unique_topic, b"late")
    producer.flush(SECONDS)
    minibroker.clock.advance(120)  # the coordinator aborts it
    with pytest.raises(KafkaException) as raised:
        producer.commit_transaction(SECONDS)
    assert raised.value.args[0].fatal() or raised.value.args[0].txn_requires_abort()
    assert minibroker.records(unique_topic, isolation="read_committed") == []


def test_2_a_zombie_is_fenced(
    minibroker: Minibroker,
    confluent_producer: Factory,
    producer: Any,
    unique_transactional_id: str,
    unique_topic: str,
) -> None:
    producer.begin_transaction()
    producer.produce(unique_topic, b"zombie")
    producer.flush(SECONDS)
    successor = confluent_producer({"transactional.id": unique_transactional_id})
    successor.init_transactions(SECONDS)  # aborts what the zombie left
    with pytest.raises(KafkaException) as raised:
        producer.commit_transaction(SECONDS)
    assert raised.value.args[0].fatal()
    send(successor, unique_topic, b"successor")
    assert committed(minibroker, unique_topic) == [b"successor"]


def test_3_the_reply_to_end_txn_is_lost(minibroker: Minibroker, producer: Any, unique_topic: str) -> None:
    with minibroker.faults.inject("EndTxn", DropReply()):
        send(producer, unique_topic, b"once")  # the client asks again and learns that it is committed
    assert committed(minibroker, unique_topic) == [b"once"]


def test_4_the_coordinator_fails_over_between_log_and_reply(
    minibroker_cluster: Minibroker,
    producer: Any,
    unique_transactional_id: str,
    unique_topic: str,
) -> None:
    send(producer, unique_topic, b"first")
    at = minibroker_cluster.cluster.coordinator("transaction", unique_transactional_id)
    with minibroker_cluster.faults.inject("EndTxn", Do("kill_broker", {"broker": at}, when="after")):
        send(producer, unique_topic, b"second")
    assert committed(minibroker_cluster, unique_topic, 2) == [b"first", b"second"]


def test_5_the_partition_no_longer_knows_the_producer(minibroker: Minibroker, producer: Any, unique_topic: str) -> None:
    send(producer, unique_topic, b"1")
    minibroker.state.lose_producer_state(topic=unique_topic, partition=0)
    send(producer, unique_topic, b"2")
    assert committed(minibroker, unique_topic, 2) == [b"1", b"2"]


def test_6_a_produce_reply_is_lost(minibroker: Minibroker, confluent_producer: Factory, unique_topic: str) -> None:
    idempotent = confluent_producer({"enable.idempotence": True})
    with minibroker.faults.inject("Produce", DropReply(), topic=unique_topic):
        idempotent.produce(unique_topic, b"once")
        assert idempotent.flush(SECONDS) == 0
    assert committed(minibroker, unique_topic) == [b"once"]


def test_7_too_few_replicas_after_the_append(
    minibroker: Minibroker, confluent_producer: Factory, unique_topic: str
) -> None:
    idempotent = confluent_producer({"enable.idempotence": True})
    with minibroker.faults.inject("Produce", ApplyThenError("NOT_ENOUGH_REPLICAS_AFTER_APPEND"), topic=unique_topic):
        idempotent.produce(unique_topic, b"once")
        assert idempotent.flush(SECONDS) == 0
    assert committed(minibroker, unique_topic) == [b"once"]


def test_8_a_transaction_hangs_in_prepare_commit(
    minibroker: Minibroker,
    producer: Any,
    unique_transactional_id: str,
    unique_topic: str,
) -> None:
    minibroker.state.hold_markers(transactional_id=unique_transactional_id)
    send(producer, unique_topic, b"decided")
    assert minibroker.records(unique_topic, isolation="read_committed") == []  # committed, and still invisible
    minibroker.state.release_markers()
    assert committed(minibroker, unique_topic) == [b"decided"]


def test_9_a_slow_broker_at_the_worst_moment(minibroker: Minibroker, producer: Any, unique_topic: str) -> None:
    with minibroker.faults.inject("AddPartitionsToTxn", Error("CONCURRENT_TRANSACTIONS"), times=3):
        send(producer, unique_topic, b"1")
    with minibroker.faults.inject("EndTxn", Delay(500, when="after")):
        send(producer, unique_topic, b"2")
    assert committed(minibroker, unique_topic, 2) == [b"1", b"2"]


def test_10_an_offset_commit_waits_while_the_group_goes_on(
    minibroker: Minibroker,
    confluent_producer: Factory,
    confluent_consumer: Factory,
    unique_topic: str,
    unique_group: str,
) -> None:
    sender = confluent_producer()
    sender.produce(unique_topic, b"1")
    sender.flush(SECONDS)
    consumer = confluent_consumer({"enable.auto.commit": False})
    consumer.subscribe([unique_topic])
    message = consumer.poll(SECONDS)
    outcome: list[Any] = []
    with minibroker.faults.inject("OffsetCommit", Hold()) as fault:
        thread = threading.Thread(target=lambda: outcome.append(consumer.commit(message, asynchronous=False)))
        thread.start()
        fault.wait(1)
        assert outcome == []
        fault.release()
        thread.join(SECONDS)
    assert outcome[0][0].error is None or outcome[0][0].error.code() == KafkaError.NO_ERROR
    assert minibroker.committed(unique_group) == {(unique_topic, 0): 1}
