"""Syncing one partition's log off the loop: after a roll, by ``flush.messages`` and by ``flush.ms`` (Kafka's
UnifiedLog.flush and LogManager.flushDirtyLogs).

Kafka syncs inside the append that reaches ``flush.messages``, so that append is not answered before. Here it is
written at once, and what it wrote is held back from readers and waiting requests until a sync on
another thread has covered it. Batches appended during a sync share the next one: with ``flush.messages=1`` many
producers commit as a group.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from minibroker.kernel.clock import ClockTimers, TimerHandle
from minibroker.kernel.deferred import Deferred, resolved
from minibroker.kernel.executor import Executor
from minibroker.kernel.logs import get_logger
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_storage.config import INT64_MAX
from minibroker_storage.disk import DiskFull, NotFound
from minibroker_storage.log import PartitionLog

log = get_logger(__name__)

_SYNCED: Deferred[None] = resolved(None)
# A file can be renamed under a sync by compaction or retention; the next try looks at the segments anew.
_MISSING_RETRIES = 5
# Milliseconds before a sync for which an index had no room is retried.
_RETRY_MS = 1000


class LogFlush:
    """The flushes of one open log, one at a time.

    held_from: offset from which on records wait for a sync; None when none do.
    active: whether the settings ask for syncs after appends, so that other logs pay nothing.
    flushed: called on the loop after a sync.
    failed: called with the error of a failed one.
    """

    __slots__ = (
        "_clock",
        "_executor",
        "_failed",
        "_flushed",
        "_log",
        "_missing",
        "_running",
        "_stopped",
        "_timer",
        "_waiters",
        "_waiting",
        "_wanted",
        "active",
        "held_from",
    )

    def __init__(
        self,
        partition_log: PartitionLog,
        *,
        executor: Executor,
        clock: ClockTimers,
        flushed: Callable[[], None],
        failed: Callable[[ApiError], None],
    ) -> None:
        self._log = partition_log
        self._executor = executor
        self._clock = clock
        self._flushed = flushed
        self._failed = failed
        self._wanted = 0
        self._running = False
        self._stopped = False
        self._missing = 0
        self._timer: TimerHandle | None = None
        self._waiters: list[tuple[int, int, Deferred[None]]] = []
        self._waiting = 0
        self.held_from: int | None = None
        self.active = False
        self.configure()
        if partition_log.disk.durable:
            # Up to the new segment only: the sealed one changes no more, and its sync moves the recovery point.
            partition_log.on_roll = lambda: self._want(partition_log.segments[-1].base_offset)

    def configure(self) -> None:
        """The log's configuration changed."""
        config = self._log.config
        wanted = config.flush_messages < INT64_MAX or config.flush_ms < INT64_MAX
        self.active = wanted and self._log.disk.durable

    def stop(self) -> None:
        """The owner closes the log: start no more syncs. The owner of `failed` answers the waiting requests."""
        self._stopped = True
        self._log.on_roll = None
        self._disarm()
        self._answer(INT64_MAX, ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the log was closed before its sync"))

    def truncated(self, offset: int, error: ApiError) -> None:
        """The log ends at `offset` now: waits for a sync of what is gone fail with `error`."""
        if self.held_from is not None and self.held_from >= offset:
            self.held_from = None
        # `_answer` fails all that wait: those of offsets that are still there must not be among them.
        kept, self._waiters = [w for w in self._waiters if w[0] <= offset], [w for w in self._waiters if w[0] > offset]
        self._answer(INT64_MAX, error)
        self._waiters = kept
        heapq.heapify(self._waiters)

    # -- what asks for a sync ----------------------------------------------------------------------------------------

    def appended(self, base_offset: int) -> None:
        """Records from `base_offset` to the log's end were written just now."""
        config, end = self._log.config, self._log.log_end_offset
        if end - self._log.recovery_point >= config.flush_messages:
            if self.held_from is None:
                self.held_from = base_offset
            self._want(end)
        elif self._timer is None and config.flush_ms < INT64_MAX:
            self._timer = self._clock.call_later(config.flush_ms, self._due)

    def _due(self) -> None:
        self._timer = None
        self._want(self._log.log_end_offset)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def when_synced(self, offset: int) -> Deferred[None]:
        """Resolved once nothing below `offset` is held back; fails with KAFKA_STORAGE_ERROR when its sync does."""
        if self.held_from is None or offset <= self.held_from:
            return _SYNCED
        waiter: Deferred[None] = Deferred()
        self._waiting += 1
        heapq.heappush(self._waiters, (offset, self._waiting, waiter))
        self.press()
        return waiter

    def press(self) -> None:
        """A request waits for a sync: make sure that one is running. A log that a failed sync took
        offline refuses instead."""
        if self.held_from is None or self._running:
            return
        if self._log.offline is not None:
            self._refuse(self._log.offline)
        else:
            self._want(self._log.log_end_offset)

    # -- syncing -----------------------------------------------------------------------------------------------------

    def _want(self, up_to: int) -> None:
        self._wanted = max(self._wanted, up_to)
        if not (self._running or self._stopped):
            self._run()

    def _run(self) -> None:
        self._running = True
        flushing, up_to = self._log, self._wanted
        self._executor.submit(lambda: flushing.flush(up_to)).then(self._done)

    def _done(self, done: Deferred[None]) -> None:
        self._running = False
        if self._stopped:
            return
        try:
            done.result()
        except ApiError as error:
            self._refused(error)
            return
        except Exception as error:
            log.exception("the sync of %s failed", self._log)
            self._refused(ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)))
            return
        self._missing = 0
        flushed, end = self._log.recovery_point, self._log.log_end_offset
        # Appended during this sync: enough for another one, which they wait for, or too little to ask for any.
        if self.held_from is not None:
            if end - flushed >= self._log.config.flush_messages:
                self.held_from = max(self.held_from, flushed)
                self._wanted = end
            else:
                self.held_from = None
        if self._waiters:
            self._answer(INT64_MAX if self.held_from is None else self.held_from)
        self._flushed()
        # What was asked for during this sync shares the next one. `end`: a truncation may have taken some of it.
        if min(self._wanted, end) > flushed and not (self._running or self._stopped):
            self._run()

    def _refused(self, error: ApiError) -> None:
        # Compaction or retention has renamed a segment under the sync, which is no fault of the disk.
        if isinstance(error.__cause__, NotFound) and self._missing < _MISSING_RETRIES:
            self._missing += 1
            self._run()
            return
        self._missing = 0
        log.error("%s was not synced: %s (data directory: %s)", self._log, error.message, self._log.disk.root)
        # An index had no room, so the batches themselves stand: another try may do. After any other error they may be
        # lost.
        if isinstance(error.__cause__, DiskFull):  # of a write; one of the sync itself is SyncFailed
            if self.held_from is not None and self._timer is None:
                self._timer = self._clock.call_later(_RETRY_MS, self._due)
        else:
            self._log.offline = error
        self._refuse(error)

    def _refuse(self, error: ApiError) -> None:
        # All that wait: none of their records is synced, and a producer may send its own again.
        self._answer(INT64_MAX, error)
        self._failed(error)

    def _answer(self, up_to: int, error: ApiError | None = None) -> None:
        while self._waiters and self._waiters[0][0] <= up_to:
            waiter = heapq.heappop(self._waiters)[2]
            if error is None:
                waiter.resolve(None)
            else:
                waiter.fail(error)
