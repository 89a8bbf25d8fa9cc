"""The steps with confluent-kafka."""

from confluent_kafka import KafkaError, Producer
from steps import SERVERS, SETTINGS, TOPIC, follow, told

COMMON = {"bootstrap.servers": SERVERS, "log_level": 0, "linger.ms": 0}


class Client:
    def open(self, identity=None):
        more = {"transactional.id": identity} if identity else {"enable.idempotence": True}
        self.producer = Producer({**COMMON, **more, **SETTINGS})
        if identity:
            self.producer.init_transactions(30)

    def begin(self):
        self.producer.begin_transaction()

    def send(self, value, partition):
        self.producer.produce(TOPIC, value, partition=int(partition), on_delivery=lambda error, _: told(value, error))

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
