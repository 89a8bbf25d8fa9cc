"""DescribeTransactions and ListTransactions (keys 65, 66): what the coordinator knows (KIP-664, KIP-994, KIP-1152).

ListTransactions v1 filters by duration, v2 by a pattern of the whole transactional id. Errors: INVALID_REQUEST,
COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR, TRANSACTIONAL_ID_NOT_FOUND, INVALID_REGULAR_EXPRESSION.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from minibroker.coordinators.patterns import compile_pattern, takes_long
from minibroker.coordinators.transactions import queries
from minibroker.coordinators.transactions.metadata import TransactionEntry
from minibroker.coordinators.transactions.states import BY_LABEL
from minibroker.kernel.deferred import Deferred, mapped, resolved
from minibroker.requests.answers import outcome_of
from minibroker.requests.auth_helper import authorize
from minibroker.requests.context import Answer, RequestContext
from minibroker.requests.slices import in_slices
from minibroker.security.acls import AclOperation, ResourceType
from minibroker_protocol import messages as m
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.records import Pace

_Described = m.DescribeTransactionsResponse.TransactionState
_Topic = m.DescribeTransactionsResponse.TopicData
_Listed = m.ListTransactionsResponse.TransactionState


def handle_describe(ctx: RequestContext, request: m.DescribeTransactionsRequest) -> m.DescribeTransactionsResponse:
    states = [_describe(ctx, transactional_id) for transactional_id in request.transactional_ids]
    return m.DescribeTransactionsResponse(transaction_states=states)


def _describe(ctx: RequestContext, transactional_id: str) -> _Described:
    try:
        entry = ctx.broker.coordinators.transactions.describe(transactional_id)
    except ApiError as error:
        ctx.refused(transactional_id, error)
        return _Described(
            error_code=error.code,
            transactional_id=transactional_id,
            transaction_timeout_ms=0,
            transaction_start_time_ms=0,
            producer_id=0,
            producer_epoch=0,
        )
    metadata = entry.metadata
    return _Described(
        transactional_id=transactional_id,
        transaction_state=metadata.state.label,
        transaction_timeout_ms=metadata.timeout_ms,
        transaction_start_time_ms=queries.start_of(entry),
        producer_id=metadata.producer_id,
        producer_epoch=entry.epoch,
        # As KafkaApis.handleDescribeTransactionsRequest: the right to an id names no topics.
        topics=[
            _Topic(topic=topic, partitions=indexes)
            for topic, indexes in queries.partitions_of(entry)
            if authorize(ctx, AclOperation.DESCRIBE, ResourceType.TOPIC, topic)
        ],
    )


def handle_list(ctx: RequestContext, request: m.ListTransactionsRequest) -> Answer:
    """Unknown state names are given back, each once, and match nothing."""
    unknown = [name for name in dict.fromkeys(request.state_filters) if name not in BY_LABEL]
    listed_ids: list[_Listed] = []

    def matches() -> Deferred[_Matches]:
        return _matches(ctx, request.transactional_id_pattern, [name for name, _ in entries])

    def choose_all(matched: _Matches) -> Answer:
        wanted = queries.TransactionFilter(
            states=frozenset(request.state_filters),
            producer_ids=frozenset(request.producer_id_filters),
            longer_than_ms=request.duration_filter,
            matches=matched,
        )
        now_ms = ctx.broker.clock.now_ms()

        def choose(some: Sequence[tuple[str, TransactionEntry]]) -> None:
            for transactional_id, entry in some:
                if wanted.passes(transactional_id, entry, now_ms):
                    metadata = entry.metadata
                    listed = _Listed(
                        transactional_id=transactional_id,
                        producer_id=metadata.producer_id,
                        transaction_state=metadata.state.label,
                    )
                    listed_ids.append(listed)

        response = m.ListTransactionsResponse(
            error_code=ErrorCode.NONE, unknown_state_filters=unknown, transaction_states=listed_ids
        )
        return in_slices(ctx, entries, choose, lambda: response, keep=False)

    def refused(error: ApiError) -> m.ListTransactionsResponse:
        ctx.refused("all transactional ids", error)
        return m.ListTransactionsResponse(error_code=error.code, unknown_state_filters=[])

    try:
        entries = ctx.broker.coordinators.transactions.entries()
    except ApiError as error:
        return refused(error)
    return outcome_of(matches, choose_all, refused)


_Matches = Callable[[str], bool] | None


def _matches(ctx: RequestContext, text: str | None, names: Sequence[str]) -> Deferred[_Matches]:
    """Whether an id of `names` matches the pattern; None without one. Raises INVALID_REGULAR_EXPRESSION."""
    if not takes_long(text, names):
        pattern = compile_pattern(text)
        return resolved(None if pattern is None else pattern.search())

    def work(pace: Pace) -> frozenset[str]:
        pattern = compile_pattern(text)
        assert pattern is not None
        return pattern.matching(names, pace)

    return mapped(ctx.broker.executor.compute(work), lambda matching: matching.__contains__)
