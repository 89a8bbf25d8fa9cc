"""A plan with kafka-python."""

import time

from kafka import KafkaProducer
from plan import SERVERS, SETTINGS, TOPIC, follow


class Client:
    sleep = staticmethod(time.sleep)

    def open(self, identity):
        more = {"transactional_id": identity} if identity else {"enable_idempotence": True}
        self.producer = KafkaProducer(bootstrap_servers=SERVERS, **more, **SETTINGS)
        if identity:
            self.producer.init_transactions()

    def begin(self):
        self.producer.begin_transaction()

    def send(self, value, partition, acked):
        sent = self.producer.send(TOPIC, value.encode(), partition=partition)
        sent.add_callback(lambda _: acked())
        sent.add_errback(lambda error: print(value, repr(error)))

    def flush(self):
        self.producer.flush(30)

    def commit(self):
        self.producer.commit_transaction()

    def abort(self):
        self.producer.abort_transaction()


follow(Client())
