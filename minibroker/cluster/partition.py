"""One partition as one broker sees it: its log, its role, and who waits for it."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from minibroker.runtime.clock import Clock
from minibroker.runtime.deferred import Deferred, resolved
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_storage.log import AppendInfo, PartitionLog
from minibroker_storage.origin import Origin
from minibroker_storage.producer_state import VerificationGuard

OpenLog = Callable[[], PartitionLog]
Watcher = Callable[[], None]

_DONE: Deferred[None] = resolved(None)


class Partition:
    """Leader or follower of one topic partition (Kafka's ``kafka.cluster.Partition``).

    The log is opened on first use: a partition that was never written has no files. `written` says that it has some
    from an earlier run.
    """

    __slots__ = (
        "_clock",
        "_hw_count",
        "_hw_waiters",
        "_log",
        "_open_log",
        "_watchers",
        "_written",
        "broker_id",
        "index",
        "isr",
        "leader_epoch",
        "leader_id",
        "replicas",
        "topic",
        "topic_id",
    )

    def __init__(
        self,
        topic: str,
        index: int,
        topic_id: bytes,
        *,
        broker_id: int,
        replicas: tuple[int, ...],
        leader_id: int,
        leader_epoch: int,
        open_log: OpenLog,
        clock: Clock,
        written: bool = False,
    ) -> None:
        self.topic = topic
        self.index = index
        self.topic_id = topic_id
        self.broker_id = broker_id
        self.replicas = replicas
        self.isr = replicas
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch
        self._open_log = open_log
        self._clock = clock
        self._written = written
        self._log: PartitionLog | None = None
        self._hw_waiters: list[tuple[int, int, Deferred[None]]] = []
        self._hw_count = 0
        self._watchers: set[Watcher] = set()

    @property
    def log(self) -> PartitionLog:
        """The log, opened now if it was not; raises ApiError(KAFKA_STORAGE_ERROR) when it cannot be."""
        if self._log is None:
            self._log = self._open_log()
            if self.is_leader:
                self._log.assign_leader_epoch(self.leader_epoch)
                self._advance_high_watermark(self._log)
        return self._log

    @property
    def has_log(self) -> bool:
        """False while nothing was ever written here and no file of it exists."""
        return self._written or self._log is not None

    @property
    def is_open(self) -> bool:
        return self._log is not None

    @property
    def is_leader(self) -> bool:
        return self.leader_id == self.broker_id

    def append(
        self,
        records: bytes | bytearray | memoryview,
        *,
        origin: Origin,
        leader_epoch: int | None = None,
        guard: VerificationGuard | None = None,
        transaction_version: int = 0,
        api_version: int = -1,
    ) -> AppendInfo:
        """Append as leader; waiters and fetchers are woken. Raises ApiError with the reason of a refusal."""
        if self.leader_id != self.broker_id:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"broker {self.broker_id} does not lead {self}")
        if leader_epoch is not None and leader_epoch != self.leader_epoch:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"epoch {leader_epoch} is over, {self.leader_epoch} is")
        log = self._log or self.log
        info = log.append_as_leader(
            records,
            origin=origin,
            leader_epoch=self.leader_epoch,
            now_ms=self._clock.now_ms(),
            guard=guard,
            transaction_version=transaction_version,
            api_version=api_version,
        )
        if not info.duplicate:
            self._advance_high_watermark(log)
        return info

    def check_leader_epoch(self, current_leader_epoch: int) -> None:
        """Refuse a client whose metadata is of another epoch (KIP-320); -1 means it does not say.

        Raises ApiError FENCED_LEADER_EPOCH for an older one, UNKNOWN_LEADER_EPOCH for a newer one.
        """
        if current_leader_epoch < 0 or current_leader_epoch == self.leader_epoch:
            return
        if current_leader_epoch < self.leader_epoch:
            raise ApiError(
                ErrorCode.FENCED_LEADER_EPOCH, f"{self}: leader epoch {current_leader_epoch} < {self.leader_epoch}"
            )
        raise ApiError(
            ErrorCode.UNKNOWN_LEADER_EPOCH, f"{self}: leader epoch {current_leader_epoch} > {self.leader_epoch}"
        )

    def check_min_insync_replicas(self) -> None:
        """Raises NOT_ENOUGH_REPLICAS when acks=all could not be kept; the minimum is never above the replica count."""
        in_sync = len(self.isr)
        if in_sync < len(self.replicas) and in_sync < min(self.log.config.min_insync_replicas, len(self.replicas)):
            raise ApiError(ErrorCode.NOT_ENOUGH_REPLICAS, f"{self} has {in_sync} in-sync replicas")

    def _advance_high_watermark(self, log: PartitionLog) -> None:
        # With one in-sync replica the high watermark is the log end (durability.md: HW = LEO at once).
        if len(self.isr) <= 1 and log.update_high_watermark(log.log_end_offset):
            self._wake()

    def when_high_watermark(self, offset: int) -> Deferred[None]:
        """Resolved once the high watermark is at or past `offset`."""
        if self.log.high_watermark >= offset:
            return _DONE
        waiter: Deferred[None] = Deferred()
        self._hw_count += 1
        heapq.heappush(self._hw_waiters, (offset, self._hw_count, waiter))
        return waiter

    def watch(self, watcher: Watcher) -> None:
        """Call `watcher` whenever fetchable data, the last stable offset or the role changes."""
        self._watchers.add(watcher)

    def unwatch(self, watcher: Watcher) -> None:
        self._watchers.discard(watcher)

    def notify(self) -> None:
        """Wake everyone who watches: role, log start or configuration changed."""
        for watcher in tuple(self._watchers):
            watcher()

    def _wake(self) -> None:
        if self._hw_waiters:
            high_watermark = self.log.high_watermark
            while self._hw_waiters and self._hw_waiters[0][0] <= high_watermark:
                heapq.heappop(self._hw_waiters)[2].resolve(None)
        if self._watchers:
            self.notify()

    def dropped(self) -> None:
        """The topic is gone: whoever waits learns that this broker no longer leads it."""
        self._log = None
        self._written = False
        self.leader_id = -1
        waiters, self._hw_waiters = self._hw_waiters, []
        for _, _, waiter in waiters:
            waiter.fail(ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self} was deleted"))
        self.notify()

    def close(self) -> None:
        """Close the log cleanly."""
        if self._log is not None:
            self._log.close()
            self._log = None

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}"
