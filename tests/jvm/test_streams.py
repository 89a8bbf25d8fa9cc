"""Kafka Streams with exactly_once_v2: its own smoke test of windows, joins and tables, with an instance killed in
between, and the situations of its EosIntegrationTest, which is not in Maven (streams/StreamsChecks.java).

The smoke test's verdict is its driver's: every result once, in order, and no transaction left open.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from check_program import Outcomes, declared_checks
from jvm import FAST_START, JVM_TIER, compile_java, fetched_jars, java_command
from toolchain import Unavailable

from minibroker import Minibroker

pytestmark = pytest.mark.jvm

MAIN = "org.apache.kafka.streams.tests.StreamsSmokeTest"
TOPICS = tuple(
    "data echo max min min-suppressed min-raw dif sum sws-raw sws-suppressed cnt avg tagg fk".split()  # noqa: SIM905
)
PARTITIONS = 5
CHECKS = JVM_TIER / "streams" / "StreamsChecks.java"
RUNS = "initializing processor"
PROCESSED, DRIVEN, CHECKED = 120.0, 300.0, 400.0
RACE_OF_THE_DRIVER = "is larger than topic endOffset"
"""It asks for the ends of partitions, then for the last stable offsets, and takes what was committed in between for an
error (SmokeTestDriver.verifyAllTransactionFinished of 4.3.1)."""


@pytest.fixture(scope="module")
def jars(programs: Path) -> Path:
    try:
        return fetched_jars(JVM_TIER / "streams" / "pom.xml", "Kafka Streams")
    except Unavailable as missing:
        pytest.skip(str(missing))


class Run:
    """Programs of the smoke test against one broker; the driver's properties name no state directory."""

    def __init__(self, bootstrap: str, jars: Path, directory: Path) -> None:
        self._bootstrap, self._jars, self._directory = bootstrap, jars, directory
        self._started: list[subprocess.Popen[str]] = []

    def start(self, name: str, command: str) -> tuple[subprocess.Popen[str], Path]:
        properties = self._directory / f"{name}.properties"
        lines = {
            "bootstrap.servers": self._bootstrap,
            "processing.guarantee": "exactly_once_v2",
            "num.stream.threads": "2",
            "commit.interval.ms": "100",
            "state.dir": str(self._directory / name),
        }
        properties.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        out = self._directory / f"{name}.out"
        # A killed instance leaves the native library of its stores there.
        options = (*FAST_START, f"-Djava.io.tmpdir={self._directory}")
        argv = java_command(MAIN, str(properties), command, extra=(self._jars / "*",), heap="512m", options=options)
        with out.open("w") as stream:
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT, text=True
            )
        self._started.append(process)
        return process, out

    def wait_for(self, out: Path, text: str, process: subprocess.Popen[str]) -> None:
        deadline = time.monotonic() + PROCESSED
        while text not in out.read_text():
            assert process.poll() is None, out.read_text()[-3000:]
            assert time.monotonic() < deadline, out.read_text()[-3000:]
            time.sleep(0.2)

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()


@contextmanager
def fresh_run(jars: Path, directory: Path) -> Iterator[Run]:
    directory.mkdir()
    with Minibroker(ephemeral=True, topics=dict.fromkeys(TOPICS, PARTITIONS)) as broker:
        made = Run(broker.bootstrap_servers, jars, directory)
        try:
            yield made
        finally:
            made.close()


def drive(run: Run) -> str:
    """Everything that the driver says, while an instance is killed and another one takes its place."""
    first, first_out = run.start("first", "process")
    run.wait_for(first_out, RUNS, first)
    driver, driver_out = run.start("driver", "run")
    second, second_out = run.start("second", "process")
    run.wait_for(second_out, RUNS, second)
    second.kill()
    third, _ = run.start("third", "process")
    driver.wait(DRIVEN)
    assert (first.poll(), third.poll()) == (None, None)
    return driver_out.read_text()


@pytest.mark.slow  # the driver alone sends for half a minute; in the tier, integrations/java/spring kills an instance
def test_streams_exactly_once_with_an_instance_killed(jars: Path, tmp_path: Path) -> None:
    for number in range(3):
        with fresh_run(jars, tmp_path / str(number)) as run:
            told = drive(run)
        if RACE_OF_THE_DRIVER not in told:
            break
    assert "ALL-RECORDS-DELIVERED" in told, told[-3000:]
    assert "SUCCESS" in told, told[-3000:]
    assert "FAILURE" not in told
    assert "PROCESSED-MORE-THAN-GENERATED" not in told
    assert "PROCESSED-LESS-THAN-GENERATED" not in told


@pytest.fixture(scope="module")
def outcomes(jars: Path, bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    built = compile_java([CHECKS], tmp_path_factory.mktemp("streams"), jars / "*")
    state = tmp_path_factory.mktemp("state")
    argv = java_command("StreamsChecks", bootstrap, str(state), extra=(built, jars / "*"), heap="512m")
    return Outcomes(subprocess.run(argv, capture_output=True, text=True, timeout=CHECKED))


@pytest.mark.slow
@pytest.mark.parametrize("check", declared_checks(CHECKS, r'^        run\("(\w+)"'))
def test_streams_exactly_once(outcomes: Outcomes, check: str) -> None:
    outcomes.verify(check)
