"""Runs the client applications under every bundled script and writes the table of docs/judge.md.

python tests/support/judge_page.py 2026-01-31
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from judged_applications import CLIENTS, command, release, verdicts
from toolchain import tool

from minibroker.judge.scripts import bundled, load

PAGE = Path(__file__).resolve().parents[2] / "docs" / "judge.md"
BEGIN, END = "<!-- begin results -->", "<!-- end results -->"


def results(client: str) -> dict[str, str]:
    """Script → verdict, with the rules that were broken."""
    with tempfile.TemporaryDirectory() as place:
        found = verdicts(command(client, Path(place)), bundled())
    return {n: " ".join([one["verdict"], *sorted({b["rule"] for b in one["broken"]})]) for n, one in found.items()}


def table(date: str) -> str:
    by_client = {client: results(client) for client in CLIENTS}
    heads = [f"{client} {release(client)}" for client in CLIENTS]
    rows = [f"| script | {' | '.join(heads)} |", "|---|" + "---|" * len(CLIENTS)]
    rows += [f"| `{name}` | {' | '.join(by_client[client][name] for client in CLIENTS)} |" for name in bundled()]
    head = f"`minibroker judge --script all --topic orders:1 -- …` on {date}, semantics kafka, {_tools()}:"
    return f"{head}\n\n" + "\n".join(rows)


def _tools() -> str:
    go = subprocess.run([tool("go"), "env", "GOVERSION"], capture_output=True, text=True, check=True).stdout.strip()
    node = subprocess.run([tool("node"), "--version"], capture_output=True, text=True, check=True).stdout.strip()
    java = subprocess.run([tool("java"), "-version"], capture_output=True, text=True, check=True).stderr.split('"')[1]
    return f"Python {sys.version.split()[0]}, Java {java}, Go {go.removeprefix('go')}, Node {node.removeprefix('v')}"


def scripts() -> str:
    return "\n".join(["| script | what happens |", "|---|---|", *(f"| `{n}` | {load(n).about} |" for n in bundled())])


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{scripts()}\n\n{table(sys.argv[1])}\n{END}{after}", encoding="utf-8")
