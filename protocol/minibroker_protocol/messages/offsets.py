"""Offsets of partitions and of groups: ListOffsets (2), OffsetCommit (8), OffsetFetch (9), DeleteRecords (21),
OffsetForLeaderEpoch (23), OffsetDelete (47).

Field names and versions: Kafka 4.4.0's message definitions.
"""

from __future__ import annotations

from minibroker_protocol.dsl import Request, Response
from minibroker_protocol.fields import NO_ID, bool_, f, int8, int16, int32, int64, string, uuid
from minibroker_protocol.structs import Struct


class ListOffsetsRequest(Request, key=2, versions="1-11", flexible="6+"):
    """Ask for the offset of a timestamp, or of an end of the log."""

    class ListOffsetsPartition(Struct):
        partition_index: int32 = f(entity="partition")
        current_leader_epoch: int32 = f("4+", default=-1, ignorable=True)
        timestamp: int64

    class ListOffsetsTopic(Struct):
        name: string = f(entity="topicName")
        partitions: list[ListOffsetsRequest.ListOffsetsPartition]

    replica_id: int32 = f(entity="brokerId")
    isolation_level: int8 = f("2+", default=0)
    topics: list[ListOffsetsTopic]
    timeout_ms: int32 = f("10+", default=0, ignorable=True)


class ListOffsetsResponse(Response, key=2, versions="1-11", flexible="6+"):
    """The offset found for each partition."""

    class ListOffsetsPartitionResponse(Struct):
        partition_index: int32 = f(entity="partition")
        error_code: int16 = f(default=0, error=True)
        timestamp: int64 = f(default=-1)
        offset: int64 = f(default=-1)
        leader_epoch: int32 = f("4+", default=-1)

    class ListOffsetsTopicResponse(Struct):
        name: string = f(entity="topicName")
        partitions: list[ListOffsetsResponse.ListOffsetsPartitionResponse]

    throttle_time_ms: int32 = f("2+", default=0, ignorable=True, throttle=True)
    topics: list[ListOffsetsTopicResponse]


class OffsetCommitRequest(Request, key=8, versions="2-10", flexible="8+"):
    """Store the offsets a group has reached."""

    class OffsetCommitRequestPartition(Struct):
        partition_index: int32 = f(entity="partition")
        committed_offset: int64
        committed_leader_epoch: int32 = f("6+", default=-1, ignorable=True)
        committed_metadata: string | None = f(nullable="0+")

    class OffsetCommitRequestTopic(Struct):
        name: string = f("0-9", default="", ignorable=True, entity="topicName")
        topic_id: uuid = f("10+", default=NO_ID, ignorable=True, entity="topicId")
        partitions: list[OffsetCommitRequest.OffsetCommitRequestPartition]

    group_id: string = f(entity="groupId")
    generation_id_or_member_epoch: int32 = f(default=-1, entity="generation")
    member_id: string = f(entity="memberId")
    group_instance_id: string | None = f("7+", nullable="7+", default=None, entity="groupInstanceId")
    retention_time_ms: int64 = f("2-4", default=-1, ignorable=True)
    topics: list[OffsetCommitRequestTopic]


class OffsetCommitResponse(Response, key=8, versions="2-10", flexible="8+"):
    """Whether each offset was stored."""

    class OffsetCommitResponsePartition(Struct):
        partition_index: int32 = f(entity="partition")
        error_code: int16 = f(default=0, error=True)

    class OffsetCommitResponseTopic(Struct):
        name: string = f("0-9", default="", ignorable=True, entity="topicName")
        topic_id: uuid = f("10+", default=NO_ID, ignorable=True, entity="topicId")
        partitions: list[OffsetCommitResponse.OffsetCommitResponsePartition]

    throttle_time_ms: int32 = f("3+", default=0, ignorable=True, throttle=True)
    topics: list[OffsetCommitResponseTopic]


class OffsetFetchRequest(Request, key=9, versions="1-10", flexible="6+"):
    """Ask for the stored offsets of groups."""

    class OffsetFetchRequestTopic(Struct):
        name: string = f("0-7", default="", entity="topicName")
        partition_indexes: list[int32] = f("0-7", default=[], entity="partition")

    class OffsetFetchRequestTopics(Struct):
        name: string = f("8-9", default="", ignorable=True, entity="topicName")
        topic_id: uuid = f("10+", default=NO_ID, ignorable=True, entity="topicId")
        partition_indexes: list[int32] = f("8+", default=[], entity="partition")

    class OffsetFetchRequestGroup(Struct):
        group_id: string = f("8+", default="", entity="groupId")
        member_id: string | None = f("9+", nullable="9+", default=None, ignorable=True, entity="memberId")
        member_epoch: int32 = f("9+", default=-1, ignorable=True)
        topics: list[OffsetFetchRequest.OffsetFetchRequestTopics] | None = f("8+", nullable="8+", default=[])

    group_id: string = f("0-7", default="", entity="groupId")
    topics: list[OffsetFetchRequestTopic] | None = f("0-7", nullable="2-7", default=[])
    groups: list[OffsetFetchRequestGroup] = f("8+", default=[])
    require_stable: bool_ = f("7+", default=False)


