"""Fetch (key 1): read record batches, waiting for them when there are none.

Versions 4-18. v4 isolation level and aborted transactions; v5 log start offset; v7 sessions (KIP-227); v9 current
leader epoch; v12 last fetched epoch and diverging epoch; v13 topic ids; v15 replica state.
Kafka: KafkaApis.handleFetchRequest, ReplicaManager.fetchMessages, DelayedFetch.

Errors: top level FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR; per partition
OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH,
UNKNOWN_LEADER_EPOCH, KAFKA_STORAGE_ERROR, TOPIC_AUTHORIZATION_FAILED.

This module has the steps of a request; `fetch_targets` finds its partitions, `fetch_log` reads and waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from minibroker.broker.fetch_sessions import INVALID_SESSION_ID, FetchSession, FetchTarget, PartitionKey
from minibroker.handlers import follower_fetch
from minibroker.handlers.fetch_log import is_enough, read_some, room_for_answer, wait_for_enough
from minibroker.handlers.fetch_targets import Fetch, Named, Read, forget_targets, name_targets, open_fetch
from minibroker.kernel.turns import AT_A_TIME
from minibroker.requests.context import Answer, RequestContext
from minibroker.requests.slices import in_slices
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.fetch import FetchRequest, FetchResponse

_CURRENT_LEADER_VERSION = 16
_MOVED = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})


def handle(ctx: RequestContext, request: FetchRequest) -> Answer:
    if ctx.inter_broker:
        return follower_fetch.handle(ctx, request)
    fetch = Fetch(ctx, request)
    named = [(topic, partition) for topic in request.topics for partition in topic.partitions]
    if len(named) > AT_A_TIME or request.forgotten_topics_data:
        return _name_and_open(ctx, request, fetch, named)
    targets: dict[PartitionKey, FetchTarget] = {}
    name_targets(ctx, targets, named)
    return _open_and_read(ctx, request, fetch, targets, [])


def _name_and_open(ctx: RequestContext, request: FetchRequest, fetch: Fetch, named: Sequence[Named]) -> Answer:
    """Name the targets of a long request in slices, then open and read."""
    targets: dict[PartitionKey, FetchTarget] = {}
    forgotten: list[PartitionKey] = []

    def forget() -> Answer:
        return in_slices(ctx, request.forgotten_topics_data, partial(forget_targets, ctx, forgotten), read)

    def read() -> Answer:
        return _open_and_read(ctx, request, fetch, targets, forgotten)

    return in_slices(ctx, named, partial(name_targets, ctx, targets), forget)


def _open_and_read(
    ctx: RequestContext,
    request: FetchRequest,
    fetch: Fetch,
    targets: dict[PartitionKey, FetchTarget],
    forgotten: list[PartitionKey],
) -> Answer:
    refusal = open_fetch(ctx, request, fetch, targets, forgotten)
    if refusal is not None:
        return refusal
    if len(fetch.targets) > AT_A_TIME:
        return _read_again(ctx, request, fetch, False)
    fetch.remaining = room_for_answer(ctx, fetch)
    read_some(ctx, fetch, fetch.targets)
    return _answer_or_wait(ctx, request, fetch, False)


def _read_again(ctx: RequestContext, request: FetchRequest, fetch: Fetch, waited: bool) -> Answer:
    """Read every partition, after the wait or for the first time."""
    if waited:
        ctx.begin_turn()
    fetch.reads, fetch.idle, fetch.nothing_yet = [], [], True
    fetch.remaining = room_for_answer(ctx, fetch)
    read = partial(read_some, ctx, fetch)
    return in_slices(ctx, fetch.targets, read, lambda: _answer_or_wait(ctx, request, fetch, waited))


def _answer_or_wait(ctx: RequestContext, request: FetchRequest, fetch: Fetch, waited: bool) -> Answer:
    if not waited and not is_enough(request, fetch):
        return wait_for_enough(ctx, request, fetch, partial(_read_again, ctx, request, fetch, True))
    reads = fetch.reads if len(fetch.reads) < 2 else _in_order(fetch.reads)
    if len(reads) > AT_A_TIME:
        return in_slices(ctx, reads, partial(_add, ctx, fetch), lambda: _response(fetch))
    _add(ctx, fetch, reads)
    return _response(fetch)


# -- answering ---------------------------------------------------------------------------------------------------------


def _in_order(reads: list[Read]) -> list[Read]:
    """In Kafka's order: partitions refused before their log was read come last, unknown ids before names."""
    if all(read.routed for read in reads):
        return reads
    return sorted(
        reads, key=lambda read: 0 if read.routed else 1 if read.data.error_code == ErrorCode.UNKNOWN_TOPIC_ID else 2
    )


def _add(ctx: RequestContext, fetch: Fetch, reads: Sequence[Read]) -> None:
    """Put reads into the answer."""
    session, responses = fetch.session, fetch.responses
    current = responses[-1] if responses else None
    for read in reads:
        if session is not None and not _is_news(fetch, session, read):
            continue
        target = read.target
        if current is None or current.topic != target.topic or current.topic_id != target.topic_id:
            current = FetchResponse.FetchableTopicResponse(topic=target.topic, topic_id=target.topic_id)
            responses.append(current)
        if read.data.error_code in _MOVED and ctx.api_version >= _CURRENT_LEADER_VERSION:
            _tell_leader(ctx, read, {} if fetch.follower else fetch.nodes)
        current.partitions.append(read.data)


def _response(fetch: Fetch) -> FetchResponse:
    session = fetch.session
    return FetchResponse(
        session_id=session.id if session is not None else INVALID_SESSION_ID,
        responses=fetch.responses,
        node_endpoints=list(fetch.nodes.values()),
    )


def _is_news(fetch: Fetch, session: FetchSession, read: Read) -> bool:
    """Whether an incremental answer must name the partition; remembers what the answer tells the client."""
    target, data = read.target, read.data
    news = (
        fetch.full
        or read.size > 0
        or data.error_code != 0
        or data.diverging_epoch is not None
        or data.high_watermark != target.known_high_watermark
        or data.log_start_offset != target.known_log_start
    )
    if data.error_code != 0:
        # An error is repeated in every answer while it lasts, and the first answer after it names the partition.
        target.known_high_watermark = target.known_log_start = -1
    else:
        target.known_high_watermark = data.high_watermark
        target.known_log_start = data.log_start_offset
    if read.size > 0 and not fetch.full:
        session.moved_to_end(target.key)
    return news


def _tell_leader(ctx: RequestContext, read: Read, nodes: dict[int, FetchResponse.NodeEndpoint]) -> None:
    """The current leader (KIP-951), and where it is for a consumer: a follower gets no addresses (KafkaApis). Versions
    before 16 have no field for them."""
    image = ctx.broker.image
    current = image.partition(read.target.topic, read.target.index)
    leader = image.brokers.get(current.leader) if current is not None else None
    if current is None or leader is None:
        return
    read.data.current_leader = FetchResponse.LeaderIdAndEpoch(
        leader_id=current.leader, leader_epoch=current.leader_epoch
    )
    nodes[leader.node_id] = FetchResponse.NodeEndpoint(
        node_id=leader.node_id, host=leader.host, port=leader.port, rack=leader.rack
    )
