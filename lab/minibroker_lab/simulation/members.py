"""A member of a classic group that reads its share of the input."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random

from minibroker.kernel.deferred import spawn
from minibroker.rules.rows import Seen
from minibroker_lab.simulation.client import ClientEnvironment
from minibroker_lab.simulation.evidence import TopicPartition
from minibroker_lab.simulation.readers import Reader
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from minibroker_protocol.messages.offsets import OffsetFetchRequest, OffsetFetchResponse

GROUP = "copiers"
INPUT = "in"
_SESSION_MS = 1500


class Rejoin(Exception):
    """The group no longer accepts the member's generation."""


class Member(Reader):
    """Joins, syncs, sends heartbeats and reads its assignment. Raises Rejoin when the group has another generation."""

    def __init__(self, world: ClientEnvironment, name: str, random: Random, places: Sequence[TopicPartition]) -> None:
        super().__init__(world, name, random, ())
        self.every_place = list(places)
        self.member_id = ""
        self.generation = -1
        self.evicted = True
        #: What the group had committed when this generation began, and what was committed since.
        self.taken: dict[TopicPartition, int] = {}
        self._awaits_offsets = False

    @property
    def waits_for(self) -> str:
        """What the member waits for; heartbeats are sent in the meantime."""
        return "OffsetFetch at its coordinator" if self._awaits_offsets else self.doing

    @contextmanager
    def awaiting_offsets(self) -> Iterator[None]:
        self._awaits_offsets = True
        try:
            yield
        finally:
            self._awaits_offsets = False

    async def join(self) -> None:
        """Join; returns once it has an assignment and the committed offsets."""
        while True:
            request = JoinGroupRequest(
                group_id=GROUP,
                session_timeout_ms=_SESSION_MS,
                rebalance_timeout_ms=2000,
                member_id=self.member_id,
                protocol_type="consumer",
                protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")],
            )
            joined, _ = await self.coordinate("group", GROUP, request, 5, JoinGroupResponse)
            if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                self.member_id = joined.member_id
                continue
            if joined.error_code != ErrorCode.NONE:
                self.member_id = ""
                await self.pause(50)
                continue
            self.member_id, self.generation = joined.member_id, joined.generation_id
            if await self._sync(joined):
                self.evicted = False
                spawn(self._heartbeats(self.generation)).then(lambda done: done.result())
                return

    async def _sync(self, joined: JoinGroupResponse) -> bool:
        members = sorted(member.member_id for member in joined.members)
        shares: dict[str, list[int]] = {member: [] for member in members}
        if members:
            for number, (_, index) in enumerate(self.every_place):
                shares[members[number % len(members)]].append(index)
        request = SyncGroupRequest(
            group_id=GROUP,
            generation_id=self.generation,
            member_id=self.member_id,
            assignments=[
                SyncGroupRequest.SyncGroupRequestAssignment(member_id=m, assignment=struct.pack(f">{len(s)}b", *s))
                for m, s in shares.items()
            ],
        )
        synced, _ = await self.coordinate("group", GROUP, request, 3, SyncGroupResponse)
        if synced.error_code != ErrorCode.NONE:
            if synced.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
                self.member_id = ""
            await self.pause(20)
            return False
        indexes = list(struct.unpack(f">{len(synced.assignment)}b", bytes(synced.assignment)))
        self.tell("assigned", f"is assigned {indexes} in generation {self.generation}")
        self.positions = {}
        if indexes:
            self.positions = {(INPUT, i): max(0, o) for i, o in (await self.committed(indexes)).items()}
        self.taken = dict(self.positions)
        return True

    async def committed(self, indexes: list[int]) -> dict[int, int]:
        """The group's stable offsets; waits while a transaction has others pending."""
        request = OffsetFetchRequest(
            group_id=GROUP,
            topics=[OffsetFetchRequest.OffsetFetchRequestTopic(name=INPUT, partition_indexes=indexes)],
            require_stable=True,
        )

        def code(answer: OffsetFetchResponse) -> int:
            codes = [p.error_code for t in answer.topics or () for p in t.partitions if p.error_code]
            return answer.error_code or (codes[0] if codes else 0)

        with self.awaiting_offsets():
            answer, _ = await self.coordinate("group", GROUP, request, 7, OffsetFetchResponse, code)
        return {p.partition_index: p.committed_offset for t in answer.topics or () for p in t.partitions}

    async def _heartbeats(self, generation: int) -> None:
        while not self.evicted and self.generation == generation:
            await self.pause(_SESSION_MS / 4)
            if self.evicted or self.generation != generation:
                return
            request = HeartbeatRequest(group_id=GROUP, generation_id=generation, member_id=self.member_id)
            answer, _ = await self.coordinate("group", GROUP, request, 3, HeartbeatResponse)
            if answer.error_code != ErrorCode.NONE and self.generation == generation:
                self.evict(ErrorCode(answer.error_code))

    def evict(self, code: ErrorCode) -> None:
        self.tell(f"member: {code.name}", f"must join again: {code.name}")
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        self.evicted = True

    async def leave(self) -> None:
        self.evicted = True
        request = LeaveGroupRequest(
            group_id=GROUP, members=[LeaveGroupRequest.MemberIdentity(member_id=self.member_id)]
        )
        await self.coordinate("group", GROUP, request, 3, LeaveGroupResponse)

    def committing(self, generation: int) -> int:
        """The generation to commit with what was read in `generation`."""
        return generation

    async def next(self) -> list[Seen]:
        """Some records of the assignment. Raises Rejoin."""
        fresh: list[Seen] = []
        for place in list(self.positions):
            if self.evicted:
                raise Rejoin
            fresh += await self.poll(place)
        return fresh

    @property
    def drained(self) -> bool:
        return all(offset >= self.stable.get(place, 1 << 62) for place, offset in self.positions.items())
