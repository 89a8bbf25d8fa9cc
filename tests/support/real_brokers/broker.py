"""A broker for tests: `minibroker serve` as a child process, or any other broker the environment names.

`MINIBROKER_BOOTSTRAP=HOST:PORT` points the same tests at another broker (a real Kafka, say), which proves the tests.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from command_process import ForkedProcess, start_command

PREFIX = "bootstrap.servers="
START_SECONDS = 20.0
STOP_SECONDS = 10.0
ROOT = Path(__file__).resolve().parents[3]


class BrokerFailed(AssertionError):
    """The broker did not start, or did not stop as it promises; the message carries the end of its log."""


@dataclass(slots=True)
class BrokerProcess:
    """A running broker: `bootstrap` as HOST:PORT[,HOST:PORT…], its process, and the file its stderr goes to."""

    bootstrap: str
    process: subprocess.Popen[str] | ForkedProcess
    log: Path

    def tail(self, characters: int = 4000) -> str:
        return self.log.read_text(errors="replace")[-characters:]

    def stop(self) -> int:
        """Ask the broker to end, as a service manager would, and return its exit code."""
        self.process.terminate()
        try:
            code = self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise BrokerFailed(f"broker still running {STOP_SECONDS} s after SIGTERM\n{self.tail()}") from None
        finally:
            if self.process.stdout:
                self.process.stdout.close()
        return code


def named_bootstrap() -> str | None:
    """The broker the environment names instead of one of our own."""
    return os.environ.get("MINIBROKER_BOOTSTRAP") or None


def start_minibroker(log: Path, *arguments: str, command: list[str] | None = None, tree: Path = ROOT) -> BrokerProcess:
    """Start `minibroker serve --port 0 …` of a tree and return once it says where it listens."""
    arguments = ("serve", "--port", "0", *arguments)
    environment = dict(os.environ, PYTHONUNBUFFERED="1", PYTHONPATH=python_path(tree))
    null, pipe = subprocess.DEVNULL, subprocess.PIPE
    with log.open("w") as stderr:
        if command is None and tree == ROOT:
            process = start_command(*arguments, stdout=pipe, stderr=stderr, text=True, env=environment)
        else:
            argv = [*(command or [sys.executable, "-m", "minibroker"]), *arguments]
            process = subprocess.Popen(argv, stdin=null, stdout=pipe, stderr=stderr, text=True, env=environment)
    line = first_line(process, START_SECONDS)
    broker = BrokerProcess(line.removeprefix(PREFIX).strip(), process, log)
    if not line.startswith(PREFIX):
        process.kill()
        process.wait()
        assert process.stdout
        process.stdout.close()
        raise BrokerFailed(f"broker printed {line!r} instead of {PREFIX}…\n{broker.tail()}")
    return broker


def installed_command(directory: Path) -> dict[str, str]:
    """An environment whose MINIBROKER names a program that is `minibroker` of this tree, for programs that start it."""
    program = directory / ("minibroker.cmd" if os.name == "nt" else "minibroker")
    call = f'"{sys.executable}" -m minibroker'
    program.write_text(f"@{call} %*\n" if os.name == "nt" else f'#!/bin/sh\nexec {call} "$@"\n')
    program.chmod(0o755)
    return {**os.environ, "PYTHONPATH": python_path(), "MINIBROKER": str(program)}


def project_program(directory: Path) -> str:
    """An executable file of the project in `directory`, which packages take before the PATH; what it says."""
    program = directory / ".minibroker" / "minibroker"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'the file of the project' >&2\nexit 1\n")
    program.chmod(0o755)
    return "the file of the project"


def python_path(tree: Path = ROOT) -> str:
    """PYTHONPATH of a child that runs `minibroker` of this tree, or the planted defects."""
    own = ("", "protocol", "storage", "tests/support/damage_and_defects")  # the last for `python -m defects`
    path = [*(str(tree / part) for part in own), os.environ.get("PYTHONPATH", "")]
    return os.pathsep.join(part for part in path if part)


def first_line(process: subprocess.Popen[str] | ForkedProcess, seconds: float) -> str:
    """The first line of the child's stdout, or '' when it ends or `seconds` pass before."""
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    stdout = process.stdout
    assert stdout
    threading.Thread(target=lambda: lines.put(stdout.readline()), daemon=True).start()
    try:
        return lines.get(timeout=seconds)
    except queue.Empty:
        return ""


@contextmanager
def running_broker(log: Path, *arguments: str) -> Iterator[str]:
    """Bootstrap servers of the named broker, or of a fresh minibroker that must also end cleanly."""
    named = named_bootstrap()
    if named:
        yield named
        return
    broker = start_minibroker(log, *arguments)
    try:
        yield broker.bootstrap
    except BaseException:
        broker.process.kill()
        broker.process.wait()
        raise
    code = broker.stop()
    if os.name == "posix" and code != 0:
        raise BrokerFailed(f"broker ended with {code} after SIGTERM\n{broker.tail()}")
