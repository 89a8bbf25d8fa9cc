"""A data directory that a real Kafka 4.3.1 closed, taken over by a broker and read through its requests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from golden import GOLDEN, unpack
from memory_cluster import MemoryCluster

from minibroker.controller.kraft import read_kraft_metadata
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.fetch import FetchRequest, FetchResponse
from minibroker_protocol.messages.offsets import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from minibroker_protocol.messages.transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from minibroker_protocol.records import ControlType as Control
from minibroker_protocol.records import decode_records, iter_batches, parse_control
from minibroker_storage.os_disk import OsDisk

DIRECTORY = GOLDEN / "kafka-4.3.1" / "directory"
PARTITIONS: dict[str, Any] = json.loads((DIRECTORY / "manifest.json").read_text())["clean"]
COORDINATORS: dict[str, Any] = json.loads((DIRECTORY / "coordinators.json").read_text())
# The broker that wrote it was told so in its server.properties, and its groups were not to expire.
CONFIG = {"log.retention.ms": "-1", "offsets.retention.minutes": "52560000"}
NOW_MS = 1_795_272_600_000  # soon after the directory was closed
TOPIC_CONFIGS = {
    "rolled": {"segment.ms": "60000"},
    "deleted": {"segment.ms": "60000"},
    "broker-zstd": {"compression.type": "zstd"},
    "append-time": {"message.timestamp.type": "LogAppendTime"},
    "compacted": {
        "cleanup.policy": "compact",
        "segment.ms": "1000",
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": "1500",
    },
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kafka") / "data"
    unpack("kafka-4.3.1/directory/clean.tar.gz", path)
    return unpack("kafka-4.3.1/directory/metadata.tar.gz", path)


def start(directory: Path, seed: int = 7) -> MemoryCluster:
    return MemoryCluster(CONFIG, disk=OsDisk(str(directory)), now_ms=NOW_MS, seed=seed)


@pytest.fixture(scope="module", params=["taken over", "started again"])
def kafka(directory: Path, request: pytest.FixtureRequest) -> Iterator[MemoryCluster]:
    """The broker right after it took the directory over, and after another start, from its own journal."""
    cluster = start(directory, seed=len(request.param))
    yield cluster
    cluster.stop()


def split(name: str) -> tuple[str, int]:
    topic, _, index = name.rpartition("-")
    return topic, int(index)


def offset(kafka: MemoryCluster, name: str, timestamp: int, isolation: int = 0) -> int:
    topic, index = split(name)
    partition = ListOffsetsRequest.ListOffsetsPartition(partition_index=index, timestamp=timestamp)
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation,
        topics=[ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[partition])],
    )
    found = kafka.call(request, ListOffsetsResponse, 7).topics[0].partitions[0]
    assert found.error_code == 0
    return found.offset


def fetched(kafka: MemoryCluster, name: str, isolation: int) -> list[tuple[bytes | None, bytes | None]]:
    """Keys and values as a consumer of this isolation level gets them."""
    topic, index = split(name)
    start = position = offset(kafka, name, -2)
    values: list[tuple[bytes | None, bytes | None]] = []
    while True:
        partition = FetchRequest.FetchPartition(partition=index, fetch_offset=position, partition_max_bytes=1 << 20)
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1 << 20,
            isolation_level=isolation,
            topics=[FetchRequest.FetchTopic(topic=topic, partitions=[partition])],
        )
        answer = kafka.call(request, FetchResponse, 11).responses[0].partitions[0]
        assert answer.error_code == 0
        records = b"".join(bytes(buffer) for buffer in _buffers(answer.records))
        if not records:
            return values
        aborted = sorted((t.first_offset, t.producer_id) for t in answer.aborted_transactions or ())
        skipped: set[int] = set()
        for at, header in iter_batches(records):
            while aborted and aborted[0][0] <= header.last_offset:
                skipped.add(aborted.pop(0)[1])
            found = decode_records(records, at, header)
            if header.is_control:
                if found and parse_control(found[0]).type is Control.ABORT:
                    skipped.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in skipped):
                values += [
                    (None if r.key is None else bytes(r.key), None if r.value is None else bytes(r.value))
                    for r in found
                    if r.offset >= max(start, position)
                ]
            position = max(position, header.next_offset)


def _buffers(records: Any) -> list[Any]:
    if records is None:
        return []
    return [records] if isinstance(records, (bytes, bytearray, memoryview)) else list(records)


def record_hash(records: list[tuple[bytes | None, bytes | None]]) -> str:
    return hashlib.sha256(b"\n".join((key or b"") + b"\0" + (value or b"") for key, value in records)).hexdigest()


@pytest.mark.parametrize("name", sorted(PARTITIONS))
def test_every_partition_is_served(kafka: MemoryCluster, name: str) -> None:
    expected = PARTITIONS[name]
    assert offset(kafka, name, -2) == expected["log_start_offset"]
    for isolation, end, level in ((0, "high_watermark", "uncommitted"), (1, "last_stable_offset", "committed")):
        assert offset(kafka, name, -1, isolation) == expected[end]
        values = fetched(kafka, name, isolation)
        assert len(values) == expected[f"records_read_{level}"]
        assert record_hash(values) == expected[f"sha256_read_{level}"]


def test_every_transactional_id_is_known(kafka: MemoryCluster) -> None:
    expected = COORDINATORS["transactional_ids"]
    request = DescribeTransactionsRequest(transactional_ids=sorted(expected))
    states = kafka.call(request, DescribeTransactionsResponse, 0).transaction_states
    for state in states:
        known = expected[state.transactional_id]
        assert state.error_code == 0
        assert (state.producer_id, state.producer_epoch) == (known["pid"], known["epoch"])
        assert state.transaction_state == known["state"]
        assert state.transaction_timeout_ms == known["timeout"]
        partitions = [[topic.topic, index] for topic in state.topics for index in topic.partitions]
        assert partitions == (known["partitions"] or [])
    assert len(states) == len(expected)


@pytest.mark.parametrize("group", sorted(COORDINATORS["committed_offsets"]))
def test_every_group_has_its_offsets(kafka: MemoryCluster, group: str) -> None:
    request = OffsetFetchRequest(groups=[OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=None)])
    (answer,) = kafka.call(request, OffsetFetchResponse, 8).groups
    assert answer.error_code == 0
    found = {
        f"{topic.name}-{partition.partition_index}": [partition.committed_offset, partition.metadata]
        for topic in answer.topics
        for partition in topic.partitions
    }
    assert found == COORDINATORS["committed_offsets"][group]


def test_configs_features_and_epochs_are_those_of_the_metadata_log(kafka: MemoryCluster, directory: Path) -> None:
    image = kafka.broker.image
    assert set(image.topics) == {split(name)[0] for name in PARTITIONS}
    for topic in image.topics.values():
        if not topic.internal:
            assert topic.configs == TOPIC_CONFIGS.get(topic.name, {})
    assert image.topics["__transaction_state"].configs["cleanup.policy"] == "compact"
    assert image.broker_configs[""] == {"min.insync.replicas": "1"}
    assert image.feature("transaction.version") == 2
    assert kafka.broker.partition("compacted", 0).log.config.cleanup_policy == {"compact"}
    read = read_kraft_metadata(OsDisk(str(directory), read_only=True))
    assert read is not None
    assert {name: topic.topic_id for name, topic in image.topics.items()} == {
        name: topic.topic_id for name, topic in read.topics.items()
    }
    # Left without leaders at epoch 3, the partitions' next leaders have epoch 4.
    assert {topic.next_leader_epoch for topic in read.topics.values()} == {4}
    assert all(partition.leader_epoch >= 4 for topic in image.topics.values() for partition in topic.partitions)


def test_a_transactional_id_goes_on_and_a_new_one_gets_an_id_that_kafka_never_gave(tmp_path: Path) -> None:
    unpack("kafka-4.3.1/directory/clean.tar.gz", tmp_path)
    kafka = start(unpack("kafka-4.3.1/directory/metadata.tar.gz", tmp_path))
    before = COORDINATORS["transactional_ids"]["offs"]

    def init(transactional_id: str) -> InitProducerIdResponse:
        request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000)
        return kafka.call(request, InitProducerIdResponse, 4)

    known, new = init("offs"), init("never seen")
    assert (known.error_code, new.error_code) == (ErrorCode.NONE, ErrorCode.NONE)
    assert (known.producer_id, known.producer_epoch) == (before["pid"], before["epoch"] + 1)
    assert new.producer_id >= 2000  # 1000 to 1999 was the last block that the controller had given away
    kafka.stop()


def test_without_the_metadata_log_producer_ids_are_not_given_twice(tmp_path: Path) -> None:
    path = unpack("kafka-4.3.1/directory/clean.tar.gz", tmp_path / "data")
    kafka = start(path)
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
    assert kafka.call(request, InitProducerIdResponse, 4).producer_id >= 2000
    kafka.stop()


def test_a_metadata_log_that_is_torn_ends_there(tmp_path: Path) -> None:
    path = unpack("kafka-4.3.1/directory/metadata.tar.gz", tmp_path / "data")
    log = path / "__cluster_metadata-0" / "00000000000000000000.log"
    whole = read_kraft_metadata(OsDisk(str(path), read_only=True))
    log.write_bytes(log.read_bytes()[:-20])
    torn = read_kraft_metadata(OsDisk(str(path), read_only=True))
    assert whole is not None
    assert torn is not None
    assert torn.topics.keys() == whole.topics.keys()
    log.write_bytes(log.read_bytes()[:3000])
    torn = read_kraft_metadata(OsDisk(str(path), read_only=True))
    assert torn is not None
    assert 0 < len(torn.topics) < len(whole.topics)


def test_broker_configs_that_were_taken_over_are_in_force(kafka: MemoryCluster) -> None:
    from minibroker.settings import ConfigSource

    (entry,) = kafka.broker.settings.describe(["min.insync.replicas"])
    assert (entry.value, entry.source) == ("1", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)
