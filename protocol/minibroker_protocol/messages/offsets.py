"""Offsets of partitions and of groups: ListOffsets (2), OffsetCommit (8), OffsetFetch (9), DeleteRecords (21),
OffsetForLeaderEpoch (23), OffsetDelete (47).

Field names and versions: Kafka 4.3.1's message definitions.
"""

from __future__ import annotations

from minibroker_protocol.dsl import Request, Response
from minibroker_protocol.fields import NO_ID, bool_, f, int8, int16, int32, int64, string, uuid
from minibroker_protocol.structs import Struct


class ListOffsetsRequest(Request, key=2, versions="1-11", flexible="6+"):
    """Ask for the offset of a timestamp, or of an end of the log."""

    class ListOffsetsPartition(Struct):
        partition_index: int32
        current_leader_epoch: int32 = f("4+", default=-1, ignorable=True)
        timestamp: int64

    class ListOffsetsTopic(Struct):
        name: string
        partitions: list[ListOffsetsRequest.ListOffsetsPartition]

    replica_id: int32
    isolation_level: int8 = f("2+", default=0)
    topics: list[ListOffsetsTopic]
    timeout_ms: int32 = f("10+", default=0, ignorable=True)


class ListOffsetsResponse(Response, key=2, versions="1-11", flexible="6+"):
    """The offset found for each partition."""

    class ListOffsetsPartitionResponse(Struct):
        partition_index: int32
        error_code: int16 = f(default=0)
        timestamp: int64 = f(default=-1)
        offset: int64 = f(default=-1)
        leader_epoch: int32 = f("4+", default=-1)

    class ListOffsetsTopicResponse(Struct):
        name: string
        partitions: list[ListOffsetsResponse.ListOffsetsPartitionResponse]

    throttle_time_ms: int32 = f("2+", default=0, ignorable=True)
    topics: list[ListOffsetsTopicResponse]


class OffsetCommitRequest(Request, key=8, versions="2-10", flexible="8+"):
    """Store the offsets a group has reached."""

    class OffsetCommitRequestPartition(Struct):
        partition_index: int32
        committed_offset: int64
        committed_leader_epoch: int32 = f("6+", default=-1, ignorable=True)
        committed_metadata: string | None = f(nullable="0+")

    class OffsetCommitRequestTopic(Struct):
        name: string = f("0-9", default="", ignorable=True)
        topic_id: uuid = f("10+", default=NO_ID, ignorable=True)
        partitions: list[OffsetCommitRequest.OffsetCommitRequestPartition]

    group_id: string
    generation_id_or_member_epoch: int32 = f(default=-1)
    member_id: string
    group_instance_id: string | None = f("7+", nullable="7+", default=None)
    retention_time_ms: int64 = f("2-4", default=-1, ignorable=True)
    topics: list[OffsetCommitRequestTopic]


class OffsetCommitResponse(Response, key=8, versions="2-10", flexible="8+"):
    """Whether each offset was stored."""

    class OffsetCommitResponsePartition(Struct):
        partition_index: int32
        error_code: int16 = f(default=0)

    class OffsetCommitResponseTopic(Struct):
        name: string = f("0-9", default="", ignorable=True)
        topic_id: uuid = f("10+", default=NO_ID, ignorable=True)
        partitions: list[OffsetCommitResponse.OffsetCommitResponsePartition]

    throttle_time_ms: int32 = f("3+", default=0, ignorable=True)
    topics: list[OffsetCommitResponseTopic]


class OffsetFetchRequest(Request, key=9, versions="1-10", flexible="6+"):
    """Ask for the stored offsets of groups."""

    class OffsetFetchRequestTopic(Struct):
        name: string = f("0-7", default="")
        partition_indexes: list[int32] = f("0-7", default=[])

    class OffsetFetchRequestTopics(Struct):
        name: string = f("8-9", default="", ignorable=True)
        topic_id: uuid = f("10+", default=NO_ID, ignorable=True)
        partition_indexes: list[int32] = f("8+", default=[])

    class OffsetFetchRequestGroup(Struct):
        group_id: string = f("8+", default="")
        member_id: string | None = f("9+", nullable="9+", default=None, ignorable=True)
        member_epoch: int32 = f("9+", default=-1, ignorable=True)
        topics: list[OffsetFetchRequest.OffsetFetchRequestTopics] | None = f("8+", nullable="8+", default=[])

    group_id: string = f("0-7", default="")
    topics: list[OffsetFetchRequestTopic] | None = f("0-7", nullable="2-7", default=[])
    groups: list[OffsetFetchRequestGroup] = f("8+", default=[])
    require_stable: bool_ = f("7+", default=False)


