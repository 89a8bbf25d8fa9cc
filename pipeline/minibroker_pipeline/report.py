"""Output of an audit: a JSON summary and one self-contained HTML page."""

from __future__ import annotations

import html
import shlex
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from minibroker.output import json_text
from minibroker.rules.catalogue import ERROR, RULES
from minibroker.rules.rows import ABORT, COMMIT, LOST, Finding
from minibroker.trace.view import base_style
from minibroker_pipeline.charts import bars, columns, stacked
from minibroker_pipeline.remedies import BOOTSTRAP, remedies_of
from minibroker_pipeline.statistics import DURATIONS_MS, OPEN, Statistics

MOST_STEPS = 120
"""Columns of a chart over time."""
SHOWN_BY_LOG = (".log", ".txnindex", ".snapshot")
"""Files whose rows are shown with the partition's; any other is shown by itself."""
SHOWN = 1_000
"""Findings listed in JSON and HTML; the Parquet table has all."""


@dataclass
class Audit:
    """The result of an audit.

    findings: the first SHOWN ones, worst first.
    seconds: how long it took.
    """

    source: str
    statistics: Statistics
    findings: list[Finding] = field(default_factory=list)
    as_of_ms: int | None = None
    seconds: float = 0.0
    engine: str = ""
    depth: str = ""

    @property
    def errors(self) -> int:
        return sum(count for (_, severity), count in self.statistics.findings.items() if severity == ERROR)

    @property
    def exit_code(self) -> int:
        return 1 if self.errors else 0


def show_command(audit: Audit, finding: Finding) -> str:
    """The command that shows a finding's batches, as a shell takes it."""
    source = audit.source if audit.source.startswith(BOOTSTRAP) else shlex.quote(audit.source)
    offsets = "" if finding.first_offset < 0 else f"@{finding.first_offset}-{finding.last_offset}"
    place = f"{finding.log.root}/{finding.log}" if finding.log.root else str(finding.log)
    if finding.file and not finding.file.endswith(SHOWN_BY_LOG) and not audit.source.startswith(BOOTSTRAP):
        place = finding.file
    return f"minibroker audit {source} --show {shlex.quote(place + offsets)}"


def finding_json(audit: Audit, finding: Finding) -> dict[str, Any]:
    return {
        "rule": finding.rule,
        "severity": finding.severity,
        "topic": finding.log.topic,
        "partition": finding.log.partition,
        "root": finding.log.root,
        "producer_id": finding.producer_id,
        "producer_epoch": finding.producer_epoch,
        "transactional_id": finding.transactional_id,
        "first_offset": finding.first_offset,
        "last_offset": finding.last_offset,
        "file": finding.file,
        "position": finding.position,
        "message": finding.message,
        "show": show_command(audit, finding),
        "remedies": [remedy._asdict() for remedy in remedies_of(finding, audit.source)],
    }


def summary(audit: Audit) -> dict[str, Any]:
    """The JSON summary."""
    return {
        "source": audit.source,
        "engine": audit.engine,
        "depth": audit.depth,
        "as_of_ms": audit.as_of_ms,
        "seconds": round(audit.seconds, 3),
        "exit_code": audit.exit_code,
        "errors": audit.errors,
        **audit.statistics.as_json(),
        "shown": [finding_json(audit, finding) for finding in audit.findings],
    }


def summary_text(audit: Audit) -> str:
    return json_text(summary(audit), indent=2) + "\n"


def lines(audit: Audit, most: int = 20) -> list[str]:
    """The result for a terminal."""
    figures = audit.statistics
    outcomes = ", ".join(f"{count:,} {name}" for name, count in sorted(figures.outcomes().items())) or "none"
    out = [
        f"{figures.logs:,} logs, {f'{figures.files:,} files, ' if figures.files else ''}{figures.bytes:,} bytes",
        f"{figures.batches:,} batches, {figures.records:,} records, {len(figures.epochs):,} producers",
        f"transactions: {outcomes}",
    ]
    explained: set[str] = set()
    for finding in audit.findings[:most]:
        out += finding_lines(finding, audit.source, explained)
    total = sum(figures.findings.values())
    if total > most:
        out.append(f"… and {total - most:,} more")
    notices = total - audit.errors
    out.append(counted(audit.errors, "finding") + (f", {counted(notices, 'notice')}" if notices else ""))
    return out


