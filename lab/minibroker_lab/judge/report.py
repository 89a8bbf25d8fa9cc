"""A verdict for people, with its timeline, and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from minibroker.kernel.words import counted
from minibroker.rules.rows import Finding
from minibroker.trace.recorder import line_of
from minibroker_lab.judge.exchanges import Exchange
from minibroker_lab.judge.run import JudgedRun
from minibroker_lab.judge.scripts import action_text
from minibroker_lab.judge.verdict import EXACTLY_ONCE, BrokenPromise

HELD, BROKEN, UNDECIDED, NOT_APPLICABLE = "held", "broken", "undecided", "not applicable"
_NO_REQUEST = "no request fitted what the script makes fail: "
_ANY = "any request"
_SHOWN = 10
_BEFORE, _AFTER = 6, 3
_DULL = ("ApiVersions", "Metadata", "Fetch", "ListOffsets", "FindCoordinator", "Heartbeat", "DescribeCluster")


class Judged(NamedTuple):
    """A run and the promises it broke, the first one in front.

    any_status: the command may end with any status.
    noticed: what breaks none, and is seldom meant.
    """

    run: JudgedRun
    broken: Sequence[BrokenPromise]
    any_status: bool = False
    noticed: Sequence[Finding] = ()

    @property
    def doubt(self) -> str:
        """Why a run in which nothing was found broken proves nothing; empty when it does."""
        run = self.run
        if run.misfit:
            return run.misfit
        if run.status and not run.exchanges and not self.any_status:
            return f"the command ended with {run.status}, and never reached the broker of BOOTSTRAP_SERVERS"
        if not run.exchanges:
            return "the command never reached the broker: it must take the address from BOOTSTRAP_SERVERS"
        if run.status is None:
            return f"the command had to be ended after {run.seconds:.0f} s"
        if run.status and not self.any_status:
            return f"the command ended with {run.status} (--any-exit accepts that)"
        if run.script.steps and not run.fired:
            return _NO_REQUEST + about(run)
        if run.lost:
            return f"{run.lost} exchanges came faster than they could be kept"
        return ""

    @property
    def outcome(self) -> str:
        """`HELD`, `BROKEN`, `UNDECIDED`, or `NOT_APPLICABLE` when the client does nothing that the script is about."""
        if self.broken:
            return BROKEN
        return (
            NOT_APPLICABLE
            if self.run.misfit or self.doubt.startswith(_NO_REQUEST)
            else UNDECIDED
            if self.doubt
            else HELD
        )

    @property
    def first(self) -> Exchange | None:
        """The first exchange that broke a promise."""
        return self.broken[0].exchange if self.broken else None


def about(run: JudgedRun) -> str:
    """The APIs whose requests a script makes fail, and how many of them came: ``Produce from number 2 on (1 came)``."""
    first: dict[str, int] = {}
    for step in run.script.steps:
        apis = step.rule.get("api") or _ANY
        for api in [apis] if isinstance(apis, str) else apis:
            first[api] = min(first.get(api, step.rule["nth"]), step.rule["nth"])
    came = Counter(exchange["api"] for exchange in run.exchanges)
    came[_ANY] = came.total()
    return ", ".join(
        f"{api}{f' from number {nth} on' if nth > 1 else ''} ({came[api]} came)" for api, nth in first.items()
    )


def headline(judged: Judged) -> str:
    """Script, outcome and, where it could not be decided, why."""
    outcome = judged.outcome
    if outcome == NOT_APPLICABLE:
        return f"{judged.run.script.name}: {outcome}: {judged.doubt}"
    why = f": {judged.doubt}" if outcome == UNDECIDED else ""
    return f"{judged.run.script.name}: exactly-once {outcome}{why}"


def circumstances(run: JudgedRun) -> str:
    """How the command ended, and how much there was of everything."""
    if run.misfit:
        return "the command was not run"
    status = "was ended" if run.status is None else f"ended with {run.status}"
    counts = ((len(run.exchanges), "exchange"), (run.fired, "failure"), (refusals(run), "refusal"))
    seen = ", ".join(counted(number, noun) for number, noun in counts)
    restarts = f", {counted(run.restarts, 'restart')}" if run.restarts else ""
    return f"command {status} after {run.seconds:.1f} s; {seen}{restarts}"


Met = dict[str, Counter[str]]
"""API of the exactly-once path that a command used → the failures that scripts made of its requests, how often each."""


def failures_met(runs: Iterable[JudgedRun]) -> Met:
    """Of these runs together."""
    met: Met = {}
    for run in runs:
        for exchange in run.exchanges:
            if exchange["api"] in EXACTLY_ONCE:
                failures = met.setdefault(exchange["api"], Counter())
                if exchange["fault"]:
                    step = run.script.steps[exchange["fault"] - 1]
                    failures["killed" if step.restart else action_text(step.rule["action"])] += 1
    return met


def unmet(met: Met) -> list[str]:
    """The APIs of which "held" says nothing."""
    return sorted(api for api, failures in met.items() if not failures)


def coverage(met: Met) -> str:
    """What "held" speaks of, as a line."""
    parts = (
        f"{api} ({', '.join(f'{failure} {count}' for failure, count in failures.most_common())})"
        for api, failures in sorted(met.items())
        if failures
    )
    untouched = f"; no failure met: {', '.join(unmet(met))}" if unmet(met) else ""
    return f"requests made to fail: {', '.join(parts) or 'none'}{untouched}"


def refusals(run: JudgedRun) -> int:
    """How many requests got an error that no rule of the script made: Kafka's "not yet" among them."""
    return sum(bool(exchange.get("errors")) and not exchange.get("fault") for exchange in run.exchanges)


