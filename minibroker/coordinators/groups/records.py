"""Records of `__consumer_offsets`: how they are made and how they are read (Kafka's GroupCoordinatorRecordHelpers)."""

from __future__ import annotations

from minibroker.coordinators.groups.other_groups import decode_other
from minibroker.coordinators.result import CoordinatorRecord
from minibroker.metadata.image import CONSUMER_OFFSETS_TOPIC
from minibroker_protocol import coordinator_records as c
from minibroker_protocol.dsl import Data
from minibroker_protocol.errors import Malformed

_TYPES: dict[int, tuple[type[Data], type[Data]]] = {
    **c.record_types(CONSUMER_OFFSETS_TOPIC),
    # Its own value is the first version of the newer one, byte for byte, so that the two are replayed alike
    # (GroupCoordinatorShard.convertLegacyOffsetCommitValue).
    c.LegacyOffsetCommitKey.__record_type__: (c.LegacyOffsetCommitKey, c.OffsetCommitValue),
}

# Version 3 is what Kafka writes of a classic group; 4, the flexible one, it only reads.
_GROUP_METADATA_VERSION = 3
_OFFSET_COMMIT_VERSION = 4
# The only version that has an expiry time for each offset.
_OFFSET_COMMIT_VERSION_WITH_EXPIRY = 1


def decode(key: bytes, value: bytes | None) -> CoordinatorRecord | None:
    """The typed record; None when its type or version is unknown. Raises Malformed when the bytes are broken."""
    if len(key) < 2 or (value is not None and len(value) < 2):
        raise Malformed("a coordinator's key and value start with an int16")
    key_type = int.from_bytes(key[:2], "big", signed=True)
    types = _TYPES.get(key_type)
    if types is None:
        return decode_other(key_type, key, value)
    key_class, value_class = types
    typed_key = key_class.decode(key, 0, 2)
    if value is None:
        return CoordinatorRecord(typed_key)
    version = int.from_bytes(value[:2], "big", signed=True)
    low, high = value_class.__versions__
    if not low <= version <= high:
        return None
    return CoordinatorRecord(typed_key, value_class.decode(value, version, 2), version)


def offset_commit(group_id: str, topic: str, partition: int, value: c.OffsetCommitValue) -> CoordinatorRecord:
    version = _OFFSET_COMMIT_VERSION if value.expire_timestamp == -1 else _OFFSET_COMMIT_VERSION_WITH_EXPIRY
    return CoordinatorRecord(c.OffsetCommitKey(group=group_id, topic=topic, partition=partition), value, version)


def offset_tombstone(group_id: str, topic: str, partition: int) -> CoordinatorRecord:
    return CoordinatorRecord(c.OffsetCommitKey(group=group_id, topic=topic, partition=partition))


def group_metadata(group_id: str, value: c.GroupMetadataValue) -> CoordinatorRecord:
    return CoordinatorRecord(c.GroupMetadataKey(group=group_id), value, _GROUP_METADATA_VERSION)


def group_tombstone(group_id: str) -> CoordinatorRecord:
    return CoordinatorRecord(c.GroupMetadataKey(group=group_id))
