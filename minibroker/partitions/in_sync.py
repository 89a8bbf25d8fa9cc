"""A leader's knowledge of its followers: their log ends, the in-sync set, the high watermark.

Kafka's ``Partition.maybeIncrementLeaderHW``, ``isFollowerInSync`` and ``Replica``, as a plain state machine. Time comes
in ticks, two of which make replica.lag.time.max.ms. The partition's roles and the maximal ISR:
`minibroker.partitions.partition`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

Eligible = Callable[[int, int], bool]
"""Whether a broker of this id and epoch may be in sync: it serves, and has not been restarted since it fetched."""

LAG_TICKS = 2
"""A follower that has not caught up for more ticks than this is out of sync."""


class Follower:
    """end_offset, log_start_offset: where it fetches next and where its log begins, -1 before its first fetch.
    caught_up: tick at which it last had everything."""

    __slots__ = ("broker_epoch", "caught_up", "end_offset", "fetched", "leader_end", "log_start_offset")

    def __init__(self) -> None:
        self.end_offset = -1
        self.log_start_offset = -1
        self.broker_epoch = -1
        self.caught_up = -LAG_TICKS - 1
        self.fetched = -1
        self.leader_end = -1

    def fetch(self, offset: int, leader_end: int, tick: int) -> None:
        """The follower fetches from `offset`, so it has everything before."""
        if offset >= leader_end:
            self.caught_up = tick
        elif offset >= self.leader_end >= 0:
            # It has everything that existed at its previous fetch: it keeps pace with a leader that is being written
            # to.
            self.caught_up = max(self.caught_up, self.fetched)
        self.end_offset = offset
        self.leader_end = leader_end
        self.fetched = tick


class InSync:
    """In-sync set and followers of one partition that this broker leads.

    isr: what the controller confirmed.
    proposed: the set asked for, until the controller answers; until then both count, so that a committed record is on
        every replica that may be in the in-sync set (the maximal ISR).
    """

    __slots__ = ("_leader", "followers", "isr", "proposed")

    def __init__(self, leader: int, replicas: Collection[int], isr: Collection[int], tick: int) -> None:
        self._leader = leader
        self.isr = frozenset(isr)
        self.proposed: frozenset[int] | None = None
        self.followers = {node: Follower() for node in replicas if node != leader}
        for node in self.isr:
            if node != leader and node in self.followers:
                # Replicas in sync at the election have the full time to fetch.
                self.followers[node].caught_up = tick

    @property
    def maximal(self) -> frozenset[int]:
        return self.isr if self.proposed is None else self.isr | self.proposed

    def set_replicas(self, replicas: Collection[int]) -> None:
        """A reassignment has added or removed replicas."""
        for node in [node for node in self.followers if node not in replicas]:
            del self.followers[node]
        for node in replicas:
            if node != self._leader and node not in self.followers:
                self.followers[node] = Follower()

    def high_watermark(self, leader_end: int, min_isr: int, tick: int, eligible: Eligible) -> int | None:
        """The smallest log end among those that count; None while it must not move (KIP-966: fewer than `min_isr` in
        sync). A follower that has caught up and is about to join counts already."""
        if len(self.isr) < min_isr:
            return None
        maximal = self.maximal
        lowest = leader_end
        for node, follower in self.followers.items():
            if follower.end_offset < lowest and (
                node in maximal or (tick - follower.caught_up <= LAG_TICKS and eligible(node, follower.broker_epoch))
            ):
                lowest = follower.end_offset
        # -1: a replica in sync has not fetched from this leader yet.
        return lowest if lowest >= 0 else None

    def low_watermark(self, leader_start: int, alive: Callable[[int], bool]) -> int:
        """The smallest log start among the leader and the followers that live (Partition.lowWatermarkIfLeader)."""
        starts = [f.log_start_offset for node, f in self.followers.items() if alive(node)]
        return min([leader_start, *starts])

    def joining(self, high_watermark: int, epoch_start: int, eligible: Eligible) -> frozenset[int] | None:
        """The in-sync set to propose because followers have caught up; None without a change."""
        # One proposal at a time: the answer to it brings the partition epoch of the next (PartitionState.isInflight).
        if self.proposed is not None or len(self.isr) > len(self.followers):
            return None
        # The high watermark alone may lag behind what the former leader acknowledged: a follower below the start of
        # this leader's epoch could be elected without those records (KAFKA-7128, Partition.isFollowerInSync).
        floor = max(high_watermark, epoch_start, 0)
        ready = [
            n
            for n, f in self.followers.items()
            if n not in self.isr and f.end_offset >= floor and eligible(n, f.broker_epoch)
        ]
        return self.isr.union(ready) if ready else None

    def lagging(self, leader_end: int, tick: int) -> frozenset[int] | None:
        """The in-sync set without lagging replicas; None when none lags or a change is pending."""
        late = set()
        for node in self.isr:
            follower = self.followers.get(node)
            # The leader itself, or a replica that a reassignment has taken out.
            if follower is None:
                continue
            # It has all there is, however long ago it fetched (ReplicaState.isCaughtUp).
            if follower.end_offset == leader_end:
                follower.caught_up = tick
            elif tick - follower.caught_up > LAG_TICKS:
                late.add(node)
        return self.isr - late if late and self.proposed is None else None
