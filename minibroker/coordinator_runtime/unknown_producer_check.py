"""Asks the transaction coordinator about a producer that a partition does not know (the draft of KIP-360).

A zombie whose transaction was aborted, and whose state the partition then lost, could begin at sequence 0 again and
leave a transaction that no producer ends. In the draft the leader asks, through DescribeTransactionState, whether the
producer is fenced.
"""

from __future__ import annotations

from minibroker.coordinator_runtime.ports import CoordinatingBroker
from minibroker.kernel.transport import call
from minibroker.metadata.image import TRANSACTION_STATE_TOPIC
from minibroker_protocol import messages as m
from minibroker_protocol.errors import ApiError, ErrorCode


async def refusal_of_unknown(
    broker: CoordinatingBroker, transactional_id: str, producer_id: int, producer_epoch: int
) -> ApiError | None:
    """The error of Produce if this producer may not begin here; None when the coordinator knows it as current.

    INVALID_PRODUCER_EPOCH: another producer id or epoch holds the transactional id. INVALID_PRODUCER_ID_MAPPING: no
    producer does. NOT_ENOUGH_REPLICAS: the coordinator cannot answer now, and clients retry on this code.
    """
    state = await _described(broker, transactional_id)
    if isinstance(state, ApiError):
        return state
    if state.error == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
        return ApiError(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING, f"the coordinator does not know transactional id {transactional_id}"
        )
    if state.error != ErrorCode.NONE:
        return ApiError(
            ErrorCode.NOT_ENOUGH_REPLICAS, f"the transaction coordinator answered {ErrorCode(state.error).name}"
        )
    if (state.producer_id, state.epoch) == (producer_id, producer_epoch):
        return None
    return ApiError(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"producer id {producer_id} epoch {producer_epoch} is not known here and does not hold {transactional_id}:"
        f" expected producer id {state.producer_id} epoch {state.epoch}",
    )


async def _described(
    broker: CoordinatingBroker, transactional_id: str
) -> m.DescribeTransactionStateResponse.TransactionState | ApiError:
    """The coordinator's answer, or an error on which clients retry."""
    node_id = broker.coordinator_of(TRANSACTION_STATE_TOPIC, transactional_id)
    if node_id is None:
        return ApiError(ErrorCode.NOT_ENOUGH_REPLICAS, f"{transactional_id} has no transaction coordinator now")
    request = m.DescribeTransactionStateRequest(transactional_ids=[transactional_id])
    try:
        response = await call(broker.transport, node_id, request, 0, m.DescribeTransactionStateResponse)
    except ApiError as error:
        return ApiError(ErrorCode.NOT_ENOUGH_REPLICAS, f"the transaction coordinator did not answer: {error}")
    (state,) = response.transaction_states
    return state
