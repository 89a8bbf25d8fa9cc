"""Incremental fetch sessions (KIP-227; Kafka's FetchSession and FetchSessionCacheShard).

A session remembers which partitions a consumer fetches, so requests name only changes of this list and responses only
partitions with news.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random

from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.fields import NO_ID

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
INVALID_SESSION_ID = 0
_EPOCH_MAX = (1 << 31) - 1

PartitionKey = tuple[str, bytes, int]
"""(topic name, NO_ID, partition index), or ("", topic id, partition index) where the client names topics by id: an id
may get a name later, or lose it."""


@dataclass(slots=True, eq=False)
class FetchTarget:
    """One partition to read, and what the client was last told about it.

    topic: its name once known, which stays when the topic is deleted.
    known_high_watermark, known_log_start: as in the last answer; -1 before the first.
    """

    topic: str
    topic_id: bytes
    index: int
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int
    last_fetched_epoch: int
    known_high_watermark: int = field(default=-1, init=False)
    known_log_start: int = field(default=-1, init=False)

    @property
    def key(self) -> PartitionKey:
        return (self.topic if self.topic_id == NO_ID else "", self.topic_id, self.index)

    def update(self, other: FetchTarget) -> None:
        """Take position and limits from the request; keep what the last response told the client."""
        self.topic = self.topic or other.topic
        self.fetch_offset = other.fetch_offset
        self.max_bytes = other.max_bytes
        self.current_leader_epoch = other.current_leader_epoch
        self.last_fetched_epoch = other.last_fetched_epoch


class FetchSession:
    """One consumer's partitions in the order they are read."""

    __slots__ = ("epoch", "id", "last_used_ms", "targets", "uses_topic_ids")

    def __init__(self, session_id: int, uses_topic_ids: bool, now_ms: int) -> None:
        self.id = session_id
        self.epoch = 1
        self.uses_topic_ids = uses_topic_ids
        self.last_used_ms = now_ms
        self.targets: dict[PartitionKey, FetchTarget] = {}

    def apply(self, targets: Iterable[FetchTarget], forgotten: Iterable[PartitionKey]) -> None:
        """Add and update partitions, drop the forgotten ones."""
        for target in targets:
            previous = self.targets.get(target.key)
            if previous is None:
                self.targets[target.key] = target
            else:
                previous.update(target)
        for key in forgotten:
            self.targets.pop(key, None)

    def next_epoch(self) -> None:
        self.epoch = 1 if self.epoch == _EPOCH_MAX else self.epoch + 1

    def moved_to_end(self, key: PartitionKey) -> None:
        """A partition that gave data is read last next time, so that none starves."""
        target = self.targets.pop(key, None)
        if target is not None:
            self.targets[key] = target


class FetchSessionCache:
    """At most `slots` sessions; one unused for `eviction_ms` makes room for a new one, the stalest first."""

    def __init__(self, slots: int, random: Random, eviction_ms: int = 120_000) -> None:
        self._slots = slots
        self._random = random
        self._eviction_ms = eviction_ms
        self._sessions: dict[int, FetchSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def cached_partitions(self) -> int:
        """Partitions of all sessions."""
        return sum(len(session.targets) for session in self._sessions.values())

    def create(self, targets: Iterable[FetchTarget], uses_topic_ids: bool, now_ms: int) -> FetchSession | None:
        """A new session, or None when no slot is free (the fetch then goes without one)."""
        if len(self._sessions) >= self._slots and not self._evict(now_ms):
            return None
        session_id = INVALID_SESSION_ID
        while session_id == INVALID_SESSION_ID or session_id in self._sessions:
            session_id = self._random.randrange(1, 1 << 31)
        session = FetchSession(session_id, uses_topic_ids, now_ms)
        session.apply(targets, ())
        self._sessions[session_id] = session
        return session

    def resume(self, session_id: int, epoch: int, uses_topic_ids: bool, now_ms: int) -> FetchSession:
        """The session that an incremental request names.

        Raises ApiError FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR.
        """
        session = self._sessions.get(session_id)
        if session is None:
            raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"no fetch session {session_id}")
        if session.epoch != epoch:
            raise ApiError(
                ErrorCode.INVALID_FETCH_SESSION_EPOCH,
                f"fetch session {session_id}: expected epoch {session.epoch}, got {epoch}",
            )
        if session.uses_topic_ids != uses_topic_ids:
            raise ApiError(
                ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, "a fetch session cannot change between topic names and ids"
            )
        # Used sessions move to the end: the first is the one unused for longest.
        self._sessions[session_id] = self._sessions.pop(session_id)
        session.last_used_ms = now_ms
        return session

    def close(self, session_id: int) -> None:
        self._sessions.pop(session_id, None)

    def _evict(self, now_ms: int) -> bool:
        for session in self._sessions.values():
            if now_ms - session.last_used_ms >= self._eviction_ms:
                del self._sessions[session.id]
                return True
            return False
        return False
