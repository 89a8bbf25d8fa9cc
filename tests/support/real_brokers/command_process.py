"""`minibroker ARGUMENTS` as a process, forked from one that has loaded what the command needs.

Nine tenths of a short command's CPU time are imports. What is forked is a process like any other: with arguments,
environment, directory, standard streams, signals and an exit status of its own, and Python takes it apart at its end.
It has more modules loaded, and /proc shows the command line and environment of its parent: tests of these, of imports
and of the way it is started start it anew, with `subprocess`.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import io
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

MINIBROKER = (sys.executable, "-m", "minibroker")
LOADED_LATER = {
    "serve": (
        *("structlog", "uvloop", "minibroker.server.service", "minibroker.server.control_side"),
        *("minibroker.control.server", "minibroker.control.commands", "minibroker.control.live_state"),
        *("minibroker.faults.engine", "minibroker.trace.recorder"),
        *("minibroker.coordinator_runtime.group_service", "minibroker.coordinator_runtime.transaction_service"),
    ),
}
"""What a command imports while it runs, beside what importing its module brings."""
OWN_START = ("PYTHON", "LC_", "LANG", "LD_", "TZ", "MALLOC_")
"""Beginnings of variables that a process obeys as it starts."""
OBEYED = {"PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONPYCACHEPREFIX", "PYTHONDONTWRITEBYTECODE"}
"""Of them, what a forked process obeys too, or has no use for: it has the modules of this tree already."""
INHERITED = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL} if os.name == "posix" else {}
"""Signals that a process ignores when its parent does, and what Python does with them otherwise."""
_ENVIRONMENT = dict(os.environ)
"""Of the process that forks, whatever a test sets later."""
_DESCRIPTORS = 3
_LARGEST_REQUEST = 1 << 20
_STARTED_SECONDS = 120.0
_ENDED_SECONDS = 60.0


class ForkedProcess:
    """What tests use of `subprocess.Popen`, for a process that is the child of another one."""

    def __init__(self, arguments: Sequence[str], status: int, streams: Sequence[IO[Any] | None]) -> None:
        self.args = [*MINIBROKER, *arguments]
        self.returncode: int | None = None
        self._status = io.FileIO(status)
        self._reading = threading.Lock()
        self.stdin, self.stdout, self.stderr = streams
        self._readers: list[_Reader | None] = []
        if not _readable(self._status, _STARTED_SECONDS):
            self._status.close()
            raise TimeoutError(f"{__file__}, which forks commands, has forked none for {_STARTED_SECONDS:g} s")
        self.pid = self._number()

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """The exit status; minus the number of the signal that ended it."""
        if self.returncode is None:
            if not self._status.closed and not _readable(self._status, timeout):
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            with self._reading:
                if self.returncode is None:
                    self.returncode = os.waitstatus_to_exitcode(self._number())
                    self._status.close()
        return self.returncode

    def _number(self) -> int:
        digits = b""
        while not digits.endswith(b"\n"):
            if self._status.closed or not (more := self._status.read(1)):
                self._status.close()
                raise ChildProcessError("the process that forks commands has ended")
            digits += more
        return int(digits)

    def send_signal(self, number: int) -> None:
        with contextlib.suppress(ChildProcessError):  # whoever forked it has ended, and it may still run
            if self.poll() is not None:
                return
        with contextlib.suppress(ProcessLookupError):  # it ended by itself just now
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[Any, Any]:
        """What came on stdout and stderr until both closed, None for one that is no pipe.

        Raises `subprocess.TimeoutExpired` with the lines that came until then; calling it again goes on reading.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        if self.stdin:
            self.stdin.close()
        self._readers = self._readers or [stream and _Reader(stream) for stream in (self.stdout, self.stderr)]
        try:
            for reader in filter(None, self._readers):
                reader.join(_until(deadline))
                if reader.is_alive():
                    raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self.wait(_until(deadline))
        except subprocess.TimeoutExpired as late:
            late.output, late.stderr = (reader and reader.text() for reader in self._readers)
            raise
        out, err = (reader and reader.text() for reader in self._readers)
        return out, err

    def __enter__(self) -> ForkedProcess:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream:
                stream.close()
        self.wait()


class _Reader(threading.Thread):
    """Reads a stream by lines: they are there although its end does not come."""

    def __init__(self, stream: IO[Any]) -> None:
        super().__init__(daemon=True)
        self._stream = stream
        self._lines = [b"" if "b" in stream.mode else ""]
        self.start()

    def run(self) -> None:
        with self._stream:
            for line in self._stream:
                self._lines.append(line)

    def text(self) -> Any:
        return self._lines[0].join(self._lines)


