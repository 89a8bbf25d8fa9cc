"""Sends one record in each of two transactions."""

import json
import os

from kafka import KafkaProducer

TOPIC = "orders"
history = open(os.environ["MINIBROKER_HISTORY"], "a", encoding="utf-8")


def tell(event, **more):
    history.write(json.dumps({"event": event, "topic": TOPIC, **more}) + "\n")
    history.flush()


producer = KafkaProducer(bootstrap_servers=os.environ["BOOTSTRAP_SERVERS"], transactional_id="tx")
producer.init_transactions()
for transaction in range(2):
    producer.begin_transaction()
    tell("send", value=f"v{transaction}", transaction=transaction)
    producer.send(TOPIC, f"v{transaction}".encode())
    producer.commit_transaction()
    tell("end", transaction=transaction, outcome="commit")
producer.close()
