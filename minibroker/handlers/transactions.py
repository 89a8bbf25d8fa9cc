"""AddPartitionsToTxn, AddOffsetsToTxn and EndTxn (keys 24, 25, 26).

AddPartitionsToTxn v0-3 is what clients send; v4-5 carries several transactions and comes from partition leaders
(KIP-890). PRODUCER_FENCED from v2 of each on, INVALID_PRODUCER_EPOCH below; EndTxn v5 bumps the epoch and answers it.
Kafka: KafkaApis.handleAddPartitionsToTxnRequest, handleAddOffsetsToTxnRequest, handleEndTxnRequest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from minibroker.coordinators.transactions.metadata import ProducerIdAndEpoch, TopicPartition
from minibroker.coordinators.transactions.refusals import Fenced, code_for_leader, wire_code
from minibroker.handlers.authorized import allowed
from minibroker.handlers.context import Answer, RequestContext
from minibroker.kernel.deferred import Deferred, gather
from minibroker.metadata.image import CONSUMER_OFFSETS_TOPIC, INTERNAL_TOPICS
from minibroker.releases.semantics import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    EPOCH_BUMPING_END_TXN,
    Ending,
)
from minibroker.security.acls import Operation, ResourceType
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
)

BATCHED_SINCE: Final = 4

_Topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
_Transaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
_Result = AddPartitionsToTxnResponse.AddPartitionsToTxnResult
_TopicResult = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
_PartitionResult = AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult

_NONE: Final = int(ErrorCode.NONE)


# -- AddPartitionsToTxn ------------------------------------------------------------------------------------------------


def handle_add_partitions(ctx: RequestContext, request: AddPartitionsToTxnRequest) -> Answer:
    """Every partition of a transaction gets the same code, except where one cannot join it: then nothing is added."""
    if ctx.api_version < BATCHED_SINCE:
        return _add_for_client(ctx, request)
    try:
        results = [_add_for_leader(ctx, transaction) for transaction in request.transactions]
    except ApiError as error:
        ctx.refused("the request", error)
        return AddPartitionsToTxnResponse(error_code=error.code)
    if all(result.done for result in results):
        return AddPartitionsToTxnResponse(results_by_transaction=[result.result() for result in results])
    answer: Deferred[AddPartitionsToTxnResponse] = Deferred()
    gather(results).then(lambda done: answer.resolve(AddPartitionsToTxnResponse(results_by_transaction=done.result())))
    return answer


def _add_for_client(ctx: RequestContext, request: AddPartitionsToTxnRequest) -> Answer:
    topics = request.v3_and_below_topics
    added = _add(
        ctx,
        request.v3_and_below_transactional_id,
        ProducerIdAndEpoch(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch),
        topics,
        transaction_version=0,
        for_client=True,
    )
    if added.done:
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=added.result())
    answer: Deferred[AddPartitionsToTxnResponse] = Deferred()
    added.then(lambda done: answer.resolve(AddPartitionsToTxnResponse(results_by_topic_v3_and_below=done.result())))
    return answer


def _add_for_leader(ctx: RequestContext, transaction: _Transaction) -> Deferred[_Result]:
    producer = ProducerIdAndEpoch(transaction.producer_id, transaction.producer_epoch)
    topic_results: Deferred[list[_TopicResult]]
    if transaction.verify_only:
        topic_results = Deferred()
        topic_results.resolve(_verify(ctx, transaction.transactional_id, producer, transaction.topics))
    else:
        topic_results = _add(
            ctx,
            transaction.transactional_id,
            producer,
            transaction.topics,
            transaction_version=2,
            for_client=False,
        )
    result: Deferred[_Result] = Deferred()
    topic_results.then(
        lambda done: result.resolve(_Result(transactional_id=transaction.transactional_id, topic_results=done.result()))
    )
    return result


def _add(
    ctx: RequestContext,
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    topics: Sequence[_Topic],
    *,
    transaction_version: int,
    for_client: bool,
) -> Deferred[list[_TopicResult]]:
    answer: Deferred[list[_TopicResult]] = Deferred()
    refused = _cannot_join(ctx, topics, for_client=for_client)
    if refused:
        answer.resolve(_not_attempted(topics, refused))
        return answer
    partitions = [(topic.name, index) for topic in topics for index in topic.partitions]
    try:
        added = ctx.broker.coordinators.transactions.add_partitions(
            transactional_id, producer, partitions, transaction_version=transaction_version
        )
    except ApiError as error:
        if error.code is ErrorCode.UNSUPPORTED_VERSION:  # cannot be logged: Kafka gives up the whole request
            raise
        answer.resolve(_same(topics, _refusal(ctx, ADD_PARTITIONS_TO_TXN, transactional_id, error)))
        return answer

    def done(result: Deferred[None]) -> None:
        try:
            result.result()
        except ApiError as error:
            answer.resolve(_same(topics, _refusal(ctx, ADD_PARTITIONS_TO_TXN, transactional_id, error)))
        else:
            answer.resolve(_same(topics, _NONE))

    added.then(done)
    return answer


def _verify(
    ctx: RequestContext, transactional_id: str, producer: ProducerIdAndEpoch, topics: Sequence[_Topic]
) -> list[_TopicResult]:
    refused = _cannot_join(ctx, topics, for_client=False)
    if refused:
        return _not_attempted(topics, refused)
    partitions = [(topic.name, index) for topic in topics for index in topic.partitions]
    try:
        codes = ctx.broker.coordinators.transactions.verify_partitions(transactional_id, producer, partitions)
    except ApiError as error:
        return _same(topics, _refusal(ctx, ADD_PARTITIONS_TO_TXN, transactional_id, error))
    for (topic_name, index), code in codes.items():
        if code is not ErrorCode.NONE:
            outside = f"{topic_name}-{index} is not in the running transaction of {producer}"
            ctx.refused(transactional_id, ApiError(code, outside))
    return [
        _TopicResult(
            name=topic.name,
            results_by_partition=[
                _PartitionResult(partition_index=index, partition_error_code=codes[topic.name, index])
                for index in topic.partitions
            ],
        )
        for topic in topics
    ]


def _cannot_join(ctx: RequestContext, topics: Sequence[_Topic], *, for_client: bool) -> dict[TopicPartition, ErrorCode]:
    """Partitions that cannot join a transaction, and why: they do not exist, or a client may not write to the topic,
    whether they exist or not. To an internal topic no client may; leaders add them, because offsets that commit with
    the transaction live there."""
    known = ctx.broker.image.topics
    codes: dict[TopicPartition, ErrorCode] = {}
    for topic in topics:
        image = known.get(topic.name)
        count = 0 if image is None else len(image.partitions)
        denied = for_client and not _may_write(ctx, topic.name)
        for index in topic.partitions:
            if denied:
                codes[topic.name, index] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif not 0 <= index < count:
                codes[topic.name, index] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return codes


def _may_write(ctx: RequestContext, topic: str) -> bool:
    if topic not in INTERNAL_TOPICS and allowed(ctx, Operation.WRITE, ResourceType.TOPIC, topic):
        return True
    reason = f"{ctx.connection.principal} may not WRITE TOPIC {topic}"
    ctx.refused(topic, ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, reason))
    return False


def _not_attempted(topics: Sequence[_Topic], refused: dict[TopicPartition, ErrorCode]) -> list[_TopicResult]:
    return [
        _TopicResult(
            name=topic.name,
            results_by_partition=[
                _PartitionResult(
                    partition_index=index,
                    partition_error_code=refused.get((topic.name, index), ErrorCode.OPERATION_NOT_ATTEMPTED),
                )
                for index in topic.partitions
            ],
        )
        for topic in topics
    ]


def _same(topics: Sequence[_Topic], code: int) -> list[_TopicResult]:
    return [
        _TopicResult(
            name=topic.name,
            results_by_partition=[
                _PartitionResult(partition_index=index, partition_error_code=code) for index in topic.partitions
            ],
        )
        for topic in topics
    ]


# -- AddOffsetsToTxn ---------------------------------------------------------------------------------------------------


async def handle_add_offsets(ctx: RequestContext, request: AddOffsetsToTxnRequest) -> AddOffsetsToTxnResponse:
    """The group's partition of ``__consumer_offsets`` joins the transaction."""
    partition = (CONSUMER_OFFSETS_TOPIC, ctx.broker.coordinators.groups.partition_for(request.group_id))
    try:
        await ctx.broker.coordinators.transactions.add_partitions(
            request.transactional_id,
            ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
            [partition],
            transaction_version=0,
        )
    except ApiError as error:
        code = _refusal(ctx, ADD_OFFSETS_TO_TXN, request.transactional_id, error)
        return AddOffsetsToTxnResponse(error_code=code)
    return AddOffsetsToTxnResponse()


