"""Fetch (key 1): read record batches, waiting for them when there are none.

Versions 4-18. v4 isolation level and aborted transactions; v5 log start offset; v7 sessions (KIP-227); v9 current
leader epoch; v12 last fetched epoch and diverging epoch; v13 topic ids; v15 replica state.
Kafka: KafkaApis.handleFetchRequest, ReplicaManager.fetchMessages, DelayedFetch.

Errors: top level FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR; per partition
OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH,
UNKNOWN_LEADER_EPOCH, KAFKA_STORAGE_ERROR, TOPIC_AUTHORIZATION_FAILED.

A session outlives what its client may do, and its id is no secret: every request asks anew for the right to each topic
in it, so that this handler stands before no guard (`minibroker.handlers.authorization`).
"""

from __future__ import annotations

from collections.abc import Sequence

from minibroker.broker.fetch_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    INVALID_SESSION_ID,
    FetchSession,
    FetchTarget,
    PartitionKey,
)
from minibroker.handlers import follower_fetch
from minibroker.handlers.auth_helper import authorize
from minibroker.handlers.context import Answer, RequestContext
from minibroker.kernel.deferred import Deferred
from minibroker.kernel.turns import AT_A_TIME, STEP, STEPS, STEPS_AT_ONCE, parts
from minibroker.kernel.waiting import with_timeout
from minibroker.partitions.partition import Partition
from minibroker.security.acls import AclOperation, ResourceType
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.fields import NO_ID
from minibroker_protocol.messages.fetch import FetchRequest, FetchResponse

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
TOPIC_IDS_VERSION = 13
_CURRENT_LEADER_VERSION = 16

_TARGETS_OF_A_TURN = STEPS_AT_ONCE // 4
"""Fewer partitions than these are named, read and answered in one turn of the loop."""

_PartitionData = FetchResponse.PartitionData
_Named = tuple[FetchRequest.FetchTopic, FetchRequest.FetchPartition]


class _Fetch:
    """One request while it is served. nodes: where the leaders of partitions are that are not here."""

    __slots__ = (
        "denied", "follower", "full", "isolation", "max_bytes", "min_bytes", "nodes", "nothing_yet", "reads",
        "remaining", "replica_id", "responses", "session", "targets",
    )  # fmt: skip

    def __init__(self, ctx: RequestContext, request: FetchRequest) -> None:
        self.replica_id = _replica_id(request, ctx.api_version)
        self.follower = self.replica_id >= 0
        limit = ctx.broker.settings.get_int("fetch.max.bytes")
        self.max_bytes = min(request.max_bytes, limit) if self.replica_id < 0 else request.max_bytes
        self.min_bytes = min(request.min_bytes, self.max_bytes)
        self.isolation = request.isolation_level
        self.session: FetchSession | None = None
        self.full = True
        self.targets: list[FetchTarget] = []
        self.denied: dict[str, ApiError] = {}
        self.remaining = self.max_bytes
        self.nothing_yet = True
        self.reads: list[_Read] = []
        self.responses: list[FetchResponse.FetchableTopicResponse] = []
        self.nodes: dict[int, FetchResponse.NodeEndpoint] = {}


class _Read:
    """What reading one partition gave; `size` counts record bytes, `failed` tells that the answer must not wait."""

    __slots__ = ("data", "failed", "partition", "size", "target")

    def __init__(self, target: FetchTarget, data: FetchResponse.PartitionData, partition: Partition | None) -> None:
        self.target = target
        self.data = data
        self.partition = partition
        self.size = 0
        self.failed = False


def handle(ctx: RequestContext, request: FetchRequest) -> Answer:
    if ctx.inter_broker:
        return follower_fetch.handle(ctx, request)
    fetch = _Fetch(ctx, request)
    named = [(topic, partition) for topic in request.topics for partition in topic.partitions]
    if len(named) > AT_A_TIME or request.forgotten_topics_data:
        return _serve(ctx, request, fetch, named)
    targets: dict[PartitionKey, FetchTarget] = {}
    _name_targets(ctx, named, targets)
    refusal = _open(ctx, request, fetch, targets, [])
    if refusal is not None:
        return refusal
    if len(fetch.targets) > AT_A_TIME:
        return _read_and_answer(ctx, request, fetch)
    fetch.remaining = _limit(ctx, fetch)
    _read(ctx, fetch, fetch.targets)
    if not _complete(request, fetch, fetch.reads):
        return _read_and_answer(ctx, request, fetch, complete=False)
    _add(ctx, fetch, fetch.reads)
    return _response(fetch)


async def _serve(ctx: RequestContext, request: FetchRequest, fetch: _Fetch, named: Sequence[_Named]) -> FetchResponse:
    """Serve a request that names many partitions."""
    targets: dict[PartitionKey, FetchTarget] = {}
    for few in parts(named):
        _name_targets(ctx, few, targets)
        await STEPS
    forgotten = await _forgotten(ctx, request)
    refusal = _open(ctx, request, fetch, targets, forgotten)
    return refusal if refusal is not None else await _read_and_answer(ctx, request, fetch)


