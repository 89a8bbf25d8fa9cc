"""Sends 20,000 small records in large batches; what is reported as failed is sent again by a new producer."""

import json
import os
from contextlib import suppress

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

TOPIC, WAIT = "orders", 30
COMMON = {"bootstrap.servers": os.environ["BOOTSTRAP_SERVERS"], "log_level": 0}
LARGE = {"linger.ms": 100, "batch.num.messages": 100_000}
history = open(os.environ["MINIBROKER_HISTORY"], "a", encoding="utf-8")


def tell(event, value, **more):
    history.write(json.dumps({"event": event, "topic": TOPIC, "value": value, **more}) + "\n")


def delivered(error, message):
    value = message.value().decode()
    failed.append(value) if error else tell("ack", value)


waiting = [f"v{number}" for number in range(20_000)]
for value in waiting:
    tell("send", value)
while waiting:
    failed = []
    producer = Producer({**COMMON, **LARGE, "enable.idempotence": True})
    for value in waiting:
        producer.produce(TOPIC, value, partition=0, on_delivery=delivered)
    for _ in range(2):
        with suppress(KafkaException):  # the fatal error, once
            producer.flush(WAIT)
    waiting = failed
reader = Consumer({**COMMON, "group.id": "g", "isolation.level": "read_committed", "enable.partition.eof": True})
reader.assign([TopicPartition(TOPIC, 0, 0)])
while not (found := reader.poll(WAIT)).error():
    tell("read", found.value().decode(), partition=0, offset=found.offset())
history.close()
