from __future__ import annotations

from math import inf
from types import SimpleNamespace
from typing import Any

import pytest
from held_executor import HeldExecutor
from manual_time import ManualTimers
from memory_cluster import MemoryCluster

from minibroker.broker import log_maintenance
from minibroker.control.commands import Commands
from minibroker_lab.simulation.faulty_disk import FaultyDisk
from minibroker_protocol.errors import ApiError, ErrorCode, Malformed
from minibroker_protocol.messages import DeleteTopicsRequest, FetchRequest
from minibroker_protocol.records import Record, build_batch, decode_records, iter_batches
from minibroker_storage.compaction import install
from minibroker_storage.disk import StorageError
from minibroker_storage.log import PartitionLog
from minibroker_storage.origin import Origin

CONFIG = {
    "log.cleanup.policy": "compact",
    "log.cleaner.backoff.ms": "1000",
    "log.cleaner.min.cleanable.ratio": "0.01",
    "log.segment.bytes": "1048576",
}


def fill(cluster: MemoryCluster, rounds: int, index: int = 0) -> None:
    """Write the same three keys over and over, each round in a segment of its own."""
    log = cluster.broker.partition("t", index).log
    for round_ in range(rounds):
        now_ms = cluster.clock.now_ms()
        batch = build_batch([Record(i, now_ms, b"k%d" % i, b"v%d" % round_, []) for i in range(3)])
        cluster.broker.partition("t", index).append(batch, origin=Origin.CLIENT, api_version=9)
        log.roll(now_ms)


def values(cluster: MemoryCluster) -> list[tuple[bytes, bytes]]:
    log = cluster.broker.partition("t", 0).log
    found = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        chunk = log.read(offset, 1 << 20, bound=log.log_end_offset).records
        if not len(chunk):
            break
        for position, header in iter_batches(chunk):
            found += [
                (bytes(r.key or b""), bytes(r.value or b""))
                for r in decode_records(chunk, position, header, max_bytes=1 << 20)
            ]
            offset = header.next_offset
    return found


def test_a_sweep_compacts_what_is_dirty_and_remembers_how_far() -> None:
    cluster = MemoryCluster(CONFIG, topics={"t": 1})
    idle_until = cluster.broker.maintenance.cleaner.idle_until
    assert idle_until() == inf
    fill(cluster, 4)
    assert len(values(cluster)) == 12
    assert idle_until() == 0
    cluster.timers.advance(1000)
    assert values(cluster) == [(b"k0", b"v3"), (b"k1", b"v3"), (b"k2", b"v3")]
    assert idle_until() == inf
    assert cluster.broker.directory.cleaner_offsets[("t", 0)] == 12
    cluster.stop()


def test_one_sweep_compacts_every_partition() -> None:
    cluster = MemoryCluster(CONFIG, topics={"t": 3})
    for index, rounds in enumerate((3, 5, 2)):
        fill(cluster, rounds, index)
    cluster.timers.advance(1000)
    assert cluster.broker.directory.cleaner_offsets == {("t", 0): 9, ("t", 1): 15, ("t", 2): 6}
    cluster.stop()


def test_a_rewrite_that_is_under_way_gives_up_at_a_stop() -> None:
    held = HeldExecutor()
    cluster = MemoryCluster(CONFIG, topics={"t": 1}, executor=held)
    held.run_all()
    fill(cluster, 4)
    cleaner = cluster.broker.maintenance.cleaner
    cleaner.clean()
    assert held.waiting == 1
    cluster.broker.maintenance.stop()
    held.run_all()
    assert len(values(cluster)) == 12
    assert cluster.broker.directory.cleaner_offsets == {}
    cleaner.clean()
    assert held.waiting == 0
    cluster.stop()


