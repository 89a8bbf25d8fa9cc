"""A plan with aiokafka."""

import asyncio

from aiokafka import AIOKafkaProducer
from plan import SERVERS, SETTINGS, TOPIC, follow

LOOP = asyncio.new_event_loop()


def wait(work):
    return LOOP.run_until_complete(work)


class Client:
    producer = None

    def open(self, identity):
        more = {"transactional_id": identity} if identity else {"enable_idempotence": True}

        async def started():
            self.producer = AIOKafkaProducer(bootstrap_servers=SERVERS, **more, **SETTINGS)
            await self.producer.start()

        wait(started())

    def begin(self):
        wait(self.producer.begin_transaction())

    def send(self, value, partition, acked):
        future = wait(self.producer.send(TOPIC, value.encode(), partition=partition))
        future.add_done_callback(lambda done: print(value, repr(done.exception())) if done.exception() else acked())

    def flush(self):
        wait(self.producer.flush())

    def commit(self):
        wait(self.producer.commit_transaction())

    def abort(self):
        wait(self.producer.abort_transaction())

    def sleep(self, seconds):
        wait(asyncio.sleep(seconds))


follow(Client())
