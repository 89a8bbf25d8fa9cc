"""A member of a KIP-848 group: the broker assigns, the member says with each heartbeat what it holds."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from minibroker.kernel.deferred import spawn
from minibroker_lab.simulation.client import ClientEnvironment
from minibroker_lab.simulation.evidence import TopicPartition
from minibroker_lab.simulation.members import GROUP, INPUT, Member
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from minibroker_protocol.messages.offsets import OffsetFetchRequest, OffsetFetchResponse

_HEARTBEAT_MS = 300.0
_REBALANCE_TIMEOUT_MS = 2000
_LEAVE = -1
FENCED = frozenset({ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID})
_Partitions = ConsumerGroupHeartbeatRequest.TopicPartitions


class ConsumerMember(Member):
    """`generation` is the member epoch, 0 for none. Revoked partitions are given up only between two transactions, so
    that the next owner finds their offsets committed or aborted."""

    def __init__(self, world: ClientEnvironment, name: str, random: Random, places: Sequence[TopicPartition]) -> None:
        super().__init__(world, name, random, places)
        self.generation = 0
        self._held: tuple[int, ...] = ()
        self._target: tuple[int, ...] = ()
        self._topic_id = b""
        self._beating = False

    async def join(self) -> None:
        """Join; returns once the member owns its assignment and has the committed offsets."""
        if not self.member_id:
            self.member_id = f"{self.random.getrandbits(64):016x}"
        while True:
            # What stays keeps its position in Kafka's consumer; here all is read again from what was committed.
            self._held = self._target
            if not await self._heartbeat() or self._held != self._target:
                continue
            offsets = await self._offsets() if self._held else {}
            if offsets is None or self._held != self._target:
                continue
            self.positions = {(INPUT, i): max(0, o) for i, o in offsets.items()}
            self.taken = dict(self.positions)
            self.tell("assigned by the broker", f"is assigned {list(self._held)} in member epoch {self.generation}")
            self.evicted = False
            if not self._beating:
                self._beating = True
                spawn(self._beat()).then(lambda done: done.result())
            return

    async def _heartbeat(self) -> bool:
        """Send a full heartbeat, as Kafka's consumer does when a response may have been lost; False when the group no
        longer knows this member or its epoch."""
        member_id, epoch = self.member_id, self.generation
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=member_id,
            member_epoch=epoch,
            rebalance_timeout_ms=_REBALANCE_TIMEOUT_MS,
            subscribed_topic_names=[INPUT],
            topic_partitions=[_Partitions(topic_id=self._topic_id, partitions=list(self._held))] if self._held else [],
        )
        answer, _ = await self.coordinate("group", GROUP, request, 1, ConsumerGroupHeartbeatResponse)
        if (member_id, epoch) != (self.member_id, self.generation):
            return False  # overtaken by another heartbeat
        code = ErrorCode(answer.error_code)
        if code != ErrorCode.NONE:
            if code not in FENCED:
                self.history.report("refusal", GROUP, -1, f"{self.name} is told {code.name} by ConsumerGroupHeartbeat")
                await self.pause(200)
            self.evict(code)
            return False
        self.generation = answer.member_epoch
        if answer.assignment is not None:
            topics = answer.assignment.topic_partitions
            self._topic_id = topics[0].topic_id if topics else self._topic_id
            self._target = tuple(sorted(index for topic in topics for index in topic.partitions))
        return True

    async def _beat(self) -> None:
        while self.member_id:
            await self.pause(_HEARTBEAT_MS)
            # Without an epoch it is `join` that speaks.
            if self.generation > 0 and await self._heartbeat() and self._target != self._held and not self.evicted:
                self.evict(ErrorCode.REBALANCE_IN_PROGRESS)
        self._beating = False

    async def _offsets(self) -> dict[int, int] | None:
        """The group's stable offsets, fetched as this member; None when its epoch has changed."""
        request = OffsetFetchRequest(
            groups=[
                OffsetFetchRequest.OffsetFetchRequestGroup(
                    group_id=GROUP,
                    member_id=self.member_id,
                    member_epoch=self.generation,
                    topics=[OffsetFetchRequest.OffsetFetchRequestTopics(name=INPUT, partition_indexes=[*self._held])],
                )
            ],
            require_stable=True,
        )

        def code(answer: OffsetFetchResponse) -> int:
            group = answer.groups[0]
            codes = [p.error_code for t in group.topics for p in t.partitions if p.error_code]
            return group.error_code or (codes[0] if codes else 0)

        with self.awaiting_offsets():
            answer, _ = await self.coordinate("group", GROUP, request, 9, OffsetFetchResponse, code)
        refused = ErrorCode(code(answer))
        if refused == ErrorCode.NONE:
            return {p.partition_index: p.committed_offset for t in answer.groups[0].topics for p in t.partitions}
        if refused in FENCED:
            self.evict(refused)
        elif refused != ErrorCode.STALE_MEMBER_EPOCH:
            self.history.report("refusal", GROUP, -1, f"{self.name} is told {refused.name} by OffsetFetch")
        await self.pause(20)
        return None

    def evict(self, code: ErrorCode) -> None:
        self.tell(f"consumer member: {code.name}", f"must join again: {code.name}")
        if code in FENCED:
            self.generation, self._held, self._target = 0, (), ()
        self.evicted = True

    def committing(self, generation: int) -> int:
        # Its epoch may have been bumped since; it owns its partitions until it gives them up.
        return max(generation, self.generation)

    async def leave(self) -> None:
        """Leave the group, for good or until it joins again as a new member."""
        self.evicted = True
        request = ConsumerGroupHeartbeatRequest(group_id=GROUP, member_id=self.member_id, member_epoch=_LEAVE)
        self.member_id, self.generation, self._held, self._target = "", 0, (), ()
        if request.member_id:
            await self.coordinate("group", GROUP, request, 1, ConsumerGroupHeartbeatResponse)
