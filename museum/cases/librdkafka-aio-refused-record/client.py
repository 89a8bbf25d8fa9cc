"""Sends three records in one transaction with AIOProducer, one of them too large, and commits it."""

import asyncio
import json
import os

from confluent_kafka.aio import AIOProducer

TOPIC, WAIT = "orders", 30
SERVERS = os.environ["BOOTSTRAP_SERVERS"]
history = open(os.environ["MINIBROKER_HISTORY"], "a", encoding="utf-8")


def tell(event, **more):
    history.write(json.dumps({"event": event, "topic": TOPIC, **more}) + "\n")


async def main():
    producer = AIOProducer({"bootstrap.servers": SERVERS, "transactional.id": "tx", "message.max.bytes": 1000})
    await producer.init_transactions(WAIT)
    await producer.begin_transaction()
    for number in range(3):
        value, key = f"v{number}", "k" * (2000 if number == 1 else 1)
        tell("send", value=value, transaction=0)
        await producer.produce(TOPIC, value, key=key, partition=0)
    await producer.flush()
    await producer.commit_transaction(WAIT)
    tell("end", transaction=0, outcome="commit")
    await producer.close()


asyncio.run(asyncio.wait_for(main(), 2 * WAIT))
history.close()
