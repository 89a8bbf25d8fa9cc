"""A verdict for people, with its timeline, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minibroker.judge.exchanges import Exchange
from minibroker.judge.run import Run
from minibroker.judge.verdict import Broken
from minibroker.trace.recorder import told

HELD, BROKEN, UNDECIDED = "held", "broken", "undecided"
_SHOWN = 10
_BEFORE, _AFTER = 6, 3
_DULL = ("ApiVersions", "Metadata", "Fetch", "ListOffsets", "FindCoordinator", "Heartbeat", "DescribeCluster")


def doubt(run: Run, *, any_status: bool) -> str:
    """Why a run in which nothing was found broken proves nothing; empty when it does."""
    if run.status is None:
        return f"the command had to be ended after {run.seconds:.0f} s"
    if run.status and not any_status:
        return f"the command ended with {run.status} (--any-exit accepts that)"
    if run.script.steps and not run.fired:
        return "no request came that the script is about"
    if run.lost:
        return f"{run.lost} exchanges came faster than they could be kept"
    return ""


def outcome(run: Run, broken: Sequence[Broken], *, any_status: bool) -> str:
    """`HELD`, `BROKEN` or `UNDECIDED`."""
    if broken:
        return BROKEN
    return UNDECIDED if doubt(run, any_status=any_status) else HELD


def lines(run: Run, broken: Sequence[Broken], *, any_status: bool) -> list[str]:
    """The verdict, one line each."""
    said = outcome(run, broken, any_status=any_status)
    status = "was ended" if run.status is None else f"ended with {run.status}"
    why = doubt(run, any_status=any_status)
    found = [
        f"{run.script.name}: exactly-once {said}{f': {why}' if said == UNDECIDED else ''}",
        f"  command {status} after {run.seconds:.1f} s; {len(run.exchanges)} exchanges, {run.fired} failures",
    ]
    for one in broken[:_SHOWN]:
        at = f" (exchange {one.exchange['number']})" if one.exchange is not None else ""
        found.append(f"  {one.finding}{at}")
    if len(broken) > _SHOWN:
        found.append(f"  and {len(broken) - _SHOWN} more")
    first = broken[0].exchange if broken else None
    if first is not None:
        found.append(f"  first violating exchange: {first['number']}, {first['api']} of {first['client_id'] or '-'}")
        found += [f"  {line}" for line in timeline(run.exchanges, first)]
    return found


def timeline(exchanges: Sequence[Exchange], chosen: Exchange) -> list[str]:
    """What the same client did around the exchange, which is marked with ``>``."""
    own = [
        e
        for e in exchanges
        if e is chosen or (e["client_id"] == chosen["client_id"] and (e["api"] not in _DULL or e["fault"]))
    ]
    at = own.index(chosen)
    return [
        f"{'>' if e is chosen else ' '} {e['number']:>5} {told(e)}" for e in own[max(0, at - _BEFORE) : at + _AFTER + 1]
    ]


def to_json(run: Run, broken: Sequence[Broken], *, any_status: bool) -> dict[str, Any]:
    """The verdict as one JSON object."""
    return {
        "script": run.script.name,
        "about": run.script.about,
        "verdict": outcome(run, broken, any_status=any_status),
        "doubt": doubt(run, any_status=any_status),
        "status": run.status,
        "seconds": round(run.seconds, 3),
        "exchanges": len(run.exchanges),
        "failures": run.fired,
        "broken": [
            {
                "rule": one.finding.rule,
                "topic": one.finding.log.topic,
                "partition": one.finding.log.partition,
                "offset": one.finding.first_offset,
                "producer_id": one.finding.producer_id,
                "message": one.finding.message,
                "exchange": None if one.exchange is None else one.exchange["number"],
            }
            for one in broken
        ],
        "timeline": timeline(run.exchanges, broken[0].exchange) if broken and broken[0].exchange is not None else [],
    }
