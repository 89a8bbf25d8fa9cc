"""Fetch (1): read record batches, as a consumer or as a follower (KIP-227 sessions, KIP-516 topic ids).

Field names and versions: Kafka 4.4.0's message definitions.
"""

from __future__ import annotations

from minibroker_protocol.dsl import Request, Response
from minibroker_protocol.fields import NO_ID, RecordBuffers, f, int8, int16, int32, int64, string, uuid
from minibroker_protocol.structs import Struct


class FetchRequest(Request, key=1, versions="4-18", flexible="12+"):
    """Read record batches from partitions."""

    class ReplicaState(Struct):
        replica_id: int32 = f("15+", default=-1, entity="brokerId")
        replica_epoch: int64 = f("15+", default=-1)

    class FetchPartition(Struct):
        partition: int32 = f(entity="partition")
        current_leader_epoch: int32 = f("9+", default=-1, ignorable=True)
        fetch_offset: int64
        last_fetched_epoch: int32 = f("12+", default=-1)
        log_start_offset: int64 = f("5+", default=-1, ignorable=True)
        partition_max_bytes: int32
        replica_directory_id: uuid = f("17+", tag=0, default=NO_ID, ignorable=True)
        high_watermark: int64 = f("18+", tag=1, default=9223372036854775807, ignorable=True)

    class FetchTopic(Struct):
        topic: string = f("0-12", default="", ignorable=True, entity="topicName")
        topic_id: uuid = f("13+", default=NO_ID, ignorable=True, entity="topicId")
        partitions: list[FetchRequest.FetchPartition]

    class ForgottenTopic(Struct):
        topic: string = f("7-12", default="", ignorable=True, entity="topicName")
        topic_id: uuid = f("13+", default=NO_ID, ignorable=True, entity="topicId")
        partitions: list[int32] = f("7+", default=[], entity="partition")

    cluster_id: string | None = f("12+", nullable="12+", tag=0, default=None, ignorable=True)
    replica_id: int32 = f("0-14", default=-1, entity="brokerId")
    replica_state: ReplicaState | None = f("15+", tag=1, default=None)
    max_wait_ms: int32
    min_bytes: int32
    max_bytes: int32 = f(default=2147483647)
    isolation_level: int8 = f(default=0)
    session_id: int32 = f("7+", default=0, ignorable=True)
    session_epoch: int32 = f("7+", default=-1, ignorable=True)
    topics: list[FetchTopic]
    forgotten_topics_data: list[ForgottenTopic] = f("7+", default=[])
    rack_id: string = f("11+", default="", ignorable=True)


class FetchResponse(Response, key=1, versions="4-18", flexible="12+"):
    """Record batches, and up to where transactions in them were aborted."""

    class EpochEndOffset(Struct):
        epoch: int32 = f("12+", default=-1)
        end_offset: int64 = f("12+", default=-1)

    class LeaderIdAndEpoch(Struct):
        leader_id: int32 = f("12+", default=-1, entity="brokerId")
        leader_epoch: int32 = f("12+", default=-1)

    class SnapshotId(Struct):
        end_offset: int64 = f(default=-1)
        epoch: int32 = f(default=-1)

    class AbortedTransaction(Struct):
        producer_id: int64 = f(entity="producerId")
        first_offset: int64

    class PartitionData(Struct):
        partition_index: int32 = f(entity="partition")
        error_code: int16 = f(default=0, error=True)
        high_watermark: int64
        last_stable_offset: int64 = f(default=-1)
        log_start_offset: int64 = f("5+", default=-1, ignorable=True)
        diverging_epoch: FetchResponse.EpochEndOffset | None = f("12+", tag=0, default=None)
        current_leader: FetchResponse.LeaderIdAndEpoch | None = f("12+", tag=1, default=None)
        snapshot_id: FetchResponse.SnapshotId | None = f("12+", tag=2, default=None)
        aborted_transactions: list[FetchResponse.AbortedTransaction] | None = f(nullable="4+")
        preferred_read_replica: int32 = f("11+", default=-1, entity="brokerId")
        records: RecordBuffers | None = f(nullable="0+")

    class FetchableTopicResponse(Struct):
        topic: string = f("0-12", default="", ignorable=True, entity="topicName")
        topic_id: uuid = f("13+", default=NO_ID, ignorable=True, entity="topicId")
        partitions: list[FetchResponse.PartitionData] = f(default=[])

    class NodeEndpoint(Struct):
        node_id: int32 = f("16+", default=0, entity="brokerId", map_key=True)
        host: string = f("16+", default="")
        port: int32 = f("16+", default=0)
        rack: string | None = f("16+", nullable="16+", default=None)

    throttle_time_ms: int32 = f(default=0, throttle=True)
    error_code: int16 = f("7+", default=0, ignorable=True, error=True)
    session_id: int32 = f("7+", default=0, answers="session_id")
    responses: list[FetchableTopicResponse] = f(default=[], answers="topics")
    node_endpoints: list[NodeEndpoint] = f("16+", tag=0, default=[])