async def _read_and_answer(
    ctx: RequestContext, request: FetchRequest, fetch: _Fetch, *, complete: bool | None = None
) -> FetchResponse:
    """Read many partitions, or once more when there is enough. complete: False where what was read is too little."""
    if complete is None:
        await _read_all(ctx, fetch)
        complete = _complete(request, fetch, fetch.reads)
    if not complete:
        await _wait(ctx, request, fetch, fetch.reads)
        await _read_all(ctx, fetch)
    for few in parts(fetch.reads):
        _add(ctx, fetch, few)
        await STEPS
    return _response(fetch)


async def _read_all(ctx: RequestContext, fetch: _Fetch) -> None:
    fetch.reads, fetch.nothing_yet = [], True
    fetch.remaining = _limit(ctx, fetch)
    for few in parts(fetch.targets):
        _read(ctx, fetch, few)
        await STEPS


def _open(
    ctx: RequestContext,
    request: FetchRequest,
    fetch: _Fetch,
    targets: dict[PartitionKey, FetchTarget],
    forgotten: list[PartitionKey],
) -> FetchResponse | None:
    """Open the session; the answer where it is refused."""
    try:
        _open_session(ctx, request, fetch, list(targets.values()), forgotten)
    except ApiError as error:
        ctx.refused(f"fetch session {request.session_id}", error)
        return FetchResponse(error_code=error.code, session_id=INVALID_SESSION_ID)
    if fetch.targets and request.isolation_level not in (READ_UNCOMMITTED, READ_COMMITTED):
        return _no_such_isolation(ctx, request)
    if ctx.broker.authorizer is not None:
        fetch.denied = _denied_topics(ctx, fetch)
    return None


def _no_such_isolation(ctx: RequestContext, request: FetchRequest) -> FetchResponse:
    """Kafka fails with an exception; versions with topic ids name no partition then (FetchRequest.getErrorResponse)."""
    error = ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"there is no isolation level {request.isolation_level}")
    ctx.refused("the fetch", error)
    responses = [
        FetchResponse.FetchableTopicResponse(
            topic=topic.topic,
            partitions=[follower_fetch.refused(p.partition, error, aborted=[]) for p in topic.partitions],
        )
        for topic in (request.topics if ctx.api_version < TOPIC_IDS_VERSION else ())
    ]
    return FetchResponse(error_code=error.code, session_id=INVALID_SESSION_ID, responses=responses)


def _replica_id(request: FetchRequest, version: int) -> int:
    if version >= 15:
        return request.replica_state.replica_id if request.replica_state is not None else -1
    return request.replica_id


# -- sessions ----------------------------------------------------------------------------------------------------------


def _open_session(
    ctx: RequestContext,
    request: FetchRequest,
    fetch: _Fetch,
    targets: list[FetchTarget],
    forgotten: list[PartitionKey],
) -> None:
    sessions = ctx.broker.fetch_sessions
    by_id = ctx.api_version >= TOPIC_IDS_VERSION
    now_ms = ctx.broker.clock.now_ms()
    if ctx.api_version < 7 or request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
        if request.session_id != INVALID_SESSION_ID:
            sessions.close(request.session_id)
        fetch.targets = targets
        if ctx.api_version >= 7 and request.session_epoch == INITIAL_EPOCH:
            fetch.session = sessions.create(targets, by_id, now_ms)
        return
    session = sessions.resume(request.session_id, request.session_epoch, by_id, now_ms)
    session.apply(targets, forgotten)
    session.next_epoch()
    if not session.targets:
        # Kafka closes a session that was left without partitions and answers what the request names without one.
        sessions.close(session.id)
        fetch.targets = targets
        return
    fetch.full = False
    fetch.targets = list(session.targets.values())
    fetch.session = session


def _name_targets(
    ctx: RequestContext,
    named: Sequence[_Named],
    targets: dict[PartitionKey, FetchTarget],
) -> None:
    """Add the partitions that the request names; one that it names twice is read once, as the later says
    (FullFetchContext keeps them in a map)."""
    image = ctx.broker.image
    by_id = ctx.api_version >= TOPIC_IDS_VERSION
    for topic, p in named:
        name = image.topic_names.get(topic.topic_id, "") if by_id else topic.topic
        target = FetchTarget(
            name,
            topic.topic_id if by_id else NO_ID,
            p.partition,
            p.fetch_offset,
            p.partition_max_bytes,
            p.current_leader_epoch,
            p.last_fetched_epoch,
        )
        targets[target.key] = target


