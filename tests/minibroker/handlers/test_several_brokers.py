"""What a client is told of brokers that stopped and of leaders that moved, and how long it waits for followers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from held_executor import HeldExecutor
from long_batches import many_headers
from many_brokers import ManyBrokers

from minibroker.coordinators.hashing import partition_for
from minibroker.kernel.executor import DiskInline
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.fetch import FetchRequest, FetchResponse
from minibroker_protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from minibroker_protocol.messages.metadata import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    MetadataRequest,
    MetadataResponse,
)
from minibroker_protocol.messages.produce import ProduceResponse
from minibroker_protocol.messages.topics import DeleteTopicsRequest, DeleteTopicsResponse
from minibroker_protocol.records import Record, build_batch

Topic = MetadataRequest.MetadataRequestTopic


@pytest.fixture
def brokers() -> Iterator[ManyBrokers]:
    running = ManyBrokers(3)
    running.create("t", [[1, 2, 3]])
    yield running
    running.stop()


def test_a_stopped_broker_is_told_of_as_a_replica_that_is_offline(brokers: ManyBrokers) -> None:
    brokers.cluster.kill_broker(3)
    brokers.settle(20_000)
    metadata = brokers.call(1, MetadataRequest(topics=[Topic(name="t")]), MetadataResponse, 9)
    assert sorted(broker.node_id for broker in metadata.brokers) == [1, 2]
    (partition,) = metadata.topics[0].partitions
    assert (partition.replica_nodes, partition.isr_nodes, partition.offline_replicas) == ([1, 2, 3], [1, 2], [3])
    named = DescribeTopicPartitionsRequest(topics=[DescribeTopicPartitionsRequest.TopicRequest(name="t")])
    described = brokers.call(1, named, DescribeTopicPartitionsResponse, 0)
    assert described.topics[0].partitions[0].offline_replicas == [3]
    for fenced, there in ((False, [1, 2]), (True, [1, 2, 3])):
        asked = DescribeClusterRequest(
            include_cluster_authorized_operations=False, endpoint_type=1, include_fenced_brokers=fenced
        )
        cluster = brokers.call(1, asked, DescribeClusterResponse, 2)
        assert sorted(broker.broker_id for broker in cluster.brokers) == there


@pytest.mark.parametrize(("key_type", "topic"), [(0, "__consumer_offsets"), (1, "__transaction_state")])
def test_every_broker_names_the_address_of_the_coordinator(brokers: ManyBrokers, key_type: int, topic: str) -> None:
    """Each of three brokers leads one of the topic's three partitions."""
    keys = [f"key {number}" for number in range(6)]
    brokers.coordinator(keys[0], key_type)
    expected = {}
    for key in keys:
        node = brokers.leader(topic, partition_for(key, 3))
        expected[key] = node, "127.0.0.1", 9091 + node
    assert {node for node, _, _ in expected.values()} == {1, 2, 3}
    for asked in (1, 2, 3):
        several = FindCoordinatorRequest(key_type=key_type, coordinator_keys=keys)
        answer = brokers.call(asked, several, FindCoordinatorResponse, 4)
        assert {c.key: (c.node_id, c.host, c.port) for c in answer.coordinators} == expected
        single = FindCoordinatorRequest(key_type=key_type, key=keys[1])
        one = brokers.call(asked, single, FindCoordinatorResponse, 3)
        assert (one.node_id, one.host, one.port) == expected[keys[1]]


