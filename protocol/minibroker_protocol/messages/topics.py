"""Topics and where they live: CreateTopics (19), DeleteTopics (20), CreatePartitions (37), ElectLeaders (43),
AlterPartitionReassignments (45), ListPartitionReassignments (46).

Field names and versions: Kafka 4.4.0's message definitions.
"""

from __future__ import annotations

from minibroker_protocol.dsl import Request, Response
from minibroker_protocol.fields import NO_ID, bool_, f, int8, int16, int32, string, uuid
from minibroker_protocol.structs import Struct


class CreateTopicsRequest(Request, key=19, versions="2-7", flexible="5+"):
    """Create topics."""

    class CreatableReplicaAssignment(Struct):
        partition_index: int32 = f(map_key=True)
        broker_ids: list[int32] = f(entity="brokerId")

    class CreatableTopicConfig(Struct):
        name: string = f(map_key=True)
        value: string | None = f(nullable="0+", secret="name")

    class CreatableTopic(Struct):
        name: string = f(entity="topicName", map_key=True)
        num_partitions: int32
        replication_factor: int16
        assignments: list[CreateTopicsRequest.CreatableReplicaAssignment] = f(default=[])
        configs: list[CreateTopicsRequest.CreatableTopicConfig] = f(default=[])

    topics: list[CreatableTopic]
    timeout_ms: int32 = f(default=60000)
    validate_only: bool_ = f(default=False)


class CreateTopicsResponse(Response, key=19, versions="2-7", flexible="5+"):
    """What was created."""

    class CreatableTopicConfigs(Struct):
        name: string = f("5+", default="")
        value: string | None = f("5+", nullable="5+", default="", secret="name")
        read_only: bool_ = f("5+", default=False)
        config_source: int8 = f("5+", default=-1, ignorable=True)
        is_sensitive: bool_ = f("5+", default=False)

    class CreatableTopicResult(Struct):
        name: string = f(entity="topicName", map_key=True)
        topic_id: uuid = f("7+", default=NO_ID, ignorable=True, entity="topicId")
        error_code: int16 = f(default=0, error=True)
        error_message: string | None = f(nullable="0+", default=None, error_message=True)
        topic_config_error_code: int16 = f("5+", tag=0, default=0, ignorable=True)
        num_partitions: int32 = f("5+", default=-1, ignorable=True)
        replication_factor: int16 = f("5+", default=-1, ignorable=True)
        configs: list[CreateTopicsResponse.CreatableTopicConfigs] | None = f(
            "5+", nullable="5+", default=[], ignorable=True
        )

    throttle_time_ms: int32 = f(default=0, throttle=True)
    topics: list[CreatableTopicResult]


class DeleteTopicsRequest(Request, key=20, versions="1-6", flexible="4+"):
    """Delete topics, by name or id."""

    class DeleteTopicState(Struct):
        name: string | None = f("6+", nullable="6+", default=None, entity="topicName")
        topic_id: uuid = f("6+", default=NO_ID, entity="topicId")

    topics: list[DeleteTopicState] = f("6+", default=[])
    topic_names: list[string] = f("0-5", default=[], ignorable=True, entity="topicName")
    timeout_ms: int32


class DeleteTopicsResponse(Response, key=20, versions="1-6", flexible="4+"):
    """Whether each topic was deleted."""

    class DeletableTopicResult(Struct):
        name: string | None = f(nullable="6+", entity="topicName", map_key=True)
        topic_id: uuid = f("6+", default=NO_ID, ignorable=True, entity="topicId")
        error_code: int16 = f(default=0, error=True)
        error_message: string | None = f("5+", nullable="5+", default=None, ignorable=True, error_message=True)

    throttle_time_ms: int32 = f(default=0, throttle=True)
    responses: list[DeletableTopicResult]


class CreatePartitionsRequest(Request, key=37, versions="0-3", flexible="2+"):
    """Add partitions to topics."""

    class CreatePartitionsAssignment(Struct):
        broker_ids: list[int32] = f(entity="brokerId")

    class CreatePartitionsTopic(Struct):
        name: string = f(entity="topicName", map_key=True)
        count: int32
        assignments: list[CreatePartitionsRequest.CreatePartitionsAssignment] | None = f(nullable="0+")

    topics: list[CreatePartitionsTopic]
    timeout_ms: int32
    validate_only: bool_


