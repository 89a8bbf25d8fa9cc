"""Ten questions about exactly-once, each answered by a test: docs/how-to/questions.md has the answers in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaException, TopicPartition

from minibroker import Minibroker

SECONDS = 20
Factory = Callable[..., Any]


@pytest.fixture
def producer(confluent_producer: Factory, unique_transactional_id: str) -> Any:
    """A transactional producer with an open transaction."""
    made = confluent_producer({"transactional.id": unique_transactional_id})
    made.init_transactions(SECONDS)
    made.begin_transaction()
    return made


def send(producer: Any, topic: str, value: bytes) -> None:
    """Write one record; it has its offset when this returns."""
    producer.produce(topic, value)
    producer.flush(SECONDS)


def send_offset(producer: Any, consumer: Any, topic: str, offset: int) -> None:
    """Commit an offset of the consumer's group in the open transaction."""
    consumer.subscribe([topic])
    consumer.poll(0)
    group = consumer.consumer_group_metadata()
    producer.send_offsets_to_transaction([TopicPartition(topic, 0, offset)], group, SECONDS)


def values(broker: Minibroker, topic: str, isolation: Any = "read_committed") -> list[bytes | None]:
    return [record.value for record in broker.records(topic, isolation=isolation)]


def test_1_why_does_the_lag_stay_1(
    minibroker: Minibroker, producer: Any, confluent_consumer: Factory, unique_topic: str
) -> None:
    send(producer, unique_topic, b"one")
    producer.commit_transaction(SECONDS)
    minibroker.wait_for_records(unique_topic, 1, isolation="read_committed")
    consumer = confluent_consumer()
    consumer.assign([TopicPartition(unique_topic, 0, 0)])
    assert consumer.poll(SECONDS).offset() == 0
    low, high = consumer.get_watermark_offsets(TopicPartition(unique_topic, 0), SECONDS)
    assert (low, high) == (0, 2)  # the commit marker has offset 1, and no consumer is ever given it


def test_2_does_a_crash_leave_duplicates(
    minibroker: Minibroker, producer: Any, confluent_producer: Factory, unique_transactional_id: str, unique_topic: str
) -> None:
    send(producer, unique_topic, b"order 7")  # and now the program crashes
    again = confluent_producer({"transactional.id": unique_transactional_id})
    again.init_transactions(SECONDS)  # aborts what the crashed one left
    again.begin_transaction()
    send(again, unique_topic, b"order 7")
    again.commit_transaction(SECONDS)
    minibroker.wait_for_records(unique_topic, 1, isolation="read_committed")
    assert values(minibroker, unique_topic) == [b"order 7"]
    assert values(minibroker, unique_topic, "read_uncommitted") == [b"order 7", b"order 7"]


def test_3_is_a_producer_idempotent_over_a_restart(
    minibroker: Minibroker, confluent_producer: Factory, unique_topic: str
) -> None:
    for _ in range(2):  # the program starts again, and sends what it is not sure of
        send(confluent_producer({"enable.idempotence": True}), unique_topic, b"order 7")
    first, second = minibroker.records(unique_topic)
    assert first.value == second.value
    assert first.producer_id != second.producer_id  # to the broker they are two producers


def test_4_why_do_i_read_records_that_were_aborted(
    minibroker: Minibroker, producer: Any, confluent_consumer: Factory, unique_topic: str
) -> None:
    send(producer, unique_topic, b"aborted")
    producer.abort_transaction(SECONDS)
    consumer = confluent_consumer({"isolation.level": "read_uncommitted"})  # the default of the Java client
    consumer.assign([TopicPartition(unique_topic, 0, 0)])
    assert consumer.poll(SECONDS).value() == b"aborted"
    assert values(minibroker, unique_topic) == []  # read_committed


def test_5_why_are_the_offsets_not_committed_yet(
    minibroker: Minibroker, producer: Any, confluent_consumer: Factory, unique_topic: str, unique_group: str
) -> None:
    send_offset(producer, confluent_consumer(), unique_topic, 5)
    assert minibroker.committed(unique_group) == {}  # pending, until the transaction ends
    producer.commit_transaction(SECONDS)
    assert minibroker.wait_for_committed(unique_group, unique_topic, 5) == {(unique_topic, 0): 5}


def test_6_does_an_abort_take_the_offsets_back(
    minibroker: Minibroker, producer: Any, confluent_consumer: Factory, unique_topic: str, unique_group: str
) -> None:
    send_offset(producer, confluent_consumer(), unique_topic, 5)
    producer.abort_transaction(SECONDS)
    assert minibroker.committed(unique_group) == {}  # and the consumer's position stays: seek, or lose the records


def test_7_what_happens_after_the_timeout(minibroker: Minibroker, producer: Any, unique_topic: str) -> None:
    send(producer, unique_topic, b"slow")
    minibroker.clock.advance(minutes=2)  # transaction.timeout.ms is one minute, and the sweep comes each 10 s
    with pytest.raises(KafkaException) as raised:
        producer.commit_transaction(SECONDS)
    assert raised.value.args[0].fatal() or raised.value.args[0].txn_requires_abort()
    assert values(minibroker, unique_topic) == []


def test_8_why_does_my_consumer_stop_at_an_offset(
    minibroker: Minibroker, producer: Any, confluent_producer: Factory, unique_topic: str
) -> None:
    send(producer, unique_topic, b"open")
    send(confluent_producer(), unique_topic, b"written later, by another")
    assert values(minibroker, unique_topic) == []  # nothing after the first open transaction
    (line,) = [line for line in minibroker.waits() if unique_topic in line and "read_committed" in line]
    assert f"{unique_topic}-0 from offset 0" in line
    producer.commit_transaction(SECONDS)
    assert len(minibroker.wait_for_records(unique_topic, 2, isolation="read_committed")) == 2


def test_9_may_two_instances_share_a_transactional_id(
    producer: Any, confluent_producer: Factory, unique_transactional_id: str, unique_topic: str
) -> None:
    send(producer, unique_topic, b"first instance")
    confluent_producer({"transactional.id": unique_transactional_id}).init_transactions(SECONDS)
    with pytest.raises(KafkaException) as raised:
        producer.commit_transaction(SECONDS)
    assert raised.value.args[0].fatal()  # fenced: it has to end


def test_10_is_it_committed_when_the_reply_is_lost(minibroker: Minibroker, producer: Any, unique_topic: str) -> None:
    send(producer, unique_topic, b"once")
    with minibroker.faults.inject("EndTxn", "drop_reply"):
        producer.commit_transaction(SECONDS)  # the client asks again, and the broker knows that it is done
    minibroker.wait_for_records(unique_topic, 1, isolation="read_committed")
    assert values(minibroker, unique_topic) == [b"once"]
