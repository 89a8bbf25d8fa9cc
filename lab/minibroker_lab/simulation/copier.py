"""The application that copies its share of the input exactly once, as a member of a group (KIP-447)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from random import Random

from minibroker.metadata.image import CONSUMER_OFFSETS_TOPIC
from minibroker.rules.rows import Seen
from minibroker_lab.simulation.client import ClientEnvironment
from minibroker_lab.simulation.consumer_member import ConsumerMember
from minibroker_lab.simulation.evidence import TopicPartition
from minibroker_lab.simulation.members import GROUP, INPUT, Member, Rejoin
from minibroker_lab.simulation.producers import Abortable, Fatal, Producer
from minibroker_protocol import messages as m
from minibroker_protocol.dsl import Request
from minibroker_protocol.errors import ErrorCode

LAST = "c9"
"""Transactional id of the copier that copies the remaining records at the end."""
_OFFSETS = CONSUMER_OFFSETS_TOPIC, 0
_EVICTED = frozenset(
    {
        *(ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.REBALANCE_IN_PROGRESS),
        *(ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.FENCED_MEMBER_EPOCH),
    }
)


class Copier(Producer):
    """Consume, transform, produce (KIP-447): each input record becomes one output record, in the transaction that
    commits the input's offset."""

    def __init__(
        self,
        world: ClientEnvironment,
        name: str,
        random: Random,
        places: Sequence[TopicPartition],
        *,
        transactional_id: str,
    ) -> None:
        super().__init__(world, name, random, places, transactional_id=transactional_id)
        inputs = [(INPUT, index) for index in range(world.plan.partitions)]
        kind = ConsumerMember if world.plan.consumer_groups else Member
        self.last = transactional_id == LAST
        self.member = kind(world, f"{name}.member", random, inputs)

    def die(self) -> None:
        super().die()
        self.member.die()

    def served_late(self, request: Request, moment: Hashable) -> None:
        super().served_late(request, moment)
        running = self._transaction
        if not isinstance(request, m.TxnOffsetCommitRequest) or self.world.plan.client_version >= 2:
            return
        if running is not None and running != moment and _OFFSETS in self._joined:
            self.tell("TxnOffsetCommit of an earlier transaction", f"the late offsets of {moment} meet {running}")
            own = [name for name in self.history.outcomes if str(name).startswith(f"{self.name}/")]
            self.history.evidence.rewound |= set(own[own.index(moment) :])  # what is between the two is copied again

    def broker_gone(self, node_id: int) -> None:
        super().broker_gone(node_id)
        self.member.broker_gone(node_id)

    async def run_transactions(self) -> None:
        """Run until the world closes and nothing is left to copy, or the producer is fenced."""
        try:
            await self.init()
            while True:
                try:
                    if await self._round() and self.world.closing:
                        break
                except Rejoin:
                    continue
        except Fatal as error:
            self.tell("producer ended", f"ends: {error.code.name}")
        await self.member.leave()

    async def _round(self) -> bool:
        """One transaction; returns whether there was nothing to copy. Raises Rejoin, Fatal."""
        member = self.member
        if not (member.evicted or self.world.closing) and self.random.random() < self.world.plan.churn:
            self.tell("member leaves", "leaves its group for a moment")
            await member.leave()
            await self.pause(self.random.random() * 600)
        if member.evicted:
            await member.join()
        fresh = await member.next()
        offsets = dict(member.positions)
        moved = {place: offset for place, offset in offsets.items() if offset > member.taken.get(place, 0)}
        if not moved:
            await self.pause(self.random.random() * self.world.plan.think_ms)
            # The last copier must own every partition; members that left or died own none any more.
            whole = not self.last or len(member.positions) == len(member.every_place)
            return member.drained and not member.evicted and whole
        generation = member.generation
        self.begin()
        transaction = self.transaction_name
        try:
            await self._copy(fresh)
            await self._send_offsets(moved, generation)
            await self.dawdle()
            abort = not self.world.closing and self.random.random() < self.world.plan.abort
            await self.end(commit=not abort)
        except Abortable as error:
            self.tell("abortable", f"must abort {transaction}: {error.code.name}")
            await self._abort(error)
            abort = True
        if abort:
            # Reset the positions to the committed offsets, as after a rebalance.
            member.evict(ErrorCode.REBALANCE_IN_PROGRESS)
            raise Rejoin
        member.taken.update(moved)
        return False

    async def _copy(self, fresh: list[Seen]) -> None:
        if not fresh:
            return
        chosen = [(self.random.choice(self.places), seen) for seen in fresh]
        await self.join({place for place, _ in chosen})
        await self.write([self.batch(place, 1, origin=str(seen.key)) for place, seen in chosen])

    async def _send_offsets(self, offsets: dict[TopicPartition, int], generation: int) -> None:
        """AddOffsetsToTxn, where clients send it, and TxnOffsetCommit. Raises Abortable, Fatal."""
        assert self.transactional_id is not None
        self.offsets_in = self._transaction
        if self.world.plan.client_version < 2:
            add = m.AddOffsetsToTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                group_id=GROUP,
            )
            added, _ = await self.coordinate(
                "transaction", self.transactional_id, add, self.versions.add_offsets, m.AddOffsetsToTxnResponse
            )
            self._check("AddOffsetsToTxn", ErrorCode(added.error_code))
            self._joined.add(_OFFSETS)
        request = m.TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=GROUP,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            generation_id_or_member_epoch=self.member.committing(generation),
            member_id=self.member.member_id,
            topics=[
                m.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(
                    name=INPUT,
                    partitions=[
                        m.TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
                            partition_index=index, committed_offset=offset, committed_metadata=""
                        )
                        for (_, index), offset in offsets.items()
                    ],
                )
            ],
        )
        answer, _ = await self.coordinate(
            "group",
            GROUP,
            request,
            self.versions.txn_offset_commit,
            m.TxnOffsetCommitResponse,
            lambda a: max(p.error_code for t in a.topics for p in t.partitions),
        )
        code = ErrorCode(max(p.error_code for t in answer.topics for p in t.partitions))
        if code in _EVICTED:
            self.member.evict(code)
            raise Abortable(code, bump=False)
        self._check("TxnOffsetCommit", code)
