"""Directories in which minibroker 0.1.0 kept ids in other partitions than Kafka, opened by this version.

They are in `tests/golden/minibroker-0.1.0/misplaced-ids`, with what their clients held when the broker ended.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from golden import GOLDEN, unpack
from internal_partitions import ids_of
from many_brokers import ManyBrokers
from memory_cluster import MemoryCluster
from misplaced_ids import ABANDONED, CONFIG, COUNT, DECIDED, Ids, go_on, opened

from minibroker.cluster import id_migration
from minibroker.coordinators.hashing import partition_for
from minibroker.metadata.image import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from minibroker_pipeline import command
from minibroker_pipeline.engine import audit_here
from minibroker_protocol.errors import ApiError
from minibroker_storage.check import ERROR, check_directory
from minibroker_storage.disk import Disk
from minibroker_storage.faulty_disk import FaultyDisk, PowerLost
from minibroker_storage.memory_disk import MemoryDisk
from minibroker_storage.os_disk import OsDisk

DIRECTORIES = "minibroker-0.1.0/misplaced-ids"
MANIFEST: dict[str, Any] = json.loads((GOLDEN / DIRECTORIES / "manifest.json").read_text())
KINDS = ("clean", "killed", "three-brokers")
TOPICS = (CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC)
PLACED = b'{"type":"ids-placed"}\n'


def count(kind: str) -> int:
    brokers: int = MANIFEST[kind]["brokers"]
    return brokers


def unpacked(kind: str, tmp_path: Path) -> Path:
    return unpack(f"{DIRECTORIES}/{kind}.tar.gz", tmp_path)


def ends(cluster: ManyBrokers) -> dict[str, int]:
    """Where the logs of the internal topics end, by partition."""
    return {
        str(partition): partition.log.log_end_offset
        for broker in cluster.cluster.brokers.values()
        for partition in broker.partitions()
        if partition.topic in TOPICS and partition.is_leader and partition.has_log
    }


def misplaced(disk: Disk) -> list[tuple[str, int]]:
    return [(name, i) for topic in TOPICS for name, i in ids_of(disk, topic) if partition_for(name, COUNT) != i]


def damage(directory: Path) -> list[str]:
    """What `check` and `audit` find, without the offsets past the ends of their partitions that the story commits."""
    disk = OsDisk(str(directory), read_only=True)
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    _, audited, _ = audit_here(command.plan_of(parser.parse_args([str(directory)])))
    return [str(finding) for finding in check_directory(disk) if finding.severity == ERROR] + [
        str(finding) for finding in audited if finding.rule != "offset-end"
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_an_old_directory_loses_nothing(kind: str, tmp_path: Path) -> None:
    cluster = opened(unpacked(kind, tmp_path), count(kind))
    cluster.settle(500)
    expected = MANIFEST[kind]["facts"]
    # What was decided when the broker ended is done now.
    expected["transactions"][DECIDED][0][0] = "CompleteCommit"
    expected["transactions"][ABANDONED][0][0] = "CompleteAbort"
    for offsets in ("offsets", "stable"):
        expected[offsets]["console-consumer"]["t-0"] = 903
    assert Ids(cluster).facts() == expected
    go_on(Ids(cluster), MANIFEST[kind]["clients"])
    cluster.cluster.stop()


@pytest.mark.parametrize("kind", KINDS)
def test_ids_move_once_and_for_good(kind: str, tmp_path: Path) -> None:
    directory = unpacked(kind, tmp_path)
    homes = [tmp_path] if count(kind) == 1 else [tmp_path / str(node) for node in (1, 2, 3)]
    assert all(len(misplaced(OsDisk(str(home)))) > 6 for home in homes)
    cluster = opened(directory, count(kind))
    cluster.settle(500)
    moved, facts = ends(cluster), Ids(cluster).facts()
    cluster.cluster.stop()
    assert [misplaced(OsDisk(str(home))) for home in homes] == [[]] * len(homes)
    again = opened(directory, count(kind))
    again.settle(500)
    assert (ends(again), Ids(again).facts()) == (moved, facts)
    again.cluster.stop()


@pytest.mark.parametrize("kind", ["clean", "killed"])
def test_check_and_audit_find_no_damage_on_the_way(kind: str, tmp_path: Path) -> None:
    directory = unpacked(kind, tmp_path)
    assert damage(directory) == []
    opened(directory, 1).cluster.brokers[1].kill()
    assert damage(directory) == []
    cluster = opened(directory, 1)
    cluster.settle(500)
    assert damage(directory) == []
    go_on(Ids(cluster), MANIFEST[kind]["clients"])
    cluster.cluster.stop()
    assert damage(directory) == []


# replicas


def test_followers_are_in_sync_again_and_lead_without_a_loss(tmp_path: Path) -> None:
    cluster = opened(unpacked("three-brokers", tmp_path), 3)
    cluster.settle(1000)
    for topic in TOPICS:
        for partition in cluster.cluster.image.topics[topic].partitions:
            assert sorted(partition.isr) == [1, 2, 3]
    cluster.cluster.kill_broker(2)
    cluster.settle(1000)
    ids = Ids(cluster)
    ids.cluster = cluster
    go_on(ids, MANIFEST["three-brokers"]["clients"])
    cluster.cluster.stop()


def test_a_leader_is_the_only_replica_in_sync_until_others_have_fetched(tmp_path: Path) -> None:
    directory = unpacked("three-brokers", tmp_path)
    opened(directory, 3).cluster.stop()
    journal = [json.loads(line) for line in (directory / "metadata.journal").read_text().splitlines()]
    begun = next(i for i, entry in enumerate(journal) if entry["type"] == "placing-ids")
    changes, done = journal[begun - 1], journal[begun + 1]
    assert done["type"] == "ids-placed"
    assert {(c["topic"], c["index"]) for c in changes["partitions"]} == {(t, i) for t, i, _ in journal[begun]["ends"]}
    assert all(change["isr"] == [change["leader"]] and "elr" not in change for change in changes["partitions"])


def test_partitions_that_exchange_ids_have_the_same_epoch(tmp_path: Path) -> None:
    """A marker of an older coordinator epoch than the last is refused for good."""
    directory = unpacked("clean", tmp_path)
    led_often = {"topic": TRANSACTION_STATE_TOPIC, "index": 3, "leader": 1, "leader_epoch": 9, "partition_epoch": 9}
    entry = {"type": "partition-changes", "partitions": [{**led_often, "replicas": [1], "isr": [1]}]}
    with (directory / "metadata.journal").open("a") as journal_file:
        journal_file.write(json.dumps(entry) + "\n")
    opened(directory, 1).cluster.stop()
    journal = [json.loads(line) for line in (directory / "metadata.journal").read_text().splitlines()]
    changes = next(entry for entry in reversed(journal) if entry["type"] == "partition-changes")["partitions"]
    epochs = {(change["topic"], change["index"]): change["leader_epoch"] for change in changes}
    assert epochs[TRANSACTION_STATE_TOPIC, 0] == epochs[TRANSACTION_STATE_TOPIC, 3] == 12  # a restart adds two
    assert epochs[TRANSACTION_STATE_TOPIC, 1] == epochs[TRANSACTION_STATE_TOPIC, 2] == 3


def test_a_partition_without_its_leader_is_named(tmp_path: Path) -> None:
    disks = {node: MemoryDisk(64 << 20) for node in (1, 2)}
    journal = MemoryDisk(64 << 20)
    one_replica = {"offsets.topic.replication.factor": "1", **CONFIG}
    cluster = ManyBrokers(2, one_replica, disks=disks, journal=journal)
    Ids(cluster).offsets("orders")
    cluster.cluster.stop()
    content = journal.content("metadata.journal")
    content[:] = bytes(content).replace(PLACED, b"")
    with pytest.raises(ApiError, match=r"__consumer_offsets-\d has no leader among the brokers of this start"):
        ManyBrokers(1, one_replica, disks={1: disks[1]}, journal=journal)


# who pays for it


def test_new_directories_and_those_of_kafka_are_not_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def searched(*_: object, **__: object) -> None:
        raise AssertionError("searched for misplaced ids")

    monkeypatch.setattr(id_migration, "migrate_ids", searched)
    new = MemoryCluster()
    new.stop()
    MemoryCluster(disk=new.disk).stop()
    kafka = OsDisk(str(unpack("kafka-4.3.1/directory/clean.tar.gz", tmp_path)))
    for _ in range(2):
        MemoryCluster(disk=kafka).stop()
    assert (tmp_path / "metadata.journal").read_bytes().count(PLACED) == 1


def test_a_lost_journal_is_no_way_around_it(tmp_path: Path) -> None:
    directory = unpacked("clean", tmp_path)
    (directory / "metadata.journal").unlink()
    for topic in TOPICS:  # without the journal a topic has as many partitions as there are directories of it
        (directory / f"{topic}-{COUNT - 1}").mkdir(exist_ok=True)
    cluster = opened(directory, 1)
    assert Ids(cluster).offsets("orders") == {"t-0": 7, "t-1": 0}
    cluster.cluster.stop()
    assert misplaced(OsDisk(str(directory))) == []


# a crash on the way


def copied(directory: Path, disk: FaultyDisk) -> FaultyDisk:
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if path.is_dir():
            disk.make_dir(name)
        else:
            disk.write_atomic(name, path.read_bytes())
    disk.sync_dir("")
    return disk


def lose_power(directory: Path, n: int, seed: int, wanted: dict[str, int]) -> bool:
    """Power goes during the n-th call of the first start; False when that has fewer."""
    disk = copied(directory, FaultyDisk())
    disk.lose_power_at = disk.calls + n
    lost = False
    try:
        ManyBrokers(1, CONFIG, disks={1: disk}, journal=disk)
    except PowerLost:
        lost = True
    choices = random.Random(f"{n} {seed}") if seed else None
    left = disk.after_power_loss(choices) if lost else disk
    if not lost:
        return False
    cluster = ManyBrokers(1, CONFIG, disks={1: left}, journal=left)
    cluster.settle(500)
    assert ends(cluster) == wanted
    go_on(Ids(cluster), MANIFEST["clean"]["clients"])
    cluster.cluster.stop()
    return True


def where_logs_end(tmp_path: Path) -> dict[str, int]:
    cluster = opened(unpacked("clean", tmp_path / "whole"), 1)
    cluster.settle(500)
    wanted = ends(cluster)
    cluster.cluster.stop()
    return wanted


def calls() -> Iterator[int]:
    yield from range(5, 100, 9)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_crash_on_the_way_loses_nothing_and_doubles_nothing(seed: int, tmp_path: Path) -> None:
    wanted, directory = where_logs_end(tmp_path), unpacked("clean", tmp_path / "old")
    assert sum(lose_power(directory, n, seed, wanted) for n in calls()) >= 5


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_crash_at_every_call_of_the_way(seed: int, tmp_path: Path) -> None:
    wanted, directory = where_logs_end(tmp_path), unpacked("clean", tmp_path / "old")
    n = 1
    while lose_power(directory, n, seed, wanted):
        n += 1
    assert n > 50