def violation(first: Exchange) -> str:
    """The first violating exchange by its number, API and client."""
    return f"first violating exchange: {first['number']}, {first['api']} of {first['client_id'] or '-'}"


def finding_line(promise: BrokenPromise) -> str:
    """The rule, the place, and the exchange where there is one."""
    at = "" if promise.exchange is None else f" (exchange {promise.exchange['number']})"
    return f"{promise.finding}{at}"


def lines(judged: Judged) -> list[str]:
    """The verdict, and what the client did around the first violation."""
    first = judged.first
    return [*verdict(judged), *(f"  {line}" for line in (timeline(judged.run.exchanges, first) if first else []))]


def verdict(judged: Judged) -> list[str]:
    """The verdict, one line each."""
    broken, first = judged.broken, judged.first
    lines = [headline(judged), f"  {circumstances(judged.run)}"]
    lines += [f"  {finding_line(promise)}" for promise in broken[:_SHOWN]]
    if len(broken) > _SHOWN:
        lines.append(f"  and {len(broken) - _SHOWN} more")
    lines += [f"  {notice}" for notice in judged.noticed]
    if first is not None:
        lines.append(f"  {violation(first)}")
    return lines


def around(exchanges: Sequence[Exchange], chosen: Exchange) -> list[Exchange]:
    """What the same client did shortly before and after an exchange."""
    own = [
        e
        for e in exchanges
        if e is chosen or (e["client_id"] == chosen["client_id"] and (e["api"] not in _DULL or e["fault"]))
    ]
    at = next(index for index, e in enumerate(own) if e is chosen)
    return own[max(0, at - _BEFORE) : at + _AFTER + 1]


def timeline(exchanges: Sequence[Exchange], chosen: Exchange) -> list[str]:
    """What the same client did around the exchange, which is marked with ``>``."""
    return [f"{'>' if e is chosen else ' '} {e['number']:>5} {line_of(e)}" for e in around(exchanges, chosen)]


def to_json(judged: Judged) -> dict[str, Any]:
    """The verdict as one JSON object."""
    run, first = judged.run, judged.first
    return {
        "script": run.script.name,
        "about": run.script.about,
        "verdict": judged.outcome,
        "doubt": judged.doubt,
        "status": run.status,
        "seconds": round(run.seconds, 3),
        "exchanges": len(run.exchanges),
        "failures": run.fired,
        "restarts": run.restarts,
        "failures_met": failures_met([run]),
        "refusals": refusals(run),
        "notices": [str(notice) for notice in judged.noticed],
        "broken": [
            {
                "rule": promise.finding.rule,
                "topic": promise.finding.log.topic,
                "partition": promise.finding.log.partition,
                "offset": promise.finding.first_offset,
                "producer_id": promise.finding.producer_id,
                "message": promise.finding.message,
                "exchange": None if promise.exchange is None else promise.exchange["number"],
            }
            for promise in judged.broken
        ],
        "first_violation": None if first is None else first["number"],
        "timeline": timeline(run.exchanges, first) if first is not None else [],
    }
