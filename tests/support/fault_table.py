"""Every action on every kind of request: what it is set to, what a client sees of it, and the table of the docs.

One source for the tests that show each cell with librdkafka and for docs/fault-table.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from minibroker.faults import (
    Action,
    ApplyThenError,
    BlackHole,
    Close,
    Corrupt,
    Delay,
    DropReply,
    Duplicate,
    Error,
    Hold,
    Reorder,
    Reset,
    Throttle,
    Truncate,
)

WAIT_MS = 60
"""How long what is late is late."""


@dataclass(frozen=True)
class Target:
    """One kind of request. story: what the client is made to do, so that it asks this. error: one that Kafka answers
    it with. again: whether the client asks again by itself when the answer did not come."""

    api: str
    story: str
    error: str
    counted: bool = False


TARGETS = (
    Target("Produce", "produce", "NOT_LEADER_OR_FOLLOWER", counted=True),
    Target("Fetch", "read", "NOT_LEADER_OR_FOLLOWER"),
    Target("ListOffsets", "read", "NOT_LEADER_OR_FOLLOWER"),
    Target("Metadata", "read", "LEADER_NOT_AVAILABLE"),
    Target("FindCoordinator", "committed", "COORDINATOR_NOT_AVAILABLE"),
    Target("InitProducerId", "transaction", "COORDINATOR_LOAD_IN_PROGRESS", counted=True),
    Target("AddPartitionsToTxn", "transaction", "CONCURRENT_TRANSACTIONS"),
    Target("AddOffsetsToTxn", "transaction", "COORDINATOR_LOAD_IN_PROGRESS"),
    Target("TxnOffsetCommit", "transaction", "COORDINATOR_LOAD_IN_PROGRESS", counted=True),
    Target("EndTxn", "transaction", "COORDINATOR_NOT_AVAILABLE"),
    Target("OffsetCommit", "commit", "COORDINATOR_LOAD_IN_PROGRESS", counted=True),
    Target("OffsetFetch", "committed", "UNSTABLE_OFFSET_COMMIT"),
    Target("JoinGroup", "group", "COORDINATOR_LOAD_IN_PROGRESS"),
    Target("SyncGroup", "group", "REBALANCE_IN_PROGRESS"),
    Target("Heartbeat", "group", "REBALANCE_IN_PROGRESS"),
    Target("LeaveGroup", "leave", "UNKNOWN_MEMBER_ID"),
)


def actions(target: Target) -> Mapping[str, Action]:
    """The actions by name, as they are set for `target`."""
    return {
        "error": Error(target.error),
        "apply_then_error": ApplyThenError(target.error),
        "drop_reply": DropReply(),
        "drop_reply, connection kept": DropReply(close=False),
        "delay before": Delay(WAIT_MS),
        "delay after": Delay(WAIT_MS, when="after"),
        "hold before": Hold(),
        "hold after": Hold(when="after"),
        "reorder": Reorder(within_ms=WAIT_MS),
        "duplicate": Duplicate(),
        "truncate": Truncate(),
        "corrupt": Corrupt(),
        "close": Close(),
        "reset": Reset(),
        "black_hole": BlackHole(),
        "throttle": Throttle(WAIT_MS),
    }


def cells() -> list[tuple[Target, str, Action]]:
    return [(target, name, action) for target in TARGETS for name, action in actions(target).items()]


__all__: list[Any] = ["TARGETS", "WAIT_MS", "Target", "actions", "cells"]
