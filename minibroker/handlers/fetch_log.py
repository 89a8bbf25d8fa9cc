"""Reads what a Fetch request asks for from the logs, and waits until there is enough of it (DelayedFetch)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from minibroker.broker.fetch_sessions import FetchTarget
from minibroker.handlers import follower_fetch
from minibroker.handlers.fetch_targets import READ_COMMITTED, TOPIC_IDS_VERSION, Fetch, Read
from minibroker.kernel.deferred import Deferred, after
from minibroker.kernel.turns import STEPS_AT_ONCE
from minibroker.kernel.waiting import with_timeout
from minibroker.partitions.partition import Partition
from minibroker.requests.context import Answer, RequestContext
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.messages.fetch import FetchRequest, FetchResponse
from minibroker_storage.log import PartitionLog
from minibroker_storage.txn_index import AbortedTxn

_TARGETS_OF_A_TURN = STEPS_AT_ONCE // 4
"""Fewer partitions than this are resolved, read and answered in one turn of the loop."""

CONSUMER = -1
"""Replica id of a client that is no replica."""
FUTURE_REPLICA = -3
"""Replica id of a copy in another directory of the same broker; it reads to the end (FetchIsolation.of)."""

_PartitionData = FetchResponse.PartitionData


def room_for_answer(ctx: RequestContext, fetch: Fetch) -> int:
    """The bytes that the answer may have; less if clients have not read earlier answers (a limit over all
    connections)."""
    channel = ctx.connection.channel
    room = None if channel is None else channel.answer_room()
    return fetch.max_bytes if room is None or room > fetch.max_bytes else room


def read_some(ctx: RequestContext, fetch: Fetch, targets: Sequence[FetchTarget]) -> None:
    """Read partitions in their order until the byte limit is used up; the first batch is given whole. A limit below
    zero is an error for the first partition that is read, and counts as 0 for those after it
    (ReplicaManager.readFromLog). No answer is built for a partition of which an incremental session would drop it."""
    reads, channel = fetch.reads, ctx.connection.channel
    by_session = not fetch.full and fetch.replica_id == CONSUMER and not fetch.denied
    for target in targets:
        if by_session and (partition := _without_news(ctx, target)) is not None:
            fetch.idle.append((partition, target))
            if fetch.remaining < 0:
                fetch.remaining = 0
            continue
        remaining = fetch.remaining
        read = _read_one(ctx, fetch, target, min(target.max_bytes, remaining), fetch.nothing_yet)
        reads.append(read)
        if read.routed:
            fetch.remaining = max(0, remaining - read.size)
        if read.size:
            fetch.nothing_yet = False
            if channel is not None and len(fetch.targets) >= _TARGETS_OF_A_TURN:
                # Others may read as well before this is sent.
                channel.hold(read.size)
                room = channel.answer_room()
                if room is not None and room < fetch.remaining:
                    fetch.remaining = room


def _without_news(ctx: RequestContext, target: FetchTarget) -> Partition | None:
    """The partition when a read would find nothing but what the session's client knows; None: read it."""
    offset = target.fetch_offset
    if offset != target.known_high_watermark or target.last_fetched_epoch >= 0:
        return None
    broker = ctx.broker
    if ctx.api_version >= TOPIC_IDS_VERSION and broker.image.topic_names.get(target.topic_id) != target.topic:
        return None
    try:
        partition = broker.partition(target.topic, target.index)
    except ApiError:
        return None
    if target.current_leader_epoch not in (-1, partition.leader_epoch):
        return None
    return partition if partition.stands_at(offset, target.known_log_start) else None


def _read_one(ctx: RequestContext, fetch: Fetch, target: FetchTarget, max_bytes: int, min_one_message: bool) -> Read:
    broker = ctx.broker
    renamed = False
    if ctx.api_version >= TOPIC_IDS_VERSION:
        name = broker.image.topic_names.get(target.topic_id)
        denied = fetch.denied.get("")
        if name is None and denied is not None and fetch.follower:
            # A replica has a right to all topics or to none; a consumer may learn that no topic has an id.
            ctx.refused(f"topic id {target.topic_id.hex()}", denied)
            return _failed(target, denied, routed=False)
        if not name and not target.topic:
            unknown = ApiError(ErrorCode.UNKNOWN_TOPIC_ID, "no topic has this id")
            ctx.refused(f"topic id {target.topic_id.hex()}-{target.index}", unknown)
            return _failed(target, unknown, routed=False)
        # A session remembers the name of a topic that was deleted since, and goes by it.
        target.topic, renamed = name or target.topic, name is None
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
        if renamed:
            raise ApiError(
                ErrorCode.INCONSISTENT_TOPIC_ID, f"{target.topic} was recreated: its id is not {target.topic_id.hex()}"
            )
        return _read_log(fetch, partition, target, max_bytes, min_one_message)
    except ApiError as error:
        ctx.refused(f"{target.topic}-{target.index}", error)
        return _failed(target, error, routed=True)


