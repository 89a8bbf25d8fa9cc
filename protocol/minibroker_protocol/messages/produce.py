"""Produce (0): append record batches to partitions.

Field names and versions: Kafka 4.4.0's message definitions.
"""

from __future__ import annotations

from minibroker_protocol.dsl import Request, Response
from minibroker_protocol.fields import NO_ID, Records, f, int16, int32, int64, string, uuid
from minibroker_protocol.structs import Struct


class ProduceRequest(Request, key=0, versions="3-13", flexible="9+"):
    """Append record batches to partitions."""

    class PartitionProduceData(Struct):
        index: int32 = f(entity="partition")
        records: Records | None = f(nullable="0+")

    class TopicProduceData(Struct):
        name: string = f("0-12", default="", ignorable=True, entity="topicName", map_key=True)
        topic_id: uuid = f("13+", default=NO_ID, ignorable=True, entity="topicId", map_key=True)
        partition_data: list[ProduceRequest.PartitionProduceData]

    transactional_id: string | None = f(nullable="3+", default=None, entity="transactionalId")
    acks: int16
    timeout_ms: int32
    topic_data: list[TopicProduceData]


class ProduceResponse(Response, key=0, versions="3-13", flexible="9+"):
    """Where the batches went, or why they were refused, per partition."""

    class BatchIndexAndErrorMessage(Struct):
        batch_index: int32 = f("8+", default=0)
        batch_index_error_message: string | None = f("8+", nullable="8+", default=None)

    class LeaderIdAndEpoch(Struct):
        leader_id: int32 = f("10+", default=-1, entity="brokerId")
        leader_epoch: int32 = f("10+", default=-1)

    class PartitionProduceResponse(Struct):
        index: int32 = f(entity="partition")
        error_code: int16 = f(default=0, error=True)
        base_offset: int64
        log_append_time_ms: int64 = f(default=-1)
        log_start_offset: int64 = f("5+", default=-1, ignorable=True)
        record_errors: list[ProduceResponse.BatchIndexAndErrorMessage] = f("8+", default=[], ignorable=True)
        error_message: string | None = f("8+", nullable="8+", default=None, ignorable=True, error_message=True)
        current_leader: ProduceResponse.LeaderIdAndEpoch | None = f("10+", tag=0, default=None)

    class TopicProduceResponse(Struct):
        name: string = f("0-12", default="", ignorable=True, entity="topicName", map_key=True)
        topic_id: uuid = f("13+", default=NO_ID, ignorable=True, entity="topicId", map_key=True)
        partition_responses: list[ProduceResponse.PartitionProduceResponse] = f(default=[])

    class NodeEndpoint(Struct):
        node_id: int32 = f("10+", default=0, entity="brokerId", map_key=True)
        host: string = f("10+", default="")
        port: int32 = f("10+", default=0)
        rack: string | None = f("10+", nullable="10+", default=None)

    responses: list[TopicProduceResponse]
    throttle_time_ms: int32 = f(default=0, throttle=True)
    node_endpoints: list[NodeEndpoint] = f("10+", tag=0, default=[])
