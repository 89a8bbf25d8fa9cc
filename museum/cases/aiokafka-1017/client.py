"""Sends four records one after the other, each again and again until it is acknowledged."""

import asyncio
import os

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

TOPIC = "orders"


async def main():
    servers = os.environ["BOOTSTRAP_SERVERS"]
    async with AIOKafkaProducer(bootstrap_servers=servers, enable_idempotence=True) as producer:
        for number in range(4):
            while True:
                try:
                    await producer.send_and_wait(TOPIC, f"v{number}".encode(), partition=0)
                    break
                except KafkaError as error:
                    print(f"v{number}: {error!r}")
                    await asyncio.sleep(0.2)


asyncio.run(main())
