"""ListOffsets (key 2): offsets by timestamp or by meaning.

Versions 1-11. v2 isolation level; v4 leader epoch; v7 max timestamp; v8 local start; v9 tiered; v11 pending upload.
Kafka: ReplicaManager.fetchOffset, UnifiedLog.fetchOffsetByTimestamp.

Errors: UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH,
OFFSET_NOT_AVAILABLE, UNSUPPORTED_VERSION (a meaning that the request version does not know), INVALID_REQUEST (a
partition named twice).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from minibroker.kernel.deferred import started
from minibroker.kernel.waiting import sleep
from minibroker.partitions.partition import Partition
from minibroker.requests.answers import follow
from minibroker.requests.context import Answer, RequestContext
from minibroker.requests.slices import in_slices
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.messages.offsets import ListOffsetsRequest, ListOffsetsResponse
from minibroker_protocol.records import Brief, Pace, TakesLong
from minibroker_storage.log import TimestampOffset

CONSUMER = -1
"""Replica id of a client. Any other reads to the end of the log, and isolation does not count (-2 is a debugger's)."""
LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
_SINCE_VERSION = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
_STEPS_PER_PARTITION = 16
"""The cost of a lookup without the walk over a batch, in records."""
_Answer = ListOffsetsResponse.ListOffsetsPartitionResponse
_Topic = ListOffsetsResponse.ListOffsetsTopicResponse


def handle(ctx: RequestContext, request: ListOffsetsRequest) -> Answer:
    """Partitions that are named twice are found in slices; then as many are looked up in a turn of the loop as it has
    time for."""
    topics = request.topics
    if len(topics) == 1 and len(topics[0].partitions) == 1:  # what clients send most
        only = _Lookup(topics[0].name, topics[0].partitions[0])
        return _look_up_all(ctx, request, [only], [[only]])
    #: each topic with its partitions; one that is named twice is answered once, as the later entry says
    #: (ReplicaManager.fetchOffset)
    lookups: dict[str, dict[int, _Lookup]] = {}

    def name(some: Sequence[tuple[str, ListOffsetsRequest.ListOffsetsPartition]]) -> None:
        for topic, wanted in some:
            of_topic = lookups.setdefault(topic, {})
            lookup = _Lookup(topic, wanted)
            lookup.twice = wanted.partition_index in of_topic
            of_topic[wanted.partition_index] = lookup

    def look_up() -> Answer:
        of_topics = [list(of_topic.values()) for of_topic in lookups.values()]
        return _look_up_all(ctx, request, [lookup for of_topic in of_topics for lookup in of_topic], of_topics)

    named = [(topic.name, wanted) for topic in topics for wanted in topic.partitions]
    return in_slices(ctx, named, name, look_up, keep=False)


def _look_up_all(
    ctx: RequestContext, request: ListOffsetsRequest, every: list[_Lookup], of_topics: list[list[_Lookup]]
) -> Answer:
    done = _look_up_some(ctx, request, every, 0)
    if done == len(every):
        return _response(of_topics)
    return follow(started(_look_up_rest(ctx, request, every, done)), lambda _: _response(of_topics))


def _response(of_topics: list[list[_Lookup]]) -> ListOffsetsResponse:
    return ListOffsetsResponse(
        topics=[
            _Topic(name=some[0].topic, partitions=[lookup.answer for lookup in some if lookup.answer is not None])
            for some in of_topics
        ]
    )


class _Lookup:
    """One partition of the request and the answer about it."""

    __slots__ = ("answer", "topic", "twice", "wanted")

    def __init__(self, topic: str, wanted: ListOffsetsRequest.ListOffsetsPartition) -> None:
        self.topic = topic
        self.wanted = wanted
        self.twice = False
        self.answer: ListOffsetsResponse.ListOffsetsPartitionResponse | None = None


def _look_up_some(ctx: RequestContext, request: ListOffsetsRequest, lookups: list[_Lookup], start: int) -> int:
    """Look up the partitions from number `start` on, as many as fit into a turn of the loop; how many are done."""
    pace = Brief()
    for number in range(start, len(lookups)):
        try:
            pace(_STEPS_PER_PARTITION)
            _look_up(ctx, request, lookups[number], pace)
        except TakesLong:
            return number
    return len(lookups)


async def _look_up_rest(ctx: RequestContext, request: ListOffsetsRequest, lookups: list[_Lookup], done: int) -> None:
    """Look up the partitions that did not fit into the first turn of the loop; a search that fills a turn by itself
    runs on another thread."""
    alone = done == 0
    while done < len(lookups):
        if alone:
            await ctx.broker.executor.compute(partial(_look_up, ctx, request, lookups[done]), ctx.wanted, walk=True)
            done += 1
        await sleep(ctx.broker.timers, 0)
        before, done = done, _look_up_some(ctx, request, lookups, done)
        alone = done == before


def _look_up(ctx: RequestContext, request: ListOffsetsRequest, lookup: _Lookup, pace: Pace) -> None:
    """Raises TakesLong where `pace` ends the search."""
    wanted = lookup.wanted
    try:
        if request.isolation_level not in (READ_UNCOMMITTED, READ_COMMITTED):
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"there is no isolation level {request.isolation_level}")
        if lookup.twice:
            raise ApiError(ErrorCode.INVALID_REQUEST, "the partition is named twice")
        if wanted.timestamp < LATEST:
            _check_version(ctx, wanted.timestamp)
        partition = ctx.broker.partition(lookup.topic, wanted.partition_index)
        partition.check_leader_epoch(wanted.current_leader_epoch)
        lookup.answer = _offset(ctx, request, partition, wanted.timestamp, pace)
    except ApiError as error:
        ctx.refused(f"{lookup.topic}-{wanted.partition_index}", error)
        lookup.answer = _Answer(partition_index=wanted.partition_index, error_code=error.code)


