"""The steps with kafka-python."""

from kafka import KafkaProducer
from steps import SERVERS, SETTINGS, TOPIC, follow, told


class Client:
    def open(self, identity=None):
        more = {"transactional_id": identity} if identity else {"enable_idempotence": True}
        self.producer = KafkaProducer(bootstrap_servers=SERVERS, **more, **SETTINGS)
        if identity:
            self.producer.init_transactions()

    def begin(self):
        self.producer.begin_transaction()

    def send(self, value, partition):
        sent = self.producer.send(TOPIC, value.encode(), partition=int(partition))
        sent.add_callback(lambda _: told(value, None))
        sent.add_errback(lambda error: told(value, error))

    def flush(self):
        self.producer.flush(30)

    def commit(self):
        self.producer.commit_transaction()

    def abort(self):
        self.producer.abort_transaction()


follow(Client())
