"""InitProducerId (key 22): a producer id and epoch, for an idempotent producer or for a transactional id.

Versions 0-5 stable; v6 (two-phase commit, KIP-939) behind unstable.api.versions.enable. v3 takes the producer's own id
and epoch (KIP-360), v4 knows PRODUCER_FENCED (below: INVALID_PRODUCER_EPOCH). Errors: see
`coordinators.transactions.init_producer_id`; INVALID_REQUEST for an empty id or only one of producer id and epoch.
"""

from __future__ import annotations

from minibroker.coordinators.transactions.metadata import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    ProducerIdAndEpoch,
)
from minibroker.coordinators.transactions.refusals import wire_code
from minibroker.kernel.deferred import Deferred
from minibroker.releases.semantics import INIT_PRODUCER_ID
from minibroker.requests.answers import outcome_of
from minibroker.requests.context import Answer, RequestContext
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.messages.transactions import InitProducerIdRequest, InitProducerIdResponse


def handle(ctx: RequestContext, request: InitProducerIdRequest) -> Answer:
    def ask() -> Deferred[ProducerIdAndEpoch]:
        return ctx.broker.coordinators.transactions.init_producer_id(
            request.transactional_id,
            request.transaction_timeout_ms,
            _expected(request),
            enable_two_phase_commit=request.enable2_pc,
            keep_prepared_transaction=request.keep_prepared_txn,
        )

    def begun(producer: ProducerIdAndEpoch) -> InitProducerIdResponse:
        return InitProducerIdResponse(producer_id=producer.producer_id, producer_epoch=producer.producer_epoch)

    def refused(error: ApiError) -> InitProducerIdResponse:
        code = wire_code(error, ctx.broker.semantics, INIT_PRODUCER_ID, ctx.api_version)
        ctx.refused(request.transactional_id, error, code)
        return InitProducerIdResponse(error_code=code, producer_epoch=NO_PRODUCER_EPOCH)

    return outcome_of(ask, begun, refused)


def _expected(request: InitProducerIdRequest) -> ProducerIdAndEpoch | None:
    if request.producer_id == NO_PRODUCER_ID and request.producer_epoch == NO_PRODUCER_EPOCH:
        return None
    if request.producer_id == NO_PRODUCER_ID or request.producer_epoch == NO_PRODUCER_EPOCH:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"producer id {request.producer_id} and epoch {request.producer_epoch} go together or not at all",
        )
    return ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
