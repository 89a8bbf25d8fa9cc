"""Directories of a Kafka 4.4.0 cluster of two brokers, each opened alone: its security, and partitions elsewhere."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest
from golden import unpack
from memory_cluster import MemoryCluster
from served import fetched, group_offsets, offset

from minibroker.controller.journal import JOURNAL
from minibroker.controller.kraft import DIRECTORY
from minibroker.metadata.image import NO_LEADER
from minibroker.security.acls import AclBinding, AclOperation, AclPermissionType, PatternType, ResourceType
from minibroker_protocol import messages as m
from minibroker_protocol.dsl import Data
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.metadata_records import ConfigRecord, FeatureLevelRecord, PartitionRecord, TopicRecord
from minibroker_protocol.records import Record, build_batch
from minibroker_storage.directory import CLEAN_FILE
from minibroker_storage.os_disk import OsDisk

ARCHIVE = "kafka-4.4.0/two-brokers.tar.xz"
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "allow.everyone.if.no.acl.found": "true",
}
NOW_MS = 1_795_760_000_000  # soon after the directories were closed
ALICE, BOB = "User:alice", "User:bob"


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    return unpack(ARCHIVE, tmp_path / "golden")


def start(directory: Path, node_id: int = 1, **config: str) -> MemoryCluster:
    return MemoryCluster(
        {name.replace("_", "."): value for name, value in config.items()},
        disk=OsDisk(str(directory)),
        now_ms=NOW_MS,
        node_id=node_id,
    )


def with_authorizer(directory: Path) -> MemoryCluster:
    return MemoryCluster(AUTHORIZER, disk=OsDisk(str(directory)), now_ms=NOW_MS)


def may(cluster: MemoryCluster, principal: str, operation: AclOperation, topic: str) -> bool:
    authorizer = cluster.broker.authorizer
    assert authorizer is not None
    return authorizer.allows(cluster.broker.image.acls, principal, "h", operation, ResourceType.TOPIC, topic)


def acl(
    principal: str,
    operation: AclOperation,
    name: str,
    permission: AclPermissionType = AclPermissionType.ALLOW,
    pattern: PatternType = PatternType.LITERAL,
) -> AclBinding:
    return AclBinding(ResourceType.TOPIC, name, pattern, principal, "*", operation, permission)


# -- security --------------------------------------------------------------------------------------------------------


def test_the_acls_of_kafka_hold_after_this_start_and_the_next(golden: Path) -> None:
    for _ in range(2):
        cluster = with_authorizer(golden / "1a")
        named = {entry for entry in cluster.broker.image.acls if not entry.principal.startswith("User:reader-")}
        assert named == {
            acl(ALICE, AclOperation.ALL, "*"),
            acl(BOB, AclOperation.READ, "pre", pattern=PatternType.PREFIXED),
            acl(ALICE, AclOperation.WRITE, "secret", AclPermissionType.DENY),
        }
        assert may(cluster, ALICE, AclOperation.READ, "secret")
        assert may(cluster, ALICE, AclOperation.WRITE, "open")
        assert not may(cluster, ALICE, AclOperation.WRITE, "secret")
        assert not may(cluster, "User:dave", AclOperation.READ, "open")
        cluster.stop()


def test_users_are_described_as_kafka_does(golden: Path) -> None:
    cluster = start(golden / "1a")
    asked = m.DescribeUserScramCredentialsRequest(users=None)
    answer = cluster.call(asked, m.DescribeUserScramCredentialsResponse, 0)
    found = {
        result.user: [(info.mechanism, info.iterations) for info in result.credential_infos]
        for result in answer.results
    }
    assert found == {"alice": [(1, 4096), (2, 4096)], "bob": [(1, 4096)]}
    assert {(result.error_code, result.error_message) for result in answer.results} == {(0, "")}
    cluster.stop()


def test_what_has_no_place_here_is_counted_in_one_line(golden: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    start(golden / "1a").stop()
    lines = [record.getMessage() for record in caplog.records]
    assert "taking over 17 ACL(s) and 3 SCRAM credential(s) of Kafka" in lines
    (line,) = [line for line in lines if "quota" in line]
    assert line.startswith("not taken over from Kafka's metadata, and without effect here: ")
    assert line.endswith(": 1 SCRAM credential(s) with a salt below 12 bytes, 2 client quota(s)")
    caplog.clear()
    start(golden / "1a").stop()
    assert not [record for record in caplog.records if "quota" in record.getMessage()]


def test_what_an_earlier_version_left_in_the_log_is_taken_over_later(golden: Path) -> None:
    start(golden / "1a").stop()
    journal = golden / "1a" / JOURNAL
    kinds = (b'"acl"', b'"scram-credential"', b'"security-taken-over"')
    lines = [line for line in journal.read_bytes().splitlines(keepends=True) if not any(kind in line for kind in kinds)]
    journal.write_bytes(b"".join(lines))
    journal.with_suffix(".journal.synced").unlink()
    cluster = with_authorizer(golden / "1a")
    assert not may(cluster, ALICE, AclOperation.WRITE, "secret")
    assert len(cluster.broker.image.acls) == 17
    cluster.stop()


def damaged(log: bytes) -> bytes:
    """A bit is wrong in the middle."""
    middle = len(log) // 2
    return log[:middle] + bytes([log[middle] ^ 1]) + log[middle + 1 :]


def test_with_an_authorizer_damaged_acls_refuse_the_start_and_leave_the_directory(golden: Path) -> None:
    directory = golden / "1a"
    for snapshot in (directory / DIRECTORY).glob("*.checkpoint"):
        snapshot.unlink()
    log = directory / DIRECTORY / "00000000000000000000.log"
    log.write_bytes(damaged(log.read_bytes()))
    mark = (directory / CLEAN_FILE).read_bytes()
    for _ in range(2):
        with pytest.raises(
            ApiError, match=r"authorizer.class.name is set, but Kafka's ACLs cannot be taken over: .*log"
        ):
            with_authorizer(directory)
        assert (directory / CLEAN_FILE).read_bytes() == mark
        assert not (directory / JOURNAL).exists()


def test_a_torn_end_of_the_log_is_what_a_crash_leaves(golden: Path) -> None:
    log = golden / "1a" / DIRECTORY / "00000000000000000000.log"
    log.write_bytes(log.read_bytes() + log.read_bytes()[:70])  # the head of a batch
    cluster = with_authorizer(golden / "1a")
    assert not may(cluster, ALICE, AclOperation.WRITE, "secret")
    cluster.stop()


def test_records_that_are_missing_after_the_snapshot_refuse_the_start(golden: Path) -> None:
    (golden / "1a" / DIRECTORY / "00000000000000000000.log").rename(
        golden / "1a" / DIRECTORY / "00000000000000000000.old"
    )
    for snapshot in sorted((golden / "1a" / DIRECTORY).glob("*.checkpoint"))[1:]:
        snapshot.unlink()
    old = (golden / "1a" / DIRECTORY / "00000000000000000000.old").read_bytes()
    first = 12 + int.from_bytes(old[8:12], "big")
    (golden / "1a" / DIRECTORY / "00000000000000000000.log").write_bytes(old[first:])
    with pytest.raises(ApiError, match="the records from offset 0 to 0 are missing"):
        start(golden / "1a")


def test_with_an_authorizer_partitions_without_any_metadata_refuse_the_start(golden: Path) -> None:
    with pytest.raises(ApiError, match="the ACLs of the data directory cannot be known"):
        with_authorizer(golden / "1b")
    start(golden / "1b").stop()
    with_authorizer(golden / "1b").stop()  # it has a journal now


def test_an_acl_that_is_not_known_here_refuses_the_start_with_an_authorizer(
    golden: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from minibroker.cluster import takeover

    monkeypatch.setattr(takeover, "problem_of", lambda entry: "Invalid operation" if entry.principal == BOB else None)
    with pytest.raises(ApiError, match="an ACL of Kafka cannot be taken over: Invalid operation"):
        with_authorizer(golden / "1a")
    cluster = start(golden / "1a")
    assert len(cluster.broker.image.acls) == 16
    assert "1 ACL(s) that this version does not know, 1 SCRAM credential(s)" in caplog.text
    cluster.stop()


def test_the_transaction_version_of_kafka_is_taken_over(tmp_path: Path) -> None:
    metadata_of(tmp_path, FeatureLevelRecord(name="transaction.version", feature_level=1))
    for _ in range(2):
        cluster = start(tmp_path)
        assert cluster.broker.image.feature("transaction.version") == 1
        cluster.stop()


def metadata_of(directory: Path, *records: Data) -> None:
    """Make Kafka's metadata log."""
    values = [bytes((1, record.__record_type__, 0)) + bytes(record.encode(0)) for record in records]
    log = directory / DIRECTORY / "00000000000000000000.log"
    log.parent.mkdir()
    log.write_bytes(bytes(build_batch([Record(i, NOW_MS, None, value) for i, value in enumerate(values)])))


