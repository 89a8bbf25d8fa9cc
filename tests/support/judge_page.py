"""Runs the client applications under every bundled script and writes the table of docs/judge.md.

python tests/support/judge_page.py 2026-01-31
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from judged_applications import CLIENTS, command, release, verdicts
from toolchain import tool

from minibroker.judge.scripts import bundled, load

PAGE = Path(__file__).resolve().parents[2] / "docs" / "judge.md"
BEGIN, END = "<!-- begin results -->", "<!-- end results -->"


SEMANTICS = ("kafka", "kip")


def results(client: str) -> dict[str, dict[str, str]]:
    """Semantics → script → verdict, with the rules that were broken."""
    with tempfile.TemporaryDirectory() as place:
        argv = command(client, Path(place))
        found = {semantics: verdicts(argv, bundled(), semantics) for semantics in SEMANTICS}
    return {semantics: {name: _said(one) for name, one in told.items()} for semantics, told in found.items()}


def _said(report: dict[str, Any]) -> str:
    return " ".join([report["verdict"], *sorted({broken["rule"] for broken in report["broken"]})])


def tables(date: str) -> str:
    by_client = {client: results(client) for client in CLIENTS}
    heads = [f"{client} {release(client)}" for client in CLIENTS]
    parts = [f"`minibroker judge --script all --topic orders:1 --semantics … -- …` on {date}, {_tools()}."]
    for semantics in SEMANTICS:
        rows = [f"| script, semantics {semantics} | {' | '.join(heads)} |", "|---|" + "---|" * len(CLIENTS)]
        rows += [
            f"| `{name}` | {' | '.join(by_client[client][semantics][name] for client in CLIENTS)} |"
            for name in bundled()
        ]
        parts.append("\n".join(rows))
    return "\n\n".join(parts)


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
    PAGE.write_text(f"{before}{BEGIN}\n{scripts()}\n\n{tables(sys.argv[1])}\n{END}{after}", encoding="utf-8")
