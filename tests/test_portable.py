"""What differs on Windows, switched on here: no POSIX modules, no positional reads, its locks, its sockets."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from minibroker.server import listeners
from minibroker.server.listeners import ListenError, listen_all

ROOT = Path(__file__).resolve().parents[1]
SOURCES = [str(ROOT / part) for part in (".", "protocol", "storage")]

# The standard library and compiled packages first, as they are here; what comes after believes to be on Windows.
COMPILED = "import pytest, pyarrow.compute\n"
AS_ON_WINDOWS = """
import asyncio, concurrent.futures, fcntl, http.server, logging, multiprocessing, os, pkgutil, shutil, signal, socket
import ssl, subprocess, sys, tempfile, types
import structlog

def locking(fd, mode, count, lock=fcntl.flock, flags=fcntl.LOCK_EX | fcntl.LOCK_NB):
    assert (mode, count) == (2, 1)
    lock(fd, flags)

sys.modules["msvcrt"] = types.SimpleNamespace(LK_NBLCK=2, locking=locking)
for name in ("fcntl", "resource", "uvloop", "pwd", "grp", "termios", "pty", "pyspark", "testcontainers"):
    sys.modules[name] = None  # importing it raises ImportError; the last two are optional
for name in ("pread", "pwrite", "preadv", "pwritev", "posix_fallocate", "fdatasync", "killpg", "fork", "getuid"):
    delattr(os, name)
for name in ("SIGKILL", "SIGHUP", "SIGUSR1"):
    delattr(signal, name)
sys.platform = "win32"
"""

EVERY_MODULE = """
import minibroker, minibroker_lab, minibroker_pipeline, minibroker_protocol, minibroker_storage
wanted = {"pyspark", "testcontainers", "confluent_kafka", "aiokafka"}  # of extras that need not be installed
count = 0
for package in (minibroker, minibroker_lab, minibroker_pipeline, minibroker_protocol, minibroker_storage):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if module.name.endswith("__main__"):
            continue
        try:
            __import__(module.name)
        except ImportError as missing:
            assert (missing.name or "").partition(".")[0] in wanted, (module.name, missing)
        count += 1
assert count > 200, count
"""

A_BROKER = """
from minibroker import ConfigError, Minibroker, StartError
directory = sys.argv[1]
with Minibroker(topics={"kept": 3}, data_dir=directory) as broker:
    broker.state.create_topic(topic="made", partitions=2)
    try:
        Minibroker(data_dir=directory).start()
    except StartError as refused:
        assert "in use" in str(refused) or "locked" in str(refused), refused
    else:
        raise AssertionError("two brokers in one directory")
with Minibroker(data_dir=directory) as broker:
    topics = broker.control.describe()["topics"]
    assert {"kept", "made"} <= set(topics), topics
"""


def run(program: str, *arguments: str) -> None:
    path = os.pathsep.join([*SOURCES, os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-W", "error::ResourceWarning", "-c", program, *arguments]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.skipif(os.name != "posix", reason="switches on what Windows has anyway")
def test_every_module_is_imported_without_what_only_posix_has() -> None:
    run(COMPILED + AS_ON_WINDOWS + EVERY_MODULE)


@pytest.mark.skipif(os.name != "posix", reason="switches on what Windows has anyway")
def test_a_broker_keeps_and_locks_its_data_without_it(tmp_path: Path) -> None:
    run(AS_ON_WINDOWS + A_BROKER, str(tmp_path / "data"))


def test_a_port_is_taken_for_oneself_where_the_system_would_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # An option that exists everywhere stands for the one of Windows.
    monkeypatch.setattr(socket, "SO_EXCLUSIVEADDRUSE", socket.SO_KEEPALIVE, raising=False)
    with monkeypatch.context() as windows:
        windows.setattr(listeners.os, "name", "nt")
        (listener,) = listen_all("127.0.0.1", [0])
    with listener:
        assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert not listener.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)


@pytest.mark.parametrize("number", [10013, 10048])
def test_windows_says_in_its_own_numbers_that_a_port_is_taken(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Taken(OSError):
        winerror = number

    def bind(self: socket.socket, address: object) -> None:
        raise Taken(errno.EINVAL, "only one usage of each socket address")

    monkeypatch.setattr(listeners.socket, "socket", type("Socket", (socket.socket,), {"bind": bind}))
    with pytest.raises(ListenError, match="is in use by another program"):
        listen_all("127.0.0.1", [9092])


def test_no_file_of_the_repository_is_a_link() -> None:
    """A checkout on Windows makes a text of it, and one to a place outside is of one machine only."""
    listed = subprocess.run(["git", "ls-files", "-s"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a checkout")
    assert [line for line in listed.stdout.splitlines() if line.startswith("120000")] == []
