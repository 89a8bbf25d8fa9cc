"""Groups of the KIP-848 protocol: ConsumerGroupHeartbeat (68), ConsumerGroupDescribe (69).

Field names and versions: Kafka 4.4.0's message definitions.
"""

from __future__ import annotations

from minibroker_protocol.dsl import Request, Response
from minibroker_protocol.fields import bool_, f, int8, int16, int32, string, uuid
from minibroker_protocol.structs import Struct


class ConsumerGroupHeartbeatRequest(Request, key=68, versions="0-1", flexible="0+"):
    """Say that a member is alive and what it subscribes to and owns (KIP-848)."""

    class TopicPartitions(Struct):
        topic_id: uuid = f(entity="topicId")
        partitions: list[int32] = f(entity="partition")

    group_id: string = f(entity="groupId")
    member_id: string = f(entity="memberId")
    member_epoch: int32
    instance_id: string | None = f(nullable="0+", default=None, entity="groupInstanceId")
    rack_id: string | None = f(nullable="0+", default=None)
    rebalance_timeout_ms: int32 = f(default=-1)
    subscribed_topic_names: list[string] | None = f(nullable="0+", default=None, entity="topicName")
    subscribed_topic_regex: string | None = f("1+", nullable="1+", default=None)
    server_assignor: string | None = f(nullable="0+", default=None)
    topic_partitions: list[TopicPartitions] | None = f(nullable="0+", default=None)


class ConsumerGroupHeartbeatResponse(Response, key=68, versions="0-1", flexible="0+"):
    """The member's epoch and target assignment."""

    class TopicPartitions(Struct):
        topic_id: uuid = f(entity="topicId")
        partitions: list[int32] = f(entity="partition")

    class Assignment(Struct):
        topic_partitions: list[ConsumerGroupHeartbeatResponse.TopicPartitions]

    throttle_time_ms: int32 = f(default=0, throttle=True)
    error_code: int16 = f(default=0, error=True)
    error_message: string | None = f(nullable="0+", default=None, error_message=True)
    member_id: string | None = f(nullable="0+", default=None, entity="memberId")
    member_epoch: int32
    heartbeat_interval_ms: int32
    assignment: Assignment | None = f(nullable="0+", default=None)


class ConsumerGroupDescribeRequest(Request, key=69, versions="0-1", flexible="0+"):
    """Ask for the state and members of KIP-848 groups."""

    group_ids: list[string] = f(entity="groupId")
    include_authorized_operations: bool_


class ConsumerGroupDescribeResponse(Response, key=69, versions="0-1", flexible="0+"):
    """State and members of each group."""

    class TopicPartitions(Struct):
        topic_id: uuid = f(entity="topicId")
        topic_name: string = f(entity="topicName")
        partitions: list[int32] = f(entity="partition")

    class Assignment(Struct):
        topic_partitions: list[ConsumerGroupDescribeResponse.TopicPartitions]

    class Member(Struct):
        member_id: string = f(entity="memberId")
        instance_id: string | None = f(nullable="0+", default=None, entity="groupInstanceId")
        rack_id: string | None = f(nullable="0+", default=None)
        member_epoch: int32
        client_id: string
        client_host: string
        subscribed_topic_names: list[string] = f(entity="topicName")
        subscribed_topic_regex: string | None = f(nullable="0+", default=None)
        assignment: ConsumerGroupDescribeResponse.Assignment
        target_assignment: ConsumerGroupDescribeResponse.Assignment
        member_type: int8 = f("1+", default=-1, ignorable=True)

    class DescribedGroup(Struct):
        error_code: int16 = f(default=0, error=True)
        error_message: string | None = f(nullable="0+", default=None, error_message=True)
        group_id: string = f(entity="groupId")
        group_state: string = f(default="")
        group_epoch: int32
        assignment_epoch: int32
        assignor_name: string = f(default="")
        members: list[ConsumerGroupDescribeResponse.Member] = f(default=[])
        authorized_operations: int32 = f(default=-2147483648)

    throttle_time_ms: int32 = f(default=0, throttle=True)
    groups: list[DescribedGroup]
