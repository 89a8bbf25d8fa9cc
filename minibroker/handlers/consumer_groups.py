"""ConsumerGroupHeartbeat (68) and ConsumerGroupDescribe (69): groups of the KIP-848 protocol.

Versions 0-1. v1: the client makes its member id, subscription by regular expression, member types.
"""

from __future__ import annotations

from minibroker.handlers.context import RequestContext
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

_Described = ConsumerGroupDescribeResponse.DescribedGroup


def handle_heartbeat(ctx: RequestContext, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION, member_epoch=0, heartbeat_interval_ms=0
    )


def handle_describe(ctx: RequestContext, request: ConsumerGroupDescribeRequest) -> ConsumerGroupDescribeResponse:
    return ConsumerGroupDescribeResponse(
        groups=[
            _Described(
                error_code=ErrorCode.UNSUPPORTED_VERSION,
                group_id=group_id,
                group_state="",
                group_epoch=0,
                assignment_epoch=0,
                assignor_name="",
                members=[],
            )
            for group_id in request.group_ids
        ]
    )
