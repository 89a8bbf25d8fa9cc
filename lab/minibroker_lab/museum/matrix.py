"""The matrix of the museum, client version by case with the rate in each cell: as Markdown, JSON and one HTML page."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from html import escape
from typing import Any, Final, NamedTuple

from minibroker_lab.museum.cases import Case, Measured
from minibroker_lab.reports import page

NAME: Final = "museum"
_THREAD: Final = re.compile(r"([\w.-]+/[\w.-]+)#(\d+)")
_TITLE: Final = "The museum of client bugs"
_CALM: Final = "calm: without failures"
_NOT_MEASURED: Final = "Nothing was measured."
_STYLE: Final = """
.wide{overflow-x:auto}td.rate{text-align:center;white-space:nowrap}td.case{min-width:18em}"""


class Table(NamedTuple):
    """What was measured with one client.

    columns: its versions in ascending order, `calm` behind the one that ran without failures.
    rows: each case with its rates by column.
    """

    client: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Case, Mapping[str, Measured]], ...]


def tables(cases: Sequence[Case]) -> list[Table]:
    """One for each client, by name."""
    tables = []
    for client in sorted({case.client for case in cases}):
        rows = tuple(
            (case, {_column(measured): measured for measured in case.measured})
            for case in cases
            if case.client == client
        )
        columns = sorted({name for _, rates in rows for name in rates}, key=_by_version)
        tables.append(Table(client, tuple(columns), rows))
    return tables


def _column(measured: Measured) -> str:
    return measured.version if measured.failures else f"{measured.version} calm"


def _by_version(column: str) -> tuple[list[int], str]:
    return [int(number) for number in re.findall(r"\d+", column)], column


def measured(cases: Sequence[Case]) -> str:
    """When, as a sentence."""
    dates = sorted(measured.date for case in cases for measured in case.measured)
    return f"Measured {dates[0]} to {dates[-1]}." if dates else _NOT_MEASURED


def as_markdown(cases: Sequence[Case]) -> str:
    """A table for each client."""
    lines = [measured(cases)]
    for client, columns, rows in tables(cases):
        lines += ["", f"| {client} | {' | '.join(columns)} |", "|---|" + "---|" * len(columns)]
        for case, rates in rows:
            cells = [rates[name].rate if name in rates else "" for name in columns]
            lines.append(f"| `{case.id}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def as_json(cases: Sequence[Case]) -> str:
    """A list with one object a case; `rates` as in ``rates.json``."""
    return json.dumps([_object(case) for case in cases], indent=1) + "\n"


def _object(case: Case) -> dict[str, Any]:
    return {
        "id": case.id,
        "about": case.about,
        "happens": " ".join(case.happens.split()),
        "thread": case.thread,
        "client": case.client,
        "affected": case.affected,
        "fixed": case.fixed or None,
        "rule": case.rule,
        "failures": case.script().about,
        "rates": [asdict(measured) for measured in case.measured],
    }


def as_html(cases: Sequence[Case]) -> str:
    """One page without anything to load."""
    body = f"<p>How often each rule was broken, by client and version ({_CALM}). {escape(measured(cases))}</p>"
    return page(_TITLE, "\n".join([body, *map(_section, tables(cases))]), _STYLE)


def _section(table: Table) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in table.columns)
    rows = "\n".join(
        f'<tr><td class="case">{_about(case)}</td>'
        + "".join(_cell(rates.get(name)) for name in table.columns)
        + "</tr>"
        for case, rates in table.rows
    )
    return f"""<h2>{escape(table.client)}</h2>
<div class="wide"><table><tr><th>case</th>{head}</tr>
{rows}
</table></div>"""


def _about(case: Case) -> str:
    fixed = f"fixed in {case.fixed}" if case.fixed else "open"
    return (
        f'<b id="{escape(case.id)}">{escape(case.id)}</b> {escape(case.about)}<br><small>{escape(case.affected)}; '
        f"{escape(case.rule)}; {f'{_thread(case.thread)}, ' if case.thread else ''}{escape(fixed)}</small>"
    )


def _thread(thread: str) -> str:
    match = _THREAD.fullmatch(thread)
    if match is None:
        return escape(thread)
    return f'<a href="https://github.com/{match[1]}/issues/{match[2]}">{escape(thread)}</a>'


def _cell(measured: Measured | None) -> str:
    if measured is None:
        return "<td></td>"
    return (
        f'<td class="rate {"bad" if measured.broken else "good"}" title="{escape(measured.date)}">{measured.rate}</td>'
    )


REPORTS: Final[Mapping[str, Callable[[Sequence[Case]], str]]] = {"html": as_html, "json": as_json}
"""Kind of report → what makes it of the cases."""


def makers(cases: Sequence[Case]) -> dict[str, Callable[[], str]]:
    """Kind of report → how it is made."""
    return {kind: partial(make, cases) for kind, make in REPORTS.items()}
