"""Drivers, executors and Python workers of a real Spark are killed; the sink's counter goes on, each number once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from sink_readers import PARTITIONS, visible
from spark_processes import below, connected, executors, kill
from toolchain import Unavailable

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc"),
]

pytest.importorskip("pyspark")

from pyspark.errors import StreamingQueryException  # noqa: E402
from spark_counter import ROWS, SINK, TOPIC, start  # noqa: E402

from minibroker.faults import Hold  # noqa: E402
from minibroker.testing.embedded import Minibroker  # noqa: E402
from minibroker.testing.proxy import Proxy  # noqa: E402

JOB = Path(__file__).parents[1] / "support" / "applications" / "spark_counter.py"
SECONDS = 300.0
KILLS = int(os.environ.get("MINIBROKER_SPARK_KILLS", "20"))
"""Of each target."""
SEED = int(os.environ.get("MINIBROKER_SEED", str(time.time_ns() // 86_400_000_000_000)))
"""The number of the day: no night repeats another's kills."""

PLACES = [
    ("InitProducerId", "before"),
    ("Produce", "before"),
    ("Produce", "after"),
    ("EndTxn", "before"),
    ("EndTxn", "after"),
    ("TxnOffsetCommit", "after"),
]
"""The requests of a batch at which a process is killed: before the broker applies it, or before it answers."""


def numbers(bootstrap: str) -> list[int]:
    """What readers see, in order."""
    seen = sorted(int(value) for _, value in visible(bootstrap, TOPIC))
    assert [number for number, count in Counter(seen).items() if count > 1] == [], "twice"
    return seen


def wait_for_more(bootstrap: str, least: int) -> list[int]:
    """The whole counter, once it has so many more numbers; a batch becomes visible partition by partition."""
    deadline, goal = time.monotonic() + SECONDS, len(numbers(bootstrap)) + least
    while True:
        seen = numbers(bootstrap)
        if len(seen) >= goal and seen == list(range(len(seen))):
            return seen
        assert time.monotonic() < deadline, f"{len(seen)} of {goal} numbers, up to {seen[-1:]}"
        time.sleep(0.2)


def port_of(bootstrap: str) -> int:
    return int(bootstrap.rpartition(":")[2])


@pytest.mark.slow
@pytest.mark.parametrize("places", [PLACES[::2], [*PLACES, *PLACES[:4]]])
def test_python_workers_are_killed(spark: Any, tmp_path: Path, places: list[tuple[Any, Any]]) -> None:
    """Those that plan, write and commit, in the session of the other tests."""
    with Minibroker(ephemeral=True, topics={TOPIC: PARTITIONS}) as broker:
        query = start(spark, broker.bootstrap_servers, str(tmp_path))
        for api, when in places:
            with broker.faults.inject(api, Hold(when=when), transactional_id=SINK) as held:
                held.wait(timeout=SECONDS)
                workers = connected(port_of(broker.bootstrap_servers), below(os.getpid()))
                assert workers, f"no worker is connected while it waits for {api}"
                kill(workers)
                with pytest.raises(StreamingQueryException):
                    query.awaitTermination(SECONDS)
            query = start(spark, broker.bootstrap_servers, str(tmp_path))
        wait_for_more(broker.bootstrap_servers, 2 * ROWS)
        query.stop()
        assert wait_for_more(broker.bootstrap_servers, 0)


class Job:
    """A counting driver on a local cluster of two executors, started again when it was killed."""

    def __init__(self, bootstrap: str, directory: Path, *defect: str) -> None:
        self._argv = [sys.executable, str(JOB), "local-cluster[2,1,1024]", bootstrap, str(directory / "checkpoint")]
        self._argv += defect
        self._port = port_of(bootstrap)
        self._directory = directory
        self._running: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        # What a killed Spark leaves in its temporary directories goes with the test's.
        environment = {**os.environ, "TMPDIR": str(self._directory)}
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        environment.pop("SPARK_HOME", None)
        with (self._directory / "log").open("ab") as log:
            self._running = subprocess.Popen(
                self._argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )

    def workers(self) -> set[int]:
        assert self._running is not None
        return connected(self._port, below(self._running.pid))

    def executors(self) -> set[int]:
        assert self._running is not None
        return executors(below(self._running.pid))

    def kill(self) -> None:
        """The driver with its JVM, and what would be left of it."""
        if self._running is not None:
            family = below(self._running.pid)
            with suppress(ProcessLookupError):
                os.killpg(self._running.pid, signal.SIGKILL)
            self._running.wait()
            kill(family)
            self._running = None


