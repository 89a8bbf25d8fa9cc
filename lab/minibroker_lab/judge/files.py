"""Verdicts as files: JSON for programs, JUnit's XML for CI, HTML with a timeline for people."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Final

from minibroker.trace.recorder import line_of
from minibroker.trace.saved import Trace, as_lines
from minibroker_lab.judge.exchanges import Exchange
from minibroker_lab.judge.report import (
    BROKEN,
    HELD,
    NOT_APPLICABLE,
    UNDECIDED,
    Judged,
    around,
    circumstances,
    finding_line,
    headline,
    lines,
    to_json,
    verdict,
    violation,
)
from minibroker_lab.judge.timeline import STYLE, mark, timeline
from minibroker_lab.reports import JunitCase, junit, page
from minibroker_storage.private_files import output_path

NAME: Final = "judge"
_CLASSES: Final = {HELD: "good", BROKEN: "bad", UNDECIDED: "neutral", NOT_APPLICABLE: "neutral"}
_STYLE: Final = """
.times{font:12px/1.5 ui-monospace,monospace}.times td{white-space:pre-wrap;overflow-wrap:anywhere}
.times tr.fault{background:color-mix(in srgb,var(--prepare) 18%,transparent)}
.times tr.first{background:color-mix(in srgb,var(--abort) 18%,transparent)}"""


def makers(verdicts: Sequence[Judged], command: str, started: str) -> dict[str, Callable[[], str]]:
    """Kind of report → how it is made.

    command: as a person would type it.
    started: ISO 8601.
    """
    return {
        "html": lambda: as_html(verdicts, command, started),
        "junit": lambda: as_junit(verdicts, started),
        "json": lambda: as_json(verdicts),
    }


def as_trace(judged: Judged) -> str:
    """The exchanges of a run with the verdict, for `minibroker trace view`; those that broke a promise say which."""
    broken: dict[int, list[str]] = {}
    for promise in judged.broken:
        if promise.exchange is not None:
            broken.setdefault(promise.exchange["number"], []).append(str(promise.finding))
    exchanges = []
    for exchange in judged.run.exchanges:
        findings = broken.get(exchange["number"])
        shown = {name: value for name, value in exchange.items() if name != "request_frame"}
        exchanges.append({**shown, "broken": findings} if findings else shown)
    return as_lines(Trace(exchanges, verdict(judged)))


def save_trace(judged: Judged, directory: Path | None, name: str) -> None:
    """`as_trace` in ``directory/name.jsonl``; nothing without a directory. Raises OSError."""
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
        output_path(directory / f"{name}.jsonl").write_text(as_trace(judged), encoding="utf-8")


def as_json(verdicts: Sequence[Judged]) -> str:
    """A list with one object a run."""
    return json.dumps([to_json(judged) for judged in verdicts], indent=2) + "\n"


def as_junit(verdicts: Sequence[Judged], started: str) -> str:
    """One case a run: broken is a failure, undecided or not applicable a skipped one."""
    return junit([_case(judged) for judged in verdicts], NAME, started)


def _case(judged: Judged) -> JunitCase:
    run, outcome = judged.run, judged.outcome
    return JunitCase(
        "scripts",
        run.script.name,
        run.seconds,
        failure=finding_line(judged.broken[0]) if outcome == BROKEN else None,
        skipped=judged.doubt if outcome in (UNDECIDED, NOT_APPLICABLE) else None,
        detail="\n".join(lines(judged)),
        said=circumstances(run),
    )


def as_html(verdicts: Sequence[Judged], command: str, started: str) -> str:
    """One page: a table of the scripts, then each with what it broke and its timeline."""
    rows = "\n".join(
        f'<tr><td><a href="#{escape(judged.run.script.name)}">{escape(judged.run.script.name)}</a><br>'
        f"<small>{escape(judged.run.script.about)}</small></td>"
        f'<td class="{_CLASSES[judged.outcome]}">{judged.outcome}</td><td>{escape(circumstances(judged.run))}</td></tr>'
        for judged in verdicts
    )
    body = f"""<p><code>{escape(command)}</code>, {escape(started)}</p>
<table><tr><th>script</th><th>exactly-once</th><th>run</th></tr>
{rows}
</table>
{"".join(map(_section, verdicts))}"""
    return page("Exactly-once of a client", body, STYLE + _STYLE)


def _section(judged: Judged) -> str:
    run, first = judged.run, judged.first
    items = "".join(f"<li>{escape(finding_line(promise))}</li>" for promise in judged.broken)
    parts = [
        f'<h2 id="{escape(run.script.name)}" class="{_CLASSES[judged.outcome]}">{escape(headline(judged))}</h2>',
        f"<p>{escape(circumstances(run))}</p>{f'<ul>{items}</ul>' if items else ''}",
        timeline(run, first),
    ]
    if first is not None:
        parts.append(f"<h3>{escape(violation(first))}</h3>{_table(around(run.exchanges, first), first)}")
    parts.append(f"<details><summary>all exchanges</summary>{_table(run.exchanges, first)}</details>")
    return "\n".join(parts)


def _table(exchanges: Sequence[Exchange], first: Exchange | None) -> str:
    rows = "\n".join(
        f'<tr class="{mark(e, first)}"><td>{e["number"]}</td><td>{escape(line_of(e))}</td></tr>' for e in exchanges
    )
    return f'<table class="times">{rows}</table>'