class OffsetFetchResponse(Response, key=9, versions="1-10", flexible="6+"):
    """Stored offsets; -1 where there is none."""

    class OffsetFetchResponsePartition(Struct):
        partition_index: int32 = f("0-7", default=0, entity="partition")
        committed_offset: int64 = f("0-7", default=0)
        committed_leader_epoch: int32 = f("5-7", default=-1, ignorable=True)
        metadata: string | None = f("0-7", nullable="0-7", default="")
        error_code: int16 = f("0-7", default=0, error=True)

    class OffsetFetchResponseTopic(Struct):
        name: string = f("0-7", default="", entity="topicName")
        partitions: list[OffsetFetchResponse.OffsetFetchResponsePartition] = f("0-7", default=[])

    class OffsetFetchResponsePartitions(Struct):
        partition_index: int32 = f("8+", default=0, entity="partition")
        committed_offset: int64 = f("8+", default=0)
        committed_leader_epoch: int32 = f("8+", default=-1, ignorable=True)
        metadata: string | None = f("8+", nullable="8+", default="")
        error_code: int16 = f("8+", default=0, error=True)

    class OffsetFetchResponseTopics(Struct):
        name: string = f("8-9", default="", ignorable=True, entity="topicName")
        topic_id: uuid = f("10+", default=NO_ID, ignorable=True, entity="topicId")
        partitions: list[OffsetFetchResponse.OffsetFetchResponsePartitions] = f("8+", default=[])

    class OffsetFetchResponseGroup(Struct):
        group_id: string = f("8+", default="", entity="groupId")
        topics: list[OffsetFetchResponse.OffsetFetchResponseTopics] = f("8+", default=[])
        error_code: int16 = f("8+", default=0, error=True)

    throttle_time_ms: int32 = f("3+", default=0, ignorable=True, throttle=True)
    topics: list[OffsetFetchResponseTopic] = f("0-7", default=[])
    error_code: int16 = f("2-7", default=0, ignorable=True, error=True)
    groups: list[OffsetFetchResponseGroup] = f("8+", default=[])


class DeleteRecordsRequest(Request, key=21, versions="0-2", flexible="2+"):
    """Move the log start offset of partitions forward."""

    class DeleteRecordsPartition(Struct):
        partition_index: int32 = f(entity="partition")
        offset: int64

    class DeleteRecordsTopic(Struct):
        name: string = f(entity="topicName")
        partitions: list[DeleteRecordsRequest.DeleteRecordsPartition]

    topics: list[DeleteRecordsTopic]
    timeout_ms: int32


class DeleteRecordsResponse(Response, key=21, versions="0-2", flexible="2+"):
    """The log start offsets reached."""

    class DeleteRecordsPartitionResult(Struct):
        partition_index: int32 = f(entity="partition", map_key=True)
        low_watermark: int64
        error_code: int16 = f(default=0, error=True)

    class DeleteRecordsTopicResult(Struct):
        name: string = f(entity="topicName", map_key=True)
        partitions: list[DeleteRecordsResponse.DeleteRecordsPartitionResult]

    throttle_time_ms: int32 = f(default=0, throttle=True)
    topics: list[DeleteRecordsTopicResult]


class OffsetForLeaderEpochRequest(Request, key=23, versions="2-4", flexible="4+"):
    """Ask where a leader epoch ended."""

    class OffsetForLeaderPartition(Struct):
        partition: int32 = f(entity="partition")
        current_leader_epoch: int32 = f(default=-1)
        leader_epoch: int32

    class OffsetForLeaderTopic(Struct):
        topic: string = f(entity="topicName", map_key=True)
        partitions: list[OffsetForLeaderEpochRequest.OffsetForLeaderPartition]

    replica_id: int32 = f("3+", default=-2, ignorable=True, entity="brokerId")
    topics: list[OffsetForLeaderTopic]


class OffsetForLeaderEpochResponse(Response, key=23, versions="2-4", flexible="4+"):
    """The last epoch not above the one asked for, and its end offset."""

    class EpochEndOffset(Struct):
        error_code: int16 = f(default=0, error=True)
        partition: int32 = f(entity="partition")
        leader_epoch: int32 = f(default=-1)
        end_offset: int64 = f(default=-1)

    class OffsetForLeaderTopicResult(Struct):
        topic: string = f(entity="topicName", map_key=True)
        partitions: list[OffsetForLeaderEpochResponse.EpochEndOffset]

    throttle_time_ms: int32 = f(default=0, throttle=True)
    topics: list[OffsetForLeaderTopicResult]


class OffsetDeleteRequest(Request, key=47, versions="0"):
    """Delete stored offsets of a group."""

    class OffsetDeleteRequestPartition(Struct):
        partition_index: int32 = f(entity="partition")

    class OffsetDeleteRequestTopic(Struct):
        name: string = f(entity="topicName", map_key=True)
        partitions: list[OffsetDeleteRequest.OffsetDeleteRequestPartition]

    group_id: string = f(entity="groupId")
    topics: list[OffsetDeleteRequestTopic]


class OffsetDeleteResponse(Response, key=47, versions="0"):
    """Whether each offset was deleted."""

    class OffsetDeleteResponsePartition(Struct):
        partition_index: int32 = f(entity="partition", map_key=True)
        error_code: int16 = f(default=0, error=True)

    class OffsetDeleteResponseTopic(Struct):
        name: string = f(entity="topicName", map_key=True)
        partitions: list[OffsetDeleteResponse.OffsetDeleteResponsePartition]

    error_code: int16 = f(default=0, error=True)
    throttle_time_ms: int32 = f(default=0, throttle=True)
    topics: list[OffsetDeleteResponseTopic] = f(default=[])
