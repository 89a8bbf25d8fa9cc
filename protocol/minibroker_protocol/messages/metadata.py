"""Brokers, topics and leaders: Metadata (3), DescribeCluster (60), DescribeTopicPartitions (75).

Field names and versions: Kafka 4.4.0's message definitions.
"""

from __future__ import annotations

from minibroker_protocol.dsl import Request, Response
from minibroker_protocol.fields import NO_ID, bool_, f, int8, int16, int32, string, uuid
from minibroker_protocol.structs import Struct


class MetadataRequest(Request, key=3, versions="0-13", flexible="9+"):
    """Ask for topics, their partitions and leaders."""

    class MetadataRequestTopic(Struct):
        topic_id: uuid = f("10+", default=NO_ID, ignorable=True, entity="topicId")
        name: string | None = f(nullable="10+", entity="topicName")

    topics: list[MetadataRequestTopic] | None = f(nullable="1+")
    allow_auto_topic_creation: bool_ = f("4+", default=True)
    include_cluster_authorized_operations: bool_ = f("8-10", default=False)
    include_topic_authorized_operations: bool_ = f("8+", default=False)


class MetadataResponse(Response, key=3, versions="0-13", flexible="9+"):
    """Brokers, topics, partitions and leaders."""

    class MetadataResponseBroker(Struct):
        node_id: int32 = f(entity="brokerId", map_key=True)
        host: string
        port: int32
        rack: string | None = f("1+", nullable="1+", default=None, ignorable=True)

    class MetadataResponsePartition(Struct):
        error_code: int16 = f(default=0, error=True)
        partition_index: int32 = f(entity="partition")
        leader_id: int32 = f(entity="brokerId")
        leader_epoch: int32 = f("7+", default=-1, ignorable=True)
        replica_nodes: list[int32] = f(entity="brokerId")
        isr_nodes: list[int32] = f(entity="brokerId")
        offline_replicas: list[int32] = f("5+", default=[], ignorable=True, entity="brokerId")

    class MetadataResponseTopic(Struct):
        error_code: int16 = f(default=0, error=True)
        name: string | None = f(nullable="12+", entity="topicName", map_key=True)
        topic_id: uuid = f("10+", default=NO_ID, ignorable=True, entity="topicId")
        is_internal: bool_ = f("1+", default=False, ignorable=True)
        partitions: list[MetadataResponse.MetadataResponsePartition] = f(default=[])
        topic_authorized_operations: int32 = f("8+", default=-2147483648)

    throttle_time_ms: int32 = f("3+", default=0, ignorable=True, throttle=True)
    brokers: list[MetadataResponseBroker] = f(default=[])
    cluster_id: string | None = f("2+", nullable="2+", default=None, ignorable=True)
    controller_id: int32 = f("1+", default=-1, ignorable=True, entity="brokerId")
    topics: list[MetadataResponseTopic]
    cluster_authorized_operations: int32 = f("8-10", default=-2147483648)
    error_code: int16 = f("13+", default=0, ignorable=True, error=True)


class DescribeTopicPartitionsRequest(Request, key=75, versions="0", flexible="0+"):
    """Ask for the partitions of topics, page by page."""

    class TopicRequest(Struct):
        name: string = f(entity="topicName")

    class Cursor(Struct):
        topic_name: string = f(entity="topicName")
        partition_index: int32 = f(entity="partition")

    topics: list[TopicRequest]
    response_partition_limit: int32 = f(default=2000)
    cursor: Cursor | None = f(nullable="0+", default=None)


class DescribeTopicPartitionsResponse(Response, key=75, versions="0", flexible="0+"):
    """Partitions, and where the next page starts."""

    class DescribeTopicPartitionsResponsePartition(Struct):
        error_code: int16 = f(default=0, error=True)
        partition_index: int32 = f(entity="partition")
        leader_id: int32 = f(entity="brokerId")
        leader_epoch: int32 = f(default=-1)
        replica_nodes: list[int32] = f(entity="brokerId")
        isr_nodes: list[int32] = f(entity="brokerId")
        eligible_leader_replicas: list[int32] | None = f(nullable="0+", default=None, entity="brokerId")
        last_known_elr: list[int32] | None = f(nullable="0+", default=None, entity="brokerId")
        offline_replicas: list[int32] = f(entity="brokerId")

    class DescribeTopicPartitionsResponseTopic(Struct):
        error_code: int16 = f(default=0, error=True)
        name: string | None = f(nullable="0+", entity="topicName", map_key=True)
        topic_id: uuid = f(entity="topicId")
        is_internal: bool_ = f(default=False)
        partitions: list[DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition] = f(default=[])
        topic_authorized_operations: int32 = f(default=-2147483648)

    class Cursor(Struct):
        topic_name: string = f(entity="topicName")
        partition_index: int32 = f(entity="partition")

    throttle_time_ms: int32 = f(default=0, throttle=True)
    topics: list[DescribeTopicPartitionsResponseTopic]
    next_cursor: Cursor | None = f(nullable="0+", default=None)


class DescribeClusterRequest(Request, key=60, versions="0-2", flexible="0+"):
    """Ask for the brokers or controllers of a cluster."""

    include_cluster_authorized_operations: bool_
    endpoint_type: int8 = f("1+", default=1)
    include_fenced_brokers: bool_ = f("2+", default=False)


class DescribeClusterResponse(Response, key=60, versions="0-2", flexible="0+"):
    """The nodes and the cluster id."""

    class DescribeClusterBroker(Struct):
        broker_id: int32 = f(entity="brokerId", map_key=True)
        host: string
        port: int32
        rack: string | None = f(nullable="0+", default=None)
        is_fenced: bool_ = f("2+", default=False)

    throttle_time_ms: int32 = f(default=0, throttle=True)
    error_code: int16 = f(default=0, error=True)
    error_message: string | None = f(nullable="0+", default=None, error_message=True)
    endpoint_type: int8 = f("1+", default=1)
    cluster_id: string
    controller_id: int32 = f(default=-1, entity="brokerId")
    brokers: list[DescribeClusterBroker]
    cluster_authorized_operations: int32 = f(default=-2147483648)
