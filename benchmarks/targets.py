"""Brokers under measurement, each started as a process of its own, and what their processes cost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from broker import ROOT, BrokerProcess, start_minibroker
from jvm import NEWEST
from real_kafka import RealKafka
from wire import serves_metadata

POLL_SECONDS = 0.002
START_SECONDS = 90.0

# A start that may not write byte code compiles every module again, which doubles its time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


class Target(ABC):
    """A broker that can be started afresh, again and again. `bootstrap` and `pid` hold while it runs."""

    name: str
    bootstrap: str
    pid: int
    warm_up = False
    peer = True
    """One that may lack what a scenario asks for."""
    creates_topics = True
    """By CreateTopics; otherwise whatever a client asks for is there."""

    def start(self) -> float:
        """Start; seconds from the start of the process to its first answer to Metadata."""
        begin = time.perf_counter()
        self._start()
        while not serves_metadata(self.bootstrap):
            if time.perf_counter() - begin > START_SECONDS:
                raise RuntimeError(f"{self.name} is not up after {START_SECONDS} s")
            time.sleep(POLL_SECONDS)
        return time.perf_counter() - begin

    @abstractmethod
    def _start(self) -> None: ...

    @abstractmethod
    def stop(self) -> None:
        """Stop cleanly."""

    @abstractmethod
    def close(self) -> None:
        """Leave nothing behind."""


class MinibrokerTarget(Target):
    """`minibroker serve` of a tree on the interpreter that runs the benchmark, with a temporary directory as by
    default."""

    name = "minibroker"
    peer = False

    def __init__(self, tree: Path = ROOT) -> None:
        self._tree = tree
        if tree != ROOT:
            self.name = f"minibroker of {commit(tree)}{' (compiled walk)' if has_compiled_walk(tree) else ''}"
        self._directory = TemporaryDirectory(prefix="bench-")
        self._broker: BrokerProcess | None = None

    def _start(self) -> None:
        self._broker = start_minibroker(
            Path(self._directory.name) / "broker.log",
            "--log-level",
            "warning",
            command=[sys.executable, "-P", "-m", "minibroker"],  # not that of the working directory
            tree=self._tree,
        )
        self.bootstrap = self._broker.bootstrap
        self.pid = self._broker.process.pid

    def stop(self) -> None:
        if self._broker:
            self._broker.stop()
            self._broker = None

    def kill(self) -> None:
        """End it at once."""
        if self._broker:
            self._broker.process.kill()
            self._broker.process.wait()
            self._broker = None

    def close(self) -> None:
        self.stop()
        self._directory.cleanup()


class EmbeddedTarget(Target):
    """`Minibroker` in a thread of the benchmark itself, as a test has it; from the second round on it is imported."""

    name = "minibroker in the test's process"
    peer = False

    def __init__(self) -> None:
        self._broker: Any = None

    def _start(self) -> None:
        from minibroker import Minibroker

        self._broker = Minibroker()
        self._broker.start()
        self.bootstrap, self.pid = self._broker.bootstrap_servers, os.getpid()

    def stop(self) -> None:
        if self._broker is not None:
            self._broker.stop()
            self._broker = None

    def close(self) -> None:
        self.stop()


class KafkaTarget(Target):
    """The newest Apache Kafka with a heap of 1 GiB and the JVM's own choices; its storage is formatted before."""

    name = f"Apache Kafka {NEWEST}"
    warm_up = True

    def __init__(self) -> None:
        self._kafka = RealKafka(jvm_options=())
        self.bootstrap = self._kafka.bootstrap

    def _start(self) -> None:
        self.pid = self._kafka.start().pid

    def stop(self) -> None:
        self._kafka.stop()

    def close(self) -> None:
        self._kafka.close()


class NewKafkaTarget(KafkaTarget):
    """The same with an empty, formatted directory at each start, as a test that shares nothing has it."""

    name = f"Apache Kafka {NEWEST}, formatting included"

    def _start(self) -> None:
        self._kafka.close()
        self._kafka = RealKafka(jvm_options=())
        self.bootstrap = self._kafka.bootstrap
        super()._start()


def cpu_seconds(pid: int) -> float | None:
    """CPU time of a process in seconds, to the nanosecond where the kernel keeps that; None where it cannot be read."""
    try:
        tasks = Path(f"/proc/{pid}/task")
        nanoseconds = [int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()]
    except (OSError, IndexError, ValueError):
        return None
    return sum(nanoseconds) / 1e9


def memory_mb(pid: int) -> float | None:
    """Resident memory in MB (10^6 bytes), or None where it cannot be read."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmRSS")), None)


def machine() -> str:
    """What the figures were taken on, in one line."""
    model = "unknown CPU"
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return f"{model}, {os.cpu_count()} cores, {sys.platform}, CPython {sys.version.split()[0]}"


def commit(tree: Path = ROOT) -> str:
    """The commit that was measured."""
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=tree, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def build() -> str:
    """What was measured: `minibroker --version` says whether compiled code or Python walks the records."""
    done = subprocess.run([sys.executable, "-m", "minibroker", "--version"], capture_output=True, text=True)
    return done.stdout.strip() or "minibroker"


def has_compiled_walk(tree: Path = ROOT) -> bool:
    """Whether records are walked by compiled code there (`MINIBROKER_COMPILE=1 pip install -e .`)."""
    return any((tree / "protocol" / "minibroker_protocol").glob("_native.*.so"))


def end_on_sigterm() -> None:
    """Let SIGTERM unwind this program, so that brokers end with it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
