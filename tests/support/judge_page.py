"""Runs the client applications under every bundled script and writes the table of docs/judge.md.

python tests/support/judge_page.py 2026-01-31
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from minibroker.judge.scripts import bundled, load

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "judge.md"
CLIENTS = ("confluent-kafka", "aiokafka", "kafka-python")
BEGIN, END = "<!-- begin results -->", "<!-- end results -->"


def results(client: str) -> dict[str, str]:
    """Script → verdict, with the rules that were broken."""
    with tempfile.TemporaryDirectory() as place:
        report = Path(place, "report.json")
        judge = ["-m", "minibroker", "judge", "--script", "all", "--topic", "orders:1", "--report", str(report)]
        command = [sys.executable, *judge, "--", sys.executable, str(HERE / "judged_client.py"), client]
        subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        found = json.loads(report.read_text())
    return {one["script"]: " ".join([one["verdict"], *sorted({b["rule"] for b in one["broken"]})]) for one in found}


def table(date: str) -> str:
    by_client = {client: results(client) for client in CLIENTS}
    heads = [f"{client} {version(client)}" for client in CLIENTS]
    rows = [f"| script | {' | '.join(heads)} |", "|---|" + "---|" * len(CLIENTS)]
    rows += [f"| `{name}` | {' | '.join(by_client[client][name] for client in CLIENTS)} |" for name in bundled()]
    return f"Run on {date}, Python {sys.version.split()[0]}, semantics kafka:\n\n" + "\n".join(rows)


def scripts() -> str:
    return "\n".join(["| script | what happens |", "|---|---|", *(f"| `{n}` | {load(n).about} |" for n in bundled())])


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{scripts()}\n\n{table(sys.argv[1])}\n{END}{after}", encoding="utf-8")
