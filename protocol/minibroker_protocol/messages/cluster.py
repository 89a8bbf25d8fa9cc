"""Administration of brokers: AlterReplicaLogDirs (34), DescribeLogDirs (35), client quotas (48, 49),
DescribeQuorum (55), UpdateFeatures (57), UnregisterBroker (64).

Field names and versions: Kafka 4.4.0's message definitions.
"""

from __future__ import annotations

from minibroker_protocol.dsl import Request, Response
from minibroker_protocol.fields import NO_ID, bool_, f, float64, int8, int16, int32, int64, string, uint16, uuid
from minibroker_protocol.structs import Struct


class AlterReplicaLogDirsRequest(Request, key=34, versions="1-2", flexible="2+"):
    """Move replicas to other log directories."""

    class AlterReplicaLogDirTopic(Struct):
        name: string = f(entity="topicName", map_key=True)
        partitions: list[int32] = f(entity="partition")

    class AlterReplicaLogDir(Struct):
        path: string = f(entity="logDir", map_key=True)
        topics: list[AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic]

    dirs: list[AlterReplicaLogDir]


class AlterReplicaLogDirsResponse(Response, key=34, versions="1-2", flexible="2+"):
    """Whether each replica will be moved."""

    class AlterReplicaLogDirPartitionResult(Struct):
        partition_index: int32 = f(entity="partition")
        error_code: int16 = f(default=0, error=True)

    class AlterReplicaLogDirTopicResult(Struct):
        topic_name: string = f(entity="topicName")
        partitions: list[AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult]

    throttle_time_ms: int32 = f(default=0, throttle=True)
    results: list[AlterReplicaLogDirTopicResult]


class DescribeLogDirsRequest(Request, key=35, versions="1-5", flexible="2+"):
    """Ask what the log directories of a broker hold."""

    class DescribableLogDirTopic(Struct):
        topic: string = f(entity="topicName", map_key=True)
        partitions: list[int32] = f(entity="partition")

    topics: list[DescribableLogDirTopic] | None = f(nullable="0+")


class DescribeLogDirsResponse(Response, key=35, versions="1-5", flexible="2+"):
    """Log directories with their replicas and sizes."""

    class DescribeLogDirsPartition(Struct):
        partition_index: int32 = f(entity="partition")
        partition_size: int64
        offset_lag: int64
        is_future_key: bool_

    class DescribeLogDirsTopic(Struct):
        name: string = f(entity="topicName")
        partitions: list[DescribeLogDirsResponse.DescribeLogDirsPartition]

    class DescribeLogDirsResult(Struct):
        error_code: int16 = f(default=0, error=True)
        log_dir: string = f(entity="logDir")
        topics: list[DescribeLogDirsResponse.DescribeLogDirsTopic]
        total_bytes: int64 = f("4+", default=-1, ignorable=True)
        usable_bytes: int64 = f("4+", default=-1, ignorable=True)
        is_cordoned: bool_ = f("5+", default=False, ignorable=True)

    throttle_time_ms: int32 = f(default=0, throttle=True)
    error_code: int16 = f("3+", default=0, ignorable=True, error=True)
    results: list[DescribeLogDirsResult]


class DescribeClientQuotasRequest(Request, key=48, versions="0-1", flexible="1+"):
    """Ask for quotas."""

    class ComponentData(Struct):
        entity_type: string
        match_type: int8
        match: string | None = f(nullable="0+")

    components: list[ComponentData]
    strict: bool_


class DescribeClientQuotasResponse(Response, key=48, versions="0-1", flexible="1+"):
    """The quotas that match."""

    class EntityData(Struct):
        entity_type: string
        entity_name: string | None = f(nullable="0+")

    class ValueData(Struct):
        key: string
        value: float64

    class EntryData(Struct):
        entity: list[DescribeClientQuotasResponse.EntityData]
        values: list[DescribeClientQuotasResponse.ValueData]

    throttle_time_ms: int32 = f(default=0, throttle=True)
    error_code: int16 = f(default=0, error=True)
    error_message: string | None = f(nullable="0+", default="", error_message=True)
    entries: list[EntryData] | None = f(nullable="0+")


class AlterClientQuotasRequest(Request, key=49, versions="0-1", flexible="1+"):
    """Change quotas."""

    class EntityData(Struct):
        entity_type: string
        entity_name: string | None = f(nullable="0+")

    class OpData(Struct):
        key: string
        value: float64
        remove: bool_

    class EntryData(Struct):
        entity: list[AlterClientQuotasRequest.EntityData] = f(entity="quotaEntity")
        ops: list[AlterClientQuotasRequest.OpData]

    entries: list[EntryData]
    validate_only: bool_


