"""A follower's fetch session on the leader: which partitions it follows, and which of them have news for it.

The fetch sessions of KIP-227 as followers use them. Partitions tell the session when something happened, so that an
answer costs as much as there is news, however many partitions are followed.
"""

from __future__ import annotations

from random import Random

from minibroker.broker.fetch_sessions import FetchTarget
from minibroker.kernel.deferred import Deferred, resolved
from minibroker.partitions.partition import Partition, ReplicaWatcher
from minibroker_protocol.errors import ApiError, ErrorCode

TargetKey = tuple[bytes, int]
"""(topic id, partition index)."""

_READY: Deferred[None] = resolved(None)


class ReplicaSession:
    """epoch: the session epoch that the next incremental request must have.
    ready: partitions to look at for the next answer, in order.
    """

    __slots__ = ("_urgent", "_waiter", "_watched", "broker_epoch", "epoch", "id", "node_id", "ready", "targets")

    def __init__(self, session_id: int, node_id: int, broker_epoch: int) -> None:
        self.id = session_id
        self.node_id = node_id
        self.broker_epoch = broker_epoch
        self.epoch = 1
        self.targets: dict[TargetKey, FetchTarget] = {}
        self.ready: dict[TargetKey, None] = {}
        self._watched: dict[TargetKey, tuple[Partition, ReplicaWatcher]] = {}
        self._urgent = False
        self._waiter: Deferred[None] | None = None

    def update(self, target: FetchTarget) -> None:
        key = (target.topic_id, target.index)
        previous = self.targets.get(key)
        if previous is None:
            self.targets[key] = target
        else:
            previous.update(target)
        self.ready[key] = None

    def watch(self, key: TargetKey, partition: Partition) -> None:
        """Be told of news of `partition`. It may be a new object for a known key: then the old one reports no more."""
        watched = self._watched.get(key)
        if watched is not None and watched[0] is partition:
            return
        if watched is not None:
            watched[0].unwatch_replica(self.node_id, watched[1])

        def news(at_once: bool) -> None:
            self.ready[key] = None
            if at_once:
                self.wake()

        self._watched[key] = (partition, news)
        partition.watch_replica(self.node_id, news)

    def wake(self) -> None:
        self._urgent = True
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            waiter.resolve(None)

    def begin(self) -> None:
        """A response is being built: later changes are for the next one."""
        self._urgent = False

    def news(self) -> Deferred[None]:
        """Resolved once something urgent has happened since `begin`."""
        if self._urgent:
            return _READY
        if self._waiter is None:
            self._waiter = Deferred()
        return self._waiter

    def close(self) -> None:
        for partition, watcher in self._watched.values():
            partition.unwatch_replica(self.node_id, watcher)
        self._watched.clear()
        self.targets.clear()
        self.ready.clear()
        self.wake()


class ReplicaSessions:
    """One session for each follower; a new one takes the place of the one before."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._by_node: dict[int, ReplicaSession] = {}

    def create(self, node_id: int, broker_epoch: int) -> ReplicaSession:
        self.close(node_id)
        session = ReplicaSession(self._random.randrange(1, 1 << 31), node_id, broker_epoch)
        self._by_node[node_id] = session
        return session

    def resume(self, node_id: int, session_id: int, epoch: int) -> ReplicaSession:
        """Raises ApiError FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH."""
        session = self._by_node.get(node_id)
        if session is None or session.id != session_id:
            raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"broker {node_id} has no fetch session {session_id}")
        if session.epoch != epoch:
            raise ApiError(
                ErrorCode.INVALID_FETCH_SESSION_EPOCH,
                f"fetch session {session_id}: expected epoch {session.epoch}, got {epoch}",
            )
        session.epoch += 1
        return session

    def close(self, node_id: int) -> None:
        session = self._by_node.pop(node_id, None)
        if session is not None:
            session.close()

    def close_all(self) -> None:
        """Close the sessions of all followers."""
        for node_id in list(self._by_node):
            self.close(node_id)
