"""The loop of `loop_client.py`, without a mistake, with kafka-python."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata

INPUTS, IN_ONE, INPUT = 6, 2, TopicPartition("in", 0)
COMMON = {"bootstrap_servers": os.environ["BOOTSTRAP_SERVERS"], "request_timeout_ms": 8000}
SHORT = {**COMMON, "delivery_timeout_ms": 20_000}
WAIT = 10.0


def fill(consumer: Any) -> None:
    """The whole input in one Produce, so that the script's failures of Produce are left to the loop."""
    if consumer.end_offsets([INPUT])[INPUT] == 0:
        feeder = KafkaProducer(**SHORT, linger_ms=200, enable_idempotence=True)
        for number in range(INPUTS):
            feeder.send("in", f"v{number}".encode(), partition=0)
        feeder.close()


def new() -> Any:
    producer = KafkaProducer(**SHORT, transactional_id="loop", transaction_timeout_ms=20_000)
    producer.init_transactions()
    return producer


def transact(producer: Any, consumer: Any, records: list[Any]) -> None:
    producer.begin_transaction()
    for future in [producer.send("out", record.value, partition=0) for record in records]:
        future.get(WAIT)
    offsets = {INPUT: OffsetAndMetadata(records[-1].offset + 1, "", -1)}
    # Versions before 3.0 know the group by its name alone.
    group = consumer.group_metadata() if hasattr(consumer, "group_metadata") else "loop"
    producer.send_offsets_to_transaction(offsets, group)
    producer.commit_transaction()


def main() -> None:
    group = {"group_id": "loop", "isolation_level": "read_committed", "session_timeout_ms": 6000}
    own = {**group, "heartbeat_interval_ms": 1000, "auto_offset_reset": "earliest", "enable_auto_commit": False}
    consumer = KafkaConsumer("in", **{**COMMON, "request_timeout_ms": 8000}, **own)
    fill(consumer)
    producer = new()
    while not consumer.assignment() or consumer.position(INPUT) < INPUTS:
        records = consumer.poll(timeout_ms=200, max_records=IN_ONE).get(INPUT, [])
        if not records:
            continue
        try:
            transact(producer, consumer, records)
        except KafkaError as error:
            print(repr(error))
            try:
                producer.abort_transaction()
            except KafkaError:
                with suppress(KafkaError):
                    producer.close(timeout=1)
                producer = new()
            # To what the group has committed: a commit whose outcome nobody told may have succeeded.
            consumer.seek(INPUT, consumer.committed(INPUT) or 0)
    producer.close()
    consumer.close()


main()