class AlterClientQuotasResponse(Response, key=49, versions="0-1", flexible="1+"):
    """Whether each quota was changed."""

    class EntityData(Struct):
        entity_type: string
        entity_name: string | None = f(nullable="0+")

    class EntryData(Struct):
        error_code: int16 = f(default=0, error=True)
        error_message: string | None = f(nullable="0+", default="", error_message=True)
        entity: list[AlterClientQuotasResponse.EntityData] = f(entity="quotaEntity")

    throttle_time_ms: int32 = f(default=0, throttle=True)
    entries: list[EntryData]


class DescribeQuorumRequest(Request, key=55, versions="0-2", flexible="0+"):
    """Ask for the state of the metadata quorum."""

    class PartitionData(Struct):
        partition_index: int32 = f(entity="partition")

    class TopicData(Struct):
        topic_name: string = f(entity="topicName")
        partitions: list[DescribeQuorumRequest.PartitionData]

    topics: list[TopicData]


class DescribeQuorumResponse(Response, key=55, versions="0-2", flexible="0+"):
    """Leader, voters and observers of the quorum."""

    class ReplicaState(Struct):
        replica_id: int32 = f(entity="brokerId")
        replica_directory_id: uuid = f("2+", default=NO_ID)
        log_end_offset: int64
        last_fetch_timestamp: int64 = f("1+", default=-1, ignorable=True)
        last_caught_up_timestamp: int64 = f("1+", default=-1, ignorable=True)

    class PartitionData(Struct):
        partition_index: int32 = f(entity="partition")
        error_code: int16 = f(default=0, error=True)
        error_message: string | None = f("2+", nullable="2+", default="", ignorable=True, error_message=True)
        leader_id: int32 = f(entity="brokerId")
        leader_epoch: int32
        high_watermark: int64
        current_voters: list[DescribeQuorumResponse.ReplicaState]
        observers: list[DescribeQuorumResponse.ReplicaState]

    class TopicData(Struct):
        topic_name: string = f(entity="topicName")
        partitions: list[DescribeQuorumResponse.PartitionData]

    class Listener(Struct):
        name: string = f("2+", default="", map_key=True)
        host: string = f("2+", default="")
        port: uint16 = f("2+", default=0)

    class Node(Struct):
        node_id: int32 = f("2+", default=0, entity="brokerId", map_key=True)
        listeners: list[DescribeQuorumResponse.Listener] = f("2+", default=[])

    error_code: int16 = f(default=0, error=True)
    error_message: string | None = f("2+", nullable="2+", default="", ignorable=True, error_message=True)
    topics: list[TopicData]
    nodes: list[Node] = f("2+", default=[])


class UpdateFeaturesRequest(Request, key=57, versions="0-2", flexible="0+"):
    """Change finalized feature levels."""

    class FeatureUpdateKey(Struct):
        feature: string = f(entity="feature", map_key=True)
        max_version_level: int16
        allow_downgrade: bool_ = f("0", default=False)
        upgrade_type: int8 = f("1+", default=1)

    timeout_ms: int32 = f(default=60000)
    feature_updates: list[FeatureUpdateKey]
    validate_only: bool_ = f("1+", default=False)


class UpdateFeaturesResponse(Response, key=57, versions="0-2", flexible="0+"):
    """Whether the levels were changed."""

    class UpdatableFeatureResult(Struct):
        feature: string = f(entity="feature", map_key=True)
        error_code: int16 = f(default=0, error=True)
        error_message: string | None = f(nullable="0+", default=None, error_message=True)

    throttle_time_ms: int32 = f(default=0, throttle=True)
    error_code: int16 = f(default=0, error=True)
    error_message: string | None = f(nullable="0+", default=None, error_message=True)
    results: list[UpdatableFeatureResult] = f("0-1", default=[], ignorable=True)


class UnregisterBrokerRequest(Request, key=64, versions="0", flexible="0+"):
    """Take a broker out of the cluster's metadata."""

    broker_id: int32 = f(entity="brokerId")


class UnregisterBrokerResponse(Response, key=64, versions="0", flexible="0+"):
    """Whether it was taken out."""

    throttle_time_ms: int32 = f(default=0, throttle=True)
    error_code: int16 = f(default=0, error=True)
    error_message: string | None = f(nullable="0+", default="", error_message=True)
