"""Runs the client applications under every bundled script and writes the tables of benchmarks/results/judge.md.

python tests/support judge_page [--semantics NAME] [--script NAME] [CLIENT==VERSION …]

Without arguments every cell is run anew; else these columns or scripts are, and the rest stays as the page has it.
A client that did not return under some script gets no column: a second table has its counts, and names no script.
"""

from __future__ import annotations

import argparse
import datetime
import os
import subprocess
import sys
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any
from unittest.mock import patch

from judged_applications import CLIENTS, OLD, command_of, release, verdicts
from toolchain import tool

from minibroker_lab.judge.scripts import bundled
from minibroker_lab.museum.clients import ClientError

PAGE = Path(__file__).resolve().parents[3] / "benchmarks" / "results" / "judge.md"
BEGIN, END = "<!-- begin results -->", "<!-- end results -->"
SEMANTICS = ("kafka", "kip")
MEASURED = "measured"
"""The last row: the day."""
HELD, BROKEN, NO_VERDICT = "held", "broken", "no verdict"
SILENT, SHORT_MS = ("silent-end-txn",), "3000"
"""Scripts under which a client waits twice for its own timeout, up to a minute by default: it gets a short one."""
SECONDS = 60
"""Of one application, which takes a few; what takes longer did not return."""

Columns = dict[str, dict[str, str]]
"""Column, as `CLIENT VERSION`, → row → cell. Of a client that did not return under some script the page keeps counts:
its rows are `HELD`, `BROKEN`, `NO_VERDICT` and `MEASURED`."""


def columns() -> list[str]:
    """Old versions beside the new one of each client."""
    return [f"{client} {version}" for client in CLIENTS for version in (*OLD[client], release(client))]


def measured(column: str, semantics: str, names: Sequence[str], before: dict[str, str]) -> dict[str, str]:
    """The column with these scripts run."""
    client, version = column.split(" ")
    if NO_VERDICT in before:  # the page has no cells that could be kept
        names, before = bundled(), {}
    by_script: dict[str, dict[str, Any]] = {}
    with command_of(client, version) as argv:
        for silent, variables in ((False, {}), (True, {"JUDGED_TIMEOUT_MS": SHORT_MS})):
            scripts = [name for name in names if (name in SILENT) == silent]
            if scripts:
                with patch.dict(os.environ, variables):
                    by_script |= verdicts(argv, scripts, semantics, seconds=SECONDS)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    dates = [today] if set(names) == set(bundled()) else sorted({*before.get(MEASURED, today).split(", "), today})
    return {**before, **{name: _said(row) for name, row in by_script.items()}, MEASURED: ", ".join(dates)}


def _said(report: dict[str, Any]) -> str:
    """The verdict, and which rules were broken."""
    if report["status"] is None:
        return NO_VERDICT
    rules = sorted({f"`{broken['rule']}`" for broken in report["broken"]})
    return f"**broken**: {', '.join(rules)}" if rules else report["verdict"]


def table(semantics: str, cells: Columns) -> str:
    there = [column for column in columns() if column in cells and not _counts(cells[column])]
    rows = [f"| {_title(semantics)} | {' | '.join(there)} |", "|---|" + "---|" * len(there)]
    for name in (*bundled(), MEASURED):
        label = MEASURED if name == MEASURED else f"`{name}`"
        rows.append(f"| {label} | {' | '.join(cells[column].get(name, '') for column in there)} |")
    others = {column: _counts(cells[column]) for column in columns() if column in cells and _counts(cells[column])}
    if others:
        rows += ["", f"| {_others_title(semantics)} | {' | '.join(_COUNTED)} |", "|---|" + "---|" * len(_COUNTED)]
        rows += [f"| {column} | {' | '.join(counts[name] for name in _COUNTED)} |" for column, counts in others.items()]
    return "\n".join(rows)


_COUNTED = (HELD, BROKEN, NO_VERDICT, MEASURED)


def _counts(column: dict[str, str]) -> dict[str, str]:
    """The number of scripts by verdict, of a client that did not return under some; else nothing."""
    if NO_VERDICT in column:
        return column
    cells = [cell for name, cell in column.items() if name != MEASURED]
    if NO_VERDICT not in cells:
        return {}
    held, broken = cells.count(HELD), sum(cell.startswith(f"**{BROKEN}**") for cell in cells)
    return {
        HELD: str(held),
        BROKEN: str(broken),
        NO_VERDICT: str(len(cells) - held - broken),
        MEASURED: column.get(MEASURED, ""),
    }


def kept(text: str, semantics: str) -> Columns:
    """The cells of the page's tables."""
    columns: Columns = {}
    _, body = _table(text, _others_title(semantics))
    for column, *cells in body:
        columns[column] = dict(zip(_COUNTED, cells, strict=True))
    names, body = _table(text, _title(semantics))
    for row, *cells in body:
        for name, cell in zip(names, cells, strict=True):
            columns.setdefault(name, {})[row.strip("`")] = cell
    return columns


def _table(text: str, title: str) -> tuple[list[str], list[list[str]]]:
    """Names of the columns, without the first, and the rows."""
    lines = iter(text.splitlines())
    head = next((line for line in lines if line.startswith(f"| {title} |")), "")
    next(lines, "")
    return _cells(head)[1:], [_cells(line) for line in takewhile(lambda line: line.startswith("|"), lines)]


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def _title(semantics: str) -> str:
    return f"script, semantics {semantics}"


def _others_title(semantics: str) -> str:
    return f"did not return under some script, semantics {semantics}"


def write(by_semantics: dict[str, Columns]) -> None:
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    how = f"`minibroker judge --script … --topic orders:1 --semantics … -- …`, {_tools()}."
    parts = [how, *(table(semantics, by_semantics[semantics]) for semantics in SEMANTICS)]
    PAGE.write_text("\n\n".join([f"{before}{BEGIN}\n{parts[0]}", *parts[1:]]) + f"\n{END}{after}", encoding="utf-8")


def _tools() -> str:
    go = subprocess.run([tool("go"), "env", "GOVERSION"], capture_output=True, text=True, check=True).stdout.strip()
    node = subprocess.run([tool("node"), "--version"], capture_output=True, text=True, check=True).stdout.strip()
    java = subprocess.run([tool("java"), "-version"], capture_output=True, text=True, check=True).stderr.split('"')[1]
    return f"Python {sys.version.split()[0]}, Java {java}, Go {go.removeprefix('go')}, Node {node.removeprefix('v')}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--semantics", action="append", choices=SEMANTICS)
    parser.add_argument("--script", action="append", choices=bundled())
    parser.add_argument("column", nargs="*")
    arguments = parser.parse_args()
    cells = {semantics: kept(PAGE.read_text(encoding="utf-8"), semantics) for semantics in SEMANTICS}
    for semantics in arguments.semantics or SEMANTICS:
        for column in [column_name.replace("==", " ") for column_name in arguments.column] or columns():
            try:
                before = cells[semantics].get(column, {})
                cells[semantics][column] = measured(column, semantics, arguments.script or bundled(), before)
            except ClientError as error:
                print(f"{column}: SKIPPED: {error}", file=sys.stderr)
            else:
                write(cells)
