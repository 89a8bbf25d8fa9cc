"""ListOffsets (key 2): offsets by timestamp or by meaning.

Versions 1-11. v2 isolation level; v4 leader epoch; v7 max timestamp; v8 local start; v9 tiered; v11 pending upload.
Kafka: ReplicaManager.fetchOffset, UnifiedLog.fetchOffsetByTimestamp.

Errors: UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH,
OFFSET_NOT_AVAILABLE, UNSUPPORTED_VERSION (a meaning that the request version does not know), INVALID_REQUEST (a
partition named twice).
"""

from __future__ import annotations

from minibroker.cluster.partition import Partition
from minibroker.handlers.context import RequestContext
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.messages.offsets import ListOffsetsRequest, ListOffsetsResponse
from minibroker_storage.log import TimestampOffset

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
_SINCE_VERSION = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}

READ_COMMITTED = 1
_Answer = ListOffsetsResponse.ListOffsetsPartitionResponse


def handle(ctx: RequestContext, request: ListOffsetsRequest) -> ListOffsetsResponse:
    seen: set[tuple[str, int]] = set()
    twice: set[tuple[str, int]] = set()
    for topic in request.topics:
        for wanted in topic.partitions:
            key = (topic.name, wanted.partition_index)
            (twice if key in seen else seen).add(key)
    topics = []
    for topic in request.topics:
        answers = []
        # A partition that comes twice is answered once (ReplicaManager.fetchOffset).
        for wanted in {wanted.partition_index: wanted for wanted in topic.partitions}.values():
            try:
                if (topic.name, wanted.partition_index) in twice:
                    raise ApiError(ErrorCode.INVALID_REQUEST, "the partition is named twice")
                partition = ctx.broker.partition(topic.name, wanted.partition_index)
                partition.check_leader_epoch(wanted.current_leader_epoch)
                answers.append(_offset(ctx, request, partition, wanted.timestamp))
            except ApiError as error:
                ctx.refused(f"{topic.name}-{wanted.partition_index}", error)
                answers.append(
                    _Answer(
                        partition_index=wanted.partition_index,
                        error_code=error.code,
                        timestamp=-1,
                        offset=-1,
                        leader_epoch=-1,
                    )
                )
        topics.append(ListOffsetsResponse.ListOffsetsTopicResponse(name=topic.name, partitions=answers))
    return ListOffsetsResponse(throttle_time_ms=0, topics=topics)


def _offset(
    ctx: RequestContext, request: ListOffsetsRequest, partition: Partition, timestamp: int
) -> ListOffsetsResponse.ListOffsetsPartitionResponse:
    if ctx.api_version < _SINCE_VERSION.get(timestamp, 0) or timestamp < EARLIEST_PENDING_UPLOAD:
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"v{ctx.api_version} does not know timestamp {timestamp}")
    log = partition.log
    if request.replica_id >= 0:
        bound = log.log_end_offset
    elif request.isolation_level == READ_COMMITTED:
        bound = log.last_stable_offset
    else:
        bound = log.high_watermark
    found: TimestampOffset | None
    if timestamp == LATEST and request.replica_id < 0 and partition.lags_behind_epoch:
        # A new leader that its followers have not confirmed yet (KIP-207).
        raise ApiError(
            ErrorCode.OFFSET_NOT_AVAILABLE if ctx.api_version >= 5 else ErrorCode.LEADER_NOT_AVAILABLE,
            f"{partition}: high watermark {log.high_watermark} has not reached the leader's epoch",
        )
    if timestamp == LATEST:
        found = TimestampOffset(bound, -1, partition.leader_epoch)
    elif timestamp in (EARLIEST, EARLIEST_LOCAL):
        start = log.log_start_offset
        found = TimestampOffset(start, -1, log.leader_epochs.epoch_for_offset(start))
    elif timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        found = None  # nothing is tiered here
    elif timestamp == MAX_TIMESTAMP:
        found = log.max_timestamp_offset(bound)
    else:
        found = log.offset_for_timestamp(timestamp, bound)
    if found is None:
        found = TimestampOffset(-1, -1, -1)
    return _Answer(
        partition_index=partition.index,
        error_code=0,
        timestamp=found.timestamp,
        offset=found.offset,
        leader_epoch=found.leader_epoch if ctx.api_version >= 4 else -1,
    )
