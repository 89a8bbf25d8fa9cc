"""Kafka's broker on partitions that a minibroker wrote, and minibroker on a directory of Kafka's: every group and
transactional id is found there, open transactions and fenced producers included.

Kafka keeps topics in a metadata log, which a minibroker does not write, so a Kafka that has the same topics gets our
partition directories in the place of its own while it is stopped. One file of each stays Kafka's: `partition.metadata`,
which names the topic's id, as Kafka would otherwise take the directory for that of a deleted topic.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from broker import start_minibroker
from ids_in_every_state import CONFIG, OFFSETS_TOPIC, TOPIC, Ids, go_on, write
from internal_partitions import ids_of
from many_brokers import ManyBrokers
from real_kafka import RealKafka

from minibroker.cli import main
from minibroker.client.topics import LATEST
from minibroker.client.transactions import TransactionsClient
from minibroker.coordinators.hashing import java_string_hash
from minibroker.metadata.image import TRANSACTION_STATE_TOPIC
from minibroker_protocol import messages as m
from minibroker_protocol.dsl import Request, Response
from minibroker_protocol.errors import ErrorCode
from minibroker_storage.os_disk import OsDisk

pytestmark = pytest.mark.jvm

R = TypeVar("R", bound=Response)
SETTINGS = "".join(f"{name}={value}\n" for name, value in CONFIG.items())
ARGUMENTS = [word for name, value in CONFIG.items() for word in ("-c", f"{name}={value}")]
OURS = (TOPIC, OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC)
SECONDS = 60.0


class Remote(ManyBrokers):
    """A broker behind a port, for stories that are told to brokers in memory: real time goes by, not manual."""

    def __init__(self, bootstrap: str) -> None:
        self.client = TransactionsClient(bootstrap)
        self.cluster: Any = SimpleNamespace(brokers={1: SimpleNamespace(partitions=lambda: ())})
        self.clock: Any = SimpleNamespace(now_ms=lambda: int(time.time() * 1000))

    def call(self, node_id: int, request: Request, response: type[R], version: int, *, wait_ms: float = 0) -> R:
        return self.client.ask_any(request, response, version)

    def leader(self, topic: str, index: int = 0) -> int:
        return 1

    def settle(self, milliseconds: float = 5) -> None:
        """A short pause of who asks again; after a longer one every transaction that has ended is complete."""
        time.sleep(0.05)
        deadline = time.monotonic() + SECONDS
        states = ["PrepareCommit", "PrepareAbort"]
        while milliseconds >= 500 and self._listed(states):
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def _listed(self, states: list[str]) -> bool:
        request = m.ListTransactionsRequest(state_filters=states, producer_id_filters=[])
        answer = self.call(1, request, m.ListTransactionsResponse, 0)
        return bool(answer.transaction_states) or answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    def ready(self) -> None:
        """Return once the topic's partitions have their leader."""
        deadline = time.monotonic() + SECONDS
        while any(self.fetch(TOPIC, index=index).error_code for index in (0, 1)):
            assert time.monotonic() < deadline
            time.sleep(0.05)


@contextmanager
def kafka_running(kafka: RealKafka) -> Iterator[Ids]:
    kafka.start()
    kafka.wait()
    remote = Remote(kafka.bootstrap)
    try:
        yield Ids(remote)
    finally:
        remote.client.close()
        kafka.stop()


@contextmanager
def minibroker_running(data: Path, log: Path) -> Iterator[Ids]:
    broker = start_minibroker(log, "--data-dir", str(data), *ARGUMENTS)
    remote = Remote(broker.bootstrap)
    try:
        yield Ids(remote)
    finally:
        remote.client.close()
        broker.stop()


def partitions_of_negative_hashes(data: Path) -> dict[str, dict[str, int]]:
    disk = OsDisk(str(data), read_only=True)
    return {
        topic: {name: index for name, index in ids_of(disk, topic) if java_string_hash(name) < 0}
        for topic in (OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC)
    }


