"""A Fetch that gives fewer batches than there are: a broker may keep the rest for the next one (KIP-74)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .batches import ReceivedRecords
from .scenario import Step


def batches_wanted(step: Step, expected: Mapping[str, Any]) -> int:
    """How many batches the step expects of its one partition; 0 for any other request, for several partitions and for a
    session."""
    if step.api != "Fetch" or not isinstance(step.get("at"), str) or (step.get("req") or {}).get("sessionId"):
        return 0
    lists = [
        value
        for path, value in expected.items()
        if path.rpartition(".")[2] in ("records", "recordsFull") and isinstance(value, list)
    ]
    return max(map(len, lists), default=0)


def next_offset(answer: Mapping[str, Any], wanted: int) -> int | None:
    """Where a reader goes on after an answer that gave it only some of the batches; None if it gave all."""
    partition = _partition(answer) if wanted else None
    batches = partition["records"].batches() if partition else None
    if not partition or not batches or len(batches) >= wanted or "base" not in batches[-1]:
        return None
    offset = int(batches[-1].get("last", batches[-1]["base"])) + 1
    return offset if offset < partition["highWatermark"] else None


def joined(answer: Mapping[str, Any], more: Mapping[str, Any]) -> bool:
    """Put the records of a further answer into the first one; False, without a change, if it has none."""
    partition, further = _partition(answer), _partition(more)
    if not partition or not further or not further["records"].raw:
        return False
    partition["records"] = ReceivedRecords(partition["records"].raw + further["records"].raw)
    aborted = partition.get("abortedTransactions")
    if aborted is not None:
        aborted += [entry for entry in further.get("abortedTransactions") or [] if entry not in aborted]
    return True


def _partition(answer: Mapping[str, Any]) -> dict[str, Any] | None:
    """The only one, where it was read without an error."""
    partitions = [partition for topic in answer.get("responses") or [] for partition in topic["partitions"]]
    if answer.get("errorCode", "NONE") != "NONE" or len(partitions) != 1 or partitions[0]["errorCode"] != "NONE":
        return None
    only: dict[str, Any] = partitions[0]
    return only
