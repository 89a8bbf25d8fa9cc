"""Every action on every kind of request: what it is set to, what a client sees of it, and the tables of the docs.

One source for the tests that show each cell with librdkafka and for docs/fault-table.md; run it to write the page.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from minibroker.faults import (
    Action,
    ApplyThenError,
    BlackHole,
    Close,
    Corrupt,
    Delay,
    Do,
    DropReply,
    Duplicate,
    Error,
    Hold,
    Reorder,
    Reset,
    Throttle,
    Truncate,
)
from minibroker.faults.facts import carried_by
from minibroker.handlers.table import apis

PAGE = Path(__file__).parents[2] / "docs" / "fault-table.md"
WAIT_MS = 60
"""How long what is late is late."""


@dataclass(frozen=True)
class Target:
    """One kind of request.

    story: what the client is made to do, so that it asks this. passing: an error that clients try again after. final:
    one that they tell the application, unless the client keeps it to itself (tells is False) and asks again. changes:
    it changes something that can be looked up. counted: so that one can see how often it was applied. again: the
    client asks again when it got no answer.
    """

    api: str
    story: str
    passing: str
    final: str
    changes: bool = False
    counted: bool = False
    again: bool = True
    tells: bool = True


_TXN, _GROUP, _TOPIC = (f"{kind}_AUTHORIZATION_FAILED" for kind in ("TRANSACTIONAL_ID", "GROUP", "TOPIC"))

TARGETS = (
    Target("Produce", "produce", "NOT_LEADER_OR_FOLLOWER", _TOPIC, changes=True, counted=True),
    Target("Fetch", "read", "NOT_LEADER_OR_FOLLOWER", _TOPIC),
    Target("ListOffsets", "read", "NOT_LEADER_OR_FOLLOWER", _TOPIC),
    Target("Metadata", "read", "LEADER_NOT_AVAILABLE", _TOPIC, tells=False),
    Target("FindCoordinator", "transaction", "COORDINATOR_NOT_AVAILABLE", _TXN),
    Target("InitProducerId", "transaction", "COORDINATOR_LOAD_IN_PROGRESS", _TXN, changes=True, counted=True),
    Target("AddPartitionsToTxn", "transaction", "CONCURRENT_TRANSACTIONS", _TXN, changes=True),
    Target("AddOffsetsToTxn", "transaction", "COORDINATOR_LOAD_IN_PROGRESS", _TXN, changes=True),
    Target("TxnOffsetCommit", "transaction", "COORDINATOR_LOAD_IN_PROGRESS", _GROUP, changes=True),
    Target("EndTxn", "transaction", "COORDINATOR_NOT_AVAILABLE", _TXN, changes=True),
    Target("OffsetCommit", "commit", "COORDINATOR_LOAD_IN_PROGRESS", _GROUP, changes=True),
    Target("OffsetFetch", "committed", "UNSTABLE_OFFSET_COMMIT", _GROUP),
    Target("JoinGroup", "membership", "COORDINATOR_LOAD_IN_PROGRESS", _GROUP),
    Target("SyncGroup", "membership", "REBALANCE_IN_PROGRESS", _GROUP, tells=False),
    Target("Heartbeat", "membership", "REBALANCE_IN_PROGRESS", _GROUP, tells=False),
    Target("LeaveGroup", "leave", "UNKNOWN_MEMBER_ID", _GROUP, again=False, tells=False),
)


@dataclass(frozen=True)
class Row:
    """One action. blocked: nothing goes on until the rule is released or removed. again: no answer came, or an error
    that passes. applied: how often the request is done, the client's second try included. late: the answer is.
    """

    name: str
    make: Callable[[Target], Action]
    again: bool = False
    applied: int = 1
    late: bool = False
    blocked: str = ""
    final: bool = False


ROWS = (
    Row("error that passes", lambda target: Error(target.passing), again=True),
    Row("error that is final", lambda target: Error(target.final), final=True, applied=0),
    Row("apply, error that passes", lambda target: ApplyThenError(target.passing), again=True, applied=2),
    Row("apply, error that is final", lambda target: ApplyThenError(target.final), final=True),
    Row("drop reply, close", lambda _: DropReply(), again=True, applied=2),
    Row("drop reply", lambda _: DropReply(close=False), again=True, applied=2, blocked="remove"),
    Row("delay before", lambda _: Delay(WAIT_MS), late=True),
    Row("delay after", lambda _: Delay(WAIT_MS, when="after"), late=True),
    Row("hold before", lambda _: Hold(), late=True, blocked="release"),
    Row("hold after", lambda _: Hold(when="after"), late=True, blocked="release"),
    Row("reorder", lambda _: Reorder(within_ms=WAIT_MS)),
    Row("duplicate", lambda _: Duplicate(), applied=2),
    Row("truncate", lambda _: Truncate(), again=True, applied=2),
    Row("corrupt", lambda _: Corrupt(), again=True, applied=2),
    Row("close", lambda _: Close(), again=True),
    Row("reset", lambda _: Reset(), again=True),
    Row("black hole", lambda _: BlackHole(), again=True, blocked="remove"),
    Row("throttle", lambda _: Throttle(WAIT_MS)),
)


def cells() -> list[tuple[Target, Row]]:
    return [(target, row) for target in TARGETS for row in ROWS]


def told(target: Target, row: Row) -> str:
    """The error that the application is told, "" when the client gets over it by itself."""
    if row.final and target.tells:
        return target.final
    if target.api == "OffsetFetch" and row.name == "corrupt":
        return "_TIMED_OUT"  # committed() waits for one answer
    if target.api == "InitProducerId" and row.name == "duplicate":
        return "_FENCED"  # the second one has bumped the epoch
    return ""


def asks_again(target: Target, row: Row) -> bool:
    """Whether the same request comes once more, and is answered."""
    return target.again and (row.again or (row.final and not target.tells)) and not told(target, row)


def effect(target: Target, row: Row) -> str:
    """A cell of the page."""
    words = []
    if row.blocked:
        words.append(f"waits until the rule is {row.blocked}d")
    if row.late and not row.blocked:
        words.append("answered late")
    if row.name == "reorder":
        words.append("answered after the next request, or late")
    if row.name == "throttle":
        words.append("muted")
    if asks_again(target, row):
        words.append("asks again")
    if told(target, row):
        words.append(f"told {told(target, row)}")
    if target.changes and row.final:
        words.append("done" if row.applied else "not done")
    if target.counted and not row.final and row.applied > 1:
        words.append("done twice")
    return ", ".join(words) or "goes on"


# -- what is refused when it is set ------------------------------------------------------------------------------------

FIELDS = ("topic", "partition", "group", "transactional_id", "producer_id", "producer_epoch", "sequence")


def carried() -> dict[str, list[str]]:
    """API → the fields a rule on it may match."""
    return {api.name: [name for name in FIELDS if name in carried_by(api.request)] for api in apis().values()}


def actions_by_name() -> dict[str, Action]:
    """One of each."""
    made = [row.make(TARGETS[0]) for row in ROWS]
    return {**{action.name: action for action in made}, "do": Do("release_markers")}


def unbearable() -> dict[str, list[str]]:
    """API → actions that cannot be done to it."""
    tried = actions_by_name().items()
    found = {api.name: [name for name, action in tried if action.problem(api)] for api in apis().values()}
    return {name: actions for name, actions in found.items() if actions}


_PAGE_HEAD = """\
# Each fault on each request

