"""Schemas of record keys and values that brokers write: `__transaction_state`, `__consumer_offsets`, control records,
and the subscription and assignment blobs of consumers.

A coordinator's record has an int16 before its key (the ``record_type``) and before its value (the version).

Field names and versions: Kafka 4.4.0's message definitions.
"""

from __future__ import annotations

from functools import cache

from minibroker_protocol.dsl import Data
from minibroker_protocol.fields import NO_ID, bytes_, f, int8, int16, int32, int64, string, uuid
from minibroker_protocol.structs import Struct


class EndTxnMarker(Data, versions="0"):
    """The value of a control record that ends a transaction."""

    coordinator_epoch: int32


class ConsumerProtocolSubscription(Data, versions="0-3"):
    """What a classic consumer tells the leader of its group."""

    class TopicPartition(Struct):
        topic: string = f("1+", default="")
        partitions: list[int32] = f("1+", default=[])

    topics: list[string]
    user_data: bytes_ | None = f(nullable="0+", default=None)
    owned_partitions: list[TopicPartition] = f("1+", default=[], ignorable=True)
    generation_id: int32 = f("2+", default=-1, ignorable=True)
    rack_id: string | None = f("3+", nullable="3+", default=None, ignorable=True)


class ConsumerProtocolAssignment(Data, versions="0-3"):
    """What the leader of a classic group gives to a consumer."""

    class TopicPartition(Struct):
        topic: string
        partitions: list[int32]

    assigned_partitions: list[TopicPartition]
    user_data: bytes_ | None = f(nullable="0+", default=None)


class TransactionLogKey(Data, record_type=0, versions="0"):
    """A transactional id."""

    transactional_id: string


class TransactionLogValue(Data, record_type=0, versions="0-1", flexible="1+"):
    """The state of a transactional id. Version 0 is written with transaction.version 0.

    ``last_producer_epoch`` is ahead of Kafka 4.4.0 and carries a tag of our own choice, see there.
    """

    class PartitionsSchema(Struct):
        topic: string
        partition_ids: list[int32]

    producer_id: int64
    previous_producer_id: int64 = f("1+", tag=0, default=-1)
    next_producer_id: int64 = f("1+", tag=1, default=-1)
    producer_epoch: int16
    next_producer_epoch: int16 = f("1+", tag=3, default=-1)
    transaction_timeout_ms: int32
    transaction_status: int8
    transaction_partitions: list[PartitionsSchema] | None = f(nullable="0+")
    transaction_last_update_timestamp_ms: int64
    transaction_start_timestamp_ms: int64
    client_transaction_version: int16 = f("1+", tag=2, default=0)
    # The epoch a client may still hold after a bump (KIP-360). apache/kafka#22096 (KAFKA-20357) persists Kafka's
    # lastProducerEpoch in a tagged field of version 1, but no release up to 4.4.0 has it in its schema, so the tag
    # could not be looked up: this one is the first free one. Readers skip tags they do not know.
    last_producer_epoch: int16 = f("1+", tag=4, default=-1)


class LiteralTransactionLogValue(Data, versions="1"):
    """Version 1 of a transactional id's state as KIP-360 spells it out: fixed fields, no tags.

    The text shows every field but the last producer id, which a later revision adds in words; it stands behind the
    producer id here, as the last epoch stands behind the epoch. INT16 for producer ids is a slip of the text.
    """

    class PartitionsSchema(Struct):
        topic: string
        partition_ids: list[int32]

    producer_id: int64
    last_producer_id: int64
    current_epoch: int16
    last_epoch: int16
    txn_timeout_duration: int32
    txn_status: int8
    txn_partitions: list[PartitionsSchema]
    txn_last_update_time: int64
    txn_start_time: int64


class LegacyOffsetCommitKey(Data, record_type=0, versions="0"):
    """A group's offset of a partition, in the oldest form."""

    group: string
    topic: string
    partition: int32


class LegacyOffsetCommitValue(Data, record_type=0, versions="0"):
    """An offset, in the oldest form."""

    offset: int64
    metadata: string
    commit_timestamp: int64


class OffsetCommitKey(Data, record_type=1, versions="0"):
    """A group's offset of a partition."""

    group: string
    topic: string
    partition: int32


class OffsetCommitValue(Data, record_type=1, versions="0-4", flexible="4+"):
    """A stored offset."""

    offset: int64
    leader_epoch: int32 = f("3+", default=-1, ignorable=True)
    metadata: string
    commit_timestamp: int64
    expire_timestamp: int64 = f("1", default=-1, ignorable=True)
    topic_id: uuid = f("4+", tag=0, default=NO_ID, ignorable=True)


class GroupMetadataKey(Data, record_type=2, versions="0"):
    """A classic group."""

    group: string


