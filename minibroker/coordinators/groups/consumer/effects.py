"""What a KIP-848 group's decisions leave to do; see `minibroker.coordinators.groups.classic.effects`."""

from __future__ import annotations

from dataclasses import dataclass

from minibroker.coordinators.groups.classic.group import ClassicGroup
from minibroker.coordinators.groups.consumer.group import ConsumerGroup
from minibroker.coordinators.groups.consumer.member import ConsumerMember
from minibroker.coordinators.result import Effect, Pending
from minibroker.kernel.deferred import Deferred
from minibroker_protocol.messages.groups import JoinGroupRequest, JoinGroupResponse


@dataclass(slots=True, frozen=True)
class ClassicMemberJoined(Pending, Effect):
    """A member of a KIP-848 group that speaks the classic protocol has rejoined. Durable: it is answered, and has to
    send SyncGroup in time."""

    group_id: str
    member: ConsumerMember
    request: JoinGroupRequest
    response: JoinGroupResponse
    answer: Deferred[JoinGroupResponse]


@dataclass(slots=True, frozen=True)
class MembersTakenOver(Effect):
    """A classic group became a KIP-848 group: the sessions of its members begin."""

    group_id: str
    members: tuple[ConsumerMember, ...]


@dataclass(slots=True, frozen=True)
class Downgraded(Pending, Effect):
    """A KIP-848 group becomes this classic group, which knows more of its members than the record. Durable: it
    rebalances."""

    classic: ClassicGroup


@dataclass(slots=True, frozen=True)
class ImageSeen(Pending):
    """The group has taken note of the cluster's metadata. Refused: the next heartbeat looks again."""

    group: ConsumerGroup
