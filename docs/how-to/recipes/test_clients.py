"""The same transaction with three clients of Python, against the broker that the plugin gives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

Factory = Callable[..., Any]


def test_confluent_kafka(
    confluent_producer: Factory, confluent_consumer: Factory, unique_topic: str, unique_transactional_id: str
) -> None:
    producer = confluent_producer({"transactional.id": unique_transactional_id})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(unique_topic, b"order")
    producer.commit_transaction(20)
    consumer = confluent_consumer()
    consumer.subscribe([unique_topic])
    assert consumer.poll(20).value() == b"order"


def test_aiokafka(
    aiokafka_producer: Factory, aiokafka_consumer: Factory, unique_topic: str, unique_transactional_id: str
) -> None:
    async def story() -> bytes:
        made = aiokafka_producer(transactional_id=unique_transactional_id)
        async with made as producer, producer.transaction():
            await producer.send(unique_topic, b"order")
        async with aiokafka_consumer(unique_topic) as consumer:
            return bytes((await consumer.getone()).value)

    assert asyncio.run(asyncio.wait_for(story(), 30)) == b"order"


def test_kafka_python(
    bootstrap_servers: str, unique_topic: str, unique_group: str, unique_transactional_id: str
) -> None:
    kafka = pytest.importorskip("kafka")
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap_servers, transactional_id=unique_transactional_id)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(unique_topic, b"order")
    producer.commit_transaction()
    producer.close()
    consumer = kafka.KafkaConsumer(
        unique_topic,
        bootstrap_servers=bootstrap_servers,
        group_id=unique_group,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        consumer_timeout_ms=20_000,
    )
    assert next(iter(consumer)).value == b"order"
    consumer.close()
