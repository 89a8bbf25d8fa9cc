"""Errors by which a Kafka makes clients retry and this broker would not need to (`minibroker.not.yet.answers`).

Counted, not timed, so that every run is alike. A live Kafka 4.4.0 needs 81 to 111 ms for the first coordinator of a
kind, 36 to 66 ms for a topic and 2 to 4 ms for the markers of a transaction; the counts are those of a client that
retries after 100 ms, and after 20 ms within a transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from minibroker.coordinators.transactions.metadata import TransactionMetadata
from minibroker.coordinators.transactions.states import ONGOING, PREPARED
from minibroker.metadata.image import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from minibroker.requests.answers import follow
from minibroker.requests.api import Api
from minibroker.requests.context import Answer, Handler, RequestContext
from minibroker.requests.error_responses import refused
from minibroker_protocol import messages as m
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.fields import NO_ID

_FIRST_COORDINATOR: Final[Mapping[str, int]] = {CONSUMER_OFFSETS_TOPIC: 1, TRANSACTION_STATE_TOPIC: 2}
"""How often the first coordinator of each kind is not available."""
_NEW_TOPIC: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE)
"""To the Metadata that creates the topic, and to the next one that names it."""
_FIRST_PRODUCER: Final = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
"""To the first and the second InitProducerId of a new cluster; a busy Kafka gives them more often."""
_JOINS_REFUSED: Final = 1
"""Requests that would begin the next transaction, after each end of one."""
_TOPIC_OF_KEY_TYPE: Final = {0: CONSUMER_OFFSETS_TOPIC, 1: TRANSACTION_STATE_TOPIC}

_Onward = Handler


class NotYet:
    """`Link` of one broker, for requests of clients and of brokers.

    It remembers topics that a client's request created, with the answers that their clients still have to get, and
    transactional ids whose transaction a client has ended and no client has seen complete.
    """

    def __init__(self) -> None:
        self._of_topics: dict[str, list[ErrorCode]] = {}
        self._topics_seen: set[bytes] = set()
        self._of_first_producer: list[ErrorCode] | None = None  # not known before the first InitProducerId
        self._joins: dict[str, int] = {}
        self._answers: Mapping[int, Callable[[RequestContext, Any, _Onward], Answer]] = {
            m.MetadataRequest.__api_key__: self._metadata,
            m.FindCoordinatorRequest.__api_key__: self._find_coordinator,
            m.InitProducerIdRequest.__api_key__: self._init_producer_id,
            m.AddPartitionsToTxnRequest.__api_key__: self._add_partitions,
            m.AddOffsetsToTxnRequest.__api_key__: self._add_offsets,
            m.EndTxnRequest.__api_key__: self._end_txn,
            m.DescribeTransactionsRequest.__api_key__: self._describe_transactions,
        }

    def around(self, api: Api, onward: Handler) -> Handler:
        answer = self._answers.get(api.key)
        return onward if answer is None else lambda ctx, request: answer(ctx, request, onward)

    # -- topics ------------------------------------------------------------------------------------------------------

    def _created(self, ctx: RequestContext, missing: Sequence[str]) -> None:
        """Remember the topics that were missing before the request and exist now."""
        for name in missing:
            topic = ctx.broker.image.topics.get(name)
            if topic is not None and topic.topic_id not in self._topics_seen:
                self._topics_seen.add(topic.topic_id)
                times = _FIRST_COORDINATOR.get(name)
                codes = [ErrorCode.COORDINATOR_NOT_AVAILABLE] * times if times else list(_NEW_TOPIC)
                self._of_topics[name] = codes

    def _next_code(self, ctx: RequestContext, topic: str) -> ErrorCode | None:
        """The code to answer with instead of the topic or its coordinator, None when the client need not wait."""
        codes = self._of_topics.get(topic)
        if codes is None:
            return None
        code = codes.pop(0)
        if not codes:
            del self._of_topics[topic]
        _note(ctx, topic, code, f"{topic} was created a moment ago")
        return code

    def _metadata(self, ctx: RequestContext, request: m.MetadataRequest, onward: _Onward) -> Answer:
        named = {topic.name for topic in request.topics or () if topic.name is not None and topic.topic_id == NO_ID}
        missing = sorted(named - ctx.broker.image.topics.keys())

        def described(answer: m.MetadataResponse) -> m.MetadataResponse:
            self._created(ctx, missing)
            for topic in answer.topics if self._of_topics and named else ():
                if topic.error_code != ErrorCode.NONE or topic.is_internal or topic.name not in named:
                    continue
                code = self._next_code(ctx, topic.name)
                if code is not None:
                    topic.error_code, topic.topic_id, topic.partitions = code, NO_ID, []
            return answer

        return follow(onward(ctx, request), described)

    def _find_coordinator(self, ctx: RequestContext, request: m.FindCoordinatorRequest, onward: _Onward) -> Answer:
        topic = _TOPIC_OF_KEY_TYPE.get(request.key_type, "")
        missing = [topic] if topic not in ctx.broker.image.topics else []

        def described(answer: m.FindCoordinatorResponse) -> m.FindCoordinatorResponse:
            self._created(ctx, missing)
            for coordinator in answer.coordinators or (answer,):
                code = self._next_code(ctx, topic) if coordinator.error_code == ErrorCode.NONE else None
                if code is not None:
                    coordinator.error_code, coordinator.error_message = code, _why(f"{topic} was created a moment ago")
                    coordinator.node_id, coordinator.host, coordinator.port = -1, "", -1
            return answer

        return follow(onward(ctx, request), described)

    # -- transactions ------------------------------------------------------------------------------------------------

    def _init_producer_id(self, ctx: RequestContext, request: m.InitProducerIdRequest, onward: _Onward) -> Answer:
        name = request.transactional_id
        if name is None:
            return onward(ctx, request)
        transactions = ctx.broker.coordinators.transactions
        try:
            transactions.checked_init(
                name,
                request.transaction_timeout_ms,
                enable_two_phase_commit=request.enable2_pc,
                keep_prepared_transaction=request.keep_prepared_txn,
            )
        except ApiError:
            return onward(ctx, request)  # which refuses it
        if self._of_first_producer is None:
            self._of_first_producer = list(_FIRST_PRODUCER) if transactions.is_new else []
        if self._of_first_producer:
            code = self._of_first_producer.pop(0)
            _note(ctx, name, code, f"{TRANSACTION_STATE_TOPIC} was created a moment ago")
            return m.InitProducerIdResponse(error_code=code, producer_epoch=-1)

        def begun(answer: m.InitProducerIdResponse) -> m.InitProducerIdResponse:
            if answer.error_code == ErrorCode.NONE:
                self._joins.pop(name, None)  # a new instance has waited for the markers
            return answer

        return follow(onward(ctx, request), begun)

    def _end_txn(self, ctx: RequestContext, request: m.EndTxnRequest, onward: _Onward) -> Answer:
        name = request.transactional_id
        running = _runs(ctx, name)

        def ended(answer: m.EndTxnResponse) -> m.EndTxnResponse:
            if running and answer.error_code == ErrorCode.NONE:
                self._joins[name] = _JOINS_REFUSED
            return answer

        return follow(onward(ctx, request), ended)

    def _refuses_join(self, ctx: RequestContext, name: str, producer_id: int, epoch: int) -> bool:
        # Another producer id or epoch is refused by the coordinator, in the order of checks of its release.
        if name not in self._joins or not _is_current(ctx, name, producer_id, epoch):
            return False
        times = self._joins.pop(name)
        if times > 1:
            self._joins[name] = times - 1
        _note(ctx, name, ErrorCode.CONCURRENT_TRANSACTIONS, "the markers of its last transaction are on their way")
        return True

    def _add_partitions(self, ctx: RequestContext, request: m.AddPartitionsToTxnRequest, onward: _Onward) -> Answer:
        if not self._joins:
            return onward(ctx, request)
        if not request.transactions:
            if self._refuses_join(
                ctx,
                request.v3_and_below_transactional_id,
                request.v3_and_below_producer_id,
                request.v3_and_below_producer_epoch,
            ):
                return refused(request, ctx.api_version, ErrorCode.CONCURRENT_TRANSACTIONS)
            return onward(ctx, request)
        waiting: list[m.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction] = []
        others: list[m.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction] = []
        for transaction in request.transactions:
            waits = not transaction.verify_only and self._refuses_join(
                ctx, transaction.transactional_id, transaction.producer_id, transaction.producer_epoch
            )
            (waiting if waits else others).append(transaction)
        if not waiting:
            return onward(ctx, request)
        answered = m.AddPartitionsToTxnRequest(transactions=waiting)
        told_to_wait: Any = refused(answered, ctx.api_version, ErrorCode.CONCURRENT_TRANSACTIONS)
        told_to_wait.error_code = ErrorCode.NONE
        if not others:
            return told_to_wait  # type: ignore[no-any-return]

        def joined(answer: m.AddPartitionsToTxnResponse) -> m.AddPartitionsToTxnResponse:
            answer.results_by_transaction = [*answer.results_by_transaction, *told_to_wait.results_by_transaction]
            return answer

        return follow(onward(ctx, m.AddPartitionsToTxnRequest(transactions=others)), joined)

    def _add_offsets(self, ctx: RequestContext, request: m.AddOffsetsToTxnRequest, onward: _Onward) -> Answer:
        if self._refuses_join(ctx, request.transactional_id, request.producer_id, request.producer_epoch):
            return m.AddOffsetsToTxnResponse(error_code=ErrorCode.CONCURRENT_TRANSACTIONS)
        return onward(ctx, request)

    def _describe_transactions(self, ctx: RequestContext, request: Any, onward: _Onward) -> Answer:
        def described(answer: m.DescribeTransactionsResponse) -> m.DescribeTransactionsResponse:
            for state in answer.transaction_states if self._joins else ():
                if state.error_code == ErrorCode.NONE and state.transaction_state not in _ENDING:
                    self._joins.pop(state.transactional_id, None)  # who has seen it complete need not wait
            return answer

        return follow(onward(ctx, request), described)


_ENDING: Final = frozenset(state.label for state in PREPARED)


def _runs(ctx: RequestContext, transactional_id: str) -> bool:
    """Whether an EndTxn would end a transaction that has partitions."""
    metadata = _metadata(ctx, transactional_id)
    return metadata is not None and metadata.state is ONGOING and bool(metadata.partitions)


def _is_current(ctx: RequestContext, transactional_id: str, producer_id: int, epoch: int) -> bool:
    metadata = _metadata(ctx, transactional_id)
    return metadata is not None and (metadata.producer_id, metadata.producer_epoch) == (producer_id, epoch)


def _metadata(ctx: RequestContext, transactional_id: str) -> TransactionMetadata | None:
    """The state of the id in this broker's coordinator; None if it has none, or does not coordinate the id."""
    try:
        return ctx.broker.coordinators.transactions.describe(transactional_id).metadata
    except ApiError:
        return None


def _why(reason: str) -> str:
    return f"{reason} (minibroker.not.yet.answers)"


def _note(ctx: RequestContext, subject: str, code: ErrorCode, reason: str) -> None:
    ctx.refused(subject, ApiError(code, _why(reason)))
