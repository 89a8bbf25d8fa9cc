"""Operations on committed offsets: commit, delete, expire (Kafka's OffsetMetadataManager).

Why the rules are as they are: `minibroker.coordinators.groups`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from minibroker.coordinators.groups.environment import Environment
from minibroker.coordinators.groups.offsets import OffsetStore, commit_value, is_expired
from minibroker.coordinators.groups.records import offset_commit, offset_tombstone
from minibroker.coordinators.result import CoordinatorRecord, CoordinatorResult
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.fields import NO_ID, as_int64

OFFSET_COMMIT_WITH_EPOCHS = 9
TXN_OFFSET_COMMIT_WITH_EPOCHS = 6
"""First versions that know member epochs, GROUP_ID_NOT_FOUND and STALE_MEMBER_EPOCH (KIP-848, KIP-1319)."""


PartitionCheck = Callable[[bytes, int], None]
"""(topic id, partition): raises when the member may not commit for this one, and with it the whole request."""


class Group(Protocol):
    """The rules of a group of either protocol about offsets; see ClassicGroup and ConsumerGroup."""

    group_id: str

    @property
    def is_empty(self) -> bool: ...

    def validate_offset_commit(
        self,
        member_id: str,
        group_instance_id: str | None,
        generation_id: int,
        *,
        transactional: bool,
        api_version: int,
    ) -> PartitionCheck | None: ...

    def validate_offset_fetch(self, member_id: str | None, member_epoch: int) -> None: ...

    def validate_offset_delete(self) -> None: ...

    def validate_delete(self) -> None: ...

    def is_subscribed_to(self, topic: str) -> bool: ...

    def expiry_base_ms(self, commit_timestamp_ms: int) -> int | None: ...

    def tombstones(self) -> list[CoordinatorRecord]: ...


class CommitPartition(Protocol):
    """One partition of an OffsetCommit or TxnOffsetCommit request."""

    partition_index: int
    committed_offset: int
    committed_leader_epoch: int
    committed_metadata: str | None


@dataclass(frozen=True, slots=True)
class CommitTopic:
    """Partitions of an existing topic."""

    name: str
    topic_id: bytes
    partitions: Sequence[CommitPartition]


@dataclass(frozen=True, slots=True)
class Commit:
    """An offset commit without its wire form; generation_id is a member epoch in KIP-848 groups."""

    group_id: str
    member_id: str
    group_instance_id: str | None
    generation_id: int
    topics: Sequence[CommitTopic]
    api_version: int
    retention_time_ms: int = -1
    producer_id: int = -1
    producer_epoch: int = -1

    @property
    def transactional(self) -> bool:
        return self.producer_id != -1

    @property
    def knows_epochs(self) -> bool:
        """Whether its version has the codes about member epochs."""
        since = TXN_OFFSET_COMMIT_WITH_EPOCHS if self.transactional else OFFSET_COMMIT_WITH_EPOCHS
        return self.api_version >= since


Committed = list[list[tuple[int, ErrorCode]]]
"""For each topic of a commit, in order: (partition, error)."""


def all_partitions(commit: Commit, code: ErrorCode) -> Committed:
    return [[(partition.partition_index, code) for partition in topic.partitions] for topic in commit.topics]


class OffsetDecisions:
    """Reads groups and offsets, changes neither.

    simple: makes a group without members.
    """

    def __init__(
        self, env: Environment, groups: Mapping[str, Group], offsets: OffsetStore, simple: Callable[[str], Group]
    ) -> None:
        self._env = env
        self._groups = groups
        self._offsets = offsets
        self._simple = simple
        #: Groups made by a commit of which every partition was refused: Kafka has them in memory until they are deleted
        #: or expire, though nothing was written, and shows them to no client.
        self._unwritten: dict[str, Group] = {}

    def _find(self, group_id: str) -> Group | None:
        group = self._groups.get(group_id)
        if group is None:
            return self._unwritten.get(group_id)
        self._unwritten.pop(group_id, None)
        return group

    def commit(self, commit: Commit) -> CoordinatorResult[Committed]:
        """The records of a commit. Raises ApiError when the whole commit is refused, which one partition can cause. The
        topic id is not written in a transaction, as TxnOffsetCommit does not carry it. A commit without a generation
        creates an unknown group (a "simple" group).
        """
        check = self._checked(commit)
        config, now_ms = self._env.config(), self._env.now_ms()
        # OffsetCommit up to v4 brings a retention of its own; a sum past the largest long wraps, as in Java.
        expire = -1 if commit.retention_time_ms == -1 else as_int64(now_ms + commit.retention_time_ms)
        records: list[CoordinatorRecord] = []
        results: Committed = []
        for topic in commit.topics:
            codes: list[tuple[int, ErrorCode]] = []
            results.append(codes)
            for partition in topic.partitions:
                metadata = partition.committed_metadata
                code = ErrorCode.NONE
                if metadata is not None and _java_length(metadata) > config.offset_metadata_max_chars:
                    code = ErrorCode.OFFSET_METADATA_TOO_LARGE
                elif check is not None:
                    check(topic.topic_id, partition.partition_index)
                codes.append((partition.partition_index, code))
                if code == ErrorCode.NONE:
                    value = commit_value(
                        partition.committed_offset,
                        partition.committed_leader_epoch,
                        metadata,
                        commit_timestamp=now_ms,
                        expire_timestamp=expire,
                        topic_id=NO_ID if commit.transactional else topic.topic_id,
                    )
                    records.append(offset_commit(commit.group_id, topic.name, partition.partition_index, value))
        if not records and commit.group_id not in self._groups:
            self._unwritten[commit.group_id] = self._simple(commit.group_id)
        return CoordinatorResult(
            results,
            tuple(records),
            refused=lambda error: all_partitions(commit, error),
            producer_id=commit.producer_id,
            producer_epoch=commit.producer_epoch,
            transactional=commit.transactional,
        )

    def _checked(self, commit: Commit) -> PartitionCheck | None:
        """Check that the member may commit; returns the check to run for each partition."""
        try:
            check = self._validate(commit)
        except ApiError as error:
            raise _in_words_of(commit, error) from None
        if check is None:
            return None

        def checked(topic_id: bytes, partition: int) -> None:
            try:
                check(topic_id, partition)
            except ApiError as error:
                raise _in_words_of(commit, error) from None

        return checked

    def _validate(self, commit: Commit) -> PartitionCheck | None:
        group = self._find(commit.group_id)
        if group is None:
            if commit.generation_id < 0:
                return None
            # A member of a group that is gone; older clients know that code for OffsetCommit as their generation's end.
            missing = ErrorCode.GROUP_ID_NOT_FOUND if commit.knows_epochs else ErrorCode.ILLEGAL_GENERATION
            raise ApiError(missing, f"Group {commit.group_id} not found.")
        return group.validate_offset_commit(
            commit.member_id,
            commit.group_instance_id,
            commit.generation_id,
            transactional=commit.transactional,
            api_version=commit.api_version,
        )

    def delete_offsets(
        self, group_id: str, topics: Iterable[tuple[str, Sequence[int]]]
    ) -> CoordinatorResult[list[list[tuple[int, ErrorCode]]]]:
        """Tombstones for existing offsets; GROUP_SUBSCRIBED_TO_TOPIC for topics that the members subscribe to."""
        group = self._find(group_id)
        if group is None:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        group.validate_offset_delete()
        records: list[CoordinatorRecord] = []
        results = []
        for topic, partitions in topics:
            subscribed = group.is_subscribed_to(topic)
            code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if subscribed else ErrorCode.NONE
            results.append([(partition, code) for partition in partitions])
            if not subscribed:
                records += [
                    offset_tombstone(group_id, topic, partition)
                    for partition in partitions
                    if self._offsets.get(group_id, topic, partition) is not None
                    or self._offsets.is_pending(group_id, topic, partition)
                ]
        return CoordinatorResult(results, tuple(records))

    def delete_group(self, group_id: str) -> CoordinatorResult[None]:
        """Tombstones of all offsets and of the group. Raises GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP."""
        group = self._find(group_id)
        if group is None:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        group.validate_delete()
        if self._unwritten.pop(group_id, None) is not None:
            return CoordinatorResult(None)
        records = [offset_tombstone(group_id, *key) for key in self._offsets.known(group_id)]
        return CoordinatorResult(None, (*records, *group.tombstones()))

    def expire(self) -> CoordinatorResult[None]:
        """Tombstones of offsets that outlived their retention, and of empty groups that have none left."""
        now_ms, retention_ms = self._env.now_ms(), self._env.config().offsets_retention_ms
        self._unwritten.clear()
        records: list[CoordinatorRecord] = []
        for group_id, group in list(self._groups.items()):
            any_kept = False
            for topic, partitions in self._offsets.group(group_id).items():
                subscribed = group.is_subscribed_to(topic)
                for partition, offset in partitions.items():
                    base_ms = None if subscribed else group.expiry_base_ms(offset.commit_timestamp)
                    # Not while a transaction holds one: the tombstone would take that too (cleanupExpiredOffsets).
                    if (
                        base_ms is None
                        or self._offsets.is_pending(group_id, topic, partition)
                        or not is_expired(offset, now_ms, base_ms, retention_ms)
                    ):
                        any_kept = True
                    else:
                        records.append(offset_tombstone(group_id, topic, partition))
            if not any_kept and group.is_empty and not self._offsets.has_pending(group_id):
                records += group.tombstones()
        return CoordinatorResult(None, tuple(records))

    def topic_deleted(self, topic: str) -> CoordinatorResult[None]:
        """Tombstones of every offset of a deleted topic, pending ones of open transactions included."""
        return CoordinatorResult(
            None, tuple(offset_tombstone(group_id, topic, p) for group_id, p in self._offsets.with_topic(topic))
        )


def _java_length(text: str) -> int:
    """Java counts UTF-16 units, so a character outside the basic plane counts twice."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def _in_words_of(commit: Commit, error: ApiError) -> ApiError:
    """The error code in the request's version: an older TxnOffsetCommit has no codes about member epochs, and an older
    OffsetCommit is refused before they are compared."""
    if error.code is not ErrorCode.STALE_MEMBER_EPOCH or commit.knows_epochs:
        return error
    return ApiError(ErrorCode.ILLEGAL_GENERATION, error.message)