def _check_version(ctx: RequestContext, timestamp: int) -> None:
    if ctx.api_version < _SINCE_VERSION.get(timestamp, 0) or timestamp < EARLIEST_PENDING_UPLOAD:
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"v{ctx.api_version} does not know timestamp {timestamp}")


def _offset(
    ctx: RequestContext, request: ListOffsetsRequest, partition: Partition, timestamp: int, pace: Pace
) -> ListOffsetsResponse.ListOffsetsPartitionResponse:
    log = partition.log
    consumer = request.replica_id == CONSUMER
    if not consumer:
        bound = log.log_end_offset
    elif request.isolation_level == READ_COMMITTED:
        bound = log.last_stable_offset
    else:
        bound = log.high_watermark
    answered: TimestampOffset | None
    if timestamp == LATEST and consumer and partition.lags_behind_epoch:
        # A new leader that its followers have not confirmed yet (KIP-207).
        raise ApiError(
            ErrorCode.OFFSET_NOT_AVAILABLE if ctx.api_version >= 5 else ErrorCode.LEADER_NOT_AVAILABLE,
            f"{partition}: high watermark {log.high_watermark} has not reached the leader's epoch",
        )
    if timestamp == LATEST:
        answered = TimestampOffset(bound, -1, partition.leader_epoch)
    elif timestamp in (EARLIEST, EARLIEST_LOCAL):
        start = log.log_start_offset
        answered = TimestampOffset(start, -1, log.leader_epochs.epoch_for_offset(start))
    elif timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        answered = None  # nothing is tiered here
    elif timestamp == MAX_TIMESTAMP:
        answered = log.max_timestamp_offset(bound, pace)
    else:
        answered = log.offset_for_timestamp(timestamp, bound, pace)
    if answered is None:
        answered = TimestampOffset(-1, -1, -1)
    return _Answer(
        partition_index=partition.index,
        timestamp=answered.timestamp,
        offset=answered.offset,
        leader_epoch=answered.leader_epoch if ctx.api_version >= 4 else -1,
    )
