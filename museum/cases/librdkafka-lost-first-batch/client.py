"""Sends four records to an empty partition, one record a batch, several batches under way."""

import json
import os

from confluent_kafka import Consumer, Producer, TopicPartition

TOPIC, WAIT = "orders", 30
COMMON = {"bootstrap.servers": os.environ["BOOTSTRAP_SERVERS"], "log_level": 0}
history = open(os.environ["MINIBROKER_HISTORY"], "a", encoding="utf-8")


def tell(event, value, **more):
    history.write(json.dumps({"event": event, "topic": TOPIC, "value": value, **more}) + "\n")


def delivered(error, message):
    if error is None:
        tell("ack", message.value().decode())


# Nothing is known of the topic yet: all wait for its metadata, and leave together.
producer = Producer({**COMMON, "enable.idempotence": True, "batch.num.messages": 1})
for number in range(4):
    tell("send", f"v{number}")
    producer.produce(TOPIC, f"v{number}", partition=0, on_delivery=delivered)
producer.flush(WAIT)
reader = Consumer({**COMMON, "group.id": "g", "isolation.level": "read_committed", "enable.partition.eof": True})
reader.assign([TopicPartition(TOPIC, 0, 0)])
while not (found := reader.poll(WAIT)).error():
    tell("read", found.value().decode(), partition=0, offset=found.offset())
reader.close()
history.close()