def finding_lines(finding: Finding, source: str, explained: set[str]) -> list[str]:
    """A finding for a terminal, with what can be done where its rule is not in `explained`, to which it is added."""
    lines = [str(finding)]
    if finding.rule not in explained:  # the remedies are the same for every finding of a rule
        explained.add(finding.rule)
        for command, risk in remedies_of(finding, source):
            lines += [f"  {command}", f"      {risk}"]
    return lines


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


# HTML

_STYLE = """
body{max-width:1060px;margin:1.5em auto;padding:0 1em}
h1{font-size:1.4rem;margin:0}.soft{color:var(--quiet)}
.verdict{font-size:1.15em;font-weight:600;margin:.6em 0}
.good{color:var(--commit)}.bad{color:var(--abort)}.notice{color:var(--prepare)}
.figures{display:flex;flex-wrap:wrap;gap:.6em;margin-bottom:1em}
.figures div{background:var(--card);border-radius:8px;padding:.5em .9em}
.figures b{display:block;font-size:1.15em;font-variant-numeric:tabular-nums}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(440px,100%),1fr));gap:1em}
figure{margin:0;background:var(--card);border-radius:8px;padding:.7em}figcaption{font-weight:600;margin-bottom:.3em}
svg{width:100%;height:auto;display:block}svg text{fill:var(--quiet);font:11px system-ui,sans-serif}
code{font-size:.88em;word-break:break-all}.num{text-align:right}
"""


def page(audit: Audit) -> str:
    """The HTML report: the verdict, plots, and every finding with where it is and how to see it."""
    figures = audit.statistics
    verdict = (
        '<p class="verdict good">No broken promise found.</p>'
        if not audit.errors
        else f'<p class="verdict bad">{counted(audit.errors, "broken promise")} found.</p>'
    )
    alive = f", judged as of {_time(audit.as_of_ms)}" if audit.as_of_ms else ""
    return "".join(
        [
            '<!doctype html><html lang="en"><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width,initial-scale=1">',
            f"<title>Exactly-once audit of {html.escape(audit.source)}</title><style>{base_style()}{_STYLE}</style>",
            f"<h1>Exactly-once audit</h1><p class='soft'><code>{html.escape(audit.source)}</code>{alive}; ",
            f"depth {html.escape(audit.depth)}; {audit.seconds:,.1f} s ({html.escape(audit.engine)})</p>",
            verdict,
            _figures(figures),
            f'<div class="charts">{"".join(_charts(figures))}</div>',
            _rules(figures),
            _findings(audit),
            "</html>\n",
        ]
    )


def _time(ms: int) -> str:
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):  # a producer may write anything: microseconds, say
        return f"{ms:,} ms"


def _figures(figures: Statistics) -> str:
    rows = [
        ("logs", figures.logs),
        ("bytes", figures.bytes),
        ("batches", figures.batches),
        ("records", figures.records),
        ("producers", len(figures.epochs)),
        *((f"transactions {name}", count) for name, count in sorted(figures.outcomes().items())),
    ]
    return '<div class="figures">' + "".join(f"<div><b>{count:,}</b>{name}</div>" for name, count in rows) + "</div>"


def _charts(figures: Statistics) -> list[str]:
    labels, series, lag = _over_time(figures)
    bounds = [*(_duration(bound) for bound in DURATIONS_MS), "more"]
    bumps = sorted(figures.epochs.bumps().items())
    by_rule = sorted(figures.findings.items(), key=lambda item: -item[1])
    return [
        _figure("Transactions over time, by outcome", stacked(labels, series)),
        _figure(
            "How long transactions took (up to)",
            columns(bounds, [figures.durations.get(number, 0) for number in range(len(bounds))]),
        ),
        _figure(
            "Last stable offset: records held back by the transaction that ended (most per step)",
            columns(labels, lag, sparse=True),
        ),
        _figure(
            "Producers by epoch bumps", columns([str(number) for number, _ in bumps], [count for _, count in bumps])
        ),
        _figure(
            "Findings by rule",
            bars([(rule, count, severity == ERROR) for (rule, severity), count in by_rule]),
        ),
    ]


