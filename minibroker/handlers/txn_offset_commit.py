"""TxnOffsetCommit (28): offsets of a group that become its own when the transaction commits.

Versions 0-6. v2 leader epoch; v3 member id, generation and instance id, by which a zombie is fenced (KIP-447); v4
TRANSACTION_ABORTABLE; v5 joins the transaction by itself (KIP-890); v6 topic ids, member epochs (KIP-1319). Kafka:
KafkaApis.handleTxnOffsetCommitRequest, GroupCoordinatorService.commitTransactionalOffsets.

Errors, each on every partition: INVALID_GROUP_ID, INVALID_TXN_STATE, TRANSACTION_ABORTABLE, INVALID_PRODUCER_EPOCH,
INVALID_PRODUCER_ID_MAPPING, CONCURRENT_TRANSACTIONS, ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID and
those of the coordinator, from v6 on GROUP_ID_NOT_FOUND and STALE_MEMBER_EPOCH for ILLEGAL_GENERATION; on one partition
UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, OFFSET_METADATA_TOO_LARGE.
"""

from __future__ import annotations

from functools import partial

from minibroker.coordinators.groups.commits import Commit, Committed
from minibroker.handlers.groups import check_group_id
from minibroker.handlers.offset_commits import OffsetCommitting
from minibroker.kernel.deferred import Deferred
from minibroker.requests.context import Answer, RequestContext
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.transactions import TxnOffsetCommitRequest, TxnOffsetCommitResponse

_KNOWS_LOADING = 2
_TOPIC_IDS = 6


def handle(ctx: RequestContext, request: TxnOffsetCommitRequest) -> Answer:
    def write(commit: Commit) -> Deferred[Committed]:
        check_group_id(request.group_id)
        return ctx.broker.coordinators.groups.commit_in_transaction(commit, request.transactional_id)

    committing = OffsetCommitting(
        ctx,
        request,
        TxnOffsetCommitResponse,
        TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic,
        TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition,
        by_id=ctx.api_version >= _TOPIC_IDS,
        code=partial(_code, api_version=ctx.api_version),
    )
    return committing.answer(write, producer_id=request.producer_id, producer_epoch=request.producer_epoch)


def _code(code: ErrorCode, api_version: int) -> ErrorCode:
    """Clients of versions 0 and 1 do not know that a coordinator may be loading."""
    if api_version < _KNOWS_LOADING and code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return code
