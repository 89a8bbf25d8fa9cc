"""AddPartitionsToTxn, AddOffsetsToTxn and EndTxn (keys 24, 25, 26).

AddPartitionsToTxn v0-3 is what clients send; v4-5 carries several transactions and comes from partition leaders
(KIP-890). PRODUCER_FENCED from v2 of each on, INVALID_PRODUCER_EPOCH below; EndTxn v5 bumps the epoch and answers it.
Kafka: KafkaApis.handleAddPartitionsToTxnRequest, handleAddOffsetsToTxnRequest, handleEndTxnRequest.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final

from minibroker.coordinators.transactions.metadata import ProducerIdAndEpoch, TopicPartition
from minibroker.coordinators.transactions.refusals import Fenced, code_for_leader, wire_code
from minibroker.kernel.deferred import Deferred
from minibroker.kernel.turns import STEP
from minibroker.metadata.image import CONSUMER_OFFSETS_TOPIC, INTERNAL_TOPICS
from minibroker.releases.semantics import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    EPOCH_BUMPING_END_TXN,
    Ending,
)
from minibroker.requests.auth_helper import authorize
from minibroker.requests.context import Answer, RequestContext
from minibroker.security.acls import AclOperation, ResourceType
from minibroker_protocol import messages as m
from minibroker_protocol.errors import ApiError, ErrorCode

BATCHED_SINCE: Final = 4

_Topic = m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
_Transaction = m.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
_Result = m.AddPartitionsToTxnResponse.AddPartitionsToTxnResult
_TopicResult = m.AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
_PartitionResult = m.AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult

_NONE: Final = int(ErrorCode.NONE)


# -- AddPartitionsToTxn ------------------------------------------------------------------------------------------------


async def handle_add_partitions(
    ctx: RequestContext, request: m.AddPartitionsToTxnRequest
) -> m.AddPartitionsToTxnResponse:
    """Every partition of a transaction gets the same code, except where one cannot join it: then nothing is added.

    The partitions of one transaction join it together, at once; work before and after that is done in turns.
    """
    if ctx.api_version < BATCHED_SINCE:
        producer = ProducerIdAndEpoch(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
        topics = request.v3_and_below_topics
        transactional_id = request.v3_and_below_transactional_id
        added = await _add(ctx, transactional_id, producer, topics, transaction_version=0, for_client=True)
        return m.AddPartitionsToTxnResponse(results_by_topic_v3_and_below=await added())
    try:
        results = [await _asked_by_leader(ctx, transaction) for transaction in request.transactions]
    except ApiError as error:
        ctx.refused("the request", error)
        return m.AddPartitionsToTxnResponse(error_code=error.code)
    return m.AddPartitionsToTxnResponse(
        results_by_transaction=[
            _Result(transactional_id=transaction.transactional_id, topic_results=await result())
            for transaction, result in zip(request.transactions, results, strict=True)
        ]
    )


_Results = Callable[[], Coroutine[Any, Any, list[_TopicResult]]]
"""Waits for the request that was begun, and returns its results."""


async def _asked_by_leader(ctx: RequestContext, transaction: _Transaction) -> _Results:
    producer = ProducerIdAndEpoch(transaction.producer_id, transaction.producer_epoch)
    asked = (ctx, transaction.transactional_id, producer, transaction.topics)
    if transaction.verify_only:
        verified = await _verify(*asked)
        return partial(_as_it_is, verified)
    version = ctx.broker.semantics.leaders_add_for_version
    return await _add(*asked, transaction_version=version, for_client=False)


async def _as_it_is(results: list[_TopicResult]) -> list[_TopicResult]:
    return results


async def _add(
    ctx: RequestContext,
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    topics: Sequence[_Topic],
    *,
    transaction_version: int,
    for_client: bool,
) -> _Results:
    refused = await _cannot_join(ctx, topics, for_client=for_client)
    if refused:
        return partial(_each, topics, lambda partition: refused.get(partition, ErrorCode.OPERATION_NOT_ATTEMPTED))
    try:
        added = ctx.broker.coordinators.transactions.add_partitions(
            transactional_id, producer, _partitions(topics), transaction_version=transaction_version
        )
    except ApiError as error:
        if error.code is ErrorCode.UNSUPPORTED_VERSION:  # cannot be logged: Kafka gives up the whole request
            raise
        code = _refusal(ctx, ADD_PARTITIONS_TO_TXN, transactional_id, error)
        return partial(_each, topics, lambda _: code)

    async def results() -> list[_TopicResult]:
        code = _NONE
        try:
            await added
        except ApiError as error:
            code = _refusal(ctx, ADD_PARTITIONS_TO_TXN, transactional_id, error)
        return await _each(topics, lambda _: code)

    return results


async def _verify(
    ctx: RequestContext, transactional_id: str, producer: ProducerIdAndEpoch, topics: Sequence[_Topic]
) -> list[_TopicResult]:
    refused = await _cannot_join(ctx, topics, for_client=False)
    if refused:
        return await _each(topics, lambda partition: refused.get(partition, ErrorCode.OPERATION_NOT_ATTEMPTED))
    try:
        codes = ctx.broker.coordinators.transactions.verify_partitions(transactional_id, producer, _partitions(topics))
    except ApiError as error:
        code = _refusal(ctx, ADD_PARTITIONS_TO_TXN, transactional_id, error)
        return await _each(topics, lambda _: code)
    for (topic_name, index), code in codes.items():
        await STEP
        if code is not ErrorCode.NONE:
            outside = f"{topic_name}-{index} is not in the running transaction of {producer}"
            ctx.refused(transactional_id, ApiError(code, outside))
    return await _each(topics, codes.__getitem__)


def _partitions(topics: Sequence[_Topic]) -> list[TopicPartition]:
    return [(topic.name, index) for topic in topics for index in topic.partitions]


async def _cannot_join(
    ctx: RequestContext, topics: Sequence[_Topic], *, for_client: bool
) -> dict[TopicPartition, ErrorCode]:
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
            await STEP
            if denied:
                codes[topic.name, index] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif not 0 <= index < count:
                codes[topic.name, index] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return codes


def _may_write(ctx: RequestContext, topic: str) -> bool:
    if topic not in INTERNAL_TOPICS and authorize(ctx, AclOperation.WRITE, ResourceType.TOPIC, topic):
        return True
    reason = f"{ctx.connection.principal} may not WRITE TOPIC {topic}"
    ctx.refused(topic, ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, reason))
    return False


async def _each(topics: Sequence[_Topic], code_of: Callable[[TopicPartition], int]) -> list[_TopicResult]:
    results = []
    for topic in topics:
        partitions = []
        for index in topic.partitions:
            await STEP
            partitions.append(
                _PartitionResult(partition_index=index, partition_error_code=code_of((topic.name, index)))
            )
        results.append(_TopicResult(name=topic.name, results_by_partition=partitions))
    return results


# -- AddOffsetsToTxn ---------------------------------------------------------------------------------------------------


async def handle_add_offsets(ctx: RequestContext, request: m.AddOffsetsToTxnRequest) -> m.AddOffsetsToTxnResponse:
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
        return m.AddOffsetsToTxnResponse(error_code=code)
    return m.AddOffsetsToTxnResponse()


# -- EndTxn ------------------------------------------------------------------------------------------------------------


def handle_end_txn(ctx: RequestContext, request: m.EndTxnRequest) -> Answer:
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
    answer: Deferred[m.EndTxnResponse] = Deferred()

    def done(result: Deferred[ProducerIdAndEpoch]) -> None:
        try:
            response = _ended(result.result())
        except ApiError as error:
            response = _not_ended(ctx, request, error)
        answer.resolve(response)

    ended.then(done)
    return answer


def _ended(producer: ProducerIdAndEpoch) -> m.EndTxnResponse:
    return m.EndTxnResponse(producer_id=producer.producer_id, producer_epoch=producer.producer_epoch)


def _not_ended(ctx: RequestContext, request: m.EndTxnRequest, error: ApiError) -> m.EndTxnResponse:
    ending: Ending = "commit" if request.committed else "abort"
    code = _refusal(ctx, END_TXN, request.transactional_id, error, ending)
    if code == _NONE and isinstance(error, Fenced) and ctx.api_version >= EPOCH_BUMPING_END_TXN:
        return _ended(error.successor)
    return m.EndTxnResponse(error_code=code)


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
