"""ConsumerGroupHeartbeat (68) and ConsumerGroupDescribe (69): groups of the KIP-848 protocol.

Versions 0-1. v1: the client makes its member id, subscription by regular expression, member types.
Kafka: GroupCoordinatorService.consumerGroupHeartbeat, consumerGroupDescribe.

Errors of the heartbeat: INVALID_REQUEST, UNSUPPORTED_VERSION (group.version 0 or the protocol switched off),
NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, GROUP_ID_NOT_FOUND, UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH,
FENCED_INSTANCE_ID, UNRELEASED_INSTANCE_ID, UNSUPPORTED_ASSIGNOR, GROUP_MAX_SIZE_REACHED, INVALID_REGULAR_EXPRESSION.
"""

from __future__ import annotations

from minibroker.handlers.groups import check_group_id, client_info
from minibroker.kernel.deferred import Deferred
from minibroker.releases.features import GROUP_VERSION
from minibroker.requests.answers import outcome_of
from minibroker.requests.auth_helper import authorized_operations
from minibroker.requests.context import Answer, RequestContext
from minibroker.security.acls import ResourceType
from minibroker_protocol import messages as m
from minibroker_protocol.errors import ApiError, ErrorCode

_Described = m.ConsumerGroupDescribeResponse.DescribedGroup


def _check_enabled(ctx: RequestContext) -> None:
    if ctx.broker.image.feature(GROUP_VERSION) < 1 or not ctx.broker.coordinators.groups.config().consumer_enabled:
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION, "The cluster does not support the new CONSUMER group protocol.")


def handle_heartbeat(ctx: RequestContext, request: m.ConsumerGroupHeartbeatRequest) -> Answer:
    def decide() -> Deferred[m.ConsumerGroupHeartbeatResponse]:
        _check_enabled(ctx)
        answer = ctx.broker.coordinators.groups.consumer_heartbeat(client_info(ctx), request)
        if not answer.done:
            ctx.takes_long()
        return answer

    def refused(error: ApiError) -> m.ConsumerGroupHeartbeatResponse:
        ctx.refused(request.group_id, error)
        return m.ConsumerGroupHeartbeatResponse(
            error_code=error.code, error_message=error.message or None, member_epoch=0, heartbeat_interval_ms=0
        )

    return outcome_of(decide, lambda response: response, refused)


def handle_describe(ctx: RequestContext, request: m.ConsumerGroupDescribeRequest) -> m.ConsumerGroupDescribeResponse:
    groups = []
    for group_id in sorted(request.group_ids, key=bool):
        try:
            _check_enabled(ctx)
            check_group_id(group_id)
            described = ctx.broker.coordinators.groups.shard_for(group_id)[1].consumers.describe(group_id)
            described.authorized_operations = authorized_operations(
                ctx, ResourceType.GROUP, group_id, wanted=request.include_authorized_operations
            )
        except ApiError as error:
            ctx.refused(group_id, error)
            described = _Described(
                error_code=error.code,
                error_message=None if error.code is ErrorCode.INVALID_GROUP_ID else error.message or None,
                group_id=group_id,
                group_epoch=0,
                assignment_epoch=0,
            )
        groups.append(described)
    return m.ConsumerGroupDescribeResponse(groups=groups)
