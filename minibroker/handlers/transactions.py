"""AddPartitionsToTxn, AddOffsetsToTxn and EndTxn (keys 24, 25, 26).

AddPartitionsToTxn v0-3 is what clients send; v4-5 carries several transactions and comes from partition leaders
(KIP-890). PRODUCER_FENCED from v2 of each on, INVALID_PRODUCER_EPOCH below; EndTxn v5 bumps the epoch and answers it.
Kafka: KafkaApis.handleAddPartitionsToTxnRequest, handleAddOffsetsToTxnRequest, handleEndTxnRequest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from minibroker.coordinators.transactions.metadata import ProducerIdAndEpoch, TopicPartition
from minibroker.coordinators.transactions.refusals import Fenced, code_for_leader, wire_code
from minibroker.kernel.deferred import Deferred, gather
from minibroker.metadata.image import CONSUMER_OFFSETS_TOPIC, INTERNAL_TOPICS
from minibroker.releases.semantics import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    EPOCH_BUMPING_END_TXN,
    Ending,
)
from minibroker.requests.answers import follow, outcome_of
from minibroker.requests.auth_helper import authorize
from minibroker.requests.context import Answer, RequestContext
from minibroker.requests.slices import in_slices
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


def handle_add_partitions(ctx: RequestContext, request: m.AddPartitionsToTxnRequest) -> Answer:
    """Every partition of a transaction gets the same code, except where one cannot join it: then nothing is added."""
    if ctx.api_version < BATCHED_SINCE:
        producer = ProducerIdAndEpoch(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
        join = _Join(ctx, request.v3_and_below_transactional_id, producer, request.v3_and_below_topics)
        return _Joining(
            ctx, [join], lambda: m.AddPartitionsToTxnResponse(results_by_topic_v3_and_below=join.results)
        ).answer()
    joins = [
        _Join(ctx, each.transactional_id, ProducerIdAndEpoch(each.producer_id, each.producer_epoch), each.topics, each)
        for each in request.transactions
    ]

    def response() -> m.AddPartitionsToTxnResponse:
        error = next((join.given_up for join in joins if join.given_up is not None), None)
        if error is not None:
            ctx.refused("the request", error)
            return m.AddPartitionsToTxnResponse(error_code=error.code)
        return m.AddPartitionsToTxnResponse(
            results_by_transaction=[
                _Result(transactional_id=join.transactional_id, topic_results=join.results) for join in joins
            ]
        )

    return _Joining(ctx, joins, response).answer()


class _Join:
    """One transaction of a request while it is served.

    given_up: the error that ends the whole request.
    """

    def __init__(
        self,
        ctx: RequestContext,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        topics: Sequence[_Topic],
        of_leader: _Transaction | None = None,
    ) -> None:
        """of_leader: what a partition leader asks; None for a client."""
        self._ctx = ctx
        self.transactional_id = transactional_id
        self._producer = producer
        self.topics = topics
        self._for_client = of_leader is None
        self._verify_only = of_leader is not None and of_leader.verify_only
        self.results: list[_TopicResult] = []
        self.given_up: ApiError | None = None
        #: partitions that cannot join a transaction, and why
        self._refused: dict[TopicPartition, ErrorCode] = {}
        self._codes: Mapping[TopicPartition, ErrorCode] = {}
        self._code = _NONE

    def begin(self, topic: _Topic) -> list[_Joined]:
        """The partitions of a topic, each with its place in the answer. Notes those that cannot join a transaction:
        they do not exist, or a client may not write to the topic, whether it exists or not. To an internal topic no
        client may; leaders add them, because offsets that commit with the transaction live there."""
        image = self._ctx.broker.image.topics.get(topic.name)
        count = 0 if image is None else len(image.partitions)
        result = _TopicResult(name=topic.name, results_by_partition=[])
        self.results.append(result)
        if self._for_client and not _may_write(self._ctx, topic.name):
            for index in topic.partitions:
                self._refused[topic.name, index] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        else:
            for index in topic.partitions:
                if not 0 <= index < count:
                    self._refused[topic.name, index] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return [(self, result, index) for index in topic.partitions]

    def ask(self) -> Deferred[None] | None:
        """Have the coordinator decide; what is to be waited for."""
        if self._refused:
            return None
        transactions = self._ctx.broker.coordinators.transactions
        partitions = [(topic.name, index) for topic in self.topics for index in topic.partitions]
        try:
            if self._verify_only:
                self._codes = transactions.verify_partitions(self.transactional_id, self._producer, partitions)
                return None
            version = 0 if self._for_client else self._ctx.broker.semantics.leaders_add_for_version
            added = transactions.add_partitions(
                self.transactional_id, self._producer, partitions, transaction_version=version
            )
        except ApiError as error:
            if error.code is not ErrorCode.UNSUPPORTED_VERSION:
                self._fail(error)
                return None
            if self._for_client:
                raise
            self.given_up = error  # cannot be logged: Kafka gives up the whole request
            return None
        outcome = outcome_of(lambda: added, lambda _: None, self._fail)
        return outcome if isinstance(outcome, Deferred) else None

    def _fail(self, error: ApiError) -> None:
        self._code = _refusal(self._ctx, ADD_PARTITIONS_TO_TXN, self.transactional_id, error)

    def code_of(self, partition: TopicPartition) -> int:
        if self._refused:
            return self._refused.get(partition, ErrorCode.OPERATION_NOT_ATTEMPTED)
        code = self._codes.get(partition, ErrorCode.NONE)
        if code is not ErrorCode.NONE:
            topic, index = partition
            outside = f"{topic}-{index} is not in the running transaction of {self._producer}"
            self._ctx.refused(self.transactional_id, ApiError(code, outside))
            return code
        return self._code


_Joined = tuple[_Join, _TopicResult, int]
"""A partition of a request, and where its result goes."""


class _Joining:
    """A request while it is served. Its topics are looked at in slices; those of one transaction join it together,
    at once; the answer is made in slices, once all is durable."""

    def __init__(
        self, ctx: RequestContext, joins: Sequence[_Join], response: Callable[[], m.AddPartitionsToTxnResponse]
    ) -> None:
        self._ctx, self._joins, self._response = ctx, joins, response
        self._partitions: list[_Joined] = []
        self._durable: list[Deferred[None]] = []

    def answer(self) -> Answer:
        topics = [(join, topic) for join in self._joins for topic in join.topics]
        return in_slices(self._ctx, topics, self._begin, self._ask_all)

    def _begin(self, some: Sequence[tuple[_Join, _Topic]]) -> None:
        for join, topic in some:
            self._partitions += join.begin(topic)

    def _ask_all(self) -> Answer:
        return in_slices(self._ctx, self._joins, self._ask, self._wait)

    def _ask(self, some: Sequence[_Join]) -> None:
        self._durable += [durable for durable in (join.ask() for join in some) if durable is not None]

    def _wait(self) -> Answer:
        if not self._durable:
            return self._answer_all()
        return follow(gather(self._durable), lambda _: self._answer_all())

    def _answer_all(self) -> Answer:
        return in_slices(self._ctx, self._partitions, self._answer, self._response)

    def _answer(self, some: Sequence[_Joined]) -> None:
        for join, result, index in some:
            code = join.code_of((result.name, index))
            result.results_by_partition.append(_PartitionResult(partition_index=index, partition_error_code=code))


def _may_write(ctx: RequestContext, topic: str) -> bool:
    if topic not in INTERNAL_TOPICS and authorize(ctx, AclOperation.WRITE, ResourceType.TOPIC, topic):
        return True
    reason = f"{ctx.connection.principal} may not WRITE TOPIC {topic}"
    ctx.refused(topic, ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, reason))
    return False


# -- AddOffsetsToTxn ---------------------------------------------------------------------------------------------------


def handle_add_offsets(ctx: RequestContext, request: m.AddOffsetsToTxnRequest) -> Answer:
    """The group's partition of ``__consumer_offsets`` joins the transaction."""

    def add() -> Deferred[None]:
        partition = (CONSUMER_OFFSETS_TOPIC, ctx.broker.coordinators.groups.partition_for(request.group_id))
        producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
        transactions = ctx.broker.coordinators.transactions
        return transactions.add_partitions(request.transactional_id, producer, [partition], transaction_version=0)

    def refused(error: ApiError) -> m.AddOffsetsToTxnResponse:
        code = _refusal(ctx, ADD_OFFSETS_TO_TXN, request.transactional_id, error)
        return m.AddOffsetsToTxnResponse(error_code=code)

    return outcome_of(add, lambda _: m.AddOffsetsToTxnResponse(), refused)


# -- EndTxn ------------------------------------------------------------------------------------------------------------


def handle_end_txn(ctx: RequestContext, request: m.EndTxnRequest) -> Answer:
    """Answered when the decision is durable; the markers follow on their own."""
    ended = partial(
        ctx.broker.coordinators.transactions.end_txn,
        request.transactional_id,
        ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
        commit=request.committed,
        transaction_version=2 if ctx.api_version >= EPOCH_BUMPING_END_TXN else 0,
    )
    return outcome_of(ended, _ended, partial(_not_ended, ctx, request))


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
