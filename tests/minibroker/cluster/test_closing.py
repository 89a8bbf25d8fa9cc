"""The end of a broker with many logs that were written to."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest
from memory_cluster import MemoryCluster

from minibroker.kernel.threads import ThreadExecutor
from minibroker.rules.directory import check_directory
from minibroker_protocol.records import Record, build_batch
from minibroker_storage.check_finding import ERROR
from minibroker_storage.origin import Origin
from minibroker_storage.os_disk import OsDisk

PARTITIONS = 100
AT_ONCE = 8
PATIENCE = 10.0
"""Seconds that a sync waits for others to be under way."""


def fill(cluster: MemoryCluster) -> None:
    for index in range(PARTITIONS):
        batch = build_batch(
            [Record(0, cluster.clock.now_ms(), b"k", b"v")], producer_id=index, producer_epoch=0, base_sequence=0
        )
        cluster.broker.partition("t", index).append(batch, origin=Origin.CLIENT, api_version=9)


async def test_many_dirty_logs_are_synced_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running = syncs = most = 0
    counting, enough = threading.Lock(), threading.Event()

    def slow(_: int) -> None:
        nonlocal running, syncs, most
        with counting:
            running, syncs = running + 1, syncs + 1
            most = max(most, running)
            if most > AT_ONCE:
                enough.set()
        if not enough.wait(PATIENCE):
            enough.set()  # they are synced one after the other: once is enough to wait
        with counting:
            running -= 1

    executor = ThreadExecutor(asyncio.get_running_loop())
    cluster = MemoryCluster(topics={"t": PARTITIONS}, disk=OsDisk(str(tmp_path)), executor=executor)
    fill(cluster)
    monkeypatch.setattr(os, "fdatasync" if hasattr(os, "fdatasync") else "fsync", slow)
    cluster.stop()
    executor.close()
    assert syncs > 3 * PARTITIONS
    assert most > AT_ONCE
    assert cluster.disk.exists(".kafka_cleanshutdown")
    disk = OsDisk(str(tmp_path), read_only=True)
    assert [finding for finding in check_directory(disk) if finding.severity == ERROR] == []


async def test_a_log_that_cannot_be_closed_leaves_the_directory_unclean(tmp_path: Path) -> None:
    executor = ThreadExecutor(asyncio.get_running_loop())
    cluster = MemoryCluster(topics={"t": PARTITIONS}, disk=OsDisk(str(tmp_path)), executor=executor)
    fill(cluster)
    log = tmp_path / "t-7" / "00000000000000000000.log"
    cluster.disk.open("t-7/00000000000000000000.log")
    held = cluster.broker.partition("t", 7).log.segments[0]
    held.close_files()
    log.unlink()
    cluster.stop()
    executor.close()
    assert not cluster.disk.exists(".kafka_cleanshutdown")
    again = MemoryCluster(disk=OsDisk(str(tmp_path)))
    assert again.broker.partition("t", 8).log.log_end_offset == 1
    again.stop()


def test_an_end_whose_disk_goes_too_writes_nothing(tmp_path: Path) -> None:
    disk = OsDisk(str(tmp_path))
    cluster = MemoryCluster(topics={"t": PARTITIONS}, disk=disk)
    fill(cluster)

    def files() -> dict[str, bytes]:
        found = {str(path.relative_to(tmp_path)): path for path in tmp_path.rglob("*") if path.is_file()}
        return {name: path.read_bytes() for name, path in found.items() if path.name != ".lock"}

    before = files()
    cluster.cluster.stop(keep=False)
    assert files() == before
    assert disk.open_handles == 0
    again = MemoryCluster(disk=OsDisk(str(tmp_path)))  # the directory is not locked any more
    assert again.broker.partition("t", 8).log.log_end_offset == 1
    again.stop()