async def _forgotten(ctx: RequestContext, request: FetchRequest) -> list[PartitionKey]:
    forgotten: list[PartitionKey] = []
    by_id = ctx.api_version >= TOPIC_IDS_VERSION
    for topic in request.forgotten_topics_data:
        name = topic.topic
        if by_id:
            known = ctx.broker.image.topic_by_id(topic.topic_id)
            name = known.name if known is not None else ""
        await STEP
        forgotten += [(name, topic.topic_id if by_id else NO_ID, index) for index in topic.partitions]
    return forgotten


# -- rights ------------------------------------------------------------------------------------------------------------


def _denied_topics(ctx: RequestContext, fetch: _Fetch) -> dict[str, ApiError]:
    """The topics that the client may not read: CLUSTER_ACTION is the right of a replica, READ that of a consumer."""
    names = dict.fromkeys(_name_now(ctx, target) for target in fetch.targets)
    if fetch.follower and authorize(ctx, AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER):
        return {}
    may_read = [
        fetch.follower is False and authorize(ctx, AclOperation.READ, ResourceType.TOPIC, name) for name in names
    ]
    what = "CLUSTER_ACTION CLUSTER, as a replica's fetch of" if fetch.follower else "READ TOPIC"
    return {
        name: ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"{ctx.connection.principal} may not {what} {name}")
        for name, may in zip(names, may_read, strict=True)
        if not may
    }


def _name_now(ctx: RequestContext, target: FetchTarget) -> str:
    """The name of a target's topic; that of an id can have come after the session, and none has "" """
    if target.topic_id == NO_ID:
        return target.topic
    return ctx.broker.image.topic_names.get(target.topic_id, "")


# -- reading -----------------------------------------------------------------------------------------------------------


def _limit(ctx: RequestContext, fetch: _Fetch) -> int:
    """The bytes of the answer: where clients have not read what they were sent, what is left over all connections."""
    link = ctx.connection.link
    room = None if link is None else link.answer_room()
    return fetch.max_bytes if room is None or room > fetch.max_bytes else room


def _read(ctx: RequestContext, fetch: _Fetch, targets: Sequence[FetchTarget]) -> None:
    """Read partitions in their order until the byte limit is used up; the first batch is given whole."""
    reads, link = fetch.reads, ctx.connection.link
    for target in targets:
        remaining = fetch.remaining
        read = _read_one(ctx, fetch, target, min(target.max_bytes, remaining), fetch.nothing_yet)
        reads.append(read)
        if read.size:
            fetch.nothing_yet = False
            fetch.remaining = max(0, remaining - read.size)
            if link is not None and len(fetch.targets) >= _TARGETS_OF_A_TURN:
                # Others may read as well before this is sent.
                link.hold(read.size)
                room = link.answer_room()
                if room is not None and room < fetch.remaining:
                    fetch.remaining = room


def _read_one(ctx: RequestContext, fetch: _Fetch, target: FetchTarget, max_bytes: int, min_one_message: bool) -> _Read:
    broker = ctx.broker
    if ctx.api_version >= TOPIC_IDS_VERSION:
        known = broker.image.topic_by_id(target.topic_id)
        denied = fetch.denied.get("")
        if known is None and denied is not None and fetch.follower:
            # A replica has no right to any topic, or to all; a consumer may learn that an id is none.
            ctx.refused(f"topic id {target.topic_id.hex()}", denied)
            return _failed(target, denied, routed=False)
        if known is None:
            unknown = ApiError(ErrorCode.UNKNOWN_TOPIC_ID, "no topic has this id")
            ctx.refused(f"topic id {target.topic_id.hex()}-{target.index}", unknown)
            return _failed(target, unknown, routed=False)
        target.topic = known.name
    denied = fetch.denied.get(target.topic)
    if denied is not None:
        ctx.refused(target.topic, denied)
        return _failed(target, denied, routed=False)
    try:
        partition = broker.partition(target.topic, target.index)
    except ApiError as error:
        ctx.refused(f"{target.topic}-{target.index}", error)
        return _failed(target, error, routed=False)
    try:
        return _read_log(fetch, partition, target, max_bytes, min_one_message)
    except ApiError as error:
        ctx.refused(f"{target.topic}-{target.index}", error)
        return _failed(target, error, routed=True)