@pytest.fixture
def kafka(programs: Path) -> Iterator[RealKafka]:
    broker = RealKafka(SETTINGS)
    yield broker
    broker.close()


def test_minibroker_finds_every_id_that_kafka_wrote(kafka: RealKafka, tmp_path: Path) -> None:
    with kafka_running(kafka) as ids:
        clients = write(ids, decided=False)
    data = tmp_path / "data"
    shutil.copytree(kafka.directory / "data", data)
    negative = partitions_of_negative_hashes(data)
    assert all(len(found) >= 3 for found in negative.values())
    with minibroker_running(data, tmp_path / "broker.log") as ids:
        ids.cluster.ready()
        go_on(ids, clients)
    assert partitions_of_negative_hashes(data) == negative


def test_kafka_finds_every_id_that_minibroker_wrote(kafka: RealKafka, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with minibroker_running(data, tmp_path / "broker.log") as ids:
        clients = write(ids, decided=False)
    negative = partitions_of_negative_hashes(data)
    assert all(len(found) >= 3 for found in negative.values())
    with kafka_running(kafka) as ids:
        ids.cluster.create(TOPIC, [[1], [1]])
        ids.offsets("orders")  # makes the internal topics
        ids.ask(1, "x", m.DescribeTransactionsRequest(transactional_ids=["x"]), m.DescribeTransactionsResponse, 0, none)
    put_in_place(data, kafka.directory / "data")
    with kafka_running(kafka) as ids:
        ids.cluster.ready()
        go_on(ids, clients)
    assert partitions_of_negative_hashes(kafka.directory / "data") == negative


def sent(remote: ManyBrokers, value: bytes) -> int:
    """The offset that an idempotent producer with a new id is told for its first record."""
    assert isinstance(remote, Remote)
    producer_id = remote.client.skip_producer_ids(0)
    answer = remote.produce(TOPIC, value, producer_id=producer_id, producer_epoch=0, base_sequence=0)
    assert answer.error_code == ErrorCode.NONE
    return answer.base_offset


def test_new_producers_write_to_a_partition_that_was_moved(kafka: RealKafka, tmp_path: Path) -> None:
    """A new Kafka hands out producer ids from 0 again, which the moved log knows: their records would be duplicates."""
    data = tmp_path / "data"
    with minibroker_running(data, tmp_path / "broker.log") as ids:
        ids.cluster.create(TOPIC, [[1], [1]])
        assert sent(ids.cluster, b"a") == 0
    with minibroker_running(data, tmp_path / "broker.log") as ids:  # its ids are of the next block
        assert sent(ids.cluster, b"b") == 1
    with kafka_running(kafka) as ids:
        ids.cluster.create(TOPIC, [[1], [1]])
        skip = ("transactions", "skip-producer-ids", "--bootstrap", kafka.bootstrap, "--data-dir", str(data))
        assert main([*skip]) == 0
    put_in_place(data, kafka.directory / "data")
    with kafka_running(kafka) as ids:
        ids.cluster.ready()
        assert [sent(ids.cluster, value) for value in (b"c", b"d")] == [2, 3]
        assert isinstance(ids.cluster, Remote)
        assert ids.cluster.client.offset(TOPIC, 0, LATEST) == 4


def none(answer: m.DescribeTransactionsResponse) -> int:
    """Once the coordinator has an opinion of an id."""
    code = answer.transaction_states[0].error_code
    return ErrorCode.NONE if code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND else code


def put_in_place(ours: Path, kafkas: Path) -> None:
    for source in sorted(ours.iterdir()):
        if source.name.rpartition("-")[0] in OURS:
            target = kafkas / source.name
            named = (target / "partition.metadata").read_bytes()
            shutil.rmtree(target)
            shutil.copytree(source, target)
            (target / "partition.metadata").write_bytes(named)
