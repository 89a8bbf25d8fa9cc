"""Requests about one partition's log: DeleteRecords (21), OffsetForLeaderEpoch (23), DescribeProducers (61).

Kafka: ReplicaManager.deleteRecords, lastOffsetForLeaderEpoch, activeProducerState.
"""

from __future__ import annotations

from minibroker.cluster.metadata import INTERNAL_TOPICS
from minibroker.handlers.context import RequestContext
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.messages.offsets import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from minibroker_protocol.messages.transactions import DescribeProducersRequest, DescribeProducersResponse

HIGH_WATERMARK = -1
"""DeleteRecords offset that stands for the high watermark."""


def delete_records(ctx: RequestContext, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    """DeleteRecords v0-2: move the log start offset up.

    Errors: OFFSET_OUT_OF_RANGE, POLICY_VIOLATION (compacted only), INVALID_TOPIC_EXCEPTION (internal topic),
    UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER.
    """
    topics = []
    for topic in request.topics:
        results = []
        for wanted in topic.partitions:
            low_watermark, code = -1, ErrorCode.NONE
            try:
                low_watermark = _delete_records(ctx, topic.name, wanted.partition_index, wanted.offset)
            except ApiError as error:
                code = error.code
                ctx.refused(f"{topic.name}-{wanted.partition_index}", error)
            results.append(
                DeleteRecordsResponse.DeleteRecordsPartitionResult(
                    partition_index=wanted.partition_index, low_watermark=low_watermark, error_code=code
                )
            )
        topics.append(DeleteRecordsResponse.DeleteRecordsTopicResult(name=topic.name, partitions=results))
    return DeleteRecordsResponse(throttle_time_ms=0, topics=topics)


def _delete_records(ctx: RequestContext, topic: str, index: int, offset: int) -> int:
    partition = ctx.broker.partition(topic, index)
    if topic in INTERNAL_TOPICS:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"records of internal topic {topic} cannot be deleted")
    log = partition.log
    if not log.config.deletes:
        raise ApiError(ErrorCode.POLICY_VIOLATION, f"{topic} is compacted, not deleted from")
    before = log.log_start_offset
    log.delete_records(log.high_watermark if offset == HIGH_WATERMARK else offset)
    if log.log_start_offset != before:
        partition.notify()
    return log.log_start_offset


def offset_for_leader_epoch(ctx: RequestContext, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
    """OffsetForLeaderEpoch v2-4: where an epoch ended in this log (KIP-101, KIP-279, KIP-320)."""
    topics = []
    for topic in request.topics:
        results = []
        for wanted in topic.partitions:
            result = OffsetForLeaderEpochResponse.EpochEndOffset(
                partition=wanted.partition, error_code=0, leader_epoch=-1, end_offset=-1
            )
            try:
                partition = ctx.broker.partition(topic.topic, wanted.partition)
                partition.check_leader_epoch(wanted.current_leader_epoch)
                result.leader_epoch, result.end_offset = partition.log.end_offset_for_epoch(wanted.leader_epoch)
            except ApiError as error:
                result.error_code = error.code
                ctx.refused(f"{topic.topic}-{wanted.partition}", error)
            results.append(result)
        topics.append(OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(topic=topic.topic, partitions=results))
    return OffsetForLeaderEpochResponse(throttle_time_ms=0, topics=topics)


def describe_producers(ctx: RequestContext, request: DescribeProducersRequest) -> DescribeProducersResponse:
    """DescribeProducers v0 (KIP-664): what a partition knows of its producers."""
    topics = []
    for topic in request.topics:
        results = []
        for index in topic.partition_indexes:
            result = DescribeProducersResponse.PartitionResponse(
                partition_index=index, error_code=0, error_message=None, active_producers=[]
            )
            try:
                log = ctx.broker.partition(topic.name, index).log
                result.active_producers = [
                    DescribeProducersResponse.ProducerState(
                        producer_id=p.producer_id,
                        producer_epoch=p.producer_epoch,
                        last_sequence=p.last_sequence,
                        last_timestamp=p.last_timestamp,
                        coordinator_epoch=p.coordinator_epoch,
                        current_txn_start_offset=p.current_txn_start_offset,
                    )
                    for p in log.producers.active()
                ]
            except ApiError as error:
                result.error_code, result.error_message = error.code, error.message
                ctx.refused(topic.name, error)
            results.append(result)
        topics.append(DescribeProducersResponse.TopicResponse(name=topic.name, partitions=results))
    return DescribeProducersResponse(throttle_time_ms=0, topics=topics)
