"""A data directory that a real Kafka 4.3.1 closed, taken over by a broker and read through its requests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from golden import GOLDEN, unpack
from memory_cluster import MemoryCluster
from served import group_offsets, partition_state, split

from minibroker.controller.journal import JOURNAL, MARK
from minibroker.controller.kraft import read_kraft_metadata
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.topics import CreateTopicsRequest, CreateTopicsResponse
from minibroker_protocol.messages.transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
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


@pytest.mark.parametrize("name", sorted(PARTITIONS))
def test_every_partition_is_served(kafka: MemoryCluster, name: str) -> None:
    found = partition_state(kafka, name)
    assert found == {key: PARTITIONS[name][key] for key in found}


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
    assert group_offsets(kafka, group) == COORDINATORS["committed_offsets"][group]


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
    from minibroker.config.settings import ConfigSource

    (entry,) = kafka.broker.settings.describe(["min.insync.replicas"])
    assert (entry.value, entry.source) == ("1", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)


def test_what_was_made_since_is_no_leftover_when_the_journal_is_lost(tmp_path: Path) -> None:
    unpack("kafka-4.3.1/directory/clean.tar.gz", tmp_path)
    unpack("kafka-4.3.1/directory/metadata.tar.gz", tmp_path)
    cluster = start(tmp_path)
    topic = CreateTopicsRequest.CreatableTopic(name="since", num_partitions=1, replication_factor=1)
    cluster.call(CreateTopicsRequest(topics=[topic], timeout_ms=1000), CreateTopicsResponse, 7)
    cluster.broker.partition("since", 0).log  # noqa: B018  (made when it is asked for)
    cluster.stop()
    for name in (JOURNAL, MARK):
        (tmp_path / name).unlink()
    again = start(tmp_path, seed=8)
    assert "since" in again.broker.image.topics
    assert not list(tmp_path.glob("*-stray"))
    again.stop()
