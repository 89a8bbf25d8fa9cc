"""The benchmarks are programs that no other test runs: they begin, and the page of one holds what was measured."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from sampling import thinned

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
PROGRAMS = sorted(path for path in BENCHMARKS.glob("*.py") if "argparse" in path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("program", thinned(PROGRAMS, 3), ids=lambda path: path.stem)
def test_it_begins(program: Path) -> None:
    done = subprocess.run([sys.executable, program, "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout


def test_the_page_of_a_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    cycle = importlib.import_module("cycle")
    series = {"ours": {"whole": [0.3, 0.1, 0.2], "stop": [0.01, 0.02, 0.03]}, "other": {"whole": [2.0], "stop": [1.0]}}
    page = cycle.report(series, {"third": "did not start"}, 3, 1.25).splitlines()
    assert any("was 1.2:" in line for line in page)
    assert "| broker | whole | stop |" in page
    assert "| ours | **0.200** (0.100 to 0.300) | 0.020 |" in page
    assert "| other | **2.000** (2.000 to 2.000) | 1.000 |" in page
    assert any(line.startswith("| third | failed: did not start |") for line in page)