def _readable(stream: io.FileIO | socket.socket, seconds: float | None) -> bool:
    """Whether something, or the end, comes within the time."""
    poll = select.poll()
    poll.register(stream, select.POLLIN)
    return bool(poll.poll(None if seconds is None else 1000 * max(0.0, seconds)))


def _until(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def start_command(
    *arguments: str,
    env: Mapping[str, str],
    cwd: str | os.PathLike[str] | None = None,
    stdin: int | IO[Any] = subprocess.DEVNULL,
    stdout: int | IO[Any] | None = None,
    stderr: int | IO[Any] | None = None,
    text: bool = False,
    start_new_session: bool = False,
) -> subprocess.Popen[Any] | ForkedProcess:
    """Start `minibroker ARGUMENTS`. Streams are those of `subprocess.Popen`."""
    if not sys.platform.startswith("linux") or _needs_own_start(env):
        return subprocess.Popen(
            [*MINIBROKER, *arguments],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env={"PYTHONPATH": _python_path(), **env},
            cwd=cwd,
            text=text,
            start_new_session=start_new_session,
        )
    ours: list[IO[Any] | None] = []
    theirs: list[int] = []
    closed: list[int] = []
    for number, stream in enumerate((stdin, stdout, stderr)):
        pipe = None
        if stream == subprocess.PIPE:
            ends = os.pipe() if number == 0 else os.pipe()[::-1]
            theirs.append(ends[0])
            closed.append(ends[0])
            pipe = os.fdopen(ends[1], ("w" if number == 0 else "r") + ("" if text else "b"))
        elif stream == subprocess.DEVNULL:
            theirs.append(os.open(os.devnull, os.O_RDWR))
            closed.append(theirs[-1])
        elif stream == subprocess.STDOUT:
            theirs.append(theirs[1])
        elif stream is None:
            theirs.append(number)
        else:
            theirs.append(stream if isinstance(stream, int) else stream.fileno())
        ours.append(pipe)
    status, answer = os.pipe()
    request = {
        "arguments": arguments,
        "environment": dict(env),
        "directory": os.path.abspath(cwd or os.getcwd()),
        "session": start_new_session,
        "ignored": [number for number in INHERITED if signal.getsignal(number) is signal.SIG_IGN],
    }
    try:
        _forking().ask(request, [*theirs, answer])
    finally:
        for descriptor in [*closed, answer]:
            os.close(descriptor)
    return ForkedProcess(arguments, status, ours)


def run_command(
    *arguments: str, env: Mapping[str, str], timeout: float, cwd: str | os.PathLike[str] | None = None
) -> subprocess.CompletedProcess[str]:
    """`minibroker ARGUMENTS` to its end, with what it wrote; one that has not ended in `timeout` seconds is killed."""
    pipe = subprocess.PIPE
    process = start_command(*arguments, env=env, cwd=cwd, stdout=pipe, stderr=pipe, text=True)
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired as late:
        process.kill()
        process.wait(_ENDED_SECONDS)
        try:
            late.output, late.stderr = process.communicate(timeout=1.0)
        except subprocess.TimeoutExpired as held:  # by a process that it has started
            late.output, late.stderr = held.output, held.stderr
        raise
    return subprocess.CompletedProcess(process.args, process.wait(), out, err)


def _needs_own_start(environment: Mapping[str, str]) -> bool:
    obeyed = [name for name in {*environment, *_ENVIRONMENT} - OBEYED if name.startswith(OWN_START)]
    return any((environment.get(name) or None) != (_ENVIRONMENT.get(name) or None) for name in obeyed)


def _python_path() -> str:
    from broker import python_path

    return python_path()


class _Forking:
    """The process that forks commands, and the socket on which it is asked to."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket = ours
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LARGEST_REQUEST)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(Path(__file__)), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**_ENVIRONMENT, "PYTHONPATH": _python_path()},
            )
        atexit.register(self._end)

    def ask(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> None:
        socket.send_fds(self._socket, [json.dumps(request).encode()], descriptors)

    def ended(self) -> bool:
        return _readable(self._socket, 0.0)

    def _end(self) -> None:
        with contextlib.suppress(OSError):
            # A fork of the tests' process may have the socket as well.
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._process.wait(_ENDED_SECONDS)


_started: list[_Forking] = []
_starting = threading.Lock()


def _forking() -> _Forking:
    with _starting:
        if not _started or _started[-1].ended():
            _started.append(_Forking())
        return _started[-1]


# The process that forks


def _serve(requests: socket.socket) -> dict[str, Any] | None:
    """Fork one process for each request; the request, in that process, and None once nobody can ask any more, or
    SIGTERM has come."""
    woken, waking = os.pipe()
    os.set_blocking(waking, False)
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    # A terminal sends them to the whole group: the tests end this process, once they have ended.
    for number in INHERITED:
        signal.signal(number, signal.SIG_IGN)
    answers: dict[int, int] = {}
    try:
        while True:
            ready, _, _ = select.select([requests, woken], [], [])
            if woken in ready:
                with contextlib.suppress(BlockingIOError):
                    if signal.SIGTERM in os.read(woken, 4096):
                        return None
                _answer_for_ended(answers)
            if requests not in ready:
                continue
            text, descriptors, _, _ = socket.recv_fds(requests, _LARGEST_REQUEST, _DESCRIPTORS + 1)
            if not text:
                return None
            request: dict[str, Any] = json.loads(text)
            _load(request["arguments"][:1])
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # until the child obeys it
            if not (child := os.fork()):
                answers.clear()
                _leave_parent(request, descriptors)
                return request
            *streams, answers[child] = descriptors
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            for descriptor in streams:
                os.close(descriptor)
    finally:  # the tests have ended, or this process cannot go on: what they did not end must not go on either
        for child in answers:
            os.kill(child, signal.SIGTERM)


def _leave_parent(request: Mapping[str, Any], descriptors: Sequence[int]) -> None:
    """In the forked process: the session, the signals and the streams of a process that was started."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    if request["session"]:
        os.setsid()
    _answer(descriptors[_DESCRIPTORS], os.getpid())
    for number, handler in INHERITED.items():
        signal.signal(number, signal.SIG_IGN if number in request["ignored"] else handler)
    _take_streams(descriptors)


def _answer_for_ended(answers: dict[int, int]) -> None:
    while answers:
        child, status = os.waitpid(-1, os.WNOHANG)
        if not child:
            return
        answer = answers.pop(child)
        _answer(answer, status)
        os.close(answer)


def _answer(descriptor: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody waits for it
        os.write(descriptor, b"%d\n" % number)


def _load(command: Sequence[str]) -> None:
    """In the process that forks, so that the next one has it as well. What fails fails again in the forked one."""
    for name in command:
        with contextlib.suppress(Exception):
            from minibroker.cli import commands

            for module in (commands()[name].module, *LOADED_LATER.get(name, ())):
                with contextlib.suppress(Exception):
                    importlib.import_module(module)
    if threading.active_count() > 1:
        raise SystemExit("importing a command started a thread: a process with threads cannot be forked")


def _take_streams(descriptors: Sequence[int]) -> None:
    """The first three become the standard streams, and everything else is closed."""
    above = [os.dup(each) for each in descriptors[:_DESCRIPTORS]]
    for number, descriptor in enumerate(above):
        os.dup2(descriptor, number)
    try:
        largest = max(map(int, os.listdir("/proc/self/fd")))
    except OSError:  # no /proc
        largest = os.sysconf("SC_OPEN_MAX")
    os.closerange(_DESCRIPTORS, largest + 1)


def _become(request: Mapping[str, Any]) -> NoReturn:
    """Be `python -m minibroker ARGUMENTS`."""
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    raw = bool(os.environ.get("PYTHONUNBUFFERED"))
    # Encodings and what is done with errors are those that Python chose by the locale.
    sys.stdin = os.fdopen(0, encoding=sys.stdin.encoding, errors=sys.stdin.errors, closefd=False)
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(
            os.fdopen(number, "wb", 0 if raw else -1, closefd=False),
            encoding=stream.encoding,
            errors=stream.errors,
            line_buffering=number == 2 or os.isatty(number),
            write_through=raw,
        )
        for number, stream in ((1, sys.stdout), (2, sys.stderr))
    )
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    sys.path.insert(0, request["directory"])
    sys.argv = ["minibroker", *request["arguments"]]
    runpy.run_module("minibroker", run_name="__main__", alter_sys=True)
    raise SystemExit(0)


if __name__ == "__main__":
    if requested := _serve(socket.socket(fileno=int(sys.argv[1]))):
        _become(requested)
