"""`minibroker pipeline demo`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from minibroker.cli import main


def test_what_cannot_be_run_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "pyspark" else object())
    assert main(["pipeline", "demo"]) == 2
    assert "the demo needs pyspark: " in capsys.readouterr().err
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert main(["pipeline", "demo", "--orders", "3"]) == 2
    assert capsys.readouterr().err == "minibroker pipeline: --orders 3: at least 30\n"


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore")
def test_each_order_is_paid_once(tmp_path: Path) -> None:
    """In a process of its own, as it ends its session of Spark."""
    pytest.importorskip("pyspark")
    report = tmp_path / "report.html"
    command = [sys.executable, "-m", "minibroker", "pipeline", "demo", "--orders", "90", "--html", str(report)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    places = [
        done.stdout.index(text)
        for text in (
            "a job that ran twice wrote 30 records",
            "refuse the next commit, on purpose",
            "the query failed; 0 of its records are visible",
            "0 findings",
        )
    ]
    assert places == sorted(places)
    assert done.stdout.endswith("90 orders, 90 payments: each exactly once\n")
    assert report.read_text().startswith("<!doctype html>")
