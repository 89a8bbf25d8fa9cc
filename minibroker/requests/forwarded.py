"""Requests that change metadata: any broker accepts them and passes them to the controller (KIP-590). The rows of the
table say which these are; the controller's handlers are in `minibroker.controller.controller`.
"""

from __future__ import annotations

from collections import Counter

from minibroker.kernel.deferred import Deferred, spawn
from minibroker.requests.context import Answer, RequestContext
from minibroker.requests.error_responses import refused_in_turns
from minibroker_protocol import messages as m
from minibroker_protocol.dsl import Request, Response
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.fields import NO_ID

_WithDeadline = (
    m.CreateTopicsRequest
    | m.DeleteTopicsRequest
    | m.CreatePartitionsRequest
    | m.ElectLeadersRequest
    | m.AlterPartitionReassignmentsRequest
)
"""Requests whose timeoutMs is a deadline of the controller (ControllerRequestContext.requestTimeoutMsToDeadlineNs)."""


def _has_work(request: _WithDeadline) -> bool:
    """Whether the controller has anything to do for it: what is wrong with the request itself is answered before."""
    if isinstance(request, m.ElectLeadersRequest):
        return request.topic_partitions is None or bool(request.topic_partitions)
    if isinstance(request, m.AlterPartitionReassignmentsRequest):
        return bool(request.topics)
    if isinstance(request, m.DeleteTopicsRequest):
        # One of the two is given where only one of them is missing.
        by_state = [(topic.name, topic.topic_id) for topic in request.topics]
        right = [(name, topic_id) for name, topic_id in by_state if (name is None) != (topic_id == NO_ID)]
        named = [*((name, NO_ID) for name in request.topic_names), *right]
        return 1 in Counter(named).values()
    return 1 in Counter(topic.name for topic in request.topics).values()


_ANSWERED = (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.KAFKA_STORAGE_ERROR)


def handle(ctx: RequestContext, request: Request) -> Answer:
    """The controller's own answer. REQUEST_TIMED_OUT after a minute without an active controller, and at once where a
    request's deadline is now or has passed: Kafka's controller throws such a change away before it begins.
    KAFKA_STORAGE_ERROR when its journal failed."""
    if isinstance(request, _WithDeadline) and request.timeout_ms <= 0 and _has_work(request):
        error = ApiError(ErrorCode.REQUEST_TIMED_OUT, f"timeoutMs is {request.timeout_ms}: nothing is done")
        ctx.refused("the request", error)
        return refused_in_turns(ctx, request, error.code)
    return spawn(_forwarded(ctx, request))


async def _forwarded(ctx: RequestContext, request: Request) -> Response:
    try:
        return await ctx.broker.controller_channel.send(request, ctx.api_version)
    except ApiError as error:
        if error.code not in _ANSWERED:
            raise
        refusal = refused_in_turns(ctx, request, error.code, error.message)
    return await refusal if isinstance(refusal, Deferred) else refusal
