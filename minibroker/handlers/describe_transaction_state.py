"""DescribeTransactionState (key 10001, v0): KIP-360's call for a leader that meets an unknown producer.

Kafka never shipped it; the key lies outside Kafka's range. One result per transactional id, with one error: NONE,
COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR, TRANSACTIONAL_ID_NOT_FOUND, TRANSACTIONAL_ID_AUTHORIZATION_FAILED.
"""

from __future__ import annotations

from minibroker.coordinators.transactions import queries
from minibroker.requests.auth_helper import authorize
from minibroker.requests.context import RequestContext
from minibroker.security.acls import AclOperation, ResourceType
from minibroker_protocol import messages as m
from minibroker_protocol.errors import ApiError, ErrorCode

_State = m.DescribeTransactionStateResponse.TransactionState
_Topic = m.DescribeTransactionStateResponse.TopicPartitions


def handle(ctx: RequestContext, request: m.DescribeTransactionStateRequest) -> m.DescribeTransactionStateResponse:
    states = [_describe(ctx, transactional_id) for transactional_id in request.transactional_ids]
    return m.DescribeTransactionStateResponse(transaction_states=states)


def _describe(ctx: RequestContext, transactional_id: str) -> _State:
    try:
        if not authorize(ctx, AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id):
            raise ApiError(
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                f"{ctx.connection.principal} may not DESCRIBE TRANSACTIONAL_ID {transactional_id}",
            )
        entry = ctx.broker.coordinators.transactions.describe(transactional_id)
    except ApiError as error:
        # KIP-360 has no code for an empty id; no producer can own one.
        code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND if error.code is ErrorCode.INVALID_REQUEST else error.code
        ctx.refused(transactional_id, error, code)
        return _State(error=code)
    return _State(
        producer_id=entry.metadata.producer_id,
        epoch=entry.epoch,
        state=entry.metadata.state.label,
        partitions=[
            _Topic(topic_name=topic, partition_ids=indexes)
            for topic, indexes in queries.partitions_of(entry)
            if authorize(ctx, AclOperation.DESCRIBE, ResourceType.TOPIC, topic)
        ],
    )
