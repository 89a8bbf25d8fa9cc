"""What a person sees of `minibroker simulate`."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest
from sampling import thinned

from minibroker.cli import main
from minibroker.trace.saved import read

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


@pytest.mark.parametrize("seed", thinned(["91", "20010", "80005620"], 3))
def test_a_traced_seed_is_the_same_and_its_trace_is_read(
    seed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(["simulate", "--seed", seed])
    told = capsys.readouterr().out
    trace = tmp_path / "trace.jsonl"
    assert main(["simulate", "--seed", seed, "--trace", str(trace)]) == status
    assert capsys.readouterr().out == told
    found = read(trace.read_text().splitlines())
    assert found.said[0] in told
    assert found.said[-1] == told.splitlines()[-1]
    assert [one["number"] for one in found.exchanges] == [*range(1, len(found.exchanges) + 1)]
    assert any(one["reasons"] for one in found.exchanges)
    assert main(["trace", "view", str(trace)]) == 0


def test_only_one_seed_is_traced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--seeds", "2", "--trace", str(tmp_path / "trace.jsonl")]) == 2
    assert capsys.readouterr().err == "minibroker: --trace goes with --seed\n"
    nowhere = tmp_path / "none" / "trace.jsonl"
    assert main(["simulate", "--seed", "91", "--trace", str(nowhere)]) == 2
    assert capsys.readouterr().err == f"minibroker: {nowhere}: No such file or directory\n"


@pytest.mark.parametrize("terminal", [True, False])
def test_seeds_show_how_far_they_are_on_a_terminal_only(
    terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stderr = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    assert main(["simulate", "--first", "31", "--seeds", "3"]) == 0
    assert bool(re.search(r"\r[123] of 3 seeds, 0 broken, ", stderr.getvalue())) is terminal
    assert stderr.getvalue().endswith("\r") is terminal  # nothing of it stays
    assert "\r" not in capsys.readouterr().out
