"""Coordinators and classic groups: FindCoordinator (10), JoinGroup (11), Heartbeat (12), LeaveGroup (13),
SyncGroup (14), DescribeGroups (15), ListGroups (16), DeleteGroups (42).

Field names and versions: Kafka 4.4.0's message definitions.
"""

from __future__ import annotations

from minibroker_protocol.dsl import Request, Response
from minibroker_protocol.fields import bool_, bytes_, f, int8, int16, int32, string
from minibroker_protocol.structs import Struct


class FindCoordinatorRequest(Request, key=10, versions="0-6", flexible="3+"):
    """Ask which broker coordinates a group or a transactional id."""

    key: string = f("0-3", default="", entity="coordinatorKey")
    key_type: int8 = f("1+", default=0, entity="coordinatorType")
    coordinator_keys: list[string] = f("4+", default=[], entity="coordinatorKey")


class FindCoordinatorResponse(Response, key=10, versions="0-6", flexible="3+"):
    """The coordinators."""

    class Coordinator(Struct):
        key: string = f("4+", default="", entity="coordinatorKey")
        node_id: int32 = f("4+", default=0, entity="brokerId")
        host: string = f("4+", default="")
        port: int32 = f("4+", default=0)
        error_code: int16 = f("4+", default=0, error=True)
        error_message: string | None = f("4+", nullable="4+", default="", ignorable=True, error_message=True)

    throttle_time_ms: int32 = f("1+", default=0, ignorable=True, throttle=True)
    error_code: int16 = f("0-3", default=0, error=True)
    error_message: string | None = f("1-3", nullable="1-3", default="", ignorable=True, error_message=True)
    node_id: int32 = f("0-3", default=0, entity="brokerId")
    host: string = f("0-3", default="")
    port: int32 = f("0-3", default=0)
    coordinators: list[Coordinator] = f("4+", default=[])


class JoinGroupRequest(Request, key=11, versions="0-9", flexible="6+"):
    """Join a classic group, or take part in its next generation."""

    class JoinGroupRequestProtocol(Struct):
        name: string = f(map_key=True)
        metadata: bytes_

    group_id: string = f(entity="groupId")
    session_timeout_ms: int32
    rebalance_timeout_ms: int32 = f("1+", default=-1, ignorable=True)
    member_id: string = f(entity="memberId")
    group_instance_id: string | None = f("5+", nullable="5+", default=None, entity="groupInstanceId")
    protocol_type: string
    protocols: list[JoinGroupRequestProtocol]
    reason: string | None = f("8+", nullable="8+", default=None, ignorable=True)


class JoinGroupResponse(Response, key=11, versions="0-9", flexible="6+"):
    """The generation, and to the leader all members' subscriptions."""

    class JoinGroupResponseMember(Struct):
        member_id: string = f(entity="memberId")
        group_instance_id: string | None = f(
            "5+", nullable="5+", default=None, ignorable=True, entity="groupInstanceId"
        )
        metadata: bytes_

    throttle_time_ms: int32 = f("2+", default=0, ignorable=True, throttle=True)
    error_code: int16 = f(default=0, error=True)
    generation_id: int32 = f(default=-1)
    protocol_type: string | None = f("7+", nullable="7+", default=None, ignorable=True)
    protocol_name: string | None = f(nullable="7+")
    leader: string = f(default="")
    skip_assignment: bool_ = f("9+", default=False)
    member_id: string = f(entity="memberId")
    members: list[JoinGroupResponseMember] = f(default=[])


class HeartbeatRequest(Request, key=12, versions="0-4", flexible="4+"):
    """Say that a member is alive."""

    group_id: string = f(entity="groupId")
    generation_id: int32 = f(entity="generation")
    member_id: string = f(entity="memberId")
    group_instance_id: string | None = f("3+", nullable="3+", default=None, entity="groupInstanceId")


class HeartbeatResponse(Response, key=12, versions="0-4", flexible="4+"):
    """Whether the member is still part of the generation."""

    throttle_time_ms: int32 = f("1+", default=0, ignorable=True, throttle=True)
    error_code: int16 = f(default=0, error=True)


class LeaveGroupRequest(Request, key=13, versions="0-5", flexible="4+"):
    """Leave a group."""

    class MemberIdentity(Struct):
        member_id: string = f("3+", default="", entity="memberId")
        group_instance_id: string | None = f("3+", nullable="3+", default=None, entity="groupInstanceId")
        reason: string | None = f("5+", nullable="5+", default=None, ignorable=True)

    group_id: string = f(entity="groupId")
    member_id: string = f("0-2", default="", entity="memberId")
    members: list[MemberIdentity] = f("3+", default=[])