def test_records_in_tiered_storage_are_said_to_be_elsewhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    metadata_of(
        tmp_path,
        TopicRecord(name="cold", topic_id=b"\1" * 16),
        PartitionRecord(
            partition_id=0,
            topic_id=b"\1" * 16,
            replicas=[1],
            isr=[1],
            removing_replicas=[],
            adding_replicas=[],
            directories=[],
        ),
        ConfigRecord(resource_type=2, resource_name="cold", name="remote.storage.enable", value="true"),
    )
    cluster = start(tmp_path)
    assert cluster.broker.image.topics["cold"].configs == {}
    assert "1 topic(s) have tiered storage (cold): records that are only there are not served" in caplog.text
    cluster.stop()
    caplog.clear()
    start(tmp_path).stop()
    assert "tiered" not in caplog.text


def test_a_topic_whose_partitions_the_metadata_lack_is_none(tmp_path: Path) -> None:
    metadata_of(tmp_path, TopicRecord(name="cut", topic_id=b"\1" * 16))
    cluster = start(tmp_path)
    assert "cut" not in cluster.broker.image.topics
    cluster.stop()


# -- partitions elsewhere --------------------------------------------------------------------------------------------


def leaders(cluster: MemoryCluster) -> dict[str, int]:
    return {
        f"{topic.name}-{partition.index}": partition.leader
        for topic in cluster.broker.image.topics.values()
        for partition in topic.partitions
    }


