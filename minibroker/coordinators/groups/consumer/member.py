"""One member of a KIP-848 group (Kafka's ConsumerGroupMember)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import Final

from minibroker_protocol import coordinator_records as c

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
STATIC_LEAVE_EPOCH: Final = -2

ClassicMemberMetadata = c.ConsumerGroupMemberMetadataValue.ClassicMemberMetadata

Assigned = Mapping[bytes, Mapping[int, int]]
"""topic id -> partition -> epoch of the member when it got the partition (KIP-1251)."""

Target = Mapping[bytes, frozenset[int]]
"""topic id -> partitions."""

NOTHING: Final[Assigned] = MappingProxyType({})
NO_TARGET: Final[Target] = MappingProxyType({})


class MemberState(IntEnum):
    """The state of a member's reconciliation with its target; the values are those of the record."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127

    @classmethod
    def of(cls, number: int) -> MemberState:
        return cls(number) if number in (0, 1, 2) else cls.UNKNOWN


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """A member's own data and its assignment.

    classic: set for a member that uses the classic protocol in this group.
    pending_revocation: partitions that it must revoke before it gets others.
    """

    member_id: str
    member_epoch: int = 0
    previous_member_epoch: int = 0
    state: MemberState = MemberState.STABLE
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: tuple[str, ...] = ()
    subscribed_topic_regex: str = ""
    server_assignor: str | None = None
    classic: ClassicMemberMetadata | None = None
    assigned: Assigned = field(default_factory=lambda: NOTHING)
    pending_revocation: Assigned = field(default_factory=lambda: NOTHING)

    @property
    def uses_classic_protocol(self) -> bool:
        return self.classic is not None

    @property
    def owned(self) -> Assigned:
        """Partitions that it was assigned and has not confirmed as revoked (as ConsumerGroupDescribe lists them)."""
        owned = dict(self.assigned)
        for topic_id, epochs in self.pending_revocation.items():
            owned[topic_id] = {**owned.get(topic_id, {}), **epochs}
        return owned

    def reconciled_to(self, epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.member_epoch == epoch

    def owns_nothing_of(self, owned: Iterable[tuple[bytes, Iterable[int]]] | None, given_up: Assigned) -> bool:
        """Whether the member says that none of `given_up` is in its hands any more; None says nothing."""
        if owned is None:
            return False
        return not any(p in given_up.get(topic_id, NOTHING) for topic_id, partitions in owned for p in partitions)

    def metadata_value(self) -> c.ConsumerGroupMemberMetadataValue:
        return c.ConsumerGroupMemberMetadataValue(
            instance_id=self.instance_id,
            rack_id=self.rack_id,
            client_id=self.client_id,
            client_host=self.client_host,
            subscribed_topic_names=list(self.subscribed_topic_names),
            subscribed_topic_regex=self.subscribed_topic_regex,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            server_assignor=self.server_assignor,
            classic_member_metadata=self.classic,
        )

    def assignment_value(self) -> c.ConsumerGroupCurrentMemberAssignmentValue:
        return c.ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=self.member_epoch,
            previous_member_epoch=self.previous_member_epoch,
            state=self.state,
            assigned_partitions=_encoded(self.assigned),
            partitions_pending_revocation=_encoded(self.pending_revocation),
        )


def protocols_of(member: ConsumerMember) -> tuple[tuple[str, bytes], ...]:
    """(name, metadata) of a member that uses the classic protocol."""
    assert member.classic is not None
    return tuple((protocol.name, bytes(protocol.metadata)) for protocol in member.classic.supported_protocols)


_TopicPartitions = c.ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions


def _encoded(assigned: Assigned) -> list[_TopicPartitions]:
    return [
        _TopicPartitions(topic_id=topic_id, partitions=list(epochs), assignment_epochs=list(epochs.values()))
        for topic_id, epochs in assigned.items()
    ]


def decoded(topics: Iterable[_TopicPartitions], member_epoch: int) -> Assigned:
    """The partitions of a record; one without epochs is older than they are, and gets the member's."""
    result: dict[bytes, Mapping[int, int]] = {}
    for topic in topics:
        epochs = topic.assignment_epochs or [member_epoch] * len(topic.partitions)
        result[topic.topic_id] = dict(zip(topic.partitions, epochs, strict=True))
    return result


def partitions_of(assigned: Assigned) -> set[tuple[bytes, int]]:
    return {(topic_id, partition) for topic_id, epochs in assigned.items() for partition in epochs}
