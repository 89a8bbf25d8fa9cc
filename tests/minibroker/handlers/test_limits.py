"""What one broker tells and takes at the borders of its limits: pages, bytes, internal topics, topics made anew."""

from __future__ import annotations

from dataclasses import replace

import pytest
from group_client import GroupClient
from memory_cluster import MemoryCluster

from minibroker.metadata.image import CONSUMER_OFFSETS_TOPIC
from minibroker_protocol import messages as m
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.fields import NO_ID
from minibroker_protocol.messages.fetch import FetchRequest, FetchResponse
from minibroker_protocol.messages.metadata import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    MetadataRequest,
    MetadataResponse,
)
from minibroker_protocol.messages.produce import ProduceRequest, ProduceResponse
from minibroker_protocol.records import Record, build_batch


def produced(cluster: MemoryCluster, topic: str, index: int, value: bytes, *, client_id: str = "test") -> int:
    """The error code of one record."""
    batch = build_batch([Record(0, cluster.clock.now_ms(), b"k", value, [])])
    partition = ProduceRequest.PartitionProduceData(index=index, records=bytes(batch))
    data = ProduceRequest.TopicProduceData(name=topic, partition_data=[partition])
    request = ProduceRequest(transactional_id=None, acks=1, timeout_ms=1000, topic_data=[data])
    answer = cluster.call(request, ProduceResponse, 9, client_id=client_id)
    return answer.responses[0].partition_responses[0].error_code


@pytest.mark.parametrize("limit", range(1, 8))
def test_pages_of_partitions_come_to_the_end(limit: int) -> None:
    cluster = MemoryCluster(topics={"a": 2, "b": 1, "c": 3})
    found: list[tuple[str, int]] = []
    cursor = None
    for _ in range(9):
        request = DescribeTopicPartitionsRequest(topics=[], response_partition_limit=limit, cursor=cursor)
        page = cluster.call(request, DescribeTopicPartitionsResponse, 0)
        partitions = [(topic.name or "", p.partition_index) for topic in page.topics for p in topic.partitions]
        assert len(partitions) <= limit
        found += partitions
        if page.next_cursor is None:
            break
        cursor = DescribeTopicPartitionsRequest.Cursor(
            topic_name=page.next_cursor.topic_name, partition_index=page.next_cursor.partition_index
        )
    assert found == [("a", 0), ("a", 1), ("b", 0), ("c", 0), ("c", 1), ("c", 2)]
    cluster.stop()


@pytest.mark.parametrize(("setting", "asked"), [("3000", 1 << 20), (str(1 << 20), 3000)])
def test_a_fetch_has_no_more_bytes_than_client_and_broker_allow(setting: str, asked: int) -> None:
    cluster = MemoryCluster({"fetch.max.bytes": setting}, topics={"t": 3})
    for index in range(3):
        for _ in range(10):
            assert produced(cluster, "t", index, b"v" * 200) == 0
    partitions = [
        FetchRequest.FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1 << 20) for index in range(3)
    ]
    topic = FetchRequest.FetchTopic(topic="t", partitions=partitions)
    request = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=asked, topics=[topic])
    answer = cluster.call(request, FetchResponse, 12)
    sizes = [len(p.records or b"") for p in answer.responses[0].partitions]
    assert sizes == [sizes[0], 3000 - sizes[0], 0]
    assert sizes[0] > 2000
    cluster.stop()


@pytest.mark.parametrize(("version", "made"), [(0, True), (3, True), (4, False), (9, False)])
def test_only_versions_without_a_flag_create_topics_unasked(version: int, made: bool) -> None:
    cluster = MemoryCluster()
    request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="new")])
    request.allow_auto_topic_creation = version < 4  # its only value there
    cluster.call(request, MetadataResponse, version)
    assert ("new" in cluster.broker.image.topics) == made
    cluster.stop()


def test_internal_topics_are_written_by_the_admin_client_only() -> None:
    cluster = GroupClient()
    assert produced(cluster, CONSUMER_OFFSETS_TOPIC, 0, b"v") == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert produced(cluster, CONSUMER_OFFSETS_TOPIC, 0, b"v", client_id="__admin_client") == 0
    assert produced(cluster, "t", 0, b"v") == 0
    cluster.stop()


@pytest.mark.parametrize(("of", "told"), [("this", 5), ("none", 5), ("an earlier", -1)])
def test_an_offset_of_an_earlier_topic_of_the_name_is_not_told_by_id(of: str, told: int) -> None:
    cluster = GroupClient()
    topic_id = cluster.broker.image.topics["t"].topic_id
    assert cluster.commit({("t", 0): 5}) == [0]
    offsets = cluster.shard().offsets.group("g")["t"]
    assert offsets[0].topic_id == topic_id
    offsets[0] = replace(offsets[0], topic_id={"this": topic_id, "none": NO_ID, "an earlier": bytes([7] * 16)}[of])
    topic = m.OffsetFetchRequest.OffsetFetchRequestTopics(topic_id=topic_id, partition_indexes=[0])
    group = m.OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g", topics=[topic])
    answer = cluster.call(m.OffsetFetchRequest(groups=[group]), m.OffsetFetchResponse, 10)
    assert answer.groups[0].topics[0].partitions[0].committed_offset == told
    cluster.stop()