LED = {
    "1a": {"open-0": 1, "placed-0": 1, "placed-1": 1, "placed-3": 1},
    "1b": {"secret-0": 1, "placed-2": 1, "copied-0": 1, "copied-1": 1},
    "2": {"__consumer_offsets-0": 2, "placed-4": 2, "copied-0": 2, "copied-1": 2},
}
EVERY = {"__consumer_offsets-0", "open-0", "secret-0", *(f"placed-{i}" for i in range(5)), "copied-0", "copied-1"}
NOT_KNOWN = {"1b": EVERY - {*LED["1b"], "placed-0", "placed-1"}}
"""What no file of a directory without the metadata log speaks of."""


@pytest.mark.parametrize("folder", LED)
def test_only_what_is_here_has_a_leader_at_this_start_and_the_next(golden: Path, folder: str) -> None:
    node_id = int(folder[0])
    for _ in range(2):
        cluster = start(golden / folder, node_id)
        expected = dict.fromkeys(EVERY - NOT_KNOWN.get(folder, set()), NO_LEADER) | LED[folder]
        assert leaders(cluster) == expected
        for name in LED[folder]:
            if not name.startswith("__"):
                index = name.rpartition("-")[2]
                assert [value for _, value in fetched(cluster, name, 0)] == [
                    b"%s %d" % (index.encode(), n) for n in range(10)
                ]
        assert not [name for name in EVERY - {*LED[folder]} if (golden / folder / name).exists()]
        cluster.stop()


def test_a_partition_that_is_not_here_is_answered_as_kafka_does(golden: Path) -> None:
    cluster = start(golden / "1a")
    request = m.MetadataRequest(topics=None, allow_auto_topic_creation=False)
    partitions = {
        f"{topic.name}-{partition.partition_index}": partition
        for topic in cluster.call(request, m.MetadataResponse, 12).topics
        for partition in topic.partitions
    }
    # As Kafka 4.4.0 on the same directory: only a replica of a broker that is down is called offline.
    for name, replicas, offline in (("placed-2", [1], []), ("placed-4", [2], [2]), ("copied-0", [2, 1], [2])):
        found = partitions[name]
        assert (found.error_code, found.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, NO_LEADER)
        assert (found.replica_nodes, found.isr_nodes, found.offline_replicas) == (replicas, [], offline)
    for name in ("placed-2", "placed-4"):
        assert offset_error(cluster, name) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    unclean = m.ElectLeadersRequest(
        election_type=1,
        topic_partitions=[m.ElectLeadersRequest.TopicPartitions(topic="placed", partitions=[2, 4])],
        timeout_ms=1000,
    )
    (result,) = cluster.call(unclean, m.ElectLeadersResponse, 2).replica_election_results
    codes = [partition.error_code for partition in result.partition_result]
    assert codes == [ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE] * 2
    cluster.stop()


