"""A KIP-848 group: epochs, members, target and current assignments (Kafka's ConsumerGroup).

Everything here comes from records; `volatile` parts are named so.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass, replace

from minibroker.coordinators.groups.consumer.member import (
    NO_TARGET,
    NOTHING,
    Assigned,
    ConsumerMember,
    MemberState,
    Target,
    decoded,
)
from minibroker.coordinators.groups.consumer.records import group_tombstones
from minibroker.coordinators.result import CoordinatorRecord
from minibroker.metadata.image import MetadataImage
from minibroker_protocol import coordinator_records as c
from minibroker_protocol.errors import ApiError, ErrorCode

NOTHING_OF_IT: Mapping[int, int] = {}

EPOCHS_VERSION = 9
"""First OffsetCommit version that carries member epochs."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """Topics that an expression matches, in the metadata with the offset `version`."""

    topics: frozenset[str]
    version: int
    timestamp_ms: int


class ConsumerGroup:
    """group_epoch counts changes of members, subscriptions and topics; target_epoch is the epoch the targets are for.

    owners: the member that owns a partition or has still to give it up.
    expression_uses: how many members subscribe by an expression; an expression without subscribers is not in it.
        seen_image (volatile): the metadata that the group epoch was last checked against.
    version: records applied.
    """

    type_name = "consumer"
    protocol_type = "consumer"

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.group_epoch = 1
        self.metadata_hash = 0
        self.target_epoch = 1
        self.members: dict[str, ConsumerMember] = {}
        self.static_members: dict[str, str] = {}
        self.targets: dict[str, Target] = {}
        self.expressions: dict[str, Resolved] = {}
        self.expression_uses: Counter[str] = Counter()
        self.owners: dict[tuple[bytes, int], str] = {}
        self.seen_image: MetadataImage | None = None
        self.version = 0

    def copy(self) -> ConsumerGroup:
        """The group as it is now: what it holds is replaced, and never changed."""
        made = copy(self)
        for name in ("members", "static_members", "targets", "expressions", "owners"):
            setattr(made, name, copy(getattr(self, name)))
        return made

    # -- looking ---------------------------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def state_name(self) -> str:
        if not self.members:
            return "Empty"
        if self.group_epoch > self.target_epoch:
            return "Assigning"
        if all(member.reconciled_to(self.target_epoch) for member in self.members.values()):
            return "Stable"
        return "Reconciling"

    def member(self, member_id: str) -> ConsumerMember:
        """Raises UNKNOWN_MEMBER_ID."""
        member = self.members.get(member_id)
        if member is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.group_id}.")
        return member

    def static_member(self, instance_id: str | None) -> ConsumerMember | None:
        member_id = None if instance_id is None else self.static_members.get(instance_id)
        return None if member_id is None else self.members.get(member_id)

    def topics_of(self, member: ConsumerMember, expressions: Mapping[str, Resolved]) -> set[str]:
        """Names a member subscribes to, by name and by expression."""
        names = set(member.subscribed_topic_names)
        # A new expression is matched after its heartbeat was answered, and has no topics until then.
        if member.subscribed_topic_regex in expressions:
            names |= expressions[member.subscribed_topic_regex].topics
        return names

    def subscribed_topics(self, members: Iterable[ConsumerMember], expressions: Mapping[str, Resolved]) -> set[str]:
        names: set[str] = set()
        for member in members:
            names |= self.topics_of(member, expressions)
        return names

    def preferred_assignor(self, members: Iterable[ConsumerMember], default: str) -> str:
        """The assignor that most members ask for; in a tie the alphabetically last, as Kafka's own two come out of
        Java's hash map."""
        votes = Counter(member.server_assignor for member in members if member.server_assignor is not None)
        return max(votes, key=lambda name: (votes[name], name)) if votes else default

    # -- what others may do ----------------------------------------------------------------------------------------

    def validate_offset_commit(
        self,
        member_id: str,
        group_instance_id: str | None,
        generation_id: int,
        *,
        transactional: bool,
        api_version: int,
    ) -> Callable[[bytes, int], None] | None:
        """By member epoch. An older epoch is good for partitions the member has had since then (KIP-1251).

        Raises UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH, UNSUPPORTED_VERSION, and ILLEGAL_GENERATION for a member that
        uses the classic protocol. A commit without a member passes while there are no members, and in a transaction
        always: request versions before TxnOffsetCommit v3 cannot say more.
        """
        unnamed = not member_id and group_instance_id is None
        if generation_id < 0 and (not self.members or (transactional and unnamed)):
            return None
        member = self.member(member_id)
        if not transactional and not member.uses_classic_protocol and api_version < EPOCHS_VERSION:
            raise ApiError(
                ErrorCode.UNSUPPORTED_VERSION, f"members of group {self.group_id} commit with OffsetCommit v9 or later"
            )
        if generation_id >= member.member_epoch:
            _check_epoch(member, generation_id)
            return None

        def check(topic_id: bytes, partition: int) -> None:
            since = member.assigned.get(topic_id, NOTHING_OF_IT).get(partition)
            if since is None:
                since = member.pending_revocation.get(topic_id, NOTHING_OF_IT).get(partition)
            if since is None or generation_id < since:
                _check_epoch(member, generation_id)

        return check

    def validate_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """A request without member is an admin's. Raises UNKNOWN_MEMBER_ID and STALE_MEMBER_EPOCH."""
        if member_id is None and member_epoch < 0:
            return
        _check_epoch(self.member(member_id or ""), member_epoch)

    def validate_offset_delete(self) -> None:
        """Always; subscribed topics are refused one by one."""

    def validate_delete(self) -> None:
        if self.members:
            raise ApiError(ErrorCode.NON_EMPTY_GROUP, f"group {self.group_id} has members")

    def is_subscribed_to(self, topic: str) -> bool:
        return any(topic in self.topics_of(member, self.expressions) for member in self.members.values())

    def expiry_base_ms(self, commit_timestamp_ms: int) -> int | None:
        return commit_timestamp_ms

    def tombstones(self) -> list[CoordinatorRecord]:
        return group_tombstones(self.group_id, self.members, self.expressions)

    # -- replay ----------------------------------------------------------------------------------------------------

    def set_epoch(self, value: c.ConsumerGroupMetadataValue) -> None:
        self.group_epoch = value.epoch
        self.metadata_hash = value.metadata_hash

    def set_member(self, member_id: str, value: c.ConsumerGroupMemberMetadataValue) -> None:
        """Update a member's own data; its assignment stays."""
        before = self.members.get(member_id) or ConsumerMember(member_id)
        self._put(
            replace(
                before,
                instance_id=value.instance_id,
                rack_id=value.rack_id,
                client_id=value.client_id,
                client_host=value.client_host,
                subscribed_topic_names=tuple(value.subscribed_topic_names),
                subscribed_topic_regex=value.subscribed_topic_regex or "",
                rebalance_timeout_ms=value.rebalance_timeout_ms,
                server_assignor=value.server_assignor,
                classic=value.classic_member_metadata,
            )
        )

    def set_assignment(self, member_id: str, value: c.ConsumerGroupCurrentMemberAssignmentValue | None) -> None:
        """Set a member's current assignment; None clears it. An unknown member is created."""
        before = self.members.get(member_id)
        if value is None:
            # As in GroupMetadataManager.replay: the member's own tombstone follows, and it owns nothing by then.
            if before is not None:
                self._put(replace(before, member_epoch=-1, assigned=NOTHING, pending_revocation=NOTHING))
            return
        self._put(
            replace(
                before or ConsumerMember(member_id),
                member_epoch=value.member_epoch,
                previous_member_epoch=value.previous_member_epoch,
                state=MemberState.of(value.state),
                assigned=decoded(value.assigned_partitions, value.member_epoch),
                pending_revocation=decoded(value.partitions_pending_revocation, value.member_epoch),
            )
        )

    def remove_member(self, member_id: str) -> None:
        before = self.members.pop(member_id, None)
        if before is not None:
            self._forget_partitions(before)
            self._subscribe(before.subscribed_topic_regex, "")
            # A static member that came back under another id has the instance by now.
            if before.instance_id is not None and self.static_members.get(before.instance_id) == member_id:
                del self.static_members[before.instance_id]

    def set_target(self, member_id: str, value: c.ConsumerGroupTargetAssignmentMemberValue | None) -> None:
        if value is None:
            self.targets.pop(member_id, None)
        else:
            self.targets[member_id] = {t.topic_id: frozenset(t.partitions) for t in value.topic_partitions}

    def target(self, member_id: str) -> Target:
        return self.targets.get(member_id, NO_TARGET)

    def _put(self, member: ConsumerMember) -> None:
        before = self.members.get(member.member_id)
        same = False
        if before is not None:
            same = before.assigned is member.assigned and before.pending_revocation is member.pending_revocation
            if not same:
                self._forget_partitions(before)
            # Who takes another instance id gives up the one before: it may be claimed anew.
            if before.instance_id is not None and before.instance_id != member.instance_id:
                self.static_members.pop(before.instance_id, None)
        self._subscribe("" if before is None else before.subscribed_topic_regex, member.subscribed_topic_regex)
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        # Most heartbeats change no partition, and a member may have thousands.
        if same:
            return
        for assigned in (member.assigned, member.pending_revocation):
            for topic_id, epochs in assigned.items():
                for partition in epochs:
                    self.owners[topic_id, partition] = member.member_id

    def _subscribe(self, before: str, now: str) -> None:
        """A member changed its expression."""
        if now != before:
            uses = self.expression_uses.copy()
            uses[now] += bool(now)
            uses[before] -= bool(before)
            self.expression_uses = +uses

    def _forget_partitions(self, member: ConsumerMember) -> None:
        for assigned in (member.assigned, member.pending_revocation):
            for topic_id, epochs in assigned.items():
                for partition in epochs:
                    # In a compacted log the next owner's record can precede the one that revokes the partition.
                    if self.owners.get((topic_id, partition)) == member.member_id:
                        del self.owners[topic_id, partition]

    def durable(self) -> dict[str, object]:
        """All state that records hold, to compare two groups."""
        return {
            "epochs": (self.group_epoch, self.metadata_hash, self.target_epoch),
            "members": dict(self.members),
            "static": dict(self.static_members),
            "targets": {member_id: dict(target) for member_id, target in self.targets.items()},
            "expressions": dict(self.expressions),
            "owners": dict(self.owners),
        }


def _check_epoch(member: ConsumerMember, epoch: int) -> None:
    if epoch != member.member_epoch:
        code = ErrorCode.ILLEGAL_GENERATION if member.uses_classic_protocol else ErrorCode.STALE_MEMBER_EPOCH
        raise ApiError(code, f"member {member.member_id} is in epoch {member.member_epoch}, the request in {epoch}")


def metadata_hash(image: MetadataImage, topics: Iterable[str]) -> int:
    """A number that changes when one of the existing `topics` changes its id or its partitions (KIP-1101).

    Only ever compared with itself: another hash function than Kafka's costs a group one epoch when the broker changes.
    """
    digest = hashlib.blake2b(digest_size=8)
    any_known = False
    for name in sorted(topics):
        topic = image.topics.get(name)
        if topic is not None:
            any_known = True
            digest.update(f"{name}\0{len(topic.partitions)}\0".encode() + topic.topic_id)
    return int.from_bytes(digest.digest(), "big", signed=True) if any_known else 0


__all__ = ["Assigned", "ConsumerGroup", "metadata_hash"]
