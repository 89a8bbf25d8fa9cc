"""Any damage to the metadata journal: the broker starts, or says in one line which line of the file is wrong."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from memory_cluster import MemoryCluster

from minibroker.controller.journal import JOURNAL
from minibroker_protocol.errors import ApiError
from minibroker_storage.memory_disk import MemoryDisk

VALUES: tuple[Any, ...] = (None, -1, 2**63, "", "x", [], [[9]], {}, True)
EACH = 3
"""Wrong values for each field of each kind of entry."""


def journal() -> list[dict[str, Any]]:
    disk = MemoryDisk()
    cluster = MemoryCluster(disk=disk, topics={"t": 2})
    state = cluster.cluster.controller.state
    state.set_topic_configs("t", {"retention.ms": "5"})
    state.set_broker_configs("1", {"log.retention.ms": "7"})
    state.set_resource_configs(32, "g", {"consumer.session.timeout.ms": "45000"})
    state.allocate_producer_ids()
    cluster.stop()
    return [json.loads(line) for line in disk.read_bytes(JOURNAL).splitlines()]


def start(entries: list[dict[str, Any]]) -> str:
    """What the start says; "" where there is nothing to say."""
    disk = MemoryDisk()
    disk.write_atomic(JOURNAL, b"".join(json.dumps(entry).encode() + b"\n" for entry in entries))
    try:
        MemoryCluster(disk=disk).stop()
    except ApiError as error:
        return str(error)
    return ""


def test_a_wrong_value_is_named_by_its_line() -> None:
    entries = journal()
    assert start(entries) == ""
    chance = random.Random(5)
    seen: set[tuple[str, str]] = set()
    said = 0
    for number, entry in enumerate(entries):
        for field in entry:
            if (entry["type"], field) in seen:
                continue
            seen.add((entry["type"], field))
            without = {name: value for name, value in entry.items() if name != field}
            for changed in (without, *({**entry, field: value} for value in chance.sample(VALUES, EACH))):
                line = start([*entries[:number], changed, *entries[number + 1 :]])
                assert not line or "journal" in line, (changed, line)
                assert "\n" not in line
                assert len(line) < 400
                said += f"{JOURNAL} line " in line
    assert said > 10


@pytest.mark.parametrize("line", [b"[]", b"{", b'"x"', b"\xff\xfe", b"9" * 5000, b'{"type":{}}'])
def test_a_line_that_is_no_entry(line: bytes) -> None:
    disk = MemoryDisk()
    whole = b"".join(json.dumps(entry).encode() + b"\n" for entry in journal())
    disk.write_atomic(JOURNAL, line + b"\n" + whole)
    with pytest.raises(ApiError, match="journal"):
        MemoryCluster(disk=disk)