def offset_error(cluster: MemoryCluster, name: str) -> int:
    topic, _, index = name.rpartition("-")
    kind = m.ListOffsetsRequest
    asked = kind.ListOffsetsPartition(partition_index=int(index), timestamp=-1)
    request = kind(replica_id=-1, isolation_level=0, topics=[kind.ListOffsetsTopic(name=topic, partitions=[asked])])
    return cluster.call(request, m.ListOffsetsResponse, 7).topics[0].partitions[0].error_code


def test_one_line_counts_them_and_names_the_way_to_add_them(golden: Path, caplog: pytest.LogCaptureFixture) -> None:
    start(golden / "1a").stop()
    (line,) = [record.getMessage() for record in caplog.records if "have no leader" in record.getMessage()]
    assert line.startswith("6 partition(s) have no leader, because they are not in the data directory")
    assert "(__consumer_offsets-0, copied-0, copied-1, …)" in line
    assert "4 in another log directory of this broker, 2 on other brokers" in line
    assert "move their partition directories into it while the broker is stopped" in line


def test_partition_directories_that_are_moved_here_are_served(golden: Path) -> None:
    start(golden / "1a").stop()
    shutil.move(golden / "1b" / "placed-2", golden / "1a")
    shutil.move(golden / "2" / "placed-4", golden / "1a")
    cluster = start(golden / "1a")
    assert {name: leader for name, leader in leaders(cluster).items() if leader != NO_LEADER} == {
        **LED["1a"],
        "placed-2": 1,
        "placed-4": 1,
    }
    for name in ("placed-2", "placed-4"):
        assert offset(cluster, name, -1) == 10
        assert len(fetched(cluster, name, 0)) == 10
    cluster.stop()


def test_a_replica_that_was_out_of_sync_is_served_with_a_warning(
    golden: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start(golden / "2", 2).stop()
    assert "2 partition(s) were not in sync when Kafka stopped" in caplog.text
    caplog.clear()
    start(golden / "1a").stop()
    assert "not in sync" not in caplog.text


def test_a_groups_offsets_are_found(golden: Path) -> None:
    cluster = start(golden / "2", 2)
    assert group_offsets(cluster, "g") == {"open-0": [4, ""]}
    cluster.stop()


# -- leftovers -------------------------------------------------------------------------------------------------------


def test_a_leftover_of_another_topic_is_set_aside_as_kafka_does(golden: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Of topics that were deleted while the log directory was offline: one was made again since."""
    directory = golden / "1a"
    earlier = (directory / "placed-0" / "partition.metadata").read_text()
    shutil.copytree(directory / "placed-0", directory / "gone-7")
    for place in ("gone-7", "open-0"):
        (directory / place / "partition.metadata").write_text(_other_id(earlier))
    with caplog.at_level(logging.WARNING):
        cluster = start(directory)
    (line,) = [message for message in caplog.messages if "set aside" in message]
    strays = sorted(path.name for path in directory.glob("*-stray"))
    assert [name.partition(".")[0] for name in strays] == ["gone-7", "open-0"]
    assert line == (
        "2 partition(s) in the data directory are not in Kafka's metadata; set aside, as Kafka does: "
        + ", ".join(strays)
    )
    assert not [message for message in caplog.messages if "lost data" in message]
    assert "gone" not in cluster.broker.image.topics
    assert fetched(cluster, "open-0", 0) == []  # it is what the metadata say: this broker's, and new here
    assert len(fetched(cluster, "placed-0", 0)) == 10
    cluster.stop()
    assert [path.name for path in (directory / strays[1]).glob("*.log")] == ["0" * 20 + ".log"]
    caplog.clear()
    start(directory).stop()
    assert sorted(path.name for path in directory.glob("*-stray")) == strays
    assert not [message for message in caplog.messages if "stray" in message or "set aside" in message]


def _other_id(text: str) -> str:
    return "\n".join(
        "topic_id: AAAAAAAAAAAAAAAAAAAAAQ" if line.startswith("topic_id") else line for line in text.splitlines()
    )
