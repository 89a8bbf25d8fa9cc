"""FindCoordinator (key 10): the broker that leads the internal partition owning a group or transactional id.

Versions 0-6. v1 key type (0 group, 1 transaction); v4 several keys; v6 share groups (not served: INVALID_REQUEST).
Kafka: KafkaApis.handleFindCoordinatorRequest.

Errors: COORDINATOR_NOT_AVAILABLE, INVALID_REQUEST.
"""

from __future__ import annotations

from collections.abc import Mapping

from minibroker.metadata.image import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from minibroker.requests.answers import outcome_of
from minibroker.requests.context import Answer, RequestContext
from minibroker_protocol.errors import INVALID_REQUEST_TEXT, ApiError, ErrorCode
from minibroker_protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse

GROUP = 0
TRANSACTION = 1
_TOPICS = {GROUP: CONSUMER_OFFSETS_TOPIC, TRANSACTION: TRANSACTION_STATE_TOPIC}

_Coordinator = FindCoordinatorResponse.Coordinator


def handle(ctx: RequestContext, request: FindCoordinatorRequest) -> Answer:
    """Creates the topic first where it is missing."""
    topic = _TOPICS.get(request.key_type)
    if topic is None or topic in ctx.broker.image.topics:
        return _answer(ctx, request, {})
    return outcome_of(
        lambda: ctx.broker.create_topics([topic]),
        lambda refused: _answer(ctx, request, refused),
        lambda error: _answer(ctx, request, {topic: error.code}),
    )


def _answer(
    ctx: RequestContext, request: FindCoordinatorRequest, refused: Mapping[str, ErrorCode]
) -> FindCoordinatorResponse:
    if ctx.api_version >= 4:
        return FindCoordinatorResponse(
            coordinators=[_find(ctx, request.key_type, key, refused) for key in request.coordinator_keys]
        )
    only = _find(ctx, request.key_type, request.key, refused)
    return FindCoordinatorResponse(
        error_code=only.error_code,
        error_message=only.error_message or "NONE",  # as Kafka does, up to v3
        node_id=only.node_id,
        host=only.host,
        port=only.port,
    )


def _find(
    ctx: RequestContext, key_type: int, key: str, refused: Mapping[str, ErrorCode]
) -> FindCoordinatorResponse.Coordinator:
    try:
        node_id = _coordinator(ctx, key_type, key, refused)
        for broker, host, port in ctx.broker.advertised(ctx.connection):
            if broker.node_id == node_id:
                return _Coordinator(key=key, node_id=node_id, host=host, port=port)
        raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"broker {node_id} is not available")
    except ApiError as error:
        ctx.refused(key, error)
        return _Coordinator(key=key, node_id=-1, port=-1, error_code=error.code, error_message=error.message)


def _coordinator(ctx: RequestContext, key_type: int, key: str, refused: Mapping[str, ErrorCode]) -> int:
    topic = _TOPICS.get(key_type)
    if topic is None:
        raise ApiError(ErrorCode.INVALID_REQUEST, INVALID_REQUEST_TEXT)
    broker = ctx.broker
    if topic in refused:
        raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{topic} could not be created: {refused[topic].name}")
    node_id = broker.coordinator_of(topic, key)
    if node_id is None:
        raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"the partition of {topic} that owns the key has no leader")
    if key_type == GROUP and node_id == broker.node_id and (groups := broker.coordinators.groups_if_any) is not None:
        groups.looked_up(ctx.client_id, key)
    return node_id
