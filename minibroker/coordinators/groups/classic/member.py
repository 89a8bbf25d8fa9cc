"""One member of a classic group (Kafka's ClassicGroupMember)."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import KW_ONLY, dataclass, field

from minibroker.kernel.deferred import Deferred
from minibroker_protocol.messages.groups import JoinGroupRequest, JoinGroupResponse, SyncGroupResponse

Protocols = tuple[tuple[str, bytes], ...]
"""(name, metadata) in the member's order of preference."""


def protocols_of(request: JoinGroupRequest) -> Protocols:
    """Each name once, the first one counts: protocols are counted by members."""
    protocols: dict[str, bytes] = {}
    for protocol in request.protocols:
        protocols.setdefault(protocol.name, bytes(protocol.metadata))
    return tuple(protocols.items())


@dataclass(slots=True, eq=False)
class ClassicMember:
    """A member as the coordinator knows it.

    is_new: its first JoinGroup is not answered yet, so it cannot send heartbeats.
    awaiting_join, awaiting_sync: its parked request.
    unanswered: its request is decided; the answer waits for its turn (see `Answers`).
    """

    member_id: str
    _: KW_ONLY
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    assignment: bytes = b""
    is_new: bool = field(default=False, init=False)
    awaiting_join: Deferred[JoinGroupResponse] | None = field(default=None, init=False)
    awaiting_sync: Deferred[SyncGroupResponse] | None = field(default=None, init=False)
    unanswered: bool = field(default=False, init=False)

    @property
    def static(self) -> bool:
        return self.group_instance_id is not None

    @property
    def satisfied_heartbeat(self) -> bool:
        """Whether an expired session is forgiven: a known member that waits in a rebalance is alive."""
        waits = self.awaiting_join is not None or self.awaiting_sync is not None or self.unanswered
        return waits and not self.is_new

    def metadata(self, protocol_name: str | None) -> bytes:
        for name, metadata in self.protocols:
            if name == protocol_name:
                return metadata
        return b""

    def vote(self, candidates: Container[str]) -> str:
        """The protocol that the member prefers among `candidates`."""
        return next(name for name, _ in self.protocols if name in candidates)
