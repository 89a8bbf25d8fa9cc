"""TxnOffsetCommit (28): offsets of a group that become its own when the transaction commits.

Versions 0-5. v2 leader epoch; v3 member id, generation and instance id, by which a zombie is fenced (KIP-447); v4
TRANSACTION_ABORTABLE; v5 joins the transaction by itself (KIP-890). Kafka: KafkaApis.handleTxnOffsetCommitRequest,
GroupCoordinatorService.commitTransactionalOffsets.

Errors, each on every partition: INVALID_GROUP_ID, INVALID_TXN_STATE, TRANSACTION_ABORTABLE, INVALID_PRODUCER_EPOCH,
INVALID_PRODUCER_ID_MAPPING, CONCURRENT_TRANSACTIONS, ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID and
those of the coordinator; on one partition UNKNOWN_TOPIC_OR_PARTITION, OFFSET_METADATA_TOO_LARGE.
"""

from __future__ import annotations

from minibroker.coordinators.groups.commits import Commit, CommitPartition, CommitTopic, all_partitions
from minibroker.handlers.context import RequestContext
from minibroker.handlers.groups import check_group_id
from minibroker.kernel.turns import STEP
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.messages.transactions import TxnOffsetCommitRequest, TxnOffsetCommitResponse

_KNOWS_LOADING = 2

_Topic = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
_Partition = TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition


async def handle(ctx: RequestContext, request: TxnOffsetCommitRequest) -> TxnOffsetCommitResponse:
    """Topics that do not exist are answered without group and transaction."""
    image = ctx.broker.image
    valid: list[CommitTopic] = []
    responses: dict[str, _Topic] = {}
    for topic in request.topics:
        there: list[CommitPartition] = []
        response = responses.setdefault(topic.name, _Topic(name=topic.name, partitions=[]))
        for partition in topic.partitions:
            await STEP
            index = partition.partition_index
            if image.partition(topic.name, index) is not None:
                there.append(partition)
            else:
                unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                response.partitions.append(_Partition(partition_index=index, error_code=unknown))
        if there:
            valid.append(CommitTopic(topic.name, image.topics[topic.name].topic_id, there))
    if valid:
        commit = Commit(
            request.group_id,
            request.member_id,
            request.group_instance_id,
            request.generation_id,
            valid,
            ctx.api_version,
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
        )
        try:
            check_group_id(request.group_id)
            results = await ctx.broker.coordinators.groups.commit_in_transaction(commit, request.transactional_id)
        except ApiError as error:
            ctx.refused(request.group_id, error)
            results = all_partitions(commit, _code(error.code, ctx.api_version))
        for topic_, codes in zip(valid, results, strict=True):
            partitions = responses[topic_.name].partitions
            for index, code in codes:
                await STEP
                partitions.append(_Partition(partition_index=index, error_code=_code(code, ctx.api_version)))
    return TxnOffsetCommitResponse(topics=list(responses.values()))


def _code(code: ErrorCode, api_version: int) -> ErrorCode:
    """Clients of versions 0 and 1 do not know that a coordinator may be loading."""
    if api_version < _KNOWS_LOADING and code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return code
