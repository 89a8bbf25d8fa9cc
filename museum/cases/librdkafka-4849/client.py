"""A transaction that is committed, one that is aborted at once, and one more, all on the same producer."""

import json
import os
import sys
import time

from confluent_kafka import KafkaException, Producer

producer = Producer(
    {"bootstrap.servers": os.environ["BOOTSTRAP_SERVERS"], "transactional.id": "tx", "linger.ms": 0, "log_level": 0}
)
producer.init_transactions(30)


def insist(end):
    for _ in range(20):
        try:
            return end(30)
        except KafkaException as error:
            print(repr(error), flush=True)
            time.sleep(0.3)
    with open(os.environ["MINIBROKER_HISTORY"], "a", encoding="utf-8") as history:
        history.write(json.dumps({"event": "give up", "reason": f"{end.__name__} failed 20 times"}) + "\n")
    sys.exit(1)


for value, end in (("a", producer.commit_transaction), ("b", producer.abort_transaction)):
    producer.begin_transaction()
    producer.produce("orders", value, partition=0)
    time.sleep(0.1)
    insist(end)
producer.begin_transaction()
producer.produce("orders", "c", partition=0)
insist(producer.commit_transaction)
