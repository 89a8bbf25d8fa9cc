"""The demo's verdict, computed from what another client (aiokafka, read_committed) finds in the topics."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from dataclasses import dataclass

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

READ_SECONDS = 30.0


class Unreadable(Exception):
    """The broker does not give the topics back."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Counts of records, and of producers that were fenced.

    exactly_once: whether they are as they must be.
    """

    records_in: int
    records_out: int
    duplicates: int
    losses: int
    strays: int
    fenced_producers: int
    expected_fenced: int

    @property
    def exactly_once(self) -> bool:
        faults = self.duplicates + self.losses + self.strays
        return faults == 0 and self.records_in > 0 and self.fenced_producers == self.expected_fenced

    def lines(self) -> list[str]:
        """The verdict for a person, one figure a line."""
        rows = [
            ("records in", self.records_in),
            ("records out", self.records_out),
            ("duplicates", self.duplicates),
            ("losses", self.losses),
            ("fenced producers", self.fenced_producers),
        ]
        if self.strays:
            rows.insert(4, ("records never sent", self.strays))
        lines = [f"{name:<20}{count:>8}" for name, count in rows]
        return [*lines, "verdict: exactly once" if self.exactly_once else "verdict: NOT exactly once"]


def judge(source: list[bytes], target: list[bytes], fenced_producers: int, *, expected_fenced: int) -> Verdict:
    """Compare the records that went in with those that came out, value by value."""
    amounts = {order["id"]: order["amount"] for order in map(json.loads, source)}
    results = Counter((result["id"], result["doubled"]) for result in map(json.loads, target))
    expected = {(number, 2 * amount) for number, amount in amounts.items()}
    return Verdict(
        records_in=len(source),
        records_out=len(target),
        duplicates=sum(count - 1 for result, count in results.items() if result in expected),
        losses=len(expected - results.keys()) + len(source) - len(amounts),
        strays=sum(count for result, count in results.items() if result not in expected),
        fenced_producers=fenced_producers,
        expected_fenced=expected_fenced,
    )


def read_back(bootstrap: str, *topics: str) -> list[list[bytes]]:
    """All committed values of each topic, in no particular order across partitions; Unreadable when that fails."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    try:
        return [asyncio.run(_read_topic(bootstrap, topic)) for topic in topics]
    except KafkaError as error:
        raise Unreadable(str(error)) from error


async def _read_topic(bootstrap: str, topic: str) -> list[bytes]:
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        fetch_max_wait_ms=100,
    )
    try:
        await consumer.start()
        return await _drain(consumer, topic)
    finally:
        await consumer.stop()


async def _drain(consumer: AIOKafkaConsumer, topic: str) -> list[bytes]:
    places = [TopicPartition(topic, index) for index in sorted(consumer.partitions_for_topic(topic) or ())]
    ends = await consumer.end_offsets(places)
    values: list[bytes] = []
    deadline = time.monotonic() + READ_SECONDS
    while time.monotonic() < deadline:
        if all([await consumer.position(place) >= ends[place] for place in places]):
            break
        for records in (await consumer.getmany(timeout_ms=100)).values():
            values += [record.value for record in records if record.value is not None]
    return values
