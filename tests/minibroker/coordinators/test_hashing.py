"""The partition of a group or transactional id is the one that a live Kafka 4.3.1 put it into.

`kafka-4.3.1/internal-partitions.json` was recorded by `python tests/support internal_partitions`: each name was used as
a group and as a transactional id, and the partition is the directory in which Kafka wrote its record. How many of the
hashes are negative, and Java's hash of some, are here as plain numbers.
"""

from __future__ import annotations

import json

import pytest
from golden import GOLDEN

from minibroker.coordinators.hashing import java_string_hash, partition_for

RECORDED = json.loads((GOLDEN / "kafka-4.3.1" / "internal-partitions.json").read_text())
SMALLEST = "polygenelubricants"


@pytest.mark.parametrize(
    ("name", "partition"),
    [("orders", 3), ("payments", 1), ("my-group", 2), ("group-1", 3), ("console-consumer", 0)],
)
def test_known_partitions_of_four(name: str, partition: int) -> None:
    assert partition_for(name, 4) == partition


@pytest.mark.parametrize("topic", sorted(RECORDED))
def test_every_partition_that_kafka_chose(topic: str) -> None:
    count, recorded = RECORDED[topic]["partitions"], RECORDED[topic]["of"]
    assert len(recorded) > 105
    assert {name: partition_for(name, count) for name in recorded} == recorded


def test_the_recording_holds_names_of_every_kind() -> None:
    names = RECORDED["__consumer_offsets"]["of"]
    assert sum(java_string_hash(name) < 0 for name in names) > 40
    assert {SMALLEST, "", "😀", "注文", "x" * 100} <= names.keys()


@pytest.mark.parametrize(
    ("text", "value"),
    # String.hashCode of a Java 17.
    [("orders", -1008770331), (SMALLEST, -2147483648), ("", 0), ("payments", 1382682413), ("😀", 1772899)],
)
def test_java_hashes(text: str, value: int) -> None:
    assert java_string_hash(text) == value
