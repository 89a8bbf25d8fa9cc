"""A broker that a command can restart: `restart.py STATE.json` ends the one of the file and starts it again.

The file has ``argv``, ``pid``, ``port`` and ``log``. The process is killed when ``kill`` is true, else asked to end.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from broker import python_path
from command_process import MINIBROKER, ForkedProcess, start_command
from free_ports import free_ports

SECONDS = 90.0
_children: dict[int, subprocess.Popen[bytes] | ForkedProcess] = {}
"""What this very process has started."""


@contextmanager
def restartable_minibroker(arguments: list[str], command: list[str] | None = None) -> Iterator[tuple[str, Path]]:
    """HOST:PORT of a minibroker with a data directory and the file by which it is restarted; it ends with the block."""
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        state, data = Path(place, "state.json"), Path(place, "data")
        data.mkdir()
        own = ["serve", "--port", str(port), "--data-dir", str(data), *arguments]
        start(state, [*(command or [sys.executable, "-m", "minibroker"]), *own], port, Path(place, "log"))
        try:
            with _restarting(state):
                yield f"127.0.0.1:{port}", state
        finally:
            end(state)


def restart_command(state: Path) -> str:
    """For a shell."""
    words, statuses = (shlex.quote(str(pipe)) for pipe in _pipes(state))
    if _pipes(state)[0].exists():
        own = "[ $shell != $$ ] || exit $status"
        return f"echo $$ >{words}; while read shell status; do {own}; done <{statuses}; exit 1"
    return shlex.join([sys.executable, __file__, str(state)])


def _pipes(state: Path) -> tuple[Path, Path]:
    """Named pipes beside the file: a shell's id in the first restarts the broker, the second has it and the status.

    What the second has for a shell that ended meanwhile is not the answer for the next one.
    """
    return state.with_suffix(".restart"), state.with_suffix(".status")


@contextmanager
def _restarting(state: Path) -> Iterator[None]:
    """Inside, this process restarts the broker when `restart_command` is run: that starts no Python for it."""
    if not sys.platform.startswith("linux"):
        yield
        return
    for pipe in _pipes(state):
        os.mkfifo(pipe)
    words, statuses = (os.open(pipe, os.O_RDWR) for pipe in _pipes(state))  # so that neither end waits for the other

    def serve() -> None:
        with os.fdopen(words, closefd=False) as lines:
            while shell := lines.readline().strip():
                status = 0
                try:
                    restart(state)
                except BaseException as error:
                    print(f"{type(error).__name__}: {error}", file=sys.stderr)
                    status = 1
                os.write(statuses, f"{shell} {status}\n".encode())

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        os.write(words, b"\n")
        thread.join()
        os.close(words)
        os.close(statuses)


def start(state: Path, argv: list[str], port: int, log: Path, *, kill: bool = False) -> None:
    """Start the broker, and return once its port is open."""
    _started({"argv": argv, "port": port, "log": str(log), "kill": kill, "pid": 0}, state)


def end(state: Path) -> None:
    """End the broker for good."""
    _end(json.loads(state.read_text()) | {"kill": True})
    for pid in list(_children):
        if not _alive(pid):
            del _children[pid]


def restart(state: Path) -> None:
    what = json.loads(state.read_text())
    _end(what)
    _started(what, state)


def _end(what: dict[str, Any]) -> None:
    number = signal.SIGKILL if what["kill"] else signal.SIGTERM
    if process := _children.get(what["pid"]):
        process.send_signal(number)
    else:
        with suppress(ProcessLookupError):  # one that died by itself
            os.kill(what["pid"], number)
    deadline = time.monotonic() + SECONDS
    while _open(what["port"]) or _alive(what["pid"]):
        if time.monotonic() > deadline:
            raise SystemExit(f"process {what['pid']} does not end")
        time.sleep(0.02)


def _started(what: dict[str, Any], state: Path) -> None:
    environment = os.environ | {"PYTHONPATH": python_path()}
    null, argv = subprocess.DEVNULL, what["argv"]
    with open(what["log"], "ab") as out:
        streams: dict[str, Any] = {"stdin": null, "stdout": out, "stderr": out, "start_new_session": True}
        # A program ends before a second one would be started, and its process that forks with it.
        if tuple(argv[: len(MINIBROKER)]) == MINIBROKER and __name__ != "__main__":
            process = start_command(*argv[len(MINIBROKER) :], env=environment, **streams)
        else:
            process = subprocess.Popen(argv, env=environment, **streams)
    _children[process.pid] = process
    state.write_text(json.dumps(what | {"pid": process.pid}))
    deadline = time.monotonic() + SECONDS
    while not _open(what["port"]):
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(Path(what["log"]).read_text(errors="replace")[-2000:])
        time.sleep(0.02)


def _open(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def _alive(pid: int) -> bool:
    """Whether it runs; one that ended and that nobody has waited for does not."""
    if process := _children.get(pid):
        with suppress(ChildProcessError):  # whoever forked it has ended: it is nobody's child
            return process.poll() is None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not (status.exists() and status.read_text().rpartition(")")[2].split()[0] == "Z")


if __name__ == "__main__":
    restart(Path(sys.argv[1]))
