"""Four recipes in front of a running cluster, with confluent-kafka, a proxy and the pytest plugin: copy what you need.

pytest --minibroker-upstream kafka-1:9092 test_proxy_confluent.py; without the option they run on the plugin's broker.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition

from minibroker import Proxy
from minibroker.faults import DropReply, Hold

SECONDS = 20
Factory = Callable[..., Any]


def transactional(make: Factory, transactional_id: str, **config: Any) -> Any:
    made = make({"transactional.id": transactional_id, **config})
    made.init_transactions(SECONDS)
    return made


def committed(make: Factory, topic: str, wanted: int) -> list[bytes]:
    """What a read_committed consumer gets, once it has `wanted` records."""
    consumer = make({"enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes] = []
    while len(found) < wanted:
        found += [message.value() for message in consumer.consume(wanted - len(found), SECONDS)]
    return found


def test_1_the_answer_to_a_commit_is_lost(
    minibroker_proxy: Proxy,
    confluent_producer: Factory,
    confluent_consumer: Factory,
    unique_transactional_id: str,
    unique_topic: str,
) -> None:
    producer = transactional(confluent_producer, unique_transactional_id)
    with minibroker_proxy.faults.inject("EndTxn", DropReply()):
        producer.begin_transaction()
        producer.produce(unique_topic, b"once")
        producer.commit_transaction(SECONDS)  # the client asks again and learns that it is committed
    producer.begin_transaction()
    producer.produce(unique_topic, b"next")
    producer.commit_transaction(SECONDS)
    assert committed(confluent_consumer, unique_topic, 2) == [b"once", b"next"]


def test_2_a_zombie_is_fenced_between_its_commit_and_the_broker(
    minibroker_proxy: Proxy,
    confluent_producer: Factory,
    confluent_consumer: Factory,
    unique_transactional_id: str,
    unique_topic: str,
) -> None:
    zombie = transactional(confluent_producer, unique_transactional_id, **{"client.id": "zombie"})
    zombie.begin_transaction()
    zombie.produce(unique_topic, b"zombie")
    zombie.flush(SECONDS)
    late = minibroker_proxy.faults.inject("EndTxn", Hold(), client_id="zombie")
    raised: list[KafkaException] = []

    def commit() -> None:
        try:
            zombie.commit_transaction(SECONDS)
        except KafkaException as error:
            raised.append(error)

    committing = threading.Thread(target=commit)
    committing.start()
    late.wait()
    successor = transactional(confluent_producer, unique_transactional_id)  # aborts what the zombie left
    late.release()
    committing.join()
    assert raised[0].args[0].fatal()
    successor.begin_transaction()
    successor.produce(unique_topic, b"successor")
    successor.commit_transaction(SECONDS)
    assert committed(confluent_consumer, unique_topic, 1) == [b"successor"]


def test_3_nothing_is_written_before_its_partition_is_in_the_transaction(
    minibroker_proxy: Proxy,
    confluent_producer: Factory,
    confluent_consumer: Factory,
    unique_transactional_id: str,
    unique_topic: str,
) -> None:
    producer = transactional(confluent_producer, unique_transactional_id)
    held = minibroker_proxy.faults.inject("AddPartitionsToTxn", Hold(), transactional_id=unique_transactional_id)
    producer.begin_transaction()
    producer.produce(unique_topic, b"v")
    held.wait()
    assert minibroker_proxy.requests("Produce") == []
    held.release()
    producer.commit_transaction(SECONDS)
    assert committed(confluent_consumer, unique_topic, 1) == [b"v"]


def test_4_a_late_commit_of_an_offset_moves_it_back(
    minibroker_proxy: Proxy, confluent_consumer: Factory, confluent_admin: Any, unique_group: str, unique_topic: str
) -> None:
    """What assigns its partitions itself has no member that could be fenced: so do sinks of Connect that commit the
    offsets of their source in a group of their own."""
    zombie = confluent_consumer({"client.id": "zombie"})
    late = minibroker_proxy.faults.inject("OffsetCommit", Hold(), client_id="zombie", group=unique_group)
    zombie.commit(offsets=[TopicPartition(unique_topic, 0, 10)], asynchronous=True)
    late.wait()
    confluent_consumer().commit(offsets=[TopicPartition(unique_topic, 0, 20)], asynchronous=False)
    assert offset(confluent_admin, unique_group) == 20
    with minibroker_proxy.faults.inject("OffsetCommit", Hold("after"), client_id="zombie") as applied:
        late.release()
        zombie.commit(offsets=[TopicPartition(unique_topic, 0, 11)], asynchronous=True)
        applied.wait()
        assert offset(confluent_admin, unique_group) == 11


def offset(admin: Any, group: str) -> int:
    asked = [ConsumerGroupTopicPartitions(group)]
    (found,) = admin.list_consumer_group_offsets(asked)[group].result(SECONDS).topic_partitions
    committed_offset: int = found.offset
    return committed_offset
