"""Sends four records one after the other, each until it is acknowledged, with at most 20 tries."""

import asyncio
import json
import os

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

TOPIC = "orders"


def give_up(reason):
    with open(os.environ["MINIBROKER_HISTORY"], "a", encoding="utf-8") as history:
        history.write(json.dumps({"event": "give up", "reason": reason}) + "\n")


async def main():
    servers = os.environ["BOOTSTRAP_SERVERS"]
    async with AIOKafkaProducer(bootstrap_servers=servers, enable_idempotence=True) as producer:
        for number in range(4):
            for _ in range(20):
                try:
                    await producer.send_and_wait(TOPIC, f"v{number}".encode(), partition=0)
                    break
                except KafkaError as error:
                    print(f"v{number}: {error!r}")
                    await asyncio.sleep(0.2)
            else:
                give_up(f"v{number} was refused 20 times")
                return


asyncio.run(main())
