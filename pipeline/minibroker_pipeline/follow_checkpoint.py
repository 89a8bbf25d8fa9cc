"""Where a following audit stands, as a file: a new start goes on from there.

JSON of what `LiveJudge` keeps. Rows are lists of their fields in order.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import astuple, fields
from pathlib import Path
from typing import Any

from minibroker.client.topics import Position
from minibroker.rules import rows as r
from minibroker.rules.live import Identity, LiveJudge, LiveLog
from minibroker.rules.log_rules import LogState, Producer
from minibroker_pipeline.topics import Seen
from minibroker_storage.private_files import replace_private

FORMAT = 2
_ROWS: dict[str, type[Any]] = {
    "spans": r.Span,
    "faults": r.LogFault,
    "ended": r.Transaction,
    "opened": r.Transaction,
    "fresh": r.Finding,
}


def save(
    path: Path, judge: LiveJudge, seen: Mapping[r.Log, Seen], untold: Iterable[r.Finding], chosen: Mapping[str, Any]
) -> None:
    """Write the file in one step.

    untold: findings that are not printed yet.
    chosen: the options that decide what is read.

    Raises OSError.
    """
    kept = {
        "format": FORMAT,
        "chosen": chosen,
        "untold": [*untold],
        "seen": [(log, None if at.topic_id is None else at.topic_id.hex(), at.position) for log, at in seen.items()],
        "logs": [[getattr(known, field.name) for field in fields(known)] for known in judge.logs.values()],
        "states": [state for history in judge.states.values() for state in history],
        "commits": judge.commits,
        "members": judge.members,
        "newest_ms": judge.newest_ms,
        "lasting": [*judge.lasting.values()],
        "passing": judge.passing,
        "reported": sorted(judge.reported),
        "fallen": sorted(judge.fallen),
    }
    replace_private(path, json.dumps(kept, default=_state, separators=(",", ":")), 0o600, durable=True)


def load(path: Path, judge: LiveJudge, chosen: Mapping[str, Any]) -> tuple[dict[r.Log, Seen], list[r.Finding]] | None:
    """What was seen, and what is not printed yet; None without a file. Fills a new judge. Raises OSError, and
    ValueError for a file of other options or none of this format."""
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        written = kept["format"], kept["chosen"]
        if written == (FORMAT, chosen):
            return _fill(judge, kept)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        raise ValueError(f"--checkpoint {path}: not a checkpoint of an audit, or a damaged one") from None
    if written[0] != FORMAT:
        raise ValueError(f"--checkpoint {path}: of format {written[0]}, this release reads {FORMAT}")
    differ = sorted(name for name in chosen if written[1].get(name) != chosen[name])
    raise ValueError(f"--checkpoint {path}: written with other options ({', '.join(differ)}); give another file")


def _state(value: Any) -> Any:
    assert isinstance(value, LogState)
    return {
        **{field.name: getattr(value, field.name) for field in fields(value)},
        "producers": {number: astuple(known) for number, known in value.producers.items()},
    }


def _fill(judge: LiveJudge, kept: dict[str, Any]) -> tuple[dict[r.Log, Seen], list[r.Finding]]:
    for values in kept["logs"]:
        named = dict(zip((field.name for field in fields(LiveLog)), values, strict=True))
        named["facts"] = _row(r.LogFacts, named["facts"])
        named["state"] = _log_state(named["state"])
        for name, kind in _ROWS.items():
            named[name] = _rows(kind, named[name])
        named["spans"] = [span._replace(holes=tuple(r.Hole(*hole) for hole in span.holes)) for span in named["spans"]]
        judge.logs[named["facts"].log] = LiveLog(**named)
    for state in _rows(r.TxnState, kept["states"]):
        places = tuple((topic, partition) for topic, partition in state.partitions)
        judge.states.setdefault(state.transactional_id, []).append(state._replace(partitions=places))
    judge.commits = _rows(r.CommittedOffset, kept["commits"])
    judge.members = _rows(r.GroupMember, kept["members"])
    judge.newest_ms = kept["newest_ms"]
    judge.keep(_rows(r.Finding, kept["lasting"]))
    judge.passing = _rows(r.Finding, kept["passing"])
    judge.reported = {Identity(rule, severity, r.Log(*log), *rest) for rule, severity, log, *rest in kept["reported"]}
    judge.fallen = {(r.Log(*log), group, topic, partition) for log, group, topic, partition in kept["fallen"]}
    seen = {
        r.Log(*log): Seen(None if topic_id is None else bytes.fromhex(topic_id), Position(*position))
        for log, topic_id, position in kept["seen"]
    }
    return seen, _rows(r.Finding, kept["untold"])


def _log_state(kept: dict[str, Any]) -> LogState:
    producers = {}
    for number, values in kept.pop("producers").items():
        named = dict(zip((field.name for field in fields(Producer)), values, strict=True))
        named["txn"] = None if named["txn"] is None else _row(r.Run, named["txn"])
        producers[int(number)] = Producer(**{**named, "last": tuple(named["last"])})
    for name in ("plain", "broken"):
        kept[name] = {int(number): _row(r.Run, values) for number, values in kept[name].items()}
    return LogState(producers=producers, **kept)


def _rows(kind: type[Any], values: Iterable[Any]) -> list[Any]:
    return [_row(kind, row) for row in values]


def _row(kind: Any, values: list[Any]) -> Any:
    """A row of a class that has a `log`."""
    row = kind(*values)
    return row._replace(log=r.Log(*row.log))
