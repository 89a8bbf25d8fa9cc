"""What a classic group's decisions leave to do: noted before the append, performed after it, undone if it is refused.

Records of groups are replayed at the append, before they are durable. This module therefore says, for each kind of
decision that does more than write records, what a refused append leaves behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from minibroker.coordinators.groups.classic.group import ClassicGroup
from minibroker.coordinators.groups.classic.member import ClassicMember, Protocols
from minibroker.coordinators.result import Effect, Pending
from minibroker.kernel.deferred import Deferred
from minibroker_protocol.messages.groups import JoinGroupResponse


@dataclass(slots=True, frozen=True)
class GroupCreated(Pending):
    """The first record of a classic group that a JoinGroup has made. Refused: the joining client gets the error."""

    answer: Deferred[JoinGroupResponse]


@dataclass(slots=True, frozen=True)
class AssignmentWritten(Pending, Effect):
    """The leader's assignment, by member id. Durable: the members get it. Refused: they get the error and rebalance."""

    group: ClassicGroup
    generation_id: int
    assignments: Mapping[str, bytes]


@dataclass(slots=True, frozen=True)
class StaticMemberReplaced(Pending, Effect):
    """A static member rejoined without its member id (KIP-345). Refused: the earlier member is back.

    before: protocols, rebalance timeout and session timeout that it had.
    """

    group: ClassicGroup
    member: ClassicMember
    instance_id: str
    old_id: str
    new_id: str
    old_leader: str
    before: tuple[Protocols, int, int]
    api_version: int
    answer: Deferred[JoinGroupResponse]
