"""The step that restarts a broker."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
from scripted_broker import scripted_broker

from minibroker_lab.conformance import command as cli
from minibroker_protocol.messages import HeartbeatRequest, HeartbeatResponse

BEAT = "{call: Heartbeat v3, req: {groupId: g, generationId: 1, memberId: m}, expect: {errorCode: %s}}"
SCENARIO = f"- {{name: s, needs: [restart], alone: true, steps: [{BEAT % 'NONE'}, restart: true, {BEAT % '%s'}]}}\n"


def run(tmp_path: Path, text: str, *options: str) -> int:
    """Exit status against a broker whose Heartbeat is UNKNOWN_MEMBER_ID once the restart left a file."""
    file, mark = tmp_path / "suite.yaml", tmp_path / "restarted"
    file.write_text(text)
    with scripted_broker() as broker:
        broker.handlers[HeartbeatRequest] = lambda request, version: HeartbeatResponse(
            error_code=25 if mark.exists() else 0
        )
        return cli.main(["--bootstrap", broker.bootstrap, "--timeout", "2", "--until", "2", *options, str(file)])


def python(program: str) -> str:
    return shlex.join([sys.executable, "-c", program])


@pytest.mark.parametrize(("after", "status"), [("UNKNOWN_MEMBER_ID", 0), ("NONE", 1)])
def test_the_command_runs_between_the_steps(tmp_path: Path, after: str, status: int) -> None:
    command = python(f"open({str(tmp_path / 'restarted')!r}, 'w')")
    assert run(tmp_path, SCENARIO % after, "--restart-command", command) == status
    assert (tmp_path / "restarted").exists()


def test_without_a_command_it_is_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, SCENARIO % "NONE") == 0
    assert capsys.readouterr().out.splitlines() == [
        "skip s (needs --restart-command)",
        "0 passed, 0 failed, 1 skipped",
    ]


def test_a_command_that_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, SCENARIO % "NONE", "--restart-command", python("raise SystemExit(3)")) == 1
    assert capsys.readouterr().out.splitlines()[0] == "FAIL s [recovery]: step 2: the restart command ended with 3"


@pytest.mark.parametrize("left_out", ["needs: [restart], ", "alone: true, "])
def test_a_restart_says_so_in_front(tmp_path: Path, capsys: pytest.CaptureFixture[str], left_out: str) -> None:
    assert run(tmp_path, SCENARIO.replace(left_out, "") % "NONE") == 2
    assert "a restart needs `needs: [restart]` and `alone: true`" in capsys.readouterr().err
