"""Requests between brokers: AlterPartition (56), BrokerHeartbeat (63), AllocateProducerIds (67).

Field names and versions: Kafka 4.4.0's message definitions.
"""

from __future__ import annotations

from minibroker_protocol.dsl import Request, Response
from minibroker_protocol.fields import NO_ID, bool_, f, int8, int16, int32, int64, uuid
from minibroker_protocol.structs import Struct


class AlterPartitionRequest(Request, key=56, versions="2-3", flexible="0+"):
    """A leader asks the controller for another set of in-sync replicas (KIP-497, KIP-903)."""

    class BrokerState(Struct):
        broker_id: int32 = f("3+", entity="brokerId")
        broker_epoch: int64 = f("3+", default=-1)

    class PartitionData(Struct):
        partition_index: int32 = f(entity="partition")
        leader_epoch: int32
        new_isr: list[int32] = f("0-2", default=[], entity="brokerId")
        new_isr_with_epochs: list[AlterPartitionRequest.BrokerState] = f("3+", default=[])
        leader_recovery_state: int8 = f("1+", default=0)
        partition_epoch: int32

    class TopicData(Struct):
        topic_id: uuid = f("2+", default=NO_ID, ignorable=True, entity="topicId")
        partitions: list[AlterPartitionRequest.PartitionData]

    broker_id: int32 = f(entity="brokerId")
    broker_epoch: int64 = f(default=-1)
    topics: list[TopicData]


class AlterPartitionResponse(Response, key=56, versions="2-3", flexible="0+"):
    """What each partition's state is now, or why it stays as it was."""

    class PartitionData(Struct):
        partition_index: int32 = f(entity="partition")
        error_code: int16 = f(default=0, error=True)
        leader_id: int32 = f(entity="brokerId")
        leader_epoch: int32
        isr: list[int32] = f(entity="brokerId")
        leader_recovery_state: int8 = f("1+", default=0, ignorable=True)
        partition_epoch: int32

    class TopicData(Struct):
        topic_id: uuid = f("2+", default=NO_ID, ignorable=True, entity="topicId")
        partitions: list[AlterPartitionResponse.PartitionData]

    throttle_time_ms: int32 = f(default=0, throttle=True)
    error_code: int16 = f(default=0, error=True)
    topics: list[TopicData] = f(default=[])


class BrokerHeartbeatRequest(Request, key=63, versions="0-2", flexible="0+"):
    """A broker's heartbeat to the controller, with the metadata offset that it has applied (KIP-631)."""

    broker_id: int32 = f(entity="brokerId")
    broker_epoch: int64 = f(default=-1)
    current_metadata_offset: int64
    want_fence: bool_
    want_shut_down: bool_
    offline_log_dirs: list[uuid] = f("1+", tag=0, default=[])
    cordoned_log_dirs: list[uuid] | None = f("2+", tag=1, nullable="2+", default=None)


class BrokerHeartbeatResponse(Response, key=63, versions="0-2", flexible="0+"):
    """Whether the broker may serve, as the controller sees it."""

    throttle_time_ms: int32 = f(default=0, throttle=True)
    error_code: int16 = f(error=True)
    is_caught_up: bool_ = f(default=False)
    is_fenced: bool_ = f(default=True)
    should_shut_down: bool_ = f(default=False)


class AllocateProducerIdsRequest(Request, key=67, versions="0", flexible="0+"):
    """Ask the controller for a block of producer ids."""

    broker_id: int32 = f(entity="brokerId")
    broker_epoch: int64 = f(default=-1)


class AllocateProducerIdsResponse(Response, key=67, versions="0", flexible="0+"):
    """A block that no other broker gets."""

    throttle_time_ms: int32 = f(default=0, throttle=True)
    error_code: int16 = f(default=0, error=True)
    producer_id_start: int64 = f(entity="producerId")
    producer_id_len: int32
