"""A broker whose disk fails: what the controller and the others have to know of it comes to pass all the same."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest
from many_brokers import ManyBrokers

from minibroker.faults import operations
from minibroker.kernel.deferred import spawn
from minibroker_lab.simulation.faulty_disk import FaultyDisk
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.messages.topics import DeleteTopicsRequest, DeleteTopicsResponse
from minibroker_storage.disk import StorageError, SyncFailed


def refusing(call: str, ending: str = "") -> Callable[[str, str], StorageError | None]:
    """Refuses such a call on files whose path ends so."""

    def refuses(what: str, path: str) -> StorageError | None:
        return StorageError(errno.EIO, "input/output error", path) if what == call and path.endswith(ending) else None

    return refuses


def carried_out(what: str, path: str) -> None:
    """Refuses nothing."""


def faulty(count: int = 3) -> ManyBrokers:
    return ManyBrokers(count, disks={node: FaultyDisk() for node in range(1, count + 1)})


def test_a_new_leader_with_a_full_disk_hears_the_rest_of_the_news() -> None:
    brokers = faulty()
    brokers.create("t", [[1, 2, 3], [1, 2, 3]])
    for index in (0, 1):
        brokers.produce("t", b"one", index=index)
    brokers.settle(500)
    disk = brokers.disks[2]
    disk.refuses = refusing("create", ".tmp")
    brokers.cluster.kill_broker(1)
    brokers.settle(500)
    led = [brokers.partition(2, "t", index) for index in (0, 1)]
    assert [partition.leader_id for partition in led] == [2, 2], "both partitions heard of it"
    assert all(partition.log.offline is not None for partition in led), "and neither takes writes without its epoch"
    disk.refuses = carried_out
    brokers.cluster.kill_broker(2)
    brokers.cluster.kill_broker(3)


def test_a_broker_that_cannot_end_cleanly_is_fenced_all_the_same() -> None:
    brokers = faulty()
    brokers.create("t", [[1, 2, 3]])
    brokers.produce("t", b"one")
    brokers.disks[1].refuses = refusing("create", ".tmp")
    closing = brokers.cluster.stop_broker(1)
    with pytest.raises((StorageError, ApiError)):
        closing.result()
    brokers.disks[1].refuses = carried_out
    assert brokers.cluster.image.brokers[1].fenced
    brokers.cluster.start_broker(1)
    brokers.settle(1000)
    assert brokers.values("t") == [b"one"]
    brokers.stop()


def test_nothing_is_left_to_review_in_a_partition_that_was_closed() -> None:
    brokers = ManyBrokers(3)
    brokers.create("t", [[1, 2, 3]])
    brokers.produce("t", b"one")
    brokers.cluster.stop_broker(1)
    brokers.cluster.start_broker(1)
    brokers.settle(1000)
    brokers.cluster.elect("t", 0)
    brokers.settle(100)
    partition = brokers.partition(1, "t")
    held = partition.close()
    assert held is not None
    partition.review_in_sync()  # as a timer does that was set while it led
    held.abandon()
    brokers.cluster.kill_broker(1)
    brokers.stop()


def test_a_disk_that_deletes_nothing_keeps_no_other_broker_from_the_news() -> None:
    brokers = faulty()
    brokers.create("t", [[2, 1, 3]] * 2)
    for index in (0, 1):
        brokers.produce("t", b"one", index=index)
    brokers.settle(500)
    brokers.disks[1].refuses = refusing("rename", "-delete")
    request = DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000)
    answer = brokers.call(1, request, DeleteTopicsResponse, 5)
    brokers.settle(500)
    assert [topic.error_code for topic in answer.responses] == [0]
    held = {node: {p.topic for p in broker.partitions()} for node, broker in brokers.cluster.brokers.items()}
    assert all("t" not in topics for topics in held.values())
    left = {node: [name for name in disk.list() if name.startswith("t-")] for node, disk in brokers.disks.items()}
    assert left == {1: ["t-0", "t-1"], 2: [], 3: []}, "what it cannot delete stays"
    brokers.disks[1].refuses = carried_out
    brokers.cluster.stop_broker(1)
    brokers.cluster.start_broker(1)
    brokers.settle(500)
    brokers.create("t", [[2, 1, 3]])
    brokers.produce("t", b"two")
    brokers.settle(1000)
    assert brokers.partition(1, "t").log.log_end_offset == 1
    brokers.stop()


def test_a_new_partition_of_a_broker_whose_checkpoints_cannot_be_written() -> None:
    """The name's earlier partition is still in them."""
    brokers = faulty()
    brokers.create("t", [[2, 1, 3]])
    brokers.produce("t", b"one")
    brokers.settle(120_000)
    brokers.call(1, DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000), DeleteTopicsResponse, 5)
    brokers.settle(500)
    brokers.disks[1].refuses = refusing("create", ".tmp")
    brokers.create("t", [[2, 1, 3], [2, 1, 3]])
    assert all(brokers.partition(node, "t", 1) for node in (1, 2, 3)), "each heard of all partitions"
    brokers.disks[1].refuses = carried_out
    brokers.cluster.kill_broker(1)
    brokers.cluster.start_broker(1)
    brokers.produce("t", b"two")
    brokers.settle(1000)
    assert brokers.partition(1, "t").log.log_end_offset == 1
    brokers.stop()


