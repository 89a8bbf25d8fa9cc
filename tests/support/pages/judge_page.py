"""Runs the loop of each client library under every bundled script and writes the tables of benchmarks/results/judge.md.

python tests/support judge_page [--place NAME] [--script NAME] [--kept DIR] [CLIENT[==VERSION] …]

Without arguments every cell is run anew; else these columns or scripts are, and the rest stays as the page has it.
`--kept` gets the traces and the output of what was not held.
A client that did not return under some script gets no column: a second table has its counts, and names no script. The
place `upstream` is a real Kafka through the proxy, where the loop begins with new topics and a new group in each cell.
"""

from __future__ import annotations

import argparse
import datetime
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from judged_applications import CLIENTS, OLD, NoReport, client_version, judged_apart, loop_of, release, script_options
from real_kafka import NotStarted, real_kafka
from toolchain import tool

from minibroker.kernel.arguments import directory
from minibroker_lab.judge.report import NOT_APPLICABLE, UNDECIDED
from minibroker_lab.judge.scripts import bundled, load
from minibroker_lab.judge.upstream import misfit
from minibroker_lab.museum.clients import ClientError

PAGE = Path(__file__).resolve().parents[3] / "benchmarks" / "results" / "judge.md"
BEGIN, END = "<!-- begin results -->", "<!-- end results -->"
UPSTREAM = "upstream"
PLACES = {
    "kafka": "semantics kafka",
    "kip": "semantics kip",
    UPSTREAM: "Apache Kafka 4.4.0 through the proxy",
}
"""Where the loop runs, and how the page calls it."""
MEASURED = "measured"
"""The last row: the day."""
HELD, BROKEN, NO_VERDICT, NOT_RUN = "held", "broken", "no verdict", "not run"
SECONDS = 60
"""Of one loop, which takes a few; what takes longer did not return."""
_SMALL = "offsets.topic.num.partitions=1\ntransaction.state.log.num.partitions=1\n"
"""The Kafka of a cell: fifty partitions of each take longer to make than the loop."""
AT_ONCE = 3
"""Columns side by side: most of a run is waiting."""

Columns = dict[str, dict[str, str]]
"""Column, as `CLIENT VERSION`, → row → cell. Of a client that did not return under some script the page keeps counts:
its rows are those of `_COUNTED`."""


def columns() -> list[str]:
    """Old versions beside the new one of each client."""
    return [f"{client} {version}" for client in CLIENTS for version in (*OLD[client], release(client))]


class Where(NamedTuple):
    """place: one of `PLACES`. kept: a folder for what was not held, or None. ending: set when nothing more is run."""

    place: str
    kept: Path | None = None
    ending: threading.Event = threading.Event()


def measured(column: str, where: Where, names: Sequence[str], before: dict[str, str]) -> Iterator[dict[str, str]]:
    """The column with these scripts run, after each part that was measured. Raises ClientError, NoReport."""
    client, version = column.split(" ")
    if NO_VERDICT in before:  # the page has no cells that could be kept
        names, before = bundled(), {}
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    kept = {name: cell for name, cell in before.items() if cell != NOT_RUN}
    days = ", ".join(sorted({*kept.get(MEASURED, today).split(", "), today}))
    cells: dict[str, str] = {}
    with loop_of(client, version) as argv:
        if where.kept:
            where = where._replace(kept=where.kept / f"{where.place}-{client}-{version}")
        parts = _in_front_of_kafka if where.place == UPSTREAM else _on_our_own
        for some in parts(argv, names, where):
            cells |= some
            yield {**kept, **cells, MEASURED: today if set(cells) == set(bundled()) else days}


def _in_front_of_kafka(argv: Sequence[str], names: Sequence[str], where: Where) -> Iterator[dict[str, str]]:
    """Cell after cell; one without a Kafka or a report has none, and says why. After one that is not held, which may
    have left a transaction open, comes a new Kafka."""
    with ExitStack() as kafka:
        servers = ""
        for name in names:
            if where.ending.is_set():
                return
            if misfit(load(name), SECONDS):
                yield {name: NOT_APPLICABLE}
                continue
            try:
                if not servers or not is_emptied(servers):
                    kafka.close()
                    servers = kafka.enter_context(real_kafka(_SMALL))
                cells = _cells_of(argv, [name], where, "--upstream", servers)
                servers = servers if cells == {name: HELD} else ""
                yield cells
            except (NotStarted, NoReport) as error:
                servers = ""
                print(f"{name}: {NOT_RUN}: {error}", file=sys.stderr)


