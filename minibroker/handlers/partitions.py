"""Requests about one partition's log: DeleteRecords (21), OffsetForLeaderEpoch (23), DescribeProducers (61).

Kafka: ReplicaManager.deleteRecords, lastOffsetForLeaderEpoch, activeProducerState.
"""

from __future__ import annotations

from minibroker.controller.topics import check_topic_name
from minibroker.kernel.deferred import Deferred, mapped
from minibroker.kernel.waiting import with_timeout
from minibroker.metadata.image import INTERNAL_TOPICS
from minibroker.partitions.partition import Partition
from minibroker.requests.context import Answer, RequestContext
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.messages.offsets import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from minibroker_protocol.messages.transactions import DescribeProducersRequest, DescribeProducersResponse

_Result = DeleteRecordsResponse.DeleteRecordsPartitionResult

HIGH_WATERMARK = -1
"""DeleteRecords offset that stands for the high watermark."""


def delete_records(ctx: RequestContext, request: DeleteRecordsRequest) -> Answer:
    """DeleteRecords v0-2: move the log start offset up, and wait until every live replica has done so.

    Errors: OFFSET_OUT_OF_RANGE, POLICY_VIOLATION (compacted only), INVALID_TOPIC_EXCEPTION (internal topic),
    UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, and REQUEST_TIMED_OUT when timeout_ms passed first (the records
    are gone from the leader all the same).
    """
    topics = []
    waiting: list[_Deletion] = []
    for topic in request.topics:
        results = []
        for wanted in topic.partitions:
            result = _Result(partition_index=wanted.partition_index, low_watermark=-1, error_code=ErrorCode.NONE)
            results.append(result)
            try:
                deletion = _delete_records(ctx, topic.name, result, wanted.offset)
            except ApiError as error:
                result.error_code = error.code
                ctx.refused(f"{topic.name}-{wanted.partition_index}", error)
                continue
            if not deletion.reached():
                waiting.append(deletion)
        topics.append(DeleteRecordsResponse.DeleteRecordsTopicResult(name=topic.name, partitions=results))
    response = DeleteRecordsResponse(topics=topics)
    return _wait_for_replicas(ctx, request.timeout_ms, waiting, response) if waiting else response


class _Deletion:
    """Records deleted on the leader; its followers have deleted them once the low watermark reaches `required`."""

    def __init__(self, partition: Partition, result: _Result, required: int) -> None:
        self.partition = partition
        self.required = required
        self.result = result
        result.low_watermark = partition.low_watermark

    def reached(self) -> bool:
        """Whether there is nothing left to wait for; if so, sets the result."""
        try:
            low_watermark = self.partition.low_watermark
        except ApiError as error:
            self.result.error_code, self.result.low_watermark = error.code, -1
            return True
        if low_watermark < self.required:
            return False
        self.result.error_code, self.result.low_watermark = ErrorCode.NONE, low_watermark
        return True


def _delete_records(ctx: RequestContext, topic: str, result: _Result, offset: int) -> _Deletion:
    partition = ctx.broker.partition(topic, result.partition_index)
    if topic in INTERNAL_TOPICS:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"records of internal topic {topic} cannot be deleted")
    log = partition.log
    if not log.config.deletes:
        raise ApiError(ErrorCode.POLICY_VIOLATION, f"{topic} is compacted, not deleted from")
    before = log.log_start_offset
    required = log.high_watermark if offset == HIGH_WATERMARK else offset
    log.delete_records(required)
    if log.log_start_offset != before:
        partition.notify()
    return _Deletion(partition, result, required)


def _wait_for_replicas(
    ctx: RequestContext, timeout_ms: int, waiting: list[_Deletion], response: DeleteRecordsResponse
) -> Deferred[DeleteRecordsResponse]:
    """Kafka's DelayedDeleteRecords: a partition that is not done in time gets REQUEST_TIMED_OUT, with the low watermark
    of the beginning."""
    for deletion in waiting:
        deletion.result.error_code = ErrorCode.REQUEST_TIMED_OUT
    unreached = list(waiting)
    done: Deferred[None] = Deferred()

    def look() -> None:
        unreached[:] = [deletion for deletion in unreached if not deletion.reached()]
        if not unreached and not done.done:
            done.resolve(None)

    def over(_: bool) -> DeleteRecordsResponse:
        for deletion in waiting:
            deletion.partition.unwatch(look)
        return response

    for deletion in waiting:
        deletion.partition.watch(look)
    return mapped(with_timeout(ctx.broker.timers, done, timeout_ms), over)


def offset_for_leader_epoch(ctx: RequestContext, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
    """OffsetForLeaderEpoch v2-4: where an epoch ended in this log (KIP-101, KIP-279, KIP-320)."""
    topics = []
    for topic in request.topics:
        results = []
        for wanted in topic.partitions:
            result = OffsetForLeaderEpochResponse.EpochEndOffset(partition=wanted.partition)
            try:
                partition = ctx.broker.partition(topic.topic, wanted.partition)
                partition.check_leader_epoch(wanted.current_leader_epoch)
                result.leader_epoch, result.end_offset = partition.log.end_offset_for_epoch(wanted.leader_epoch)
            except ApiError as error:
                result.error_code = error.code
                ctx.refused(f"{topic.topic}-{wanted.partition}", error)
            results.append(result)
        topics.append(OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(topic=topic.topic, partitions=results))
    return OffsetForLeaderEpochResponse(topics=topics)


def describe_producers(ctx: RequestContext, request: DescribeProducersRequest) -> DescribeProducersResponse:
    """DescribeProducers v0 (KIP-664): the producer state of a partition on any of its replicas."""
    topics = []
    for topic in request.topics:
        results = []
        for index in topic.partition_indexes:
            result = DescribeProducersResponse.PartitionResponse(partition_index=index)
            try:
                check_topic_name(topic.name)
                held = ctx.broker.replica(topic.name, index)
                result.active_producers = [
                    DescribeProducersResponse.ProducerState(
                        producer_id=p.producer_id,
                        producer_epoch=p.producer_epoch,
                        last_sequence=p.last_sequence,
                        last_timestamp=p.last_timestamp,
                        coordinator_epoch=p.coordinator_epoch,
                        current_txn_start_offset=p.current_txn_start_offset,
                    )
                    for p in (held.log.producers.active() if held.has_log else ())
                ]
            except ApiError as error:
                result.error_code, result.error_message = error.code, error.message
                ctx.refused(topic.name, error)
            results.append(result)
        topics.append(DescribeProducersResponse.TopicResponse(name=topic.name, partitions=results))
    return DescribeProducersResponse(topics=topics)
