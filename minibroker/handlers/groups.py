"""JoinGroup (11), SyncGroup (14), Heartbeat (12), LeaveGroup (13): members of classic groups.

JoinGroup 0-9: v1 rebalance timeout; v4 MEMBER_ID_REQUIRED; v5 static members; v7 protocol type; v8 reason; v9
SkipAssignment. SyncGroup 0-5: v3 static members; v5 protocol type and name. Heartbeat 0-4: v3 static members.
LeaveGroup 0-5: v3 several members; v5 reason. Kafka: GroupCoordinatorService.

Errors: INVALID_GROUP_ID, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE,
INVALID_SESSION_TIMEOUT, INCONSISTENT_GROUP_PROTOCOL, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION,
REBALANCE_IN_PROGRESS, MEMBER_ID_REQUIRED, GROUP_MAX_SIZE_REACHED.
"""

from __future__ import annotations

from functools import partial

from minibroker.coordinators.groups.environment import ClientInfo
from minibroker.kernel.deferred import Deferred, resolved, started
from minibroker.kernel.waiting import sleep
from minibroker.requests.answers import follow, outcome_of
from minibroker.requests.auth_helper import authorize
from minibroker.requests.context import Answer, RequestContext
from minibroker.security.acls import AclOperation, ResourceType
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

_NULLABLE_PROTOCOL_NAME = 7
_SEVERAL_MEMBERS = 3
_NAMES_PROTOCOL = 5
_MEMBERS_AT_ONCE = 1000

_MemberResponse = LeaveGroupResponse.MemberResponse


def client_info(ctx: RequestContext) -> ClientInfo:
    return ClientInfo(
        ctx.client_id or "",
        f"/{ctx.connection.client_host}",
        ctx.api_version,
        partial(authorize, ctx, AclOperation.DESCRIBE, ResourceType.TOPIC),
    )


def check_group_id(group_id: str) -> None:
    """Raises INVALID_GROUP_ID for the empty one, which only some of the older APIs take."""
    if not group_id:
        raise ApiError(ErrorCode.INVALID_GROUP_ID, "the group id is empty")


def join_group(ctx: RequestContext, request: JoinGroupRequest) -> Answer:
    """Parked until the group has its next generation."""

    def join() -> Deferred[JoinGroupResponse]:
        check_group_id(request.group_id)
        if ctx.api_version == 0:  # which has no rebalance timeout
            request.rebalance_timeout_ms = request.session_timeout_ms
        config = ctx.broker.coordinators.groups.config()
        if not config.min_session_timeout_ms <= request.session_timeout_ms <= config.max_session_timeout_ms:
            raise ApiError(
                ErrorCode.INVALID_SESSION_TIMEOUT,
                f"session timeout {request.session_timeout_ms} is not within {config.min_session_timeout_ms} and "
                f"{config.max_session_timeout_ms}",
            )
        return ctx.broker.coordinators.groups.join(client_info(ctx), request)

    def refused(error: ApiError) -> JoinGroupResponse:
        ctx.refused(request.group_id, error)
        return joined(JoinGroupResponse(error_code=error.code, protocol_name=None, member_id=request.member_id))

    def joined(response: JoinGroupResponse) -> JoinGroupResponse:
        if response.protocol_name is None and ctx.api_version < _NULLABLE_PROTOCOL_NAME:
            response.protocol_name = ""
        return response

    return outcome_of(join, joined, refused)


def sync_group(ctx: RequestContext, request: SyncGroupRequest) -> Answer:
    """Parked until the leader has delivered the assignment."""

    def sync() -> Deferred[SyncGroupResponse]:
        named = request.protocol_type is not None and request.protocol_name is not None
        if ctx.api_version >= _NAMES_PROTOCOL and not named:
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "protocol type and name are missing")
        check_group_id(request.group_id)
        return ctx.broker.coordinators.groups.sync(request)

    def refused(error: ApiError) -> SyncGroupResponse:
        ctx.refused(request.group_id, error)
        return SyncGroupResponse(error_code=error.code)

    return outcome_of(sync, lambda response: response, refused)


def heartbeat(ctx: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
    try:
        check_group_id(request.group_id)
        return ctx.broker.coordinators.groups.heartbeat(request)
    except ApiError as error:
        ctx.refused(request.group_id, error)
        # Old consumers treat a loading coordinator as a failure, so the answer is NONE.
        code = ErrorCode.NONE if error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else error.code
        return HeartbeatResponse(error_code=code)


def leave_group(ctx: RequestContext, request: LeaveGroupRequest) -> Answer:
    """Below v3 one member, whose error is that of the response. A long list is processed in turns with other work; the
    group rebalances once."""
    if ctx.api_version >= _SEVERAL_MEMBERS:
        return started(_leave_in_parts(ctx, request))

    def of_one(response: LeaveGroupResponse) -> LeaveGroupResponse:
        code = response.error_code
        if code == ErrorCode.NONE and response.members:
            code = response.members[0].error_code
        return LeaveGroupResponse(error_code=code)

    member = LeaveGroupRequest.MemberIdentity(member_id=request.member_id)
    return follow(_leave(ctx, request.group_id, [member]), of_one)


async def _leave_in_parts(ctx: RequestContext, request: LeaveGroupRequest) -> LeaveGroupResponse:
    """Each part leaves when the one before is durable."""
    members = request.members
    response = await _leave(ctx, request.group_id, members[:_MEMBERS_AT_ONCE])
    for at in range(_MEMBERS_AT_ONCE, len(members), _MEMBERS_AT_ONCE):
        if response.error_code != ErrorCode.NONE:
            break
        await sleep(ctx.broker.timers, 0)
        more = await _leave(ctx, request.group_id, members[at : at + _MEMBERS_AT_ONCE])
        response.error_code = more.error_code
        response.members += more.members
    return response


def _leave(
    ctx: RequestContext, group_id: str, members: list[LeaveGroupRequest.MemberIdentity]
) -> Deferred[LeaveGroupResponse]:
    def leave() -> Deferred[LeaveGroupResponse]:
        check_group_id(group_id)
        return ctx.broker.coordinators.groups.leave(LeaveGroupRequest(group_id=group_id, members=members))

    def refused(error: ApiError) -> LeaveGroupResponse:
        ctx.refused(group_id, error)
        if error.code is not ErrorCode.UNKNOWN_MEMBER_ID:
            return LeaveGroupResponse(error_code=error.code)
        return LeaveGroupResponse(  # no such group, so no such member
            members=[
                _MemberResponse(member_id=m.member_id, group_instance_id=m.group_instance_id, error_code=error.code)
                for m in members
            ]
        )

    answer = outcome_of(leave, lambda response: response, refused)
    return answer if isinstance(answer, Deferred) else resolved(answer)