class CreatePartitionsResponse(Response, key=37, versions="0-3", flexible="2+"):
    """Whether each topic grew."""

    class CreatePartitionsTopicResult(Struct):
        name: string = f(entity="topicName")
        error_code: int16 = f(default=0, error=True)
        error_message: string | None = f(nullable="0+", default=None, error_message=True)

    throttle_time_ms: int32 = f(default=0, throttle=True)
    results: list[CreatePartitionsTopicResult]


class ElectLeadersRequest(Request, key=43, versions="0-2", flexible="2+"):
    """Elect leaders for partitions."""

    class TopicPartitions(Struct):
        topic: string = f(entity="topicName", map_key=True)
        partitions: list[int32] = f(entity="partition")

    election_type: int8 = f("1+", default=0)
    topic_partitions: list[TopicPartitions] | None = f(nullable="0+")
    timeout_ms: int32 = f(default=60000)


class ElectLeadersResponse(Response, key=43, versions="0-2", flexible="2+"):
    """The result for each partition."""

    class PartitionResult(Struct):
        partition_id: int32 = f(entity="partition")
        error_code: int16 = f(default=0, error=True)
        error_message: string | None = f(nullable="0+", default=None, error_message=True)

    class ReplicaElectionResult(Struct):
        topic: string = f(entity="topicName")
        partition_result: list[ElectLeadersResponse.PartitionResult]

    throttle_time_ms: int32 = f(default=0, throttle=True)
    error_code: int16 = f("1+", default=0, error=True)
    replica_election_results: list[ReplicaElectionResult] = f(default=[])


class AlterPartitionReassignmentsRequest(Request, key=45, versions="0-1", flexible="0+"):
    """Change the replicas of partitions."""

    class ReassignablePartition(Struct):
        partition_index: int32 = f(entity="partition")
        replicas: list[int32] | None = f(nullable="0+", default=None, entity="brokerId")

    class ReassignableTopic(Struct):
        name: string = f(entity="topicName")
        partitions: list[AlterPartitionReassignmentsRequest.ReassignablePartition]

    timeout_ms: int32 = f(default=60000)
    allow_replication_factor_change: bool_ = f("1+", default=True)
    topics: list[ReassignableTopic]


class AlterPartitionReassignmentsResponse(Response, key=45, versions="0-1", flexible="0+"):
    """Whether each reassignment was accepted."""

    class ReassignablePartitionResponse(Struct):
        partition_index: int32 = f(entity="partition")
        error_code: int16 = f(default=0, error=True)
        error_message: string | None = f(nullable="0+", default=None, error_message=True)

    class ReassignableTopicResponse(Struct):
        name: string = f(entity="topicName")
        partitions: list[AlterPartitionReassignmentsResponse.ReassignablePartitionResponse]

    throttle_time_ms: int32 = f(default=0, throttle=True)
    allow_replication_factor_change: bool_ = f("1+", default=True, ignorable=True)
    error_code: int16 = f(default=0, error=True)
    error_message: string | None = f(nullable="0+", default=None, error_message=True)
    responses: list[ReassignableTopicResponse]


class ListPartitionReassignmentsRequest(Request, key=46, versions="0", flexible="0+"):
    """Ask for reassignments under way."""

    class ListPartitionReassignmentsTopics(Struct):
        name: string = f(entity="topicName")
        partition_indexes: list[int32] = f(entity="partition")

    timeout_ms: int32 = f(default=60000)
    topics: list[ListPartitionReassignmentsTopics] | None = f(nullable="0+", default=None)


class ListPartitionReassignmentsResponse(Response, key=46, versions="0", flexible="0+"):
    """Reassignments under way."""

    class OngoingPartitionReassignment(Struct):
        partition_index: int32 = f(entity="partition")
        replicas: list[int32] = f(entity="brokerId")
        adding_replicas: list[int32] = f(entity="brokerId")
        removing_replicas: list[int32] = f(entity="brokerId")

    class OngoingTopicReassignment(Struct):
        name: string = f(entity="topicName")
        partitions: list[ListPartitionReassignmentsResponse.OngoingPartitionReassignment]

    throttle_time_ms: int32 = f(default=0, throttle=True)
    error_code: int16 = f(default=0, error=True)
    error_message: string | None = f(nullable="0+", default=None, error_message=True)
    topics: list[OngoingTopicReassignment]
