"""Commands as processes of somebody else's shell: with what they are run, and what they leave behind."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from command_process import start_command

MARK = "MINIBROKER_TEST_MARK"
DROPPED = ("PYTHON", "KAFKA_", "MINIBROKER_")
SECONDS = 60.0


def clean_environment(temporary: Path, **more: str) -> dict[str, str]:
    """This process's, without what makes Python or minibroker behave in another way than on a fresh machine.

    temporary: where temporary files go, so that a test can see what is left of them.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(DROPPED)}
    return kept | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TMPDIR": str(temporary)} | more


class Started:
    """`minibroker ARGUMENTS` as a process. What it and its children leave is known by a mark in their environment, and
    by the session that it leads: a forked process shows the environment of its parent."""

    def __init__(
        self, *arguments: str, tmp: Path, stdout: int | IO[bytes] = subprocess.PIPE, **environment: str
    ) -> None:
        self.temporary = tmp / uuid.uuid4().hex
        self.temporary.mkdir()
        self._mark = uuid.uuid4().hex
        self._log = self.temporary.with_suffix(".err")
        with self._log.open("wb") as stderr:
            self.process = start_command(
                *arguments,
                stdout=stdout,
                stderr=stderr,
                cwd=tmp,
                env=clean_environment(self.temporary, **{MARK: self._mark}, **environment),
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        """stderr so far."""
        return self._log.read_text(encoding="utf-8")

    def wait_for(self, condition: Callable[[], object]) -> None:
        """Until the condition holds; AssertionError when the process ends first."""
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert self.process.poll() is None, self.said
            assert time.monotonic() < deadline, self.said
            time.sleep(0.01)

    def first_byte(self) -> None:
        assert self.process.stdout is not None
        assert os.read(self.process.stdout.fileno(), 1), self.said

    def has_workers(self) -> bool:
        """Whether it has started processes of its own; True where that cannot be seen."""
        return len(list(self._children())) > 1 or not sys.platform.startswith("linux")

    def end(self) -> int:
        """The exit status, once it has ended."""
        try:
            return self.process.wait(SECONDS)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            if self.process.stdout is not None:
                self.process.stdout.close()

    def leftovers(self) -> list[str]:
        """Processes and temporary files that are still there, after the time that a process may take to notice that its
        parent is gone (multiprocessing's resource tracker)."""
        deadline = time.monotonic() + SECONDS
        while (children := list(self._children())) and time.monotonic() < deadline:
            time.sleep(0.01)
        files = [str(path.relative_to(self.temporary)) for path in sorted(self.temporary.rglob("*"))]
        return files + [f"process {name}" for name in children]

    def _children(self) -> Iterator[str]:
        if not sys.platform.startswith("linux"):
            return
        mark = f"{MARK}={self._mark}".encode()
        for process in Path("/proc").glob("[0-9]*"):
            try:
                # After the name, which may hold any character: state, parent, group, session.
                state, _, _, session = (process / "stat").read_text("utf-8", "replace").rpartition(") ")[2].split()[:4]
                ours = session == str(self.process.pid) or mark in (process / "environ").read_bytes()
            except OSError:
                continue
            if ours and state != "Z":
                yield process.name


class Silent:
    """A server that takes connections and says nothing."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._taken: list[socket.socket] = []

    @property
    def address(self) -> str:
        host, port = self._listener.getsockname()
        return f"{host}:{port}"

    def take(self) -> None:
        """Return once somebody has connected and asked."""
        self._listener.settimeout(SECONDS)
        connection, _ = self._listener.accept()
        self._taken.append(connection)
        connection.settimeout(SECONDS)
        assert connection.recv(1)

    def close(self) -> None:
        for connection in self._taken:
            connection.close()
        self._listener.close()
