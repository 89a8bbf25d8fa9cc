"""The executable file in an empty environment: `.ci/run executable` builds it and names it in MINIBROKER_EXECUTABLE."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

FILE = os.environ.get("MINIBROKER_EXECUTABLE", "")
pytestmark = pytest.mark.skipif(not FILE, reason="the executable file is not built")


def run(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [FILE, *arguments], env={"TMPDIR": str(tmp_path)}, cwd=tmp_path, capture_output=True, text=True, timeout=120
    )


def test_what_it_offers(tmp_path: Path) -> None:
    listed = run(tmp_path, "--help").stdout.splitlines()
    absent = [line.split()[0] for line in listed if "is not in the executable file" in line]
    assert absent == ["audit", "museum", "pipeline"]
    assert not [line for line in listed if "cannot be loaded" in line]
    audit = run(tmp_path, "audit", "x")
    assert (audit.returncode, audit.stdout) == (2, "")
    assert audit.stderr == (
        "minibroker: the command 'audit' is not in the executable file: install minibroker with pip for it\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_the_demo_with_its_processes(tmp_path: Path) -> None:
    demo = run(tmp_path, "demo")
    assert demo.stdout.splitlines()[-1] == "verdict: exactly once", demo.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_judged_application_has_the_libraries_of_the_machine(tmp_path: Path) -> None:
    judged = run(tmp_path, "judge", "--script", "calm", "--", "/bin/sh", "-c", 'echo "libraries:$LD_LIBRARY_PATH:"')
    assert "libraries::" in judged.stdout + judged.stderr


def test_a_kill_ends_it_and_the_next_start_removes_its_files(tmp_path: Path) -> None:
    environment = {"TMPDIR": str(tmp_path)}
    with subprocess.Popen([FILE, "serve", "--port", "0"], env=environment, stdout=subprocess.PIPE, text=True) as broker:
        assert broker.stdout is not None
        host, _, port = broker.stdout.readline().strip().removeprefix("bootstrap.servers=").rpartition(":")
        socket.create_connection((host, int(port))).close()
        broker.send_signal(signal.SIGKILL)
        broker.stdout.read()  # to its end: nobody has it open any more
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port))).close()
    assert list(tmp_path.glob("_MEI*"))
    assert run(tmp_path, "--version").returncode == 0
    assert list(tmp_path.glob("_MEI*")) == []
