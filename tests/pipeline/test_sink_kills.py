"""The sink's driver, tasks, brokers and connections die at each step of a batch; readers see each once and whole."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from real_kafka import RealKafka
from sink_job import CASES, DEFECTS, PARTITIONS
from sink_readers import BATCH, job, visible
from toolchain import Unavailable

from minibroker.client.transactions import TransactionsClient
from minibroker.testing.embedded import Minibroker
from minibroker_protocol.errors import ApiError, ErrorCode

BATCHES = 4
RUNS = 5
"""How often a job is started until it ends in order."""
FORKS = pytest.mark.skipif(sys.platform == "win32", reason="tasks are forked")
ARMED = [(batch, step, kind) for step, kind in CASES for batch in ("2", "0")]


def run_to_the_end(
    directory: Path, bootstrap: str, topic: str, armed: tuple[str, ...], trouble: Callable[[], None]
) -> None:
    """Start the job until it ends in order. trouble: what happens where it waits."""
    for attempt in range(RUNS):
        command = job(directory, bootstrap, topic, BATCHES, *(("-1", "", "", *armed[3:]) if attempt else armed))
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as running:
            assert running.stdout is not None
            if running.stdout.readline().startswith("at "):
                trouble()
            _, said = running.communicate("\n")
        assert_whole(bootstrap, topic, final=running.returncode == 0)
        if running.returncode == 0:
            return
        assert "Traceback" not in said, said
    raise AssertionError(f"{RUNS} starts did not end it: {said}")


def assert_whole(bootstrap: str, topic: str, *, final: bool) -> None:
    """Each value once, and of each batch all or nothing."""
    found = Counter(value for _, value in visible(bootstrap, topic))
    assert [value for value, count in found.items() if count > 1] == []
    batches = Counter(value.split(".")[0] for value in found)
    assert set(batches.values()) <= {BATCH}
    if final:
        assert len(batches) == BATCHES


@pytest.fixture(scope="module", params=[2, pytest.param(1, marks=pytest.mark.matrix)])
def cluster(request: pytest.FixtureRequest) -> Iterator[Minibroker]:
    with Minibroker(ephemeral=True, brokers=3, transaction_version=request.param) as running:
        yield running


def sampled(every: int) -> list[Any]:
    """The first of each `every`, the others at night."""
    return [pytest.param(one, marks=[pytest.mark.slow] if n % every else []) for n, one in enumerate(ARMED)]


@FORKS
@pytest.mark.parametrize("armed", sampled(88), ids="-".join)
def test_each_batch_once(cluster: Minibroker, tmp_path: Path, armed: tuple[str, str, str]) -> None:
    topic = "-".join(armed).replace(" ", "-")
    cluster.state.create_topic(topic=topic, partitions=PARTITIONS, replication_factor=3)

    def trouble() -> None:
        """Each broker goes and comes back, the leaders and both coordinators among them."""
        for broker in (1, 2, 3):
            cluster.cluster.kill_broker(broker)
            cluster.cluster.start_broker(broker)

    run_to_the_end(tmp_path, cluster.bootstrap_servers, topic, armed, trouble)


SHOWN_BY = {
    "fence nothing": ("2", "Produce 2", "driver"),
    "mark afterwards": ("2", "OffsetCommit 1", "driver"),
    "no transaction": ("2", "Produce 2", "driver"),
    "compare nothing": ("2", "committed", "driver"),
    "commit what there is": ("2", "Produce 2", "task"),
}


@FORKS
@pytest.mark.slow
@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_in_a_step_is_found(tmp_path: Path, defect: str) -> None:
    armed = SHOWN_BY[defect]
    with (
        Minibroker(ephemeral=True, topics={"t": PARTITIONS}) as broker,
        pytest.raises(AssertionError, match=r"^assert|did not end it"),
    ):
        run_to_the_end(tmp_path, broker.bootstrap_servers, "t", (*armed, defect), lambda: None)


@pytest.fixture(scope="module", params=["4.4.0", "4.3.1", "3.9.2"])
def kafka(request: pytest.FixtureRequest) -> Iterator[RealKafka]:
    try:
        running = RealKafka(release=request.param)
    except Unavailable as missing:
        pytest.skip(str(missing))
    try:
        running.start()
        running.wait()
        yield running
    finally:
        running.close()


LOSES_MARKERS = ("4.3.1", "4.4.0")
"""Seen on 4.4.0: a broker killed right after a commit comes back and writes CompleteCommit without the markers, so the
records stay invisible and the sink waits in vain. KAFKA-20734 explains it, and 4.3.1 has the same code."""


def wait_for_markers(bootstrap: str, transactional_id: str) -> None:
    """Return once the coordinator has no marker to write for the id."""
    with TransactionsClient(bootstrap) as client:
        for _ in range(200):
            try:
                _, found = client.describe(transactional_id)
            except ApiError as error:
                if error.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                    return
                raise
            if not found.transaction_state.startswith("Prepare"):
                return
            time.sleep(0.05)
    raise AssertionError(f"{transactional_id}: {found.transaction_state}")


@pytest.mark.jvm
@pytest.mark.slow
@pytest.mark.parametrize("armed", ARMED, ids="-".join)
def test_each_batch_once_on_kafka(kafka: RealKafka, tmp_path: Path, armed: tuple[str, str, str]) -> None:
    admin: Any = pytest.importorskip("confluent_kafka.admin")
    topic = "-".join(armed).replace(" ", "-")
    client = admin.AdminClient({"bootstrap.servers": kafka.bootstrap})
    client.create_topics([admin.NewTopic(topic, PARTITIONS)])[topic].result(30)

    def trouble() -> None:
        if kafka.release in LOSES_MARKERS:
            wait_for_markers(kafka.bootstrap, f"sink-{topic}")
        kafka.kill()
        kafka.start()
        kafka.wait()

    run_to_the_end(tmp_path, kafka.bootstrap, topic, armed, trouble)