@pytest.mark.parametrize("end", ["deleted", "aborted", "stopped", "killed"])
def test_a_rewrite_that_ends_after_its_log_makes_nothing_again(end: str) -> None:
    held = HeldExecutor()
    cluster = MemoryCluster(CONFIG, topics={"t": 1}, executor=held)
    held.run_all()
    fill(cluster, 4)
    broker = cluster.broker
    directory, cleaner = broker.directory, broker.maintenance.cleaner
    cleaner.clean()
    held.work()  # the thread is not back yet
    if end == "deleted":
        cluster.send(DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000), 4)
        cluster.timers.advance(10)
    elif end == "aborted":
        cleaner.stop()
    elif end == "killed":
        cluster.cluster.kill_broker(1)
    else:
        cluster.cluster.stop_broker(1)
    held.run_all()
    cluster.timers.advance(10)
    held.run_all()
    assert directory.cleaner_offsets == {}
    assert cleaner.idle.done
    files = [name for name in cluster.disk.list("") if name.startswith("t-0")]
    assert files == ([] if end == "deleted" else ["t-0"])
    if files:
        assert [name for name in cluster.disk.list("t-0") if name.endswith((".cleaned", ".swap"))] == []
    cluster.stop()


@pytest.mark.parametrize(
    "error", [StorageError(5, "no", "t-0"), Malformed("no"), ApiError(ErrorCode.CORRUPT_MESSAGE, "no")]
)
def test_a_log_that_cannot_be_rewritten_is_left_alone_and_the_others_are_not(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = MemoryCluster(CONFIG, topics={"t": 2})
    fill(cluster, 4)
    fill(cluster, 3, 1)
    tried = []

    def installs(log: PartitionLog, *arguments: Any) -> bool:
        tried.append(log.partition)
        if log.partition == 0:
            raise error
        return install(log, *arguments)

    monkeypatch.setattr("minibroker.broker.log_cleaner.install", installs)
    cluster.timers.advance(3000)
    assert tried == [0, 1]
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert cluster.broker.directory.cleaner_offsets == {("t", 1): 9}
    assert cluster.broker.maintenance.cleaner.idle_until() == inf
    cluster.stop()


def test_the_clock_has_advanced_when_compaction_is_over() -> None:
    held = HeldExecutor()
    cluster = MemoryCluster(CONFIG, topics={"t": 2}, executor=held)
    held.run_all()
    for index in (0, 1):
        fill(cluster, 4, index)
    advanced = Commands(cluster.cluster, cluster.timers).call("clock.advance", {"ms": 1000})
    assert held.waiting == 1
    held.run()  # the first log; its checkpoint and the second log wait
    assert held.waiting == 2
    assert not advanced.done
    held.run_all()
    assert advanced.result()["now_ms"] == cluster.clock.now_ms()
    assert cluster.broker.directory.cleaner_offsets == {("t", 0): 12, ("t", 1): 12}
    cluster.stop()


def test_a_broker_that_stops_lets_no_one_wait_for_its_compaction() -> None:
    held = HeldExecutor()
    cluster = MemoryCluster(CONFIG, topics={"t": 1}, executor=held)
    held.run_all()
    fill(cluster, 4)
    advanced = Commands(cluster.cluster, cluster.timers).call("clock.advance", {"ms": 1000})
    assert not advanced.done
    cluster.broker.maintenance.stop()
    assert advanced.done
    held.run_all()
    cluster.stop()


def test_a_checkpoint_that_cannot_be_written_is_told_and_nothing_more(caplog: pytest.LogCaptureFixture) -> None:
    disk = FaultyDisk()
    cluster = MemoryCluster(CONFIG, topics={"t": 1}, disk=disk)
    fill(cluster, 4)
    disk.refuses = lambda _, path: StorageError(5, "no room", path) if "cleaner-offset-checkpoint" in path else None
    cluster.timers.advance(1000)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert caplog.messages[0].startswith("cleaner checkpoint not written: ")
    assert cluster.broker.directory.cleaner_offsets[("t", 0)] == 12
    cluster.stop()


def test_a_topic_that_only_deletes_is_left_alone() -> None:
    cluster = MemoryCluster({**CONFIG, "log.cleanup.policy": "delete"}, topics={"t": 1})
    fill(cluster, 4)
    cluster.timers.advance(5000)
    assert len(values(cluster)) == 12
    cluster.stop()


def test_nothing_is_compacted_while_the_cleaner_is_off() -> None:
    cluster = MemoryCluster({**CONFIG, "log.cleaner.enable": "false"}, topics={"t": 1})
    fill(cluster, 4)
    cluster.timers.advance(5000)
    assert len(values(cluster)) == 12
    cluster.stop()


def test_a_log_whose_old_segments_cannot_be_deleted_keeps_no_other_from_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = MemoryCluster({"log.retention.check.interval.ms": "1000", "log.retention.ms": "500"}, topics={"t": 2})
    for index in (0, 1):
        fill(cluster, 2, index)
    real = log_maintenance.delete_old_segments

    def deletes(log: PartitionLog, now_ms: int) -> int:
        if log.partition == 0:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "no")
        return real(log, now_ms)

    monkeypatch.setattr(log_maintenance, "delete_old_segments", deletes)
    cluster.timers.advance(1000)
    assert [cluster.broker.partition("t", index).log.log_start_offset for index in (0, 1)] == [0, 6]
    assert caplog.messages == ["retention of t-0: KAFKA_STORAGE_ERROR: no"]
    cluster.stop()


