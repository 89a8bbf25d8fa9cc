"""Sends to two partitions with one producer, one record a batch, several batches under way."""

import json
import os
import time

from confluent_kafka import Consumer, Producer, TopicPartition

TOPIC, WAIT = "orders", 30
COMMON = {"bootstrap.servers": os.environ["BOOTSTRAP_SERVERS"], "log_level": 0}
history = open(os.environ["MINIBROKER_HISTORY"], "a", encoding="utf-8")


def tell(event, value, **more):
    history.write(json.dumps({"event": event, "topic": TOPIC, "value": value, **more}) + "\n")


def delivered(error, message):
    if error is None:
        tell("ack", message.value().decode())


producer = Producer({**COMMON, "batch.num.messages": 1, "enable.idempotence": True})
for value, partition in [("p0-0", 0), ("p0-1", 0), ("p0-2", 0), ("p0-3", 0), ("p1-0", 1)]:
    time.sleep(partition)  # partitions take turns: the second one is to be the last under way
    tell("send", value, partition=partition)
    producer.produce(TOPIC, value, partition=partition, on_delivery=delivered)
producer.flush(WAIT)
reader = Consumer({**COMMON, "group.id": "g", "isolation.level": "read_committed", "enable.partition.eof": True})
for partition in (0, 1):
    reader.assign([TopicPartition(TOPIC, partition, 0)])
    while not (found := reader.poll(WAIT)).error():
        tell("read", found.value().decode(), partition=partition, offset=found.offset())
reader.close()
history.close()