def _read_log(fetch: Fetch, partition: Partition, target: FetchTarget, max_bytes: int, min_one_message: bool) -> Read:
    if target.current_leader_epoch >= 0:
        partition.check_leader_epoch(target.current_leader_epoch)
    if fetch.follower:
        # Brokers of this cluster fetch through a chain of their own: no client is a follower
        # (Kafka's Partition.followerReplicaOrThrow).
        raise ApiError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{partition}: broker {fetch.replica_id} is none of its followers"
        )
    log = partition.known_log
    if log is None:
        return _read_nothing(partition, target, committed=fetch.isolation == READ_COMMITTED)
    bound = _readable_end(fetch, log)
    to_stable = fetch.isolation == READ_COMMITTED and fetch.replica_id != FUTURE_REPLICA
    data = _PartitionData(
        partition_index=target.index,
        high_watermark=log.high_watermark,
        last_stable_offset=bound if to_stable else log.last_stable_offset,
        log_start_offset=log.log_start_offset,
        aborted_transactions=None,
        records=b"",
    )
    read = Read(target, data, partition)
    if target.last_fetched_epoch >= 0:
        data.diverging_epoch = follower_fetch.diverging(partition, target)
        if data.diverging_epoch is not None:
            read.failed = True
            return read
    chunk = log.read(target.fetch_offset, max(0, max_bytes), bound=bound, min_one_message=min_one_message)
    if max_bytes < 0 and target.fetch_offset < bound:
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{partition}: a fetch of at most {max_bytes} bytes")
    data.records = chunk.records
    read.size = len(chunk.records)
    if fetch.isolation == READ_COMMITTED:
        data.aborted_transactions = list(map(_aborted, log.aborted_transactions(chunk)))
    return read


def _aborted(ended: AbortedTxn) -> FetchResponse.AbortedTransaction:
    return FetchResponse.AbortedTransaction(producer_id=ended.producer_id, first_offset=ended.first_offset)


def _read_nothing(partition: Partition, target: FetchTarget, *, committed: bool) -> Read:
    """The answer for a log that was never written, without creating its files, which takes a millisecond a
    partition."""
    data = _PartitionData(
        partition_index=target.index,
        high_watermark=0,
        last_stable_offset=0,
        log_start_offset=0,
        aborted_transactions=[] if committed else None,
        records=b"",
    )
    read = Read(target, data, partition)
    if target.last_fetched_epoch >= 0:
        follower_fetch.diverging(partition, target)  # raises: the log has no epoch
    if target.fetch_offset != 0:
        raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {target.fetch_offset} is not between 0 and 0")
    return read


def _readable_end(fetch: Fetch, log: PartitionLog) -> int:
    if fetch.replica_id == FUTURE_REPLICA:
        return log.log_end_offset
    return log.last_stable_offset if fetch.isolation == READ_COMMITTED else log.high_watermark


def _failed(target: FetchTarget, error: ApiError, *, routed: bool) -> Read:
    """An error answer. Errors found before the log was read have an empty list of aborted transactions, others null."""
    refused = follower_fetch.refused(target.index, error, aborted=None if routed else [])
    read = Read(target, refused, None, routed=routed)
    read.failed = True
    return read


# -- waiting -----------------------------------------------------------------------------------------------------------


def is_enough(request: FetchRequest, fetch: Fetch) -> bool:
    if request.max_wait_ms <= 0 or not (fetch.reads or fetch.idle):
        return True
    total = 0
    for read in fetch.reads:
        if read.failed:
            return True
        total += read.size
    return total >= fetch.min_bytes


def wait_for_enough(ctx: RequestContext, request: FetchRequest, fetch: Fetch, then: Callable[[], Answer]) -> Answer:
    """`then`, when enough bytes can be read, when `max_wait_ms` has passed (DelayedFetch), or when the client is gone.
    The client chooses that time, so requests of clients that left would otherwise pile up."""
    if ctx.connection.gone:  # while its request was decoded, or read the logs
        return then()
    enough: Deferred[None] = Deferred()
    partitions = [(read.partition, read.target) for read in fetch.reads if read.partition is not None]
    partitions += fetch.idle

    def look() -> None:
        if not enough.done and (ctx.connection.gone or _has_enough(fetch, partitions)):
            enough.resolve(None)

    def over() -> Answer:
        ctx.connection.on_gone = None
        for partition, _target in partitions:
            partition.unwatch(look)
        return then()

    ctx.connection.on_gone = look
    for partition, _target in partitions:
        partition.watch(look)
    return after(with_timeout(ctx.broker.timers, enough, request.max_wait_ms), over)


def _has_enough(fetch: Fetch, partitions: list[tuple[Partition, FetchTarget]]) -> bool:
    total = 0
    for partition, target in partitions:
        if not partition.is_leader:
            return True
        if not partition.has_log:
            if target.fetch_offset != 0:
                return True
            continue
        log = partition.log
        bound = _readable_end(fetch, log)
        if target.fetch_offset > log.log_end_offset or target.fetch_offset < log.log_start_offset:
            return True
        if target.fetch_offset < bound:
            total += min(log.bytes_between(target.fetch_offset, bound), target.max_bytes)
            if total >= fetch.min_bytes:
                return True
    return False