def test_a_fetch_that_waits_is_told_when_retention_takes_its_records() -> None:
    config = {**CONFIG, "log.cleanup.policy": "delete", "log.retention.bytes": "1"}
    cluster = MemoryCluster(config, topics={"t": 1})
    partition = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=3_600_000,
        min_bytes=1 << 20,
        max_bytes=1 << 20,
        topics=[FetchRequest.FetchTopic(topic="t", partitions=[partition])],
    )
    fill(cluster, 2)
    answer = cluster.send(request, 11)
    assert not answer.done
    cluster.timers.advance(300_000)  # log.retention.check.interval.ms
    assert answer.result().responses[0].partitions[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    cluster.stop()


class Closed:
    """A partition whose log is closed; counts how often it is opened, which fails."""

    has_log, is_open = True, False
    opened = 0

    @property
    def log(self) -> PartitionLog:
        Closed.opened += 1
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "out of order")


def test_a_sweep_that_is_under_way_opens_no_log_after_the_stop() -> None:
    timers, partitions = ManualTimers(), [Closed() for _ in range(20)]
    broker: Any = SimpleNamespace(timers=timers, clock=timers, partitions=lambda: partitions)
    maintenance = log_maintenance.LogMaintenance(broker)
    maintenance.apply_retention()
    opened = Closed.opened
    assert 0 < opened < len(partitions)
    maintenance.stop()
    timers.advance(0)
    assert Closed.opened == opened


def test_a_sweep_forgets_producers_that_were_idle_for_too_long() -> None:
    config = {"producer.id.expiration.ms": "5000", "producer.id.expiration.check.interval.ms": "1000"}
    cluster = MemoryCluster(config, topics={"t": 1})
    partition = cluster.broker.partition("t", 0)
    record = Record(0, cluster.clock.now_ms(), None, b"v", [])
    batch = build_batch([record], producer_id=7, producer_epoch=0, base_sequence=0)
    partition.append(batch, origin=Origin.CLIENT, api_version=9)
    known = []
    for _ in range(2):
        cluster.timers.advance(3000)
        known.append([producer.producer_id for producer in partition.log.producers.active()])
    assert known == [[7], []]
    cluster.stop()


def test_a_log_that_cannot_be_read_is_tried_again_by_the_next_sweep(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = MemoryCluster(CONFIG, topics={"t": 1})
    fill(cluster, 4)

    def fails(*_: object) -> None:
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "no such file")

    with monkeypatch.context() as broken:
        broken.setattr("minibroker.broker.log_cleaner.plan", fails)
        cluster.timers.advance(1000)
    assert caplog.messages == ["compaction of t-0: KAFKA_STORAGE_ERROR: no such file"]
    cluster.timers.advance(1000)
    assert cluster.broker.directory.cleaner_offsets == {("t", 0): 12}
    cluster.stop()
