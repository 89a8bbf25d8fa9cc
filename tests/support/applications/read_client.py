"""Reads a topic with read_committed until its record `end`, and prints each record, for `minibroker judge --readers`.

The argument names the library.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable

SERVERS, TOPIC, LAST = os.environ["BOOTSTRAP_SERVERS"], os.environ["MINIBROKER_TOPIC"], b"end"


def is_last(offset: int, value: bytes) -> bool:
    """Print the record; True for the last one."""
    print(offset, value.decode(), flush=True)
    return value == LAST


def confluent_kafka() -> None:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    how = {"group.id": "readers", "isolation.level": "read_committed", "enable.auto.commit": False, "log_level": 0}
    consumer = Consumer({"bootstrap.servers": SERVERS, **how})
    consumer.assign([TopicPartition(TOPIC, 0, OFFSET_BEGINNING)])
    last = False
    while not last:
        message = consumer.poll(1)
        last = message is not None and is_last(message.offset(), message.value())
    consumer.close()


async def aiokafka() -> None:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    consumer = AIOKafkaConsumer(bootstrap_servers=SERVERS, isolation_level="read_committed")
    await consumer.start()
    consumer.assign([TopicPartition(TOPIC, 0)])
    await consumer.seek_to_beginning()
    while not is_last(*await next_record(consumer)):
        pass
    await consumer.stop()


async def next_record(consumer: object) -> tuple[int, bytes]:
    message = await consumer.getone()  # type: ignore[attr-defined]
    return message.offset, message.value


def kafka_python() -> None:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(bootstrap_servers=SERVERS, isolation_level="read_committed", enable_auto_commit=False)
    consumer.assign([TopicPartition(TOPIC, 0)])
    consumer.seek_to_beginning()
    for message in consumer:
        if is_last(message.offset, message.value):
            break
    consumer.close()


READERS: dict[str, Callable[[], object]] = {
    "confluent-kafka": confluent_kafka,
    "aiokafka": lambda: asyncio.run(aiokafka()),
    "kafka-python": kafka_python,
}

if __name__ == "__main__":
    READERS[sys.argv[1]]()