class OffsetFetchResponse(Response, key=9, versions="1-10", flexible="6+"):
    """Stored offsets; -1 where there is none."""

    class OffsetFetchResponsePartition(Struct):
        partition_index: int32 = f("0-7", default=0)
        committed_offset: int64 = f("0-7", default=0)
        committed_leader_epoch: int32 = f("5-7", default=-1, ignorable=True)
        metadata: string | None = f("0-7", nullable="0-7", default="")
        error_code: int16 = f("0-7", default=0)

    class OffsetFetchResponseTopic(Struct):
        name: string = f("0-7", default="")
        partitions: list[OffsetFetchResponse.OffsetFetchResponsePartition] = f("0-7", default=[])

    class OffsetFetchResponsePartitions(Struct):
        partition_index: int32 = f("8+", default=0)
        committed_offset: int64 = f("8+", default=0)
        committed_leader_epoch: int32 = f("8+", default=-1, ignorable=True)
        metadata: string | None = f("8+", nullable="8+", default="")
        error_code: int16 = f("8+", default=0)

    class OffsetFetchResponseTopics(Struct):
        name: string = f("8-9", default="", ignorable=True)
        topic_id: uuid = f("10+", default=NO_ID, ignorable=True)
        partitions: list[OffsetFetchResponse.OffsetFetchResponsePartitions] = f("8+", default=[])

    class OffsetFetchResponseGroup(Struct):
        group_id: string = f("8+", default="")
        topics: list[OffsetFetchResponse.OffsetFetchResponseTopics] = f("8+", default=[])
        error_code: int16 = f("8+", default=0)

    throttle_time_ms: int32 = f("3+", default=0, ignorable=True)
    topics: list[OffsetFetchResponseTopic] = f("0-7", default=[])
    error_code: int16 = f("2-7", default=0, ignorable=True)
    groups: list[OffsetFetchResponseGroup] = f("8+", default=[])


class DeleteRecordsRequest(Request, key=21, versions="0-2", flexible="2+"):
    """Move the log start offset of partitions forward."""

    class DeleteRecordsPartition(Struct):
        partition_index: int32
        offset: int64

    class DeleteRecordsTopic(Struct):
        name: string
        partitions: list[DeleteRecordsRequest.DeleteRecordsPartition]

    topics: list[DeleteRecordsTopic]
    timeout_ms: int32


class DeleteRecordsResponse(Response, key=21, versions="0-2", flexible="2+"):
    """The log start offsets reached."""

    class DeleteRecordsPartitionResult(Struct):
        partition_index: int32
        low_watermark: int64
        error_code: int16 = f(default=0)

    class DeleteRecordsTopicResult(Struct):
        name: string
        partitions: list[DeleteRecordsResponse.DeleteRecordsPartitionResult]

    throttle_time_ms: int32 = f(default=0)
    topics: list[DeleteRecordsTopicResult]


class OffsetForLeaderEpochRequest(Request, key=23, versions="2-4", flexible="4+"):
    """Ask where a leader epoch ended."""

    class OffsetForLeaderPartition(Struct):
        partition: int32
        current_leader_epoch: int32 = f(default=-1)
        leader_epoch: int32

    class OffsetForLeaderTopic(Struct):
        topic: string
        partitions: list[OffsetForLeaderEpochRequest.OffsetForLeaderPartition]

    replica_id: int32 = f("3+", default=-2, ignorable=True)
    topics: list[OffsetForLeaderTopic]


class OffsetForLeaderEpochResponse(Response, key=23, versions="2-4", flexible="4+"):
    """The last epoch not above the one asked for, and its end offset."""

    class EpochEndOffset(Struct):
        error_code: int16 = f(default=0)
        partition: int32
        leader_epoch: int32 = f(default=-1)
        end_offset: int64 = f(default=-1)

    class OffsetForLeaderTopicResult(Struct):
        topic: string
        partitions: list[OffsetForLeaderEpochResponse.EpochEndOffset]

    throttle_time_ms: int32 = f(default=0)
    topics: list[OffsetForLeaderTopicResult]


class OffsetDeleteRequest(Request, key=47, versions="0"):
    """Delete stored offsets of a group."""

    class OffsetDeleteRequestPartition(Struct):
        partition_index: int32

    class OffsetDeleteRequestTopic(Struct):
        name: string
        partitions: list[OffsetDeleteRequest.OffsetDeleteRequestPartition]

    group_id: string
    topics: list[OffsetDeleteRequestTopic]


class OffsetDeleteResponse(Response, key=47, versions="0"):
    """Whether each offset was deleted."""

    class OffsetDeleteResponsePartition(Struct):
        partition_index: int32
        error_code: int16 = f(default=0)

    class OffsetDeleteResponseTopic(Struct):
        name: string
        partitions: list[OffsetDeleteResponse.OffsetDeleteResponsePartition]

    error_code: int16 = f(default=0)
    throttle_time_ms: int32 = f(default=0)
    topics: list[OffsetDeleteResponseTopic]
