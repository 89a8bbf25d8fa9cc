"""The failures that every framework meets, in the order of the page's columns.

A failure is one script of the judge, or one for each named request of the exactly-once path; the runs of a cell take
turns with them. Rules match requests with a transactional id only, so that none is about the requests of `feed`; of a
program without transactions those that write its output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from minibroker.faults.rules import rule_from
from minibroker_lab.judge.scripts import Script, step

_REQUESTS: Final = (
    "InitProducerId", "AddPartitionsToTxn", "Produce", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn",
)  # fmt: skip
_MINUTE_MS: Final = 60_000
TRANSACTIONAL: Final[Mapping[str, str]] = {"transactional_id": "*"}
DEFAULT_TIMEOUT_MS: Final = 60_000
"""transaction.timeout.ms of clients."""
_LATER_MS: Final = 15_000
"""Behind the timeout: more than the ten seconds between the coordinator's checks."""
_TRIES: Final = 1000
"""Behind a proxy the wait is real: a client repeats its request meanwhile, and a repetition would be in time."""
_BROKERS: Final = 2

Fault = dict[str, Any]


class Failure(NamedTuple):
    """title: the heading of the column.
    about: what happens.
    requests: the APIs, each with a script of its own.
    fault: the rule that makes one such request fail, of the producer's transaction timeout in ms.
    brokers: how many it needs.
    waits: whether the request is late, so that behind a proxy its repetitions are held too.
    """

    title: str
    about: str
    requests: tuple[str, ...]
    fault: Callable[[int], Fault]
    brokers: int = 1
    waits: bool = False

    @property
    def behind_proxy(self) -> bool:
        """Whether a proxy can make it happen on a cluster of others."""
        steps = [step for script in self.scripts(dict.fromkeys(self.requests, 1)) for step in script.steps]
        return not any(rule_from(dict(step.rule)).action.needs_cluster for step in steps)

    def scripts(
        self,
        seen: Mapping[str, int],
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        *,
        match: Mapping[str, str] = TRANSACTIONAL,
        real_time: bool = False,
    ) -> list[Script]:
        """A script for each request that a run without failures sent; a single empty one where nothing fails.

        seen: how many of each API.
        timeout_ms: transaction.timeout.ms of the producer.
        match: which of them are the program's, as a rule has it.
        real_time: nobody can set the clock: behind a proxy.
        """
        if not self.requests:
            return [Script("no-failure", self.about, ())]
        scripts = []
        for api in self.requests:
            sent = seen.get(api, 0)
            if sent:
                nth = min(sent, 2)  # the second transaction: one is committed by then
                rule = {"api": api, **match, "nth": nth, **self.fault(timeout_ms)}
                if self.waits and real_time:
                    rule["times"] = _TRIES
                scripts.append(Script(f"{api} {nth}", self.about, (step(rule),), self.brokers))
        return scripts


def _killed(when: str) -> Callable[[int], Fault]:
    return lambda _: {
        "action": {"name": "hold", "when": when},
        "meanwhile": {"restart_client": True, "advance_ms": _MINUTE_MS},
    }


def _lost(*, close: bool) -> Callable[[int], Fault]:
    return lambda _: {"action": {"name": "drop_reply", "close": close}}


def _do(operation: str, **arguments: object) -> Callable[[int], Fault]:
    return lambda _: {"action": {"name": "do", "operation": operation, "arguments": dict(arguments)}}


FAILURES: Final[Mapping[str, Failure]] = {
    "none": Failure("no failure", "Nothing fails.", (), lambda _: {}),
    "killed-before": Failure(
        "killed before the request is applied",
        "The process is killed at the request, which is not applied, and started again a minute later.",
        _REQUESTS,
        _killed("before"),
    ),
    "killed-after": Failure(
        "killed after it",
        "The process is killed when the request is applied, before its answer, and started again a minute later.",
        _REQUESTS,
        _killed("after"),
    ),
    "answer-lost": Failure(
        "answer lost, connection closed",
        "The request is applied; its answer is lost with the connection.",
        _REQUESTS,
        _lost(close=True),
    ),
    "answer-missing": Failure(
        "answer lost, connection kept",
        "The request is applied; its answer never comes, and the connection stays open.",
        _REQUESTS,
        _lost(close=False),
    ),
    "rebalance": Failure(
        "rebalance in a transaction",
        "The group is rebalanced before the offsets of the second transaction arrive.",
        ("TxnOffsetCommit",),
        _do("rebalance_group", group="$group"),
    ),
    "timeout": Failure(
        "transaction timeout",
        "The second EndTxn arrives 15 seconds after the transaction's timeout: it was aborted.",
        ("EndTxn",),
        lambda timeout_ms: {"action": "hold", "meanwhile": {"advance_ms": timeout_ms + _LATER_MS}},
        waits=True,
    ),
    "coordinator": Failure(
        "coordinator moved",
        "Another broker coordinates the transactional id when the second EndTxn comes.",
        ("EndTxn",),
        _do("move_coordinator", transactional_id="$transactional_id", to="$other_broker"),
        _BROKERS,
    ),
    "leader": Failure(
        "leader moved",
        "Another broker leads the partition when the second Produce comes.",
        ("Produce",),
        _do("move_leader", topic="$topic", partition="$partition", to="$other_broker"),
        _BROKERS,
    ),
    "restart": Failure(
        "broker restarted",
        "The broker is stopped cleanly and started again at the request.",
        ("Produce", "EndTxn"),
        _do("restart_broker", clean=True),
    ),
    "crash": Failure(
        "broker killed",
        "The broker is killed and started again at the request.",
        ("Produce", "EndTxn"),
        _do("restart_broker", clean=False),
    ),
    "oversized": Failure(
        "record too large",
        "The second Produce is refused with MESSAGE_TOO_LARGE.",
        ("Produce",),
        lambda _: {"action": {"name": "error", "code": "MESSAGE_TOO_LARGE"}},
    ),
}
"""Name → failure."""