def test_a_fetch_that_waits_is_answered_when_its_leader_moves(brokers: ManyBrokers) -> None:
    partition = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    topic = FetchRequest.FetchTopic(topic="t", partitions=[partition])
    pending = brokers.send(1, FetchRequest(max_wait_ms=1 << 30, min_bytes=1, topics=[topic]), 12)
    brokers.settle(100)
    assert not pending.done
    brokers.cluster.move_leader("t", 0, 2)
    brokers.settle(1000)
    answer = pending.result()
    assert isinstance(answer, FetchResponse)
    assert answer.responses[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_produce_that_waits_for_followers_is_answered_at_its_timeout(brokers: ManyBrokers) -> None:
    brokers.create("also", [[1, 2, 3]])
    brokers.cluster.cut_link(1, 3)  # in the in-sync set for replica.lag.time.max.ms on
    batch = build_batch([Record(0, brokers.clock.now_ms(), None, b"v", [])])
    request = brokers.produce_request("t", batch)
    request.topic_data += brokers.produce_request("also", batch).topic_data
    request.timeout_ms = 500
    pending = brokers.send(1, request, 9)
    brokers.settle(490)
    assert not pending.done
    brokers.settle(20)
    answer = pending.result()
    assert isinstance(answer, ProduceResponse)
    told = {topic.name: [one.error_code for one in topic.partition_responses] for topic in answer.responses}
    assert told == {"t": [ErrorCode.REQUEST_TIMED_OUT], "also": [ErrorCode.REQUEST_TIMED_OUT]}


def test_a_long_produce_is_not_confirmed_by_the_records_of_the_next_leader() -> None:
    """While its second batch is checked on a thread, the first one's partition has another leader, which lacks it."""
    computing = HeldExecutor()
    brokers = ManyBrokers(2, executor=DiskInline(computing))
    brokers.create("t", [[1, 2]])
    brokers.create("long", [[1]])
    brokers.cluster.cut_link(1, 2)
    request = brokers.produce_request("t", build_batch([Record(0, brokers.clock.now_ms(), None, b"lost", [])]))
    request.topic_data += brokers.produce_request("long", many_headers(40_000)).topic_data
    pending = brokers.send(1, request, 9)
    brokers.settle(1)
    assert computing.waiting == 1
    brokers.cluster.move_leader("t", 0, 2)
    brokers.cluster.mend_link(1, 2)
    brokers.settle(5000)
    assert brokers.produce("t", b"kept", at=2).error_code == ErrorCode.NONE
    brokers.settle(5000)
    computing.run()
    brokers.settle(5)
    told = {topic.name: topic.partition_responses[0].error_code for topic in pending.result().responses}
    assert told == {"t": ErrorCode.NOT_LEADER_OR_FOLLOWER, "long": ErrorCode.NONE}
    brokers.stop()


@pytest.mark.parametrize(("version", "told"), [(9, None), (10, (2, 1)), (12, (2, 1))])
def test_a_produce_at_another_broker_names_the_leader(
    brokers: ManyBrokers, version: int, told: tuple[int, int] | None
) -> None:
    """From version 10 on, with its address (KIP-951)."""
    brokers.cluster.move_leader("t", 0, 2)
    brokers.settle(1000)
    request = brokers.produce_request("t", build_batch([Record(0, brokers.clock.now_ms(), None, b"v", [])]))
    pending = brokers.send(1, request, version)
    brokers.settle(100)
    answer = pending.result()
    (one,) = answer.responses[0].partition_responses
    assert one.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    leader = one.current_leader
    assert (None if leader is None else (leader.leader_id, leader.leader_epoch)) == told
    assert [node.node_id for node in answer.node_endpoints] == ([] if version < 10 else [2])


def test_a_fetch_that_waited_watches_nothing_any_more(brokers: ManyBrokers) -> None:
    watchers = brokers.cluster.brokers[1].partition("t", 0)._watchers
    before = len(watchers)
    partition = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    topic = FetchRequest.FetchTopic(topic="t", partitions=[partition])
    pending = brokers.send(1, FetchRequest(max_wait_ms=100, min_bytes=1, topics=[topic]), 12)
    brokers.settle(50)
    assert len(watchers) == before + 1
    brokers.settle(100)
    assert pending.done
    assert len(watchers) == before


def test_what_was_deleted_while_a_broker_was_down_is_gone_after_its_start(brokers: ManyBrokers) -> None:
    brokers.create("a", [[1, 2, 3]])
    for topic in ("a", "t"):
        brokers.produce(topic, b"x")
    brokers.settle(10_000)
    directory = brokers.cluster.brokers[3].directory
    brokers.cluster.stop_broker(3)
    brokers.settle(10_000)
    assert ("t", 0) in directory.high_watermarks
    answer = brokers.call(1, DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000), DeleteTopicsResponse, 4)
    assert answer.responses[0].error_code == 0
    brokers.cluster.start_broker(3)
    brokers.settle(10_000)
    directory = brokers.cluster.brokers[3].directory
    assert [name for name in directory.disk.list("") if name.endswith("-0") and not name.startswith("_")] == ["a-0"]
    assert ("a", 0) in directory.high_watermarks
    for offsets in (directory.high_watermarks, directory.recovery_points, directory.log_starts):
        assert ("t", 0) not in offsets


def test_in_sync_sets_that_shrink_and_grow_are_counted(brokers: ManyBrokers) -> None:
    replication = brokers.cluster.brokers[1].replication

    def counted() -> tuple[int, int]:
        assert replication.failed_isr_updates == 0
        return replication.isr_shrinks, replication.isr_expands

    assert counted() == (0, 0)
    brokers.cluster.cut_link(1, 3)
    brokers.produce("t", b"x", acks=1)
    brokers.settle(60_000)
    assert counted() == (1, 0)
    brokers.cluster.mend_link(1, 3)
    brokers.settle(10_000)
    assert counted() == (1, 1)
