"""The program that runs right loops again and again (`judged_loops.py`), with other commands."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from judged_loops import TRYING, LoopRun, runs_of, tell
from toolchain import TESTS

HELD = {"script": "calm", "verdict": "held", "broken": [], "doubt": "", "notices": []}
BROKEN = {**HELD, "verdict": "broken", "broken": [{"message": "3 records are missing"}, {"message": "and 2 more"}]}


def test_each_run_says_what_stopped_it_and_leaves_its_trace(tmp_path: Path) -> None:
    commands = {"one 1.0": [sys.executable, "-c", ""], "two 2.0": ["no-such-program"]}
    runs = list(runs_of(commands, 2, at_once=1, kept=tmp_path))
    assert [(run.client, run.number, run.row["script"]) for run in runs] == [
        (client, number, TRYING[number - 1]) for number in (1, 2) for client in commands
    ]
    assert str(runs[2]).startswith(f"one 1.0, run 2, {TRYING[1]}: undecided: the command never reached the broker")
    assert "no report: the judge ended with 2: minibroker: " in str(runs[3])
    kept = {f"one-1.0-{number}": {f"{TRYING[number - 1]}.{kind}" for kind in ("json", "jsonl")} for number in (1, 2)}
    assert {folder.name: {path.name for path in folder.iterdir()} for folder in tmp_path.iterdir()} == kept


@pytest.mark.parametrize("program", ["judged_loops", "judge_page"])
def test_a_client_that_is_not_known_is_named(program: str) -> None:
    command = [sys.executable, str(TESTS / "support"), program, "no-such==1.0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert "unknown client 'no-such': " in done.stderr


def test_what_has_not_begun_when_it_ends_is_not_run(tmp_path: Path) -> None:
    count = f"open({str(tmp_path / 'runs')!r}, 'a').write('x')"
    runs = runs_of({"one": [sys.executable, "-c", count]}, 100, at_once=1)
    next(runs)
    runs.close()
    assert len((tmp_path / "runs").read_text()) < 100


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGTERM")
def test_what_runs_when_it_ends_is_ended() -> None:
    """Its judges see no Ctrl-C."""
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        sleeps = f"import socket; socket.create_connection({server.getsockname()!r}).recv(1)"
        runs = runs_of({"ends": [sys.executable, "-c", ""], "sleeps": [sys.executable, "-c", sleeps]}, 1)
        next(runs)
        server.settimeout(120)
        command, _ = server.accept()
        with command:
            command.settimeout(120)
            closing = pool.submit(runs.close)
            assert command.recv(1) == b""
        closing.result()


def test_an_interrupted_program_counts_what_has_ended(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> Iterator[LoopRun]:
        yield LoopRun("one", 1, HELD)
        yield LoopRun("two", 1, BROKEN)
        assert capsys.readouterr().out == "one, run 1, calm: held\ntwo, run 1, calm: broken: 3 records are missing\n"
        raise KeyboardInterrupt

    assert not tell(interrupted())
    assert capsys.readouterr().out == "one: held 1 of 1\ntwo: held 0 of 1\n"
    assert tell(iter([LoopRun("one", 1, HELD)]))
