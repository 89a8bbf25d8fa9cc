#!/usr/bin/env bash
# confluent-kafka 2.16.1 (Python 3, Linux).
# Expected: a Message that poll() returned is true, so that `if message and not message.error()` passes every record.
# Seen: bool(message) is len(message), the length of the value. A record with a null value (a tombstone) or an empty one is
# false, and that line drops it. `if message is not None` does not.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
python_packages confluent-kafka==2.16.1
env/bin/python - > seen 2> log << 'PYTHON'
from confluent_kafka import Consumer, Producer

# librdkafka brings a broker for tests along.
consumer = Consumer({"test.mock.num.brokers": 1, "group.id": "g", "auto.offset.reset": "earliest"})
broker = next(iter(consumer.list_topics(timeout=30).brokers.values()))
producer = Producer({"bootstrap.servers": f"{broker.host}:{broker.port}"})
for value in (b"v", None, b""):
    producer.produce("t", key=b"k", value=value)
assert producer.flush(30) == 0
consumer.subscribe(["t"])
messages = []
while len(messages) < 3:
    message = consumer.poll(30)
    assert message is not None
    if not message.error():
        messages.append(message)
for message in messages:
    print(message.value(), bool(message), len(message))
consumer.close()
PYTHON
same seen << 'EXPECTED'
b'v' True 1
None False 0
b'' False 0
EXPECTED
