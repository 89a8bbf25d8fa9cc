"""Runs the client applications under the preset kip890 of the judge, and writes benchmarks/results/late-requests.md.

python tests/support late_page [CLIENT==VERSION …]

Without arguments every row is run anew; else these rows are, and the rest stays as the page has it.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from judge_page import columns
from judged_applications import command_of

from minibroker_lab.museum.clients import ClientError

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "benchmarks" / "results" / "late-requests.md"
BEGIN, END = "<!-- begin late-requests -->", "<!-- end late-requests -->"
SCRIPTS = ("late commit", "late abort", "late Produce")
HEAD = ("client", *SCRIPTS, "measured")
RUNS = 3
TIMEOUT_MS = 1500
_LINE = re.compile(r"  (late \w+)\s+(yes|no|not told)\s+(\d+ of \d+): (.+)")
_GIVEN_UP = {"kafka-python": "kafka-python-late-produce", "aiokafka": "aiokafka-late-produce"}
"""Cases of the museum about a Produce that the client gave up, which the preset does not lead to."""

Rows = dict[str, list[str]]
"""Client and version → the cells behind it."""


def measured(argv: Sequence[str]) -> list[str]:
    """The cells of a client."""
    how = ["--preset", "kip890", "--repeat", str(RUNS), "--timeout", "60", "--topic", "orders:1"]
    ran = subprocess.run(
        [sys.executable, "-m", "minibroker", "judge", *how, "--", *argv],
        env={**os.environ, "JUDGED_TIMEOUT_MS": str(TIMEOUT_MS)},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    by_script: dict[str, list[str]] = {}
    for script, said, times, why in _LINE.findall(ran.stdout):
        by_script.setdefault(script, []).append(cell(said, times, why))
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return [*(", ".join(by_script.get(script, ["not told"])) for script in SCRIPTS), today]


def cell(said: str, times: str, why: str) -> str:
    """``**yes** 3 of 3: EndTxn v1``, ``no 3 of 3: PRODUCER_FENCED``, ``not told``."""
    if said == "yes":
        return f"**yes** {times}: {' '.join(why.split()[:2])}"
    code = re.search(r"refused with ([A-Z_]+)", why)
    if said == "no":
        return f"no {times}: {code[1]}" if code else f"no {times}"
    return "not told" if len(set(times.split(" of "))) == 1 else f"not told {times}"


def kept(text: str) -> Rows:
    """The rows of the page."""
    lines = text.partition(BEGIN)[2].partition(END)[0].strip().splitlines()
    cells = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|"))
    return {name: row for name, *row in list(cells)[2:]}


def table(rows: Rows) -> str:
    """The rows in the order of the columns of benchmarks/results/judge.md, with what the museum knows of a Produce."""
    rates = json.loads((ROOT / "museum" / "rates.json").read_text(encoding="utf-8"))
    lines = [f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD)]
    for name in (column for column in columns() if column in rows):
        client, version = name.split(" ")
        *cells, late_produce, date = rows[name]
        for rate in rates.get(_GIVEN_UP.get(client, ""), ()):
            if rate["failures"] and rate["version"] == version:
                late_produce = f"**yes** {rate['broken']} of {rate['runs']}: `{_GIVEN_UP[client]}`"
        lines.append(f"| {' | '.join([name, *cells, late_produce, date])} |")
    return "\n".join(lines)


def write(rows: Rows) -> None:
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{table(rows)}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    for column in [argument.replace("==", " ") for argument in sys.argv[1:]] or columns():
        client, _, version = column.partition(" ")
        try:
            with command_of(client, version) as argv:
                row = measured(argv)
        except ClientError as error:
            print(f"{column}: SKIPPED: {error}", file=sys.stderr)
            continue
        write({**kept(PAGE.read_text(encoding="utf-8")), column: row})
