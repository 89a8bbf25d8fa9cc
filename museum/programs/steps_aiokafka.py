"""The steps with aiokafka, whose producers work only while the event loop runs."""

import asyncio
import sys

from aiokafka import AIOKafkaProducer
from steps import SERVERS, SETTINGS, TOPIC, say, told


class Client:
    async def open(self, identity=None):
        more = {"transactional_id": identity} if identity else {"enable_idempotence": True}
        self.producer = AIOKafkaProducer(bootstrap_servers=SERVERS, **more, **SETTINGS)
        await self.producer.start()
        self.begin, self.flush = self.producer.begin_transaction, self.producer.flush
        self.commit, self.abort = self.producer.commit_transaction, self.producer.abort_transaction

    async def send(self, value, partition):
        sent = await self.producer.send(TOPIC, value.encode(), partition=int(partition))
        sent.add_done_callback(lambda done: told(value, done.exception()))


async def follow(client):
    while line := await asyncio.to_thread(sys.stdin.readline):
        word, *rest = line.split()
        try:
            await getattr(client, word)(*rest)
            say("ok")
        except Exception as error:
            say(f"error {error!r}")


asyncio.run(follow(Client()))
