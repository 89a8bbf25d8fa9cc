"""Committed offsets of groups, and those that a transaction holds until it ends (Kafka's OffsetMetadataManager).

A transactional commit is pending until the marker of its transaction is replayed; then it becomes the group's offset,
unless a commit written after it got there first (KIP-447, and compaction keeps the record written last). Why the rules
are as they are: `minibroker.coordinators.groups`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from minibroker_protocol.coordinator_records import OffsetCommitValue
from minibroker_protocol.fields import NO_ID

NO_PRODUCER_ID = -1

TopicPartition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Offset:
    """One committed offset.

    expire_timestamp: -1 when the group's retention decides.
    record_offset: where in `__consumer_offsets` it is written.
    """

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp: int
    expire_timestamp: int
    topic_id: bytes
    record_offset: int

    @classmethod
    def of(cls, value: OffsetCommitValue, record_offset: int) -> Offset:
        return cls(
            value.offset,
            value.leader_epoch,
            value.metadata,
            value.commit_timestamp,
            value.expire_timestamp,
            value.topic_id,
            record_offset,
        )


GroupOffsets = dict[str, dict[int, Offset]]
"""Offsets by topic and partition."""


class OffsetStore:
    """State only; what may be committed is decided before, and `replay` is the only way in."""

    def __init__(self) -> None:
        self._committed: dict[str, GroupOffsets] = {}
        # producer id -> group -> topic partition -> offset
        self._pending: dict[int, dict[str, dict[TopicPartition, Offset]]] = {}
        # group -> topic partition -> producer ids with an open transaction on it
        self._open: dict[str, dict[TopicPartition, set[int]]] = {}

    # -- reading ---------------------------------------------------------------------------------------------------

    def group(self, group_id: str) -> GroupOffsets:
        """All committed offsets of a group; not to be changed."""
        return self._committed.get(group_id) or {}

    def get(self, group_id: str, topic: str, partition: int) -> Offset | None:
        topics = self._committed.get(group_id)
        partitions = None if topics is None else topics.get(topic)
        return None if partitions is None else partitions.get(partition)

    def is_pending(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether an open transaction holds an offset for this partition."""
        held = self._open.get(group_id)
        return held is not None and (topic, partition) in held

    def has_pending(self, group_id: str) -> bool:
        return group_id in self._open

    def pending(self, group_id: str) -> list[TopicPartition]:
        return list(self._open.get(group_id, ()))

    def pending_offsets(self, group_id: str) -> Iterator[tuple[TopicPartition, Offset]]:
        """What open transactions hold of a group."""
        producer_ids = {owner for owners in self._open.get(group_id, {}).values() for owner in owners}
        for producer_id in sorted(producer_ids):
            yield from self._pending[producer_id][group_id].items()

    @property
    def committed_count(self) -> int:
        """Committed offsets of all groups."""
        return sum(len(partitions) for topics in self._committed.values() for partitions in topics.values())

    def group_ids(self) -> list[str]:
        """Groups that have committed or pending offsets."""
        return list(self._committed.keys() | self._open.keys())

    def known(self, group_id: str) -> Iterator[TopicPartition]:
        """Partitions with a committed or a pending offset."""
        committed = self._committed.get(group_id, {})
        for topic, partitions in committed.items():
            for partition in partitions:
                yield topic, partition
        for topic, partition in self._open.get(group_id, ()):
            if partition not in committed.get(topic, {}):
                yield topic, partition

    def with_topic(self, topic: str) -> Iterator[tuple[str, int]]:
        """(group, partition) of every committed or pending offset of a topic."""
        for group_id in self.group_ids():
            committed = self._committed.get(group_id, {}).get(topic, {})
            for partition in committed:
                yield group_id, partition
            for held_topic, partition in self._open.get(group_id, ()):
                if held_topic == topic and partition not in committed:
                    yield group_id, partition

    # -- writing ---------------------------------------------------------------------------------------------------

    def replay(
        self,
        group_id: str,
        topic: str,
        partition: int,
        value: OffsetCommitValue | None,
        *,
        record_offset: int,
        producer_id: int,
    ) -> None:
        """Apply one record; a tombstone also takes what transactions hold for the partition."""
        if value is None:
            self._remove(group_id, topic, partition)
        elif producer_id == NO_PRODUCER_ID:
            self._put(group_id, topic, partition, Offset.of(value, record_offset))
        else:
            key = (topic, partition)
            self._pending.setdefault(producer_id, {}).setdefault(group_id, {})[key] = Offset.of(value, record_offset)
            self._open.setdefault(group_id, {}).setdefault(key, set()).add(producer_id)

    def complete(self, producer_id: int, *, committed: bool) -> None:
        """The transaction of a producer ended; one that holds nothing here changes nothing."""
        for group_id, held in self._pending.pop(producer_id, {}).items():
            for (topic, partition), offset in held.items():
                self._release(group_id, topic, partition, producer_id)
                if committed:
                    existing = self.get(group_id, topic, partition)
                    # The record written last, as compaction keeps it: a plain commit may have come between this one and
                    # its marker (OffsetMetadataManager.replayEndTransactionMarker).
                    if existing is None or offset.record_offset > existing.record_offset:
                        self._put(group_id, topic, partition, offset)

    def _put(self, group_id: str, topic: str, partition: int, offset: Offset) -> None:
        self._committed.setdefault(group_id, {}).setdefault(topic, {})[partition] = offset

    def _remove(self, group_id: str, topic: str, partition: int) -> None:
        topics = self._committed.get(group_id)
        if topics is not None and topic in topics:
            topics[topic].pop(partition, None)
            if not topics[topic]:
                del topics[topic]
                if not topics:
                    del self._committed[group_id]
        for producer_id in tuple(self._open.get(group_id, {}).get((topic, partition), ())):
            self._release(group_id, topic, partition, producer_id)
            by_group = self._pending[producer_id]
            del by_group[group_id][topic, partition]
            if not by_group[group_id]:
                del by_group[group_id]
                if not by_group:
                    del self._pending[producer_id]

    def _release(self, group_id: str, topic: str, partition: int, producer_id: int) -> None:
        held = self._open[group_id]
        producers = held[topic, partition]
        producers.discard(producer_id)
        if not producers:
            del held[topic, partition]
            # `has_pending` only looks whether the group is here.
            if not held:
                del self._open[group_id]

    # -- for tests and tools ---------------------------------------------------------------------------------------

    def snapshot(self) -> tuple[object, object]:
        """Everything that the log decides, for comparing two stores."""
        return (
            {group: {topic: dict(p) for topic, p in topics.items()} for group, topics in self._committed.items()},
            {pid: {group: dict(held) for group, held in groups.items()} for pid, groups in self._pending.items()},
        )


def is_expired(offset: Offset, now_ms: int, base_timestamp_ms: int, retention_ms: int) -> bool:
    """An offset with its own end goes then, any other `retention_ms` after `base_timestamp_ms` (KIP-211)."""
    if offset.expire_timestamp != -1:
        return now_ms >= offset.expire_timestamp
    return now_ms - base_timestamp_ms >= retention_ms


def commit_value(
    offset: int,
    leader_epoch: int,
    metadata: str | None,
    *,
    commit_timestamp: int,
    expire_timestamp: int = -1,
    topic_id: bytes = NO_ID,
) -> OffsetCommitValue:
    return OffsetCommitValue(
        offset=offset,
        leader_epoch=leader_epoch,
        metadata=metadata or "",
        commit_timestamp=commit_timestamp,
        expire_timestamp=expire_timestamp,
        topic_id=topic_id,
    )