def kill_driver(job: Job, rng: random.Random) -> bool:
    job.kill()
    job.start()
    return True


def kill_executor(job: Job, rng: random.Random) -> bool:
    jvms = sorted(job.executors())
    kill([rng.choice(jvms)] if jvms else [])
    return bool(jvms)


def kill_workers(job: Job, rng: random.Random) -> bool:
    """Those that wait for the broker; none while the driver itself keeps its marker."""
    workers = job.workers()
    kill(workers)
    return bool(workers)


KINDS: dict[str, Callable[[Job, random.Random], bool]] = {
    "worker": kill_workers,
    "executor": kill_executor,
    "driver": kill_driver,
}


def storm(target: Minibroker | Proxy, job: Job, kills: int) -> Counter[str]:
    """Kill at one of `PLACES` each time; the kinds in turn."""
    rng, done = random.Random(SEED), Counter[str]()
    while sum(done.values()) < kills:
        # The counter goes on: what is killed is a batch, not only the driver's commit of its marker as it starts.
        wait_for_more(target.bootstrap_servers, ROWS)
        kind = [*KINDS][sum(done.values()) % len(KINDS)]
        api, when = rng.choice(PLACES)
        with target.faults.inject(api, Hold(when=when), transactional_id=SINK) as held:
            held.wait(timeout=SECONDS)
            done[kind] += KINDS[kind](job, rng)
        print(f"seed {SEED}: {dict(done)}, last at {api} {when}: {len(numbers(target.bootstrap_servers))} numbers")
    wait_for_more(target.bootstrap_servers, 2 * ROWS)
    return done


@pytest.fixture(params=["minibroker", "Kafka 4.4.0"])
def target(request: pytest.FixtureRequest) -> Iterator[Minibroker | Proxy]:
    with ExitStack() as stack:
        if request.param == "minibroker":
            yield stack.enter_context(Minibroker(ephemeral=True, topics={TOPIC: PARTITIONS}))
            return
        admin = pytest.importorskip("confluent_kafka.admin")
        from real_kafka import RealKafka

        try:
            kafka = RealKafka()
        except Unavailable as missing:
            pytest.skip(str(missing))
        stack.callback(kafka.close)
        kafka.start()
        kafka.wait()
        client = admin.AdminClient({"bootstrap.servers": kafka.bootstrap})
        client.create_topics([admin.NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(30)
        yield stack.enter_context(Proxy(kafka.bootstrap))


@pytest.mark.slow
def test_a_real_spark_is_killed(target: Minibroker | Proxy, tmp_path: Path) -> None:
    job = Job(target.bootstrap_servers, tmp_path)
    try:
        done = storm(target, job, KILLS)
    finally:
        job.kill()
    assert sum(done.values()) == KILLS


@pytest.mark.slow
def test_a_defect_in_the_commit_is_found(tmp_path: Path) -> None:
    """A marker that is committed after its transaction: a process that dies between both doubles the batch."""
    with Minibroker(ephemeral=True, topics={TOPIC: PARTITIONS}) as broker:
        job = Job(broker.bootstrap_servers, tmp_path, "mark afterwards")
        try:
            wait_for_more(broker.bootstrap_servers, ROWS)
            with broker.faults.inject("EndTxn", Hold(when="after"), transactional_id=SINK) as held:
                held.wait(timeout=SECONDS)
                assert kill_workers(job, random.Random(SEED))
            with pytest.raises(AssertionError, match="twice"):
                wait_for_more(broker.bootstrap_servers, 3 * ROWS)
        finally:
            job.kill()
