"""What a KRaft controller writes into `__cluster_metadata`, as far as it says what topics, configs, features, producer
ids, ACLs, users and quotas there are (KIP-500, KIP-631).

A record's value is framed: unsigned varints for the frame version, the record's type and its version, then the message
(Kafka's AbstractApiMessageSerde). Field names and versions: Kafka 4.4.0's message definitions.
"""

from __future__ import annotations

from minibroker_protocol.codegen_read import varint
from minibroker_protocol.dsl import DECLARED, Data, Message
from minibroker_protocol.errors import Malformed
from minibroker_protocol.fields import bool_, bytes_, f, float64, int8, int16, int32, int64, string, uuid
from minibroker_protocol.structs import Struct

_FRAME_VERSION = 1


class TopicRecord(Data, record_type=2, versions="0", flexible="0+"):
    """A topic begins to exist."""

    name: string
    topic_id: uuid


class PartitionRecord(Data, record_type=3, versions="0-2", flexible="0+"):
    """A partition as it is from now on."""

    partition_id: int32 = f(default=-1)
    topic_id: uuid
    replicas: list[int32]
    isr: list[int32]
    removing_replicas: list[int32]
    adding_replicas: list[int32]
    leader: int32 = f(default=-1)
    leader_recovery_state: int8 = f(tag=0, default=0)
    leader_epoch: int32 = f(default=-1)
    partition_epoch: int32 = f(default=-1)
    directories: list[uuid] = f("1+")
    eligible_leader_replicas: list[int32] | None = f("2+", nullable="2+", tag=1, default=None)
    last_known_elr: list[int32] | None = f("2+", nullable="2+", tag=2, default=None)


class ConfigRecord(Data, record_type=4, versions="0", flexible="0+"):
    """A config gets a value, or loses it (null)."""

    resource_type: int8
    resource_name: string
    name: string
    value: string | None = f(nullable="0+")


class PartitionChangeRecord(Data, record_type=5, versions="0-2", flexible="0+"):
    """A partition changes; a leader of -2 and nulls stand for what stays."""

    partition_id: int32 = f(default=-1)
    topic_id: uuid
    isr: list[int32] | None = f(nullable="0+", tag=0, default=None)
    leader: int32 = f(tag=1, default=-2)
    replicas: list[int32] | None = f(nullable="0+", tag=2, default=None)
    removing_replicas: list[int32] | None = f(nullable="0+", tag=3, default=None)
    adding_replicas: list[int32] | None = f(nullable="0+", tag=4, default=None)
    leader_recovery_state: int8 = f(tag=5, default=-1)
    eligible_leader_replicas: list[int32] | None = f("2+", nullable="2+", tag=6, default=None)
    last_known_elr: list[int32] | None = f("2+", nullable="2+", tag=7, default=None)
    directories: list[uuid] | None = f("1+", nullable="1+", tag=8, default=None)


class RemoveTopicRecord(Data, record_type=9, versions="0", flexible="0+"):
    """A topic is gone, and its partitions with it."""

    topic_id: uuid


class DelegationTokenRecord(Data, record_type=10, versions="0", flexible="0+"):
    """A delegation token is created or renewed (KIP-48)."""

    owner: string
    requester: string
    renewers: list[string]
    issue_timestamp: int64
    max_timestamp: int64
    expiration_timestamp: int64
    token_id: string


class UserScramCredentialRecord(Data, record_type=11, versions="0", flexible="0+"):
    """A user gets a SCRAM credential, in the place of an earlier one of the same mechanism (KIP-554)."""

    name: string
    mechanism: int8
    salt: bytes_ = f(secret=True)
    stored_key: bytes_ = f(secret=True)
    server_key: bytes_ = f(secret=True)
    iterations: int32


class FeatureLevelRecord(Data, record_type=12, versions="0", flexible="0+"):
    """A feature is finalized at a level."""

    name: string
    feature_level: int16


class ClientQuotaRecord(Data, record_type=14, versions="0", flexible="0+"):
    """A quota of an entity gets a value, or is removed."""

    class EntityData(Struct):
        entity_type: string
        entity_name: string | None = f(nullable="0+")

    entity: list[EntityData]
    key: string
    value: float64
    remove: bool_


class ProducerIdsRecord(Data, record_type=15, versions="0", flexible="0+"):
    """A broker got a block of producer ids."""

    broker_id: int32
    broker_epoch: int64 = f(default=-1)
    next_producer_id: int64


class AccessControlEntryRecord(Data, record_type=18, versions="0", flexible="0+"):
    """An ACL is added."""

    id: uuid
    resource_type: int8
    resource_name: string
    pattern_type: int8
    principal: string
    host: string
    operation: int8
    permission_type: int8


class RemoveAccessControlEntryRecord(Data, record_type=19, versions="0", flexible="0+"):
    """An ACL is removed."""

    id: uuid


class RemoveUserScramCredentialRecord(Data, record_type=22, versions="0", flexible="0+"):
    """A SCRAM credential of a user is removed."""

    name: string
    mechanism: int8


class BeginTransactionRecord(Data, record_type=23, versions="0", flexible="0+"):
    """Records that hold together follow (KIP-868)."""

    name: string | None = f(nullable="0+", tag=0, default=None)


class EndTransactionRecord(Data, record_type=24, versions="0", flexible="0+"):
    """The records since the begin hold."""


class AbortTransactionRecord(Data, record_type=25, versions="0", flexible="0+"):
    """The records since the begin never happened."""

    reason: string | None = f(nullable="0+", tag=0, default=None)


class RemoveDelegationTokenRecord(Data, record_type=26, versions="0", flexible="0+"):
    """A delegation token expired or is removed."""

    token_id: string


_TYPES = {kind.__record_type__: kind for kind in DECLARED if issubclass(kind, Data) and kind.__module__ == __name__}


def decode_metadata_record(value: bytes) -> Message | None:
    """The record, None for a type that is not in this module. Raises Malformed."""
    try:
        frame, position = varint(value, 0)
        kind, position = varint(value, position)
        version, position = varint(value, position)
    except IndexError:
        raise Malformed(f"a metadata record of {len(value)} bytes ends within its frame") from None
    if frame != _FRAME_VERSION:
        raise Malformed(f"a metadata record with frame version {frame}, expected 1")
    record_type = _TYPES.get(kind)
    if record_type is None:
        return None
    return record_type.decode(value, version, position)