def test_a_replica_that_cannot_be_synced_holds_up_no_other() -> None:
    disk = FaultyDisk()
    brokers = ManyBrokers(2, {"log.flush.interval.messages": "1"}, disks={2: disk})
    disk.refuses = refusing("sync", "t-0/00000000000000000000.log")
    brokers.create("t", [[1, 2], [1, 2]])
    for index in (0, 1):
        brokers.produce("t", b"one", acks=1, index=index)
        brokers.settle(5000)
    assert [brokers.partition(2, "t", index).log.offline is None for index in (0, 1)] == [False, True]
    assert brokers.partition(2, "t", 1).log_end_offset == 1
    brokers.stop()


@pytest.mark.parametrize("way", ["heal_disk", "restore"])
def test_the_failed_disk_of_one_partition_is_mended_where_it_failed(way: str) -> None:
    """Also when another broker leads by now."""
    brokers = ManyBrokers(2)
    brokers.create("t", [[1, 2]])
    brokers.produce("t", b"one")
    brokers.settle(500)
    operations.fail_disk(brokers.cluster, topic="t", partition=0)
    brokers.cluster.move_leader("t", 0, 2)
    brokers.settle(500)
    failed = brokers.partition(1, "t").log
    assert (brokers.leader("t"), failed.offline is None) == (2, False)
    if way == "restore":
        done = spawn(operations.restore(brokers.cluster))
        brokers.settle(500)
        assert done.result() is None
    else:
        operations.heal_disk(brokers.cluster, topic="t", partition=0)
    assert failed.offline is None
    brokers.produce("t", b"two")
    brokers.settle(2000)
    assert brokers.log_bytes(1, "t") == brokers.log_bytes(2, "t")
    brokers.stop()


@pytest.mark.parametrize("whole", [True, False])
def test_a_log_that_was_refused_a_write_takes_them_again_once_the_disk_is_healed(whole: bool) -> None:
    """It became the leader while its disk was full, and could not note its epoch."""
    brokers = ManyBrokers(2)
    brokers.create("t", [[1, 2]])
    brokers.produce("t", b"one")
    brokers.settle(500)
    operations.fill_disk(brokers.cluster, broker=2)
    brokers.cluster.move_leader("t", 0, 2)
    brokers.settle(500)
    log = brokers.partition(2, "t").log
    assert (brokers.leader("t"), log.offline is None) == (2, False)
    operations.heal_disk(brokers.cluster, broker=2)
    assert log.offline is None
    if not whole:  # a failed sync stays
        log.offline = ApiError(ErrorCode.KAFKA_STORAGE_ERROR)
        log.offline.__cause__ = SyncFailed(errno.EIO, "input/output error", "t-0")
        operations.heal_disk(brokers.cluster, broker=2)
        operations.heal_disk(brokers.cluster, topic="t", partition=0)
        assert log.offline is not None
    else:
        brokers.produce("t", b"two")
        brokers.settle(2000)
        assert brokers.log_bytes(1, "t") == brokers.log_bytes(2, "t")
    brokers.stop()
