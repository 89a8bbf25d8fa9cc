"""The loop of `loop_client.py`, without a mistake, with aiokafka."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import IllegalOperation, KafkaError

INPUTS, IN_ONE, INPUT = 6, 2, TopicPartition("in", 0)
COMMON = {"bootstrap_servers": os.environ["BOOTSTRAP_SERVERS"], "request_timeout_ms": 8000}
FENCED = AssertionError
"""What aiokafka raises of a producer that was fenced."""
TRIES = 20
"""Failed transactions before the loop gives up: its producer is never in order again after a refused batch (museum:
aiokafka-1017)."""


async def fill(consumer: Any) -> None:
    """The whole input in one Produce, so that the script's failures of Produce are left to the loop."""
    if (await consumer.end_offsets([INPUT]))[INPUT] > 0:
        return
    async with AIOKafkaProducer(**COMMON, linger_ms=200, enable_idempotence=True) as feeder:
        sent = [await feeder.send("in", f"v{number}".encode(), partition=0) for number in range(INPUTS)]
        await asyncio.gather(*sent)


async def new() -> Any:
    producer = AIOKafkaProducer(**COMMON, transactional_id="loop", transaction_timeout_ms=20_000)
    await producer.start()
    return producer


def give_up(reason: str) -> None:
    history = Path(os.environ["MINIBROKER_HISTORY"])
    history.write_text(json.dumps({"event": "give up", "reason": reason}) + "\n", encoding="utf-8")
    sys.exit(1)


async def transact(producer: Any, records: list[Any]) -> None:
    await producer.begin_transaction()
    await asyncio.gather(*[await producer.send("out", record.value, partition=0) for record in records])
    await producer.send_offsets_to_transaction({INPUT: records[-1].offset + 1}, "loop")
    await producer.commit_transaction()


async def main() -> None:
    group = {"group_id": "loop", "isolation_level": "read_committed", "session_timeout_ms": 6000}
    consumer = AIOKafkaConsumer(**COMMON, **group, auto_offset_reset="earliest", enable_auto_commit=False)
    await consumer.start()
    await fill(consumer)
    consumer.subscribe(["in"])
    producer = await new()
    errors: list[str] = []
    while not consumer.assignment() or await consumer.position(INPUT) < INPUTS:
        records = (await consumer.getmany(timeout_ms=200, max_records=IN_ONE)).get(INPUT, [])
        if not records:
            continue
        try:
            await transact(producer, records)
        except (KafkaError, IllegalOperation, FENCED) as error:
            errors.append(repr(error))
            print(errors[-1])
            if len(errors) == TRIES:
                give_up(f"{TRIES} transactions failed, the last one with {errors[-1]}")
            try:
                await producer.abort_transaction()
            except (KafkaError, IllegalOperation, FENCED):
                await producer.stop()
                producer = await new()
            # To what the group has committed: a commit whose outcome nobody told may have succeeded.
            consumer.seek(INPUT, await consumer.committed(INPUT) or 0)
    await producer.stop()
    await consumer.stop()


asyncio.run(main())
