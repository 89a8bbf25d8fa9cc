"""Sends three records in one transaction, and commits it."""

import asyncio
import json
import os

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

TOPIC, WAIT = "orders", 30
SERVERS = os.environ["BOOTSTRAP_SERVERS"]
history = open(os.environ["MINIBROKER_HISTORY"], "a", encoding="utf-8")


def tell(event, **more):
    history.write(json.dumps({"event": event, "topic": TOPIC, **more}) + "\n")


async def main():
    async with AIOKafkaProducer(bootstrap_servers=SERVERS, transactional_id="tx") as producer:
        await producer.begin_transaction()
        for number in range(3):
            tell("send", value=f"v{number}", transaction=0)
            await producer.send(TOPIC, f"v{number}".encode(), partition=0)
            await producer.flush()
        await producer.commit_transaction()
        tell("end", transaction=0, outcome="commit")
    reader = AIOKafkaConsumer(bootstrap_servers=SERVERS, isolation_level="read_committed", auto_offset_reset="earliest")
    async with reader:
        reader.assign([place := TopicPartition(TOPIC, 0)])
        end = (await reader.end_offsets([place]))[place]
        while await reader.position(place) < end:
            for records in (await reader.getmany(timeout_ms=500)).values():
                for one in records:
                    tell("read", value=one.value.decode(), partition=0, offset=one.offset)


asyncio.run(asyncio.wait_for(main(), WAIT))
history.close()