def _read_log(fetch: _Fetch, partition: Partition, target: FetchTarget, max_bytes: int, min_one_message: bool) -> _Read:
    partition.check_leader_epoch(max(-1, target.current_leader_epoch))
    if fetch.follower:
        # Brokers of this cluster fetch over a way of their own: no client is a follower
        # (Kafka's Partition.followerReplicaOrThrow).
        raise ApiError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{partition}: broker {fetch.replica_id} is none of its followers"
        )
    log = partition.log
    data = _PartitionData(
        partition_index=target.index,
        high_watermark=log.high_watermark,
        last_stable_offset=log.last_stable_offset,
        log_start_offset=log.log_start_offset,
        aborted_transactions=None,
        records=b"",
    )
    read = _Read(target, data, partition)
    data.diverging_epoch = follower_fetch.diverging(partition, target)
    if data.diverging_epoch is not None:
        read.failed = True
        return read
    bound = _bound(fetch, partition)
    found = log.read(target.fetch_offset, max(0, max_bytes), bound=bound, min_one_message=min_one_message)
    if max_bytes < 0 and target.fetch_offset < bound:
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{partition}: a fetch of at most {max_bytes} bytes")
    data.records = found.records
    read.size = len(found.records)
    if fetch.isolation == READ_COMMITTED:
        data.aborted_transactions = [
            FetchResponse.AbortedTransaction(producer_id=a.producer_id, first_offset=a.first_offset)
            for a in log.aborted_transactions(target.fetch_offset, found)
        ]
    return read


def _bound(fetch: _Fetch, partition: Partition) -> int:
    log = partition.log
    return log.last_stable_offset if fetch.isolation == READ_COMMITTED else log.high_watermark


def _failed(target: FetchTarget, error: ApiError, *, routed: bool) -> _Read:
    """An error answer; those found before a log was reached carry an empty aborted list, the others none."""
    read = _Read(target, follower_fetch.refused(target.index, error, aborted=None if routed else []), None)
    read.failed = True
    return read


# -- waiting -----------------------------------------------------------------------------------------------------------


def _complete(request: FetchRequest, fetch: _Fetch, reads: list[_Read]) -> bool:
    if request.max_wait_ms <= 0 or not reads:
        return True
    total = 0
    for read in reads:
        if read.failed:
            return True
        total += read.size
    return total >= fetch.min_bytes


async def _wait(ctx: RequestContext, request: FetchRequest, fetch: _Fetch, reads: list[_Read]) -> None:
    """Hold the answer until enough bytes can be read or `max_wait_ms` has passed (DelayedFetch)."""
    enough: Deferred[None] = Deferred()
    partitions = [(read.partition, read.target) for read in reads if read.partition is not None]

    def look() -> None:
        if not enough.done and _has_enough(fetch, partitions):
            enough.resolve(None)

    for partition, _ in partitions:
        partition.watch(look)
    try:
        await with_timeout(ctx.broker.timers, enough, request.max_wait_ms)
    finally:
        for partition, _ in partitions:
            partition.unwatch(look)


def _has_enough(fetch: _Fetch, partitions: list[tuple[Partition, FetchTarget]]) -> bool:
    total = 0
    for partition, target in partitions:
        if not partition.is_leader or not partition.has_log:
            return True
        bound = _bound(fetch, partition)
        log = partition.log
        if target.fetch_offset > log.log_end_offset or target.fetch_offset < log.log_start_offset:
            return True
        if target.fetch_offset < bound:
            total += min(log.bytes_between(target.fetch_offset, bound), target.max_bytes)
            if total >= fetch.min_bytes:
                return True
    return False


# -- answering ---------------------------------------------------------------------------------------------------------


def _add(ctx: RequestContext, fetch: _Fetch, reads: Sequence[_Read]) -> None:
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
        moved = read.data.error_code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
        if moved and ctx.api_version >= _CURRENT_LEADER_VERSION:
            _tell_leader(ctx, read, fetch.nodes)
        current.partitions.append(read.data)


def _response(fetch: _Fetch) -> FetchResponse:
    session = fetch.session
    return FetchResponse(
        session_id=session.id if session is not None else INVALID_SESSION_ID,
        responses=fetch.responses,
        node_endpoints=list(fetch.nodes.values()),
    )


def _is_news(fetch: _Fetch, session: FetchSession, read: _Read) -> bool:
    """Whether an incremental answer must name the partition; remembers what the client is told."""
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
        # An error is repeated until it is gone, and what follows it is news.
        target.known_high_watermark = target.known_log_start = -1
    else:
        target.known_high_watermark = data.high_watermark
        target.known_log_start = data.log_start_offset
    if read.size > 0 and not fetch.full:
        session.moved_to_end(target.key)
    return news


def _tell_leader(ctx: RequestContext, read: _Read, nodes: dict[int, FetchResponse.NodeEndpoint]) -> None:
    """The current leader (KIP-951); versions before 16 have no field for where that broker is."""
    image = ctx.broker.image
    known = image.partition(read.target.topic, read.target.index)
    leader = image.brokers.get(known.leader) if known is not None else None
    if known is None or leader is None:
        return
    read.data.current_leader = FetchResponse.LeaderIdAndEpoch(leader_id=known.leader, leader_epoch=known.leader_epoch)
    nodes[leader.node_id] = FetchResponse.NodeEndpoint(
        node_id=leader.node_id, host=leader.host, port=leader.port, rack=leader.rack
    )