# -- EndTxn ------------------------------------------------------------------------------------------------------------


def handle_end_txn(ctx: RequestContext, request: EndTxnRequest) -> Answer:
    """Answered when the decision is durable; the markers follow on their own."""
    try:
        ended = ctx.broker.coordinators.transactions.end_txn(
            request.transactional_id,
            ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
            commit=request.committed,
            transaction_version=2 if ctx.api_version >= EPOCH_BUMPING_END_TXN else 0,
        )
        if ended.done:
            return _ended(ended.result())
    except ApiError as error:
        return _not_ended(ctx, request, error)
    answer: Deferred[EndTxnResponse] = Deferred()

    def done(result: Deferred[ProducerIdAndEpoch]) -> None:
        try:
            response = _ended(result.result())
        except ApiError as error:
            response = _not_ended(ctx, request, error)
        answer.resolve(response)

    ended.then(done)
    return answer


def _ended(producer: ProducerIdAndEpoch) -> EndTxnResponse:
    return EndTxnResponse(producer_id=producer.producer_id, producer_epoch=producer.producer_epoch)


def _not_ended(ctx: RequestContext, request: EndTxnRequest, error: ApiError) -> EndTxnResponse:
    ending: Ending = "commit" if request.committed else "abort"
    code = _refusal(ctx, END_TXN, request.transactional_id, error, ending)
    if code == _NONE and isinstance(error, Fenced) and ctx.api_version >= EPOCH_BUMPING_END_TXN:
        return _ended(error.successor)
    return EndTxnResponse(error_code=code)


def _refusal(
    ctx: RequestContext, api_key: int, transactional_id: str, error: ApiError, ending: Ending | None = None
) -> int:
    semantics = ctx.broker.semantics
    if ctx.inter_broker:
        code: int = code_for_leader(error, semantics)
    else:
        code = wire_code(error, semantics, api_key, ctx.api_version, ending)
    if code != ErrorCode.NONE:  # an abort of what has timed out may be taken as done
        ctx.refused(transactional_id, error, code)
    return code
