"""A program for the scoreboard, with confluent-kafka: `right`, or with offsets committed `outside` of the transaction
after it, or before it (`careless`)."""

import os
import sys
from typing import Any

from confluent_kafka import Consumer, Producer

way = sys.argv[1]
group = os.environ["GROUP"]
common: dict[str, Any] = {"bootstrap.servers": os.environ["BOOTSTRAP_SERVERS"], "socket.timeout.ms": 5000}
consumer = Consumer({**common, "group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False})
producer = Producer({**common, "transactional.id": group})
consumer.subscribe([os.environ["INPUT_TOPIC"]])
producer.init_transactions(30)
while True:
    records = [record for record in consumer.consume(6, 0.5) if record.error() is None]
    if not records:
        continue
    if way == "careless":
        consumer.commit(asynchronous=False)
    producer.begin_transaction()
    for record in records:
        producer.produce(os.environ["OUTPUT_TOPIC"], record.value(), record.key())
    if way == "right":
        places = consumer.position(consumer.assignment())
        producer.send_offsets_to_transaction(places, consumer.consumer_group_metadata(), 30)
    producer.commit_transaction(30)
    if way == "outside":
        consumer.commit(asynchronous=False)
