"""A plan with confluent-kafka."""

import time

from confluent_kafka import KafkaError, Producer
from plan import SERVERS, SETTINGS, TOPIC, follow


class Client:
    sleep = staticmethod(time.sleep)

    def open(self, identity):
        more = {"transactional.id": identity} if identity else {"enable.idempotence": True}
        self.producer = Producer({"bootstrap.servers": SERVERS, "log_level": 0, "linger.ms": 0, **more, **SETTINGS})
        if identity:
            self.producer.init_transactions(30)

    def begin(self):
        self.producer.begin_transaction()

    def send(self, value, partition, acked):
        self.producer.produce(
            TOPIC, value, partition=partition, on_delivery=lambda error, _: print(value, error) if error else acked()
        )

    def flush(self):
        try:
            self.producer.flush(30)
        except KafkaError as error:  # a fatal one, and no Exception
            raise RuntimeError(str(error)) from None

    def commit(self):
        self.producer.commit_transaction(30)

    def abort(self):
        self.producer.abort_transaction(30)


follow(Client())
