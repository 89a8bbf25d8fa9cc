"""A forked `minibroker` is a process like one that was started: status, streams, directory, environment, signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import command_process
import pytest
from command_process import MINIBROKER, ForkedProcess, _forking, run_command, start_command

from minibroker.cli import commands

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


def test_variables_that_python_obeys_start_it_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is set, and one that is left out; those that a test has set for itself do not count."""
    monkeypatch.setenv("PYTHONDEVMODE", "1")
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONDEVMODE")}
    for ours, its, kind in (("", "1", subprocess.Popen), ("1", "", subprocess.Popen), ("", "", ForkedProcess)):
        monkeypatch.setattr(command_process, "_ENVIRONMENT", {**environment, "PYTHONDEVMODE": ours})
        own = {**environment, **({"PYTHONDEVMODE": its} if its else {})}
        with start_command("--version", env=own, stdout=subprocess.DEVNULL) as process:
            assert isinstance(process, kind)
            assert process.wait(60) == 0


@pytest.mark.matrix
@pytest.mark.parametrize("name", sorted(commands()))
def test_each_command_can_be_started_by_itself(name: str) -> None:
    """A forked one has the modules of those before it, so that an import that is missing may stay unseen."""
    own = subprocess.run([*MINIBROKER, name, "--help"], capture_output=True, text=True, env=os.environ, timeout=120)
    assert (own.returncode, own.stderr) == (0, "")
    assert own.stdout.startswith(f"usage: minibroker {name}")


def test_it_is_signalled_only_while_it_runs() -> None:
    """Also when nobody has said yet that it ended, and when nobody can say it any more."""
    sleep = subprocess.Popen(["sleep", "600"])
    process, answer = forked(sleep.pid)
    os.close(answer)
    with pytest.raises(ChildProcessError):
        process.poll()
    process.kill()
    assert sleep.wait(60) == -signal.SIGKILL
    process, answer = forked(sleep.pid)
    process.kill()
    os.write(answer, b"9\n")
    os.close(answer)
    assert process.wait(60) == -signal.SIGKILL


def test_what_it_wrote_is_there_although_its_streams_stay_open() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"a line\n")
    process, answer = forked(1, os.fdopen(reading))
    output = ""
    while not output:
        with pytest.raises(subprocess.TimeoutExpired) as late:
            process.communicate(timeout=0.01)
        output = late.value.output
    assert (output, late.value.stderr) == ("a line\n", None)
    os.write(writing, b"the end")
    os.write(answer, b"0\n")
    for descriptor in (writing, answer):
        os.close(descriptor)
    assert process.communicate(timeout=60) == ("a line\nthe end", None)


def test_a_command_that_takes_too_long_is_ended() -> None:
    with pytest.raises(subprocess.TimeoutExpired) as late:
        run_command("serve", "--port", "0", env=os.environ, timeout=0.0)
    assert (type(late.value.output), type(late.value.stderr)) == (str, str)


def test_a_forker_that_does_not_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_process, "_STARTED_SECONDS", 0.0)
    status, answer = os.pipe()
    with pytest.raises(TimeoutError, match="which forks commands"):
        ForkedProcess(["serve"], status, (None, None, None))
    os.close(answer)


def test_a_forker_that_is_terminated_ends_its_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are told by SIGTERM, and clean up."""
    monkeypatch.setattr(command_process, "_started", [])
    reading, writing = os.pipe()
    broker = start_command("serve", "--port", "0", env=os.environ, stdout=writing)
    os.close(writing)
    with os.fdopen(reading) as output:
        assert output.readline().startswith("bootstrap.servers=")
        os.kill(int(Path(f"/proc/{broker.pid}/stat").read_text().rpartition(")")[2].split()[1]), signal.SIGTERM)
        with pytest.raises(ChildProcessError):
            broker.wait(60)
        assert output.read() == ""  # its end, as it has ended


def test_a_forker_that_fails_ends_its_commands_and_the_next_one_has_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_process, "_started", [])
    reading, full = os.pipe()
    os.set_blocking(full, False)
    os.write(full, bytes(1 << 20))
    os.set_blocking(full, True)
    process = start_command("--version", env=os.environ, stdout=full, stderr=subprocess.PIPE)
    os.close(full)
    _forking().ask({"no": "arguments"}, [])
    with pytest.raises(ChildProcessError):
        process.wait(60)
    with process.stderr as errors:
        assert b"Traceback" not in errors.read()  # up to its end
    os.close(reading)
    assert run_command("--version", env=os.environ, timeout=60).returncode == 0


def forked(pid: int, stdout: IO[str] | None = None) -> tuple[ForkedProcess, int]:
    """As if `pid` had been forked, and where its end is told."""
    status, answer = os.pipe()
    os.write(answer, b"%d\n" % pid)
    return ForkedProcess(["serve"], status, (None, stdout, None)), answer
