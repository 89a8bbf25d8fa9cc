"""A full disk and a process out of file handles, through the whole broker with a real client."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from broker import BrokerProcess, start_minibroker
from durability import read_all

confluent_kafka = pytest.importorskip("confluent_kafka")
admin = pytest.importorskip("confluent_kafka.admin")
resource = pytest.importorskip("resource")
pytestmark = [pytest.mark.clients, pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits of a process")]

VALUE_BYTES = 1000
STORAGE_ERROR = "KAFKA_STORAGE_ERROR"


@contextlib.contextmanager
def broker(tmp_path: Path, *arguments: str, command: list[str] | None = None) -> Iterator[BrokerProcess]:
    running = start_minibroker(tmp_path / "broker.log", *arguments, command=command)
    try:
        yield running
    finally:
        assert running.stop() == 0


class Producing:
    """An idempotent producer and what it was told of each record."""

    def __init__(self, bootstrap: str, **config: Any) -> None:
        settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 1, "batch.size": 20_000}
        self.producer = confluent_kafka.Producer({**settings, **config})
        self.acknowledged: list[bytes] = []
        self.errors: list[str] = []

    def send(self, topic: str, number: int, partition: int = 0) -> None:
        value = b"%06d" % number + bytes(VALUE_BYTES)
        self.producer.produce(topic, value, partition=partition, on_delivery=self._told)

    def _told(self, error: Any, message: Any) -> None:
        if error is None:
            self.acknowledged.append(message.value())
        else:
            self.errors.append(error.name())


def test_a_full_disk_refuses_writes_serves_reads_and_recovers(tmp_path: Path) -> None:
    with broker(tmp_path, "--data-dir", str(tmp_path / "data"), "--topic", "t:1") as running:
        pid = running.process.pid
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (200_000, hard))  # files cannot grow beyond: "the disk is full"
        writer = Producing(running.bootstrap, **{"message.timeout.ms": 60_000, "retry.backoff.ms": 50})
        for number in range(500):
            writer.send("t", number)
        deadline = time.monotonic() + 20
        while not (running.log.read_text().count("File too large") > 2):
            writer.producer.poll(0.05)
            assert time.monotonic() < deadline, running.tail()
        assert 50 < len(writer.acknowledged) < 250
        served = read_all(running.bootstrap, "t", 1)
        assert served[: len(writer.acknowledged)] == writer.acknowledged
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))
        assert writer.producer.flush(30) == 0
        assert writer.errors == []
        assert [int(value[:6]) for value in writer.acknowledged] == list(range(500))
        assert read_all(running.bootstrap, "t", 1) == writer.acknowledged


def test_a_client_is_told_that_the_disk_is_full(tmp_path: Path) -> None:
    arguments = ("--ephemeral", "-c", "minibroker.ephemeral.max.bytes=2000000", "--topic", "full:1", "--topic", "t:1")
    with broker(tmp_path, *arguments) as running:
        once = {"message.timeout.ms": 2000, "message.send.max.retries": 1, "enable.idempotence": False}
        filler, writer = Producing(running.bootstrap, **once), Producing(running.bootstrap, **once)
        for number in range(3000):
            filler.send("full", number)
        filler.producer.flush(30)
        assert set(filler.errors) <= {STORAGE_ERROR, "_MSG_TIMED_OUT"}
        assert STORAGE_ERROR in filler.errors
        for number in range(200):
            writer.send("t", number)
        writer.producer.flush(30)
        assert STORAGE_ERROR in writer.errors
        before = len(writer.acknowledged)
        assert read_all(running.bootstrap, "full", 1) == filler.acknowledged
        client = admin.AdminClient({"bootstrap.servers": running.bootstrap})
        client.delete_topics(["full"])["full"].result(10)
        for number in range(200):
            writer.send("t", number)
        writer.producer.flush(30)
        assert len(writer.acknowledged) == before + 200
        assert read_all(running.bootstrap, "t", 1) == writer.acknowledged


def test_out_of_handles_the_newest_connection_goes_and_no_append_is_lost(tmp_path: Path) -> None:
    partitions, limit, crowd = 60, 160, 200
    command = ["sh", "-c", f'ulimit -n {limit}; exec "$@"', "sh", sys.executable, "-m", "minibroker"]
    arguments = ("--data-dir", str(tmp_path / "data"), "--topic", f"t:{partitions}")
    with broker(tmp_path, *arguments, command=command) as running, contextlib.ExitStack() as stack:
        writer = Producing(running.bootstrap, **{"message.timeout.ms": 60_000})
        writer.send("t", 0)
        assert writer.producer.flush(20) == 0
        host, _, port = running.bootstrap.rpartition(":")
        for number in range(1, crowd):
            with contextlib.suppress(OSError):
                stack.enter_context(socket.create_connection((host, int(port)), timeout=5))
            writer.send("t", number, number % partitions)
        assert writer.producer.flush(60) == 0
        assert writer.errors == []
        assert len(writer.acknowledged) == crowd
        # The system takes connections for the broker, which may get to them after the last record.
        deadline = time.monotonic() + 20
        while "closing the newest connection" not in running.log.read_text():
            assert time.monotonic() < deadline, running.tail()
            time.sleep(0.02)
        assert len(os.listdir(f"/proc/{running.process.pid}/fd")) < limit
        stack.close()
        found = read_all(running.bootstrap, "t", partitions)
        assert sorted(found) == sorted(writer.acknowledged)


def test_a_broker_with_500_dirty_partitions_ends_in_time(tmp_path: Path) -> None:
    partitions = 500
    running = start_minibroker(
        tmp_path / "broker.log", "--data-dir", str(tmp_path / "data"), "--topic", f"t:{partitions}"
    )
    writer = Producing(running.bootstrap)
    for number in range(2 * partitions):
        writer.send("t", number, number % partitions)
    assert writer.producer.flush(60) == 0
    asked = time.monotonic()
    assert running.stop() == 0
    assert time.monotonic() - asked < 5
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()
    with broker(tmp_path, "--data-dir", str(tmp_path / "data")) as again:
        assert sorted(read_all(again.bootstrap, "t", partitions)) == sorted(writer.acknowledged)