class GroupMetadataValue(Data, record_type=2, versions="0-4", flexible="4+"):
    """A generation of a classic group."""

    class MemberMetadata(Struct):
        member_id: string
        group_instance_id: string | None = f("3+", nullable="3+", default=None, ignorable=True)
        client_id: string
        client_host: string
        rebalance_timeout: int32 = f("1+", default=-1, ignorable=True)
        session_timeout: int32
        subscription: bytes_
        assignment: bytes_

    protocol_type: string
    generation: int32
    protocol: string | None = f(nullable="0+")
    leader: string | None = f(nullable="0+")
    current_state_timestamp: int64 = f("2+", default=-1, ignorable=True)
    members: list[MemberMetadata]


class ConsumerGroupMetadataKey(Data, record_type=3, versions="0"):
    """A KIP-848 group."""

    group_id: string


class ConsumerGroupMetadataValue(Data, record_type=3, versions="0", flexible="0+"):
    """The epoch of a group."""

    epoch: int32
    metadata_hash: int64 = f(tag=0, default=0)


class ConsumerGroupPartitionMetadataKey(Data, record_type=4, versions="0"):
    """The topics a group subscribed to; only deleted by 4.1 and later."""

    group_id: string


class ConsumerGroupPartitionMetadataValue(Data, record_type=4, versions="0", flexible="0+"):
    """The topics a group subscribed to, with partition counts."""

    class PartitionMetadata(Struct):
        partition: int32
        racks: list[string]

    class TopicMetadata(Struct):
        topic_id: uuid
        topic_name: string
        num_partitions: int32
        partition_metadata: list[ConsumerGroupPartitionMetadataValue.PartitionMetadata]

    topics: list[TopicMetadata]


class ConsumerGroupMemberMetadataKey(Data, record_type=5, versions="0"):
    """A member of a group."""

    group_id: string
    member_id: string


class ConsumerGroupMemberMetadataValue(Data, record_type=5, versions="0", flexible="0+"):
    """What a member subscribes to."""

    class ClassicProtocol(Struct):
        name: string
        metadata: bytes_

    class ClassicMemberMetadata(Struct):
        session_timeout_ms: int32
        supported_protocols: list[ConsumerGroupMemberMetadataValue.ClassicProtocol]

    instance_id: string | None = f(nullable="0+")
    rack_id: string | None = f(nullable="0+")
    client_id: string
    client_host: string
    subscribed_topic_names: list[string]
    subscribed_topic_regex: string | None = f(nullable="0+")
    rebalance_timeout_ms: int32 = f(default=-1)
    server_assignor: string | None = f(nullable="0+")
    # None for a member of the consumer protocol. Kafka writes that null, and reads absence as an empty struct.
    classic_member_metadata: ClassicMemberMetadata | None = f(nullable="0+", tag=0)


class ConsumerGroupTargetAssignmentMetadataKey(Data, record_type=6, versions="0"):
    """The target assignment of a group."""

    group_id: string


class ConsumerGroupTargetAssignmentMetadataValue(Data, record_type=6, versions="0", flexible="0+"):
    """The epoch of the target assignment."""

    assignment_epoch: int32
    assignment_timestamp: int64 = f(tag=0, default=0)


class ConsumerGroupTargetAssignmentMemberKey(Data, record_type=7, versions="0"):
    """The target assignment of a member."""

    group_id: string
    member_id: string


class ConsumerGroupTargetAssignmentMemberValue(Data, record_type=7, versions="0", flexible="0+"):
    """Target partitions of a member."""

    class TopicPartition(Struct):
        topic_id: uuid
        partitions: list[int32]

    topic_partitions: list[TopicPartition]


class ConsumerGroupCurrentMemberAssignmentKey(Data, record_type=8, versions="0"):
    """The current assignment of a member."""

    group_id: string
    member_id: string


class ConsumerGroupCurrentMemberAssignmentValue(Data, record_type=8, versions="0", flexible="0+"):
    """Partitions that a member owns or must revoke."""

    class TopicPartitions(Struct):
        topic_id: uuid
        partitions: list[int32]
        assignment_epochs: list[int32] | None = f(nullable="0+", tag=0, default=[])

    member_epoch: int32
    previous_member_epoch: int32
    state: int8
    assigned_partitions: list[TopicPartitions]
    partitions_pending_revocation: list[TopicPartitions]


class ConsumerGroupRegularExpressionKey(Data, record_type=16, versions="0"):
    """A regular expression a group subscribes with."""

    group_id: string
    regular_expression: string


class ConsumerGroupRegularExpressionValue(Data, record_type=16, versions="0", flexible="0+"):
    """The topics an expression matched."""

    topics: list[string]
    version: int64
    timestamp: int64


@cache
def record_types(topic: str) -> dict[int, tuple[type[Data], type[Data]]]:
    """Record type → (class of the key, class of the value) of a coordinator's topic. Type 0 is a transactional id in
    one topic, an old offset in the other."""
    declared = globals()
    types = {}
    for name, key in declared.items():
        ours = name.endswith("Key") and (name == "TransactionLogKey") == (topic == "__transaction_state")
        if ours and key.__record_type__ >= 0:
            types[key.__record_type__] = (key, declared[name.removesuffix("Key") + "Value"])
    return types
