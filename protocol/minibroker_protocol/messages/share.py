"""ShareFetch (78), ShareAcknowledge (79): what a share consumer asks leaders of partitions (KIP-932, KIP-1222).

They pass through a proxy; no broker here serves them. Field names and versions: Kafka 4.4.0's message definitions.
"""

from __future__ import annotations

from minibroker_protocol.dsl import Request, Response
from minibroker_protocol.fields import RecordBuffers, bool_, f, int8, int16, int32, int64, string, uuid
from minibroker_protocol.structs import Struct


class ShareFetchRequest(Request, key=78, versions="1-2", flexible="0+"):
    """Acquire records for a member of a share group, and acknowledge others."""

    class AcknowledgementBatch(Struct):
        first_offset: int64
        last_offset: int64
        acknowledge_types: list[int8]

    class FetchPartition(Struct):
        partition_index: int32 = f(entity="partition", map_key=True)
        acknowledgement_batches: list[ShareFetchRequest.AcknowledgementBatch]

    class FetchTopic(Struct):
        topic_id: uuid = f(entity="topicId", map_key=True)
        partitions: list[ShareFetchRequest.FetchPartition]

    class ForgottenTopic(Struct):
        topic_id: uuid = f(entity="topicId")
        partitions: list[int32] = f(entity="partition")

    group_id: string | None = f(nullable="0+", default=None, entity="groupId")
    member_id: string | None = f(nullable="0+")
    share_session_epoch: int32
    max_wait_ms: int32
    min_bytes: int32
    max_bytes: int32 = f(default=2147483647)
    max_records: int32
    batch_size: int32
    share_acquire_mode: int8 = f("2+", default=0, ignorable=True)
    is_renew_ack: bool_ = f("2+", default=False)
    topics: list[FetchTopic]
    forgotten_topics_data: list[ForgottenTopic]


class ShareFetchResponse(Response, key=78, versions="1-2", flexible="0+"):
    """Records, which of them the member has acquired, and what became of its acknowledgements."""

    class LeaderIdAndEpoch(Struct):
        leader_id: int32
        leader_epoch: int32

    class AcquiredRecords(Struct):
        first_offset: int64
        last_offset: int64
        delivery_count: int16

    class PartitionData(Struct):
        partition_index: int32 = f(entity="partition")
        error_code: int16 = f(error=True)
        error_message: string | None = f(nullable="0+", default=None, error_message=True)
        acknowledge_error_code: int16 = f(error=True)
        acknowledge_error_message: string | None = f(nullable="0+", default=None, error_message=True)
        current_leader: ShareFetchResponse.LeaderIdAndEpoch
        records: RecordBuffers | None = f(nullable="0")
        acquired_records: list[ShareFetchResponse.AcquiredRecords]

    class ShareFetchableTopicResponse(Struct):
        topic_id: uuid = f(entity="topicId", map_key=True)
        partitions: list[ShareFetchResponse.PartitionData]

    class NodeEndpoint(Struct):
        node_id: int32 = f(entity="brokerId", map_key=True)
        host: string
        port: int32
        rack: string | None = f(nullable="0+", default=None)

    throttle_time_ms: int32 = f(throttle=True)
    error_code: int16 = f(error=True)
    error_message: string | None = f(nullable="0+", default=None, error_message=True)
    acquisition_lock_timeout_ms: int32
    responses: list[ShareFetchableTopicResponse] = f(answers="topics")
    node_endpoints: list[NodeEndpoint]


class ShareAcknowledgeRequest(Request, key=79, versions="1-2", flexible="0+"):
    """Acknowledge records without acquiring more."""

    class AcknowledgementBatch(Struct):
        first_offset: int64
        last_offset: int64
        acknowledge_types: list[int8]

    class AcknowledgePartition(Struct):
        partition_index: int32 = f(entity="partition", map_key=True)
        acknowledgement_batches: list[ShareAcknowledgeRequest.AcknowledgementBatch]

    class AcknowledgeTopic(Struct):
        topic_id: uuid = f(entity="topicId", map_key=True)
        partitions: list[ShareAcknowledgeRequest.AcknowledgePartition]

    group_id: string | None = f(nullable="0+", default=None, entity="groupId")
    member_id: string | None = f(nullable="0+")
    share_session_epoch: int32
    is_renew_ack: bool_ = f("2+", default=False)
    topics: list[AcknowledgeTopic]


class ShareAcknowledgeResponse(Response, key=79, versions="1-2", flexible="0+"):
    """What became of the acknowledgements."""

    class LeaderIdAndEpoch(Struct):
        leader_id: int32
        leader_epoch: int32

    class NodeEndpoint(Struct):
        node_id: int32 = f(entity="brokerId", map_key=True)
        host: string
        port: int32
        rack: string | None = f(nullable="0+", default=None)

    class PartitionData(Struct):
        partition_index: int32 = f(entity="partition")
        error_code: int16 = f(error=True)
        error_message: string | None = f(nullable="0+", default=None, error_message=True)
        current_leader: ShareAcknowledgeResponse.LeaderIdAndEpoch

    class ShareAcknowledgeTopicResponse(Struct):
        topic_id: uuid = f(entity="topicId", map_key=True)
        partitions: list[ShareAcknowledgeResponse.PartitionData]

    throttle_time_ms: int32 = f(throttle=True)
    error_code: int16 = f(error=True)
    error_message: string | None = f(nullable="0+", default=None, error_message=True)
    acquisition_lock_timeout_ms: int32 = f("2+", ignorable=True)
    responses: list[ShareAcknowledgeTopicResponse] = f(answers="topics")
    node_endpoints: list[NodeEndpoint]