def is_emptied(servers: str, seconds: float = 20.0) -> bool:
    """Whether the topics and groups of clients are removed in so many seconds, which a group with members is not."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    deadline = time.monotonic() + seconds
    with suppress(KafkaException):
        while time.monotonic() < deadline:
            topics = [topic for topic in admin.list_topics(timeout=seconds).topics if not topic.startswith("__")]
            groups = [group.group_id for group in admin.list_consumer_groups().result().valid]
            if not topics and not groups:
                return True
            removals = [*(admin.delete_topics(topics) if topics else {}).values()]
            removals += (admin.delete_consumer_groups(groups) if groups else {}).values()
            for removal in removals:
                with suppress(KafkaException):  # it is being removed, or has members
                    removal.result()
            time.sleep(0.2)
    return False


def _on_our_own(argv: Sequence[str], names: Sequence[str], where: Where) -> Iterator[dict[str, str]]:
    yield _cells_of(argv, names, where, "--semantics", where.place)


def _cells_of(argv: Sequence[str], names: Sequence[str], where: Where, *options: str) -> dict[str, str]:
    topics = ("--topic", "in:1", "--topic", "out:1", "--lineage", "in=out", "--timeout", f"{SECONDS}")
    words = (*script_options(names), *topics, *options)
    rows = judged_apart(argv, *words, kept=where.kept, ending=where.ending)
    return {row["script"]: _said(row) for row in rows}


def _said(report: dict[str, Any]) -> str:
    """The verdict, and which rules were broken."""
    if report["status"] is None:
        return NO_VERDICT
    rules = sorted({f"`{broken['rule']}`" for broken in report["broken"]})
    return f"**broken**: {', '.join(rules)}" if rules else report["verdict"]


def table(place: str, cells: Columns) -> str:
    """A script that was not run says so; a column without any cell is left out, and so is a table without columns."""
    others = {column: _counts(cells[column]) for column in columns() if _counts(cells.get(column, {}))}
    there = [column for column in columns() if column not in others and _was_run(cells.get(column, {}))]
    rows = []
    if there:
        rows = [f"| {_title(place)} | {' | '.join(there)} |", "|---|" + "---|" * len(there)]
        for name in (*bundled(), MEASURED):
            label = MEASURED if name == MEASURED else f"`{name}`"
            rows.append(f"| {label} | {' | '.join(cells[column].get(name, NOT_RUN) for column in there)} |")
        rows += [""] if others else []
    if others:
        rows += [f"| {_others_title(place)} | {' | '.join(_COUNTED)} |", "|---|" + "---|" * len(_COUNTED)]
        rows += [f"| {column} | {' | '.join(counts[name] for name in _COUNTED)} |" for column, counts in others.items()]
    return "\n".join(rows)


_COUNTED = (HELD, BROKEN, NO_VERDICT, UNDECIDED, NOT_APPLICABLE, NOT_RUN, MEASURED)


def _was_run(column: dict[str, str]) -> bool:
    return any(cell != NOT_RUN for cell in column.values())


def _counts(column: dict[str, str]) -> dict[str, str]:
    """The number of scripts by verdict, of a client that did not return under some; else nothing."""
    if NO_VERDICT in column:
        return column
    cells = [cell for name, cell in column.items() if name != MEASURED]
    if NO_VERDICT not in cells:
        return {}
    counts = {name: str(cells.count(name)) for name in (HELD, NO_VERDICT, UNDECIDED, NOT_APPLICABLE)}
    broken = sum(cell.startswith(f"**{BROKEN}**") for cell in cells)
    return {
        **counts,
        BROKEN: str(broken),
        NOT_RUN: str(len(bundled()) - broken - sum(map(int, counts.values()))),
        MEASURED: column.get(MEASURED, ""),
    }


def kept(text: str, place: str) -> Columns:
    """The cells of the page's tables."""
    columns: Columns = {}
    _, body = _table(text, _others_title(place))
    for column, *cells in body:
        columns[column] = dict(zip(_COUNTED, cells, strict=True))
    names, body = _table(text, _title(place))
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


def _title(place: str) -> str:
    return f"script, {PLACES[place]}"


def _others_title(place: str) -> str:
    return f"did not return under some script, {PLACES[place]}"


def write(by_place: dict[str, Columns]) -> None:
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    how = f"`minibroker judge --script … --topic in:1 --topic out:1 --lineage in=out … -- …`, {_tools()}."
    parts = [how, *filter(None, (table(place, by_place[place]) for place in PLACES))]
    PAGE.write_text("\n\n".join([f"{before}{BEGIN}\n{parts[0]}", *parts[1:]]) + f"\n{END}{after}", encoding="utf-8")


def _tools() -> str:
    go = subprocess.run([tool("go"), "env", "GOVERSION"], capture_output=True, text=True, check=True).stdout.strip()
    node = subprocess.run([tool("node"), "--version"], capture_output=True, text=True, check=True).stdout.strip()
    java = subprocess.run([tool("java"), "-version"], capture_output=True, text=True, check=True).stderr.split('"')[1]
    return f"Python {sys.version.split()[0]}, Java {java}, Go {go.removeprefix('go')}, Node {node.removeprefix('v')}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--place", action="append", choices=PLACES)
    parser.add_argument("--script", action="append", choices=bundled())
    parser.add_argument("--kept", type=directory)
    parser.add_argument("--at-once", type=int, default=AT_ONCE)
    parser.add_argument("columns", nargs="*", type=client_version, metavar="CLIENT[==VERSION]")
    arguments = parser.parse_args()
    places = arguments.place or list(PLACES)
    names = [" ".join(column) for column in arguments.columns] or columns()
    writing, ending = threading.Lock(), threading.Event()

    def run(task: tuple[str, str]) -> None:
        place, column = task
        with writing:  # a page that is being written has no cells for a moment
            before = kept(PAGE.read_text(encoding="utf-8"), place).get(column, {})
        try:
            where = Where(place, arguments.kept, ending)
            for cells in measured(column, where, arguments.script or bundled(), before):
                with writing:
                    text = PAGE.read_text(encoding="utf-8")
                    now = {name: kept(text, name) for name in PLACES}
                    now[place][column] = cells
                    write(now)
        except (ClientError, NoReport) as error:
            print(f"{column}: SKIPPED: {error}", file=sys.stderr)

    with ThreadPoolExecutor(arguments.at_once) as pool:
        try:
            list(pool.map(run, [(place, column) for place in places for column in names]))
        finally:
            ending.set()  # a signal ends the judges of the columns that are being run, and then their Kafkas


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    main()
