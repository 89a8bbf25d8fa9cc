"""The processes of a Spark on this machine, looked up in /proc: to be killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
_ESTABLISHED = "01"
EXECUTOR = "CoarseGrainedExecutorBackend"


def below(pid: int) -> set[int]:
    """The process's descendants."""
    parents: dict[int, int] = {}
    for entry in PROC.iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    family = {pid}
    while more := {child for child, parent in parents.items() if parent in family} - family:
        family |= more
    return family - {pid}


def connected(port: int, among: Iterable[int]) -> set[int]:
    """Those of the processes that have a connection to a port of this machine."""
    rows = [line.split() for line in (PROC / "net" / "tcp").read_text().splitlines()[1:]]
    sockets = {
        f"socket:[{row[9]}]" for row in rows if int(row[2].rpartition(":")[2], 16) == port and row[3] == _ESTABLISHED
    }
    owners = set()
    for pid in among:
        with suppress(OSError):
            if any(_target(file) in sockets for file in (PROC / str(pid) / "fd").iterdir()):
                owners.add(pid)
    return owners


def _target(file: Path) -> str:
    with suppress(OSError):
        return os.readlink(file)
    return ""


def executors(among: Iterable[int]) -> set[int]:
    """Those of the processes that are JVMs of executors."""
    jvms = set()
    for pid in among:
        with suppress(OSError):
            if EXECUTOR.encode() in (PROC / str(pid) / "cmdline").read_bytes():
                jvms.add(pid)
    return jvms


def kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
