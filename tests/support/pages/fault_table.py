"""Every action on every kind of request: what it is set to, what a client sees of it, and the tables of the docs.

One source for the tests that show each cell with librdkafka and for benchmarks/results/faults.md; run it to write
the page.
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
    NoRecords,
    Reorder,
    Reset,
    Throttle,
    Truncate,
)
from minibroker.faults.action_fields import When
from minibroker.faults.facts import carried_by
from minibroker.handlers.table import apis

PAGE = Path(__file__).parents[3] / "benchmarks" / "results" / "faults.md"
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
    Row("no records", lambda _: NoRecords(), again=True),
)


def cells() -> list[tuple[Target, Row]]:
    return [(target, row) for target in TARGETS for row in ROWS if possible(target, row)]


def possible(target: Target, row: Row) -> bool:
    """Whether the action can be done to such a request."""
    return row.make(target).problem(next(api for api in apis().values() if api.name == target.api)) is None


def gets_an_error(target: Target, row: Row) -> str:
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
    return target.again and (row.again or (row.final and not target.tells)) and not gets_an_error(target, row)


def effect(target: Target, row: Row) -> str:
    """A cell of the page."""
    if not possible(target, row):
        return "refused"
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
        words.append("retries")
    if gets_an_error(target, row):
        words.append(f"gets {gets_an_error(target, row)}")
    if target.changes and row.final:
        words.append("done" if row.applied else "not done")
    if target.counted and not row.final and row.applied > 1:
        words.append("done twice")
    return ", ".join(words) or "continues"


# -- what is done to brokers while they serve a request ---------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """An operation on the broker that is asked, before it applies the request or before the answer leaves. undo: what
    is done a little later; blocked: the client does not come to its end before that. moves: leader or coordinator."""

    name: str
    operation: str
    when: When = "before"
    undo: str = ""
    blocked: bool = False
    writes_only: bool = False


CHANGES = (
    Change("move, before", "move"),
    Change("move, after", "move", "after"),
    Change("stop, before", "stop_broker", undo="start_broker"),
    Change("stop, after", "stop_broker", "after", undo="start_broker"),
    Change("kill, before", "kill_broker", undo="start_broker"),
    Change("kill, after", "kill_broker", "after", undo="start_broker"),
    Change("restart, before", "restart_broker"),
    Change("restart, after", "restart_broker", "after"),
    Change("pause, before", "pause_broker", undo="resume_broker", blocked=True),
    Change("pause, after", "pause_broker", "after", undo="resume_broker", blocked=True),
    Change("full disk", "fill_disk", undo="heal_disk", blocked=True, writes_only=True),
    Change("broken disk", "fail_disk", undo="heal_disk", blocked=True, writes_only=True),
)
LED = frozenset({"Produce", "Fetch", "ListOffsets"})
IN_TRANSACTION = frozenset({"InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn"})
IN_GROUP = frozenset({"TxnOffsetCommit", "OffsetCommit", "OffsetFetch", "JoinGroup", "SyncGroup", "Heartbeat"})
"""Who is asked: the leader of the partition, the coordinator of the transactional id, that of the group."""


def changes() -> list[tuple[Target, Change]]:
    return [
        (target, change)
        for target in TARGETS
        for change in CHANGES
        if target.api in LED | IN_TRANSACTION | IN_GROUP and (target.changes or not change.writes_only)
    ]


def may_be_told(target: Target, change: Change) -> set[str]:
    """Errors that may reach the application: librdkafka looks for the coordinator of a group by itself, but hands on
    the answer to what it asked the wrong one. (A coordinator whose log refuses a write answers the same.)"""
    return {"NOT_COORDINATOR"} if target.api in IN_GROUP and target.story != "transaction" else set()


def outcome(target: Target, change: Change) -> str:
    """A cell of the second table."""
    if change.undo == "resume_broker":
        text = "waits until it is resumed"
    elif change.undo == "heal_disk":
        told_first = "gets NOT_COORDINATOR, " if target.api == "OffsetCommit" else ""
        return (
            told_first + "refused until there is room"
            if change.operation == "fill_disk"
            else (told_first + "refused until it is repaired")
        )
    elif change.name == "move, after":
        text = "answered, continues with the new broker"
    else:
        text = "retries with the new broker"
    return text


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
    refused = {api.name: [name for name, action in tried if action.problem(api)] for api in apis().values()}
    return {name: actions for name, actions in refused.items() if actions}


_PAGE_HEAD = """\
# Each fault on each request

