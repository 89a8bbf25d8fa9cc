"""A forked `minibroker` is a process like one that was started: status, streams, directory, environment, signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command_process import MINIBROKER, ForkedProcess, run_command, start_command

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are forked on Linux")


def test_it_ends_as_one_that_was_started(tmp_path: Path) -> None:
    for argv, status in ((("--version",), 0), (("no-such-command",), 2)):
        own = subprocess.run([*MINIBROKER, *argv], capture_output=True, text=True, cwd=tmp_path, env=os.environ)
        forked = run_command(*argv, env=os.environ, timeout=60, cwd=tmp_path)
        assert (forked.returncode, forked.stdout, forked.stderr) == (own.returncode, own.stdout, own.stderr)
        assert forked.returncode == status
    (tmp_path / "no-directory-of-a-broker").mkdir()
    dumped = run_command("dump", "no-directory-of-a-broker", env=os.environ, timeout=60, cwd=tmp_path)
    assert (dumped.returncode, dumped.stdout) == (1, "")
    assert dumped.stderr.startswith("minibroker dump: no-directory-of-a-broker")


def test_it_has_a_life_of_its_own(tmp_path: Path) -> None:
    """stdin, environment, session, and the signal that ended it."""
    pipe = subprocess.PIPE
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    serve = ("serve", "--port", "0", "--until-stdin-closes")
    with start_command(
        *serve, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    ) as broker:
        assert isinstance(broker, ForkedProcess)
        assert broker.stdout.readline().startswith("bootstrap.servers=")
        assert os.getsid(broker.pid) == broker.pid
        assert len([*tmp_path.iterdir()]) == 2  # its temporary directory, and the lock of that
        assert broker.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            broker.wait(0.001)
        broker.stdin.close()
        assert (broker.wait(60), broker.poll()) == (0, 0)
        assert [*tmp_path.iterdir()] == []
    with start_command(*serve, env=environment, stdin=pipe, stdout=pipe, stderr=pipe) as broker:
        assert broker.stdout.readline()
        broker.kill()
        assert broker.wait(60) == -signal.SIGKILL


def test_variables_that_python_obeys_start_it_anew() -> None:
    with start_command("--version", env={**os.environ, "PYTHONDEVMODE": "1"}, stdout=subprocess.DEVNULL) as process:
        assert isinstance(process, subprocess.Popen)
