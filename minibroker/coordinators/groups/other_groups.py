"""Share groups and streams groups in the directory of a real Kafka (KIP-932, KIP-1071): their ids, which are taken.

Kafka: GroupMetadataManager.classicGroupJoin, consumerGroupHeartbeat, GroupCoordinatorRecordHelpers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from minibroker.coordinators.result import CoordinatorRecord
from minibroker_protocol.coordinator_records import ConsumerGroupMetadataKey
from minibroker_protocol.errors import ApiError, ErrorCode

SHARE, STREAMS = "share", "streams"
_TYPES = {**dict.fromkeys(range(10, 16), SHARE), **dict.fromkeys((17, *range(19, 24)), STREAMS)}
"""Record type -> type of the group, by Kafka's CoordinatorRecordType."""
_MEMBERS = (10, 19)
_GROUPS = (11, 17)
_NAMED = 20


@dataclass(slots=True)
class OtherRecord(CoordinatorRecord):
    """A record of such a group: its key as it is in the log, and of its value only whether there is one."""

    raw_key: bytes = b""

    @property
    def key_type(self) -> int:
        return int.from_bytes(self.raw_key[:2], "big")

    @property
    def group_id(self) -> str:
        return self.key.group_id  # type: ignore[attr-defined, no-any-return]

    def key_bytes(self) -> bytes:
        return self.raw_key


def decode_other(key_type: int, key: bytes, value: bytes | None) -> OtherRecord | None:
    """The record, None of another type. Raises Malformed."""
    if key_type not in _TYPES:
        return None
    # The key of every record of these groups begins with the group's id, which is all of this one.
    group, _ = ConsumerGroupMetadataKey.decode_from(key, 0, 2)
    return OtherRecord(group, None if value is None else group, raw_key=key)


@dataclass(slots=True)
class OtherGroup:
    """keys: the keys of all its records, with their types."""

    group_id: str
    type_name: str
    keys: dict[bytes, int] = field(default_factory=dict)

    @property
    def is_known(self) -> bool:
        """Whether its own record is there; others may outlive it in a log that is being compacted."""
        return any(key_type in _GROUPS for key_type in self.keys.values())

    @property
    def has_members(self) -> bool:
        return any(key_type in _MEMBERS for key_type in self.keys.values())

    @property
    def gives_way(self) -> bool:
        """Whether classic consumers may have its id: as on Kafka that of a streams group without members."""
        return self.type_name == STREAMS and not self.has_members

    def tombstones(self) -> list[CoordinatorRecord]:
        key = ConsumerGroupMetadataKey(group_id=self.group_id)
        return [OtherRecord(key, raw_key=raw) for raw in self.keys]


class OtherGroups:
    """The groups of other kinds in one partition of `__consumer_offsets`."""

    def __init__(self) -> None:
        self._groups: dict[str, OtherGroup] = {}

    def replay(self, record: OtherRecord) -> None:
        group_id = record.group_id
        group = self._groups.setdefault(group_id, OtherGroup(group_id, _TYPES[record.key_type]))
        if record.value is not None:
            group.keys[record.raw_key] = record.key_type
            return
        group.keys.pop(record.raw_key, None)
        if not group.keys:
            del self._groups[group_id]

    def get(self, group_id: str) -> OtherGroup | None:
        group = self._groups.get(group_id)
        return group if group is not None and group.is_known else None

    def all(self) -> list[OtherGroup]:
        return [group for group in self._groups.values() if group.is_known]

    def check(self, group_id: str, wanted: str) -> None:
        """Raises GROUP_ID_NOT_FOUND when the id is such a group's."""
        if self.get(group_id) is not None:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a {wanted} group.")


def in_words(groups: Iterable[OtherGroup]) -> str:
    """A line that names them, or the first of them."""
    names = [f"{group.group_id} ({group.type_name})" for group in groups]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return (
        "share groups and streams groups are not served, and their ids are refused to consumers: "
        f"{', '.join(names[:_NAMED])}{more} (DeleteGroups frees an id)"
    )