The effect of each action on each kind of request, for a client of librdkafka (confluent-kafka). Every action on every
request is a test (`tests/clients/test_fault_table.py`), nightly also of `minibroker proxy` in front of Apache Kafka
4.4.0 (`tests/jvm/test_proxy_fault_table.py`), and this page is generated from the same source (`python tests/support
fault_table`). "Gets" an error: the application gets it. Afterwards records, offsets and ends of
transactions are there exactly once, unless the application got an error, or a request of a producer without idempotence
was applied twice."""
_CHANGE_HEAD = """\
## When the broker that serves the request fails

In a cluster of three brokers, the action `do` acts on the leader of the partition or on the coordinator, before the
request is applied or between that and its answer. Everything is there exactly once afterwards (an EndTxn whose
coordinator fails between the two may leave a second marker, as in Kafka). A client may get NOT_COORDINATOR for requests
of a group, and must then retry. A stopped or killed broker is started again a little later."""
_STATE = """\
## Other changes of state

| operation | shown by `tests/clients/test_faults.py` |
|---|---|
| `lose_producer_state`, `lose_producers` | nothing lost or duplicated under `kafka`; before the answer: a duplicate |
| `set_sequence`, `set_producer_epoch` | sequences continue at 0 after 2147483647; a new producer id after epoch 32766 |
| `expire_transactional_id` | the application gets the error that its producer id is unknown |
| `truncate_tail`, `delete_records` | acknowledged records are missing; reading begins at a later offset |
| `fail_disk` of a partition | writes fail, reads continue |
| `hold_markers`, `release_markers` | a transaction stays between prepare and complete, its records unread |"""
_MATCH_HEAD = """\
## What a rule on a request may match

A rule is refused when it names a field that the API's requests do not have, or an action for which the API's answers
have no place."""


def page() -> str:
    """benchmarks/results/faults.md."""
    shown = changes()
    on_change = {
        change.name: {target.api: outcome(target, change) for target in TARGETS if (target, change) in shown}
        for change in CHANGES
    }
    lines = [
        *_PAGE_HEAD.splitlines(),
        "",
        *_alike("action", {row.name: {target.api: effect(target, row) for target in TARGETS} for row in ROWS}),
        "",
        *_CHANGE_HEAD.splitlines(),
        "",
        *_alike("change", on_change),
        "",
        *_STATE.splitlines(),
        "",
        *_MATCH_HEAD.splitlines(),
        "",
        "| fields | requests |",
        "|---|---|",
    ]
    by_fields: dict[str, list[str]] = {}
    for name, fields in carried().items():
        if fields:
            by_fields.setdefault(", ".join(f"`{field}`" for field in fields), []).append(name)
    lines += [f"| {fields} | {', '.join(names)} |" for fields, names in by_fields.items()]
    lines.append("| none | all others |")
    refused: dict[str, list[str]] = {}
    for name, actions in unbearable().items():
        for action in actions:
            refused.setdefault(action, []).append(name)
    lines += ["", "| action | refused for |", "|---|---|"]
    apis = len(carried())
    for action, names in refused.items():
        others = [name for name in carried() if name not in names]
        few = f"every request but {', '.join(others)}" if len(names) * 2 > apis else ", ".join(names)
        lines.append(f"| {action} | {few} |")
    return "\n".join(lines) + "\n"


def _alike(title: str, effects: dict[str, dict[str, str]]) -> list[str]:
    """What most requests meet under an action or change, then the others by what they meet; a row for all that are
    alike."""
    names_by_row: dict[str, list[str]] = {}
    for name, cells in effects.items():
        by_effect: dict[str, list[str]] = {}
        for api, text in cells.items():
            if text:
                by_effect.setdefault(text, []).append(api)
        most = max(by_effect, key=lambda text: len(by_effect[text]))
        others = [f"{', '.join(apis)}: {text}" for text, apis in by_effect.items() if text != most]
        names_by_row.setdefault(f"{most} | {'; '.join(others)}", []).append(name)
    rows = [f"| {'; '.join(names)} | {row} |" for row, names in names_by_row.items()]
    return [f"| {title} | most requests | others |", "|---|---|---|", *rows]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
