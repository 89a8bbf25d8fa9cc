"""An application of each client library for `minibroker judge`: the argument names the library.

It sends idempotently, then in transactions of which it aborts every third, goes on with another producer when one fails
or is fenced, without sending again, reads everything back with read_committed, and writes down what it believes.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from contextlib import suppress
from typing import Any

SERVERS, TOPIC, ID = os.environ["BOOTSTRAP_SERVERS"], "orders", "tx"
SENDS, TRANSACTIONS, IN_ONE = 5, 6, 2
WAIT = 30.0


def tell(event: str, **fields: object) -> None:
    with open(os.environ["MINIBROKER_HISTORY"], "a", encoding="utf-8") as file:
        file.write(json.dumps({"event": event, "topic": TOPIC, **fields}) + "\n")


def values(transaction: int) -> list[str]:
    return [f"t{transaction}-{number}" for number in range(IN_ONE)]


def confluent() -> None:
    from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

    common = {"bootstrap.servers": SERVERS, "log_level": 0, "linger.ms": 0}

    def acked(error: Any, message: Any) -> None:
        if error is None:
            tell("ack", value=bytes(message.value() or b"").decode())

    idempotent = {**common, "enable.idempotence": True}
    plain = Producer(idempotent)
    for number in range(SENDS):
        tell("send", value=f"i{number}")
        try:
            plain.produce(TOPIC, f"i{number}", on_delivery=acked)
            plain.flush(WAIT)
        except KafkaException:
            plain = Producer(idempotent)

    def new() -> Producer:
        made = Producer({**common, "transactional.id": ID})
        made.init_transactions(WAIT)
        return made

    sender = new()
    for transaction in range(TRANSACTIONS):
        sender.begin_transaction()
        for value in values(transaction):
            tell("send", value=value, transaction=transaction)
            sender.produce(TOPIC, value)
        sender.flush(WAIT)
        try:
            if transaction % 3 == 2:
                sender.abort_transaction(WAIT)
                tell("end", transaction=transaction, outcome="abort")
            else:
                sender.commit_transaction(WAIT)
                tell("end", transaction=transaction, outcome="commit")
        except KafkaException:
            sender = new()
    reader = Consumer({**common, "group.id": "g", "isolation.level": "read_committed", "enable.partition.eof": True})
    reader.assign([TopicPartition(TOPIC, 0, 0)])
    deadline = time.monotonic() + WAIT
    while time.monotonic() < deadline:
        message = reader.poll(0.2)
        if message is None:
            continue
        if message.error() is not None:
            break
        tell("read", partition=0, offset=message.offset(), value=bytes(message.value() or b"").decode())
    reader.close()


async def aiokafka() -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
    from aiokafka.errors import KafkaError

    async def new(**how: Any) -> Any:
        made = AIOKafkaProducer(bootstrap_servers=SERVERS, **how)
        await made.start()
        return made

    plain = await new(enable_idempotence=True)
    for number in range(SENDS):
        tell("send", value=f"i{number}")
        try:
            await plain.send_and_wait(TOPIC, f"i{number}".encode(), partition=0)
            tell("ack", value=f"i{number}")
        except KafkaError:
            await plain.stop()
            plain = await new(enable_idempotence=True)
    await plain.stop()
    sender = await new(transactional_id=ID)
    for transaction in range(TRANSACTIONS):
        try:
            await sender.begin_transaction()
            for value in values(transaction):
                tell("send", value=value, transaction=transaction)
                await sender.send_and_wait(TOPIC, value.encode(), partition=0)
            if transaction % 3 == 2:
                await sender.abort_transaction()
                tell("end", transaction=transaction, outcome="abort")
            else:
                await sender.commit_transaction()
                tell("end", transaction=transaction, outcome="commit")
        except KafkaError:
            await sender.stop()
            sender = await new(transactional_id=ID)
    await sender.stop()
    reader = AIOKafkaConsumer(
        TOPIC, bootstrap_servers=SERVERS, isolation_level="read_committed", auto_offset_reset="earliest"
    )
    await reader.start()
    quiet = 0
    while quiet < 3:
        batches = await reader.getmany(timeout_ms=300)
        quiet = 0 if batches else quiet + 1
        for records in batches.values():
            for record in records:
                tell("read", partition=0, offset=record.offset, value=record.value.decode())
    await reader.stop()


def kafka_python() -> None:
    from kafka import KafkaConsumer, KafkaProducer
    from kafka.errors import KafkaError

    def close(failed: Any) -> None:
        with suppress(KafkaError):
            failed.close(timeout=1)

    plain = KafkaProducer(bootstrap_servers=SERVERS, enable_idempotence=True)
    for number in range(SENDS):
        tell("send", value=f"i{number}")
        try:
            plain.send(TOPIC, f"i{number}".encode(), partition=0).get(WAIT)
            tell("ack", value=f"i{number}")
        except KafkaError:
            close(plain)
            plain = KafkaProducer(bootstrap_servers=SERVERS, enable_idempotence=True)
    plain.close()

    def new() -> Any:
        made = KafkaProducer(bootstrap_servers=SERVERS, transactional_id=ID)
        made.init_transactions()
        return made

    sender = new()
    for transaction in range(TRANSACTIONS):
        try:
            sender.begin_transaction()
            for value in values(transaction):
                tell("send", value=value, transaction=transaction)
                sender.send(TOPIC, value.encode(), partition=0).get(WAIT)
            if transaction % 3 == 2:
                sender.abort_transaction()
                tell("end", transaction=transaction, outcome="abort")
            else:
                sender.commit_transaction()
                tell("end", transaction=transaction, outcome="commit")
        except KafkaError:
            close(sender)
            sender = new()
    sender.close()
    reader = KafkaConsumer(
        TOPIC,
        bootstrap_servers=SERVERS,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        consumer_timeout_ms=1500,
    )
    for record in reader:
        tell("read", partition=0, offset=record.offset, value=record.value.decode())
    reader.close()


if __name__ == "__main__":
    library = sys.argv[1]
    if library == "aiokafka":
        asyncio.run(aiokafka())
    else:
        {"confluent-kafka": confluent, "kafka-python": kafka_python}[library]()
