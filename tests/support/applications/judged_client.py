"""An application of each client library for `minibroker judge`: the argument names the library.

It sends idempotently, then in transactions of which it aborts every third, goes on with another producer when one fails
or is fenced, without sending again, reads everything back with read_committed, and writes down what it believes. With
JUDGED_TIMEOUT_MS it waits no longer than that for a response, and keeps its producer when an idempotent send fails.
With JUDGED_TOGETHER=1 it sends more, waits for all of it at once, and after an error aborts and keeps its producer if
it can. `minibroker judge --search` finds more that way. Killed and started again by a script, it sends other values.
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
TIMEOUT_MS, TOGETHER = int(os.environ.get("JUDGED_TIMEOUT_MS", "0")), os.environ.get("JUDGED_TOGETHER") == "1"
SENDS, TRANSACTIONS, IN_ONE = (20, 6, 6) if TOGETHER else (5, 6, 2)
DELIVERIES = 5
"""How many timeouts of a request a record may take."""
WAIT = 30.0
RESTARTS = int(os.environ.get("MINIBROKER_RESTARTS", "0"))
AGAIN = f"again{RESTARTS}-" if RESTARTS else ""


def tell(event: str, **fields: object) -> None:
    with open(os.environ["MINIBROKER_HISTORY"], "a", encoding="utf-8") as file:
        file.write(json.dumps({"event": event, "topic": TOPIC, "client": f"run {RESTARTS}", **fields}) + "\n")


def values(transaction: int) -> list[str]:
    return [f"{AGAIN}t{transaction}-{number}" for number in range(IN_ONE)]


def idempotent_sends() -> list[list[str]]:
    """The values that are sent, in groups of which each is waited for."""
    every = [f"{AGAIN}i{number}" for number in range(SENDS)]
    return [every] if TOGETHER else [[value] for value in every]


def given_up(transaction: int, *, committing: bool) -> None:
    """A transaction that failed is aborted if nothing asked for its commit."""
    if not committing:
        tell("end", transaction=transaction, outcome="abort")


def confluent() -> None:
    from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

    common = {"bootstrap.servers": SERVERS, "log_level": 0, "linger.ms": 0}
    short = {"delivery.timeout.ms": TIMEOUT_MS * DELIVERIES, "request.timeout.ms": TIMEOUT_MS} if TIMEOUT_MS else {}
    if TIMEOUT_MS:
        common["socket.timeout.ms"] = TIMEOUT_MS

    def delivered(error: Any, message: Any) -> None:
        if error is None:
            tell("ack", value=bytes(message.value() or b"").decode())

    idempotent = {**common, **short, "enable.idempotence": True}
    plain = Producer(idempotent)
    for number in range(SENDS):
        tell("send", value=f"{AGAIN}i{number}")
        try:
            plain.produce(TOPIC, f"{AGAIN}i{number}", on_delivery=delivered)
            plain.flush(0 if TOGETHER else WAIT)
        except KafkaException:
            if not TIMEOUT_MS:
                plain = Producer(idempotent)
    plain.flush(WAIT)

    def new() -> Producer:
        made = Producer({**common, **short, "transactional.id": ID})
        made.init_transactions(WAIT)
        return made

    sender = new()
    for transaction in range(TRANSACTIONS):
        committing = False
        try:
            sender.begin_transaction()
            for value in values(transaction):
                tell("send", value=value, transaction=transaction)
                sender.produce(TOPIC, value, on_delivery=delivered)
            if not TOGETHER:
                sender.flush(WAIT)
            if transaction % 3 == 2:
                sender.abort_transaction(WAIT)
                tell("end", transaction=transaction, outcome="abort")
            else:
                committing = True
                sender.commit_transaction(WAIT)
                tell("end", transaction=transaction, outcome="commit")
        except KafkaException:
            given_up(transaction, committing=committing)
            try:
                if not TOGETHER:
                    raise
                sender.abort_transaction(WAIT)
                tell("end", transaction=transaction, outcome="abort")
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
    from aiokafka.errors import IllegalOperation, KafkaError

    short = {"request_timeout_ms": TIMEOUT_MS} if TIMEOUT_MS else {}

    async def new(**how: Any) -> Any:
        made = AIOKafkaProducer(bootstrap_servers=SERVERS, **how, **short)
        await made.start()
        return made

    async def send_all(sender: Any, every: list[str], **fields: object) -> None:
        sent = []
        for value in every:
            tell("send", value=value, **fields)
            sent.append((value, asyncio.create_task(sender.send_and_wait(TOPIC, value.encode(), partition=0))))
            await asyncio.sleep(0.001)
            if not TOGETHER or value == every[-1]:
                for own, task in sent:
                    try:
                        await task
                    except KafkaError:
                        if fields or not TIMEOUT_MS:
                            raise
                    else:
                        tell("ack", value=own)
                sent.clear()

    plain = await new(enable_idempotence=True)
    for together in idempotent_sends():
        try:
            await send_all(plain, together)
        except KafkaError:
            await plain.stop()
            plain = await new(enable_idempotence=True)
    await plain.stop()
    sender = await new(transactional_id=ID)
    for transaction in range(TRANSACTIONS):
        committing = False
        try:
            await sender.begin_transaction()
            await send_all(sender, values(transaction), transaction=transaction)
            if transaction % 3 == 2:
                await sender.abort_transaction()
                tell("end", transaction=transaction, outcome="abort")
            else:
                committing = True
                await sender.commit_transaction()
                tell("end", transaction=transaction, outcome="commit")
        except KafkaError:
            given_up(transaction, committing=committing)
            try:
                if not TOGETHER:
                    raise
                await sender.abort_transaction()
                tell("end", transaction=transaction, outcome="abort")
            except (KafkaError, IllegalOperation, AssertionError):  # the last one says that it was fenced
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

    short: dict[str, Any] = {}
    if TIMEOUT_MS:
        short = {"request_timeout_ms": TIMEOUT_MS, "delivery_timeout_ms": TIMEOUT_MS * DELIVERIES}

    def send_all(sender: Any, every: list[str], **fields: object) -> None:
        sent = []
        for value in every:
            tell("send", value=value, **fields)
            sent.append((value, sender.send(TOPIC, value.encode(), partition=0)))
            if not TOGETHER or value == every[-1]:
                for own, future in sent:
                    try:
                        future.get(WAIT)
                    except KafkaError:
                        if fields or not TIMEOUT_MS:
                            raise
                    else:
                        tell("ack", value=own)
                sent.clear()

    def close(failed: Any) -> None:
        with suppress(KafkaError):
            failed.close(timeout=1)

    plain = KafkaProducer(bootstrap_servers=SERVERS, enable_idempotence=True, **short)
    for together in idempotent_sends():
        try:
            send_all(plain, together)
        except KafkaError:
            close(plain)
            plain = KafkaProducer(bootstrap_servers=SERVERS, enable_idempotence=True, **short)
    plain.close()

    def new() -> Any:
        made = KafkaProducer(bootstrap_servers=SERVERS, transactional_id=ID, **short)
        made.init_transactions()
        return made

    sender = new()
    for transaction in range(TRANSACTIONS):
        committing = False
        try:
            sender.begin_transaction()
            send_all(sender, values(transaction), transaction=transaction)
            if transaction % 3 == 2:
                sender.abort_transaction()
                tell("end", transaction=transaction, outcome="abort")
            else:
                committing = True
                sender.commit_transaction()
                tell("end", transaction=transaction, outcome="commit")
        except KafkaError:
            given_up(transaction, committing=committing)
            try:
                if not TOGETHER:
                    raise
                sender.abort_transaction()
                tell("end", transaction=transaction, outcome="abort")
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