def _over_time(figures: Statistics) -> tuple[list[str], dict[str, list[int]], list[int]]:
    """Labels of equal steps of time from the first transaction to the last, their counts by outcome, and the lag."""
    times = [at for at, _ in figures.transactions]
    if not times:
        return [], {}, []
    first, width = min(times), -(-(max(times) - min(times) + 1) // MOST_STEPS)
    steps = (max(times) - first) // width + 1
    names = {outcome for _, outcome in figures.transactions}
    series = {name: [0] * steps for name in (COMMIT, ABORT, LOST, OPEN) if name in names}
    for (at, name), count in figures.transactions.items():
        series[name][(at - first) // width] += count
    lag = [0] * steps
    for at, held in figures.lag.items():
        lag[(at - first) // width] = max(lag[(at - first) // width], held)
    return [_time((first + number * width) * figures.bucket_ms) for number in range(steps)], series, lag


def _duration(ms: int) -> str:
    return f"{ms} ms" if ms < 1_000 else f"{ms // 1000:,} s"


def _figure(title: str, svg: str) -> str:
    return f"<figure><figcaption>{title}</figcaption>{svg}</figure>"


def _rules(figures: Statistics) -> str:
    if not figures.findings:
        return ""
    rows = []
    for (name, severity), count in sorted(figures.findings.items(), key=lambda item: (item[0][1], -item[1])):
        rule = RULES[name]
        rows.append(
            f'<tr><td class="num">{count:,}</td><td class="{"bad" if severity == ERROR else "notice"}">{severity}</td>'
            f"<td><b>{rule.title}</b><br><span class='soft'>{name}</span></td>"
            f"<td>{html.escape(rule.promise)} <span class='soft'>{html.escape(rule.source)}</span></td></tr>"
        )
    head = "<tr><th>count</th><th></th><th>rule</th><th>what it promises</th></tr>"
    return f"<h2>Rules that were broken</h2><table>{head}{''.join(rows)}</table>"


def _findings(audit: Audit) -> str:
    if not audit.findings:
        return ""
    total = sum(audit.statistics.findings.values())
    head = "<tr><th>rule</th><th>where</th><th>what was seen</th></tr>"
    rows = [_finding(audit, finding) for finding in audit.findings]
    more = f"<p class='soft'>The first {len(rows):,} of {total:,}.</p>" if total > len(rows) else ""
    return f"<h2>Findings</h2>{more}<table>{head}{''.join(rows)}</table>"


def _finding(audit: Audit, finding: Finding) -> str:
    offsets = "" if finding.first_offset < 0 else f" offsets {finding.first_offset:,}–{finding.last_offset:,}"
    if finding.first_offset == finding.last_offset >= 0:
        offsets = f" offset {finding.first_offset:,}"
    producer = "" if finding.producer_id < 0 else f"<br>producer {finding.producer_id}, epoch {finding.producer_epoch}"
    name = f"<br>{html.escape(finding.transactional_id)}" if finding.transactional_id else ""
    byte = f", byte {finding.position}" if finding.position >= 0 else ""
    file = f"<br><span class='soft'>{html.escape(finding.file)}{byte}</span>" if finding.file else ""
    return (
        f'<tr><td class="{"bad" if finding.severity == ERROR else "notice"}">{finding.rule}</td>'
        f"<td>{html.escape(str(finding.log))}{offsets}{producer}{name}{file}</td>"
        f"<td>{html.escape(finding.message)}<br><code>{html.escape(show_command(audit, finding))}</code>"
        f"{_remedies(audit, finding)}</td></tr>"
    )


def _remedies(audit: Audit, finding: Finding) -> str:
    rows = [
        f"<li><code>{html.escape(command)}</code><br><span class='soft'>{html.escape(risk)}</span></li>"
        for command, risk in remedies_of(finding, audit.source)
    ]
    return f"<details><summary>what can be done</summary><ul>{''.join(rows)}</ul></details>" if rows else ""


def worst(finding: Finding) -> tuple[Any, ...]:
    """The order of findings: errors before notices, then by log and offset."""
    return finding.severity != ERROR, finding.log, finding.first_offset, finding.rule
