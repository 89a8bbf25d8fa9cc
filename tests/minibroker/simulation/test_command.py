"""What a person sees of `minibroker simulate`."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest

from minibroker.cli import main

HOLE = "marker dropped without a leader"
SHOWN = Path(__file__).with_name("holes.txt")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_known_hole_is_told_as_one_and_not_as_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    (seeds,) = (line for line in SHOWN.read_text().splitlines() if line.startswith(f"{HOLE}: "))
    for seed in seeds.partition(": ")[2].split():
        assert main(["simulate", "--seed", seed, "--about", "no such line"]) == 0
        told = capsys.readouterr().out.splitlines()
        if any(line.startswith(f"known hole of Kafka: {HOLE} (") for line in told):
            break
    else:
        pytest.fail(f"none of these seeds shows it: {seeds}")
    assert re.fullmatch("no promise was broken but by [1-9] known holes? of Kafka", told[-1])
    assert any(line.startswith("    aborted-read: ") for line in told)
    assert not [line for line in told if "error:" in line]


@pytest.mark.parametrize("terminal", [True, False])
def test_seeds_show_how_far_they_are_on_a_terminal_only(
    terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stderr = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr("minibroker.kernel.progress._INTERVAL_SECONDS", 0.0)
    assert main(["simulate", "--seeds", "2"]) == 0
    assert ("\r1 of 2 seeds, 0 broken, " in stderr.getvalue()) is terminal
    assert stderr.getvalue().endswith("\r") is terminal  # nothing of it stays
    assert "\r" not in capsys.readouterr().out