class LeaveGroupResponse(Response, key=13, versions="0-5", flexible="4+"):
    """Whether each member left."""

    class MemberResponse(Struct):
        member_id: string = f("3+", default="", entity="memberId")
        group_instance_id: string | None = f("3+", nullable="3+", default="", entity="groupInstanceId")
        error_code: int16 = f("3+", default=0, error=True)

    throttle_time_ms: int32 = f("1+", default=0, ignorable=True, throttle=True)
    error_code: int16 = f(default=0, error=True)
    members: list[MemberResponse] = f("3+", default=[])


class SyncGroupRequest(Request, key=14, versions="0-5", flexible="4+"):
    """Deliver (leader) and fetch (everyone) the assignment of a generation."""

    class SyncGroupRequestAssignment(Struct):
        member_id: string = f(entity="memberId")
        assignment: bytes_

    group_id: string = f(entity="groupId")
    generation_id: int32 = f(entity="generation")
    member_id: string = f(entity="memberId")
    group_instance_id: string | None = f("3+", nullable="3+", default=None, entity="groupInstanceId")
    protocol_type: string | None = f("5+", nullable="5+", default=None, ignorable=True)
    protocol_name: string | None = f("5+", nullable="5+", default=None, ignorable=True)
    assignments: list[SyncGroupRequestAssignment]


class SyncGroupResponse(Response, key=14, versions="0-5", flexible="4+"):
    """The member's assignment."""

    throttle_time_ms: int32 = f("1+", default=0, ignorable=True, throttle=True)
    error_code: int16 = f(default=0, error=True)
    protocol_type: string | None = f("5+", nullable="5+", default=None, ignorable=True)
    protocol_name: string | None = f("5+", nullable="5+", default=None, ignorable=True)
    assignment: bytes_ = f(default=b"")


class DescribeGroupsRequest(Request, key=15, versions="0-6", flexible="5+"):
    """Ask for the state and members of classic groups."""

    groups: list[string] = f(entity="groupId")
    include_authorized_operations: bool_ = f("3+", default=False)


class DescribeGroupsResponse(Response, key=15, versions="0-6", flexible="5+"):
    """State and members of each group."""

    class DescribedGroupMember(Struct):
        member_id: string = f(entity="memberId")
        group_instance_id: string | None = f(
            "4+", nullable="4+", default=None, ignorable=True, entity="groupInstanceId"
        )
        client_id: string
        client_host: string
        member_metadata: bytes_
        member_assignment: bytes_

    class DescribedGroup(Struct):
        error_code: int16 = f(default=0, error=True)
        error_message: string | None = f("6+", nullable="6+", default=None, error_message=True)
        group_id: string = f(entity="groupId")
        group_state: string = f(default="")
        protocol_type: string = f(default="")
        protocol_data: string = f(default="")
        members: list[DescribeGroupsResponse.DescribedGroupMember] = f(default=[])
        authorized_operations: int32 = f("3+", default=-2147483648)

    throttle_time_ms: int32 = f("1+", default=0, ignorable=True, throttle=True)
    groups: list[DescribedGroup]


class ListGroupsRequest(Request, key=16, versions="0-5", flexible="3+"):
    """Ask for the groups of a broker."""

    states_filter: list[string] = f("4+", default=[])
    types_filter: list[string] = f("5+", default=[])


class ListGroupsResponse(Response, key=16, versions="0-5", flexible="3+"):
    """Groups with their state and type."""

    class ListedGroup(Struct):
        group_id: string = f(entity="groupId")
        protocol_type: string
        group_state: string = f("4+", default="", ignorable=True)
        group_type: string = f("5+", default="", ignorable=True)

    throttle_time_ms: int32 = f("1+", default=0, ignorable=True, throttle=True)
    error_code: int16 = f(default=0, error=True)
    groups: list[ListedGroup] = f(default=[])


class DeleteGroupsRequest(Request, key=42, versions="0-3", flexible="2+"):
    """Delete groups."""

    groups_names: list[string] = f(entity="groupId")


class DeleteGroupsResponse(Response, key=42, versions="0-3", flexible="2+"):
    """Whether each group was deleted."""

    class DeletableGroupResult(Struct):
        group_id: string = f(entity="groupId", map_key=True)
        error_code: int16 = f(default=0, error=True)
        error_message: string | None = f("3+", nullable="3+", default=None, ignorable=True, error_message=True)

    throttle_time_ms: int32 = f(default=0, throttle=True)
    results: list[DeletableGroupResult]