What a client of librdkafka (confluent-kafka) sees of each action on each kind of request. Every cell is a test
(`tests/clients/test_fault_table.py`), and this page is made from the same source (`tests/support/fault_table.py`).
Whatever the cell says, records, offsets and ends of transactions are there exactly once afterwards, unless the
application was told an error, or a producer without idempotence had its request done twice."""
_MATCH_HEAD = """\
## What a rule on a request may match

A rule that names an API and a field that its requests do not have is refused when it is set; so is an action that an
API's answers have no place for."""


def page() -> str:
    """docs/fault-table.md."""
    lines = [
        *_PAGE_HEAD.splitlines(),
        "",
        f"| request | {' | '.join(row.name for row in ROWS)} |",
        "|---|" + "---|" * len(ROWS),
        *(f"| {target.api} | {' | '.join(effect(target, row) for row in ROWS)} |" for target in TARGETS),
        "",
        *_MATCH_HEAD.splitlines(),
        "",
        f"| request | {' | '.join(f'`{name}`' for name in FIELDS)} | actions refused |",
        "|---|" + "---|" * (len(FIELDS) + 1),
    ]
    refused = unbearable()
    for name, fields in carried().items():
        marks = " | ".join("yes" if field in fields else "" for field in FIELDS)
        lines.append(f"| {name} | {marks} | {', '.join(refused.get(name, []))} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
