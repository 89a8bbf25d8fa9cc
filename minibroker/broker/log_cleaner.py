"""Runs compaction: one log at a time, the dirtiest first, the rewriting off the loop (Kafka's LogCleaner)."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from minibroker.broker.ports import LogManagingBroker
from minibroker.kernel.deferred import Deferred, resolved
from minibroker.kernel.logs import get_logger
from minibroker.partitions.partition import Partition
from minibroker_protocol.errors import ApiError, Malformed
from minibroker_storage.compaction import Cleaned, Stopped, Work, find_work, install, only_by_size, plan
from minibroker_storage.disk import StorageError

log = get_logger(__name__)


class LogCleaner:
    """Compaction of one broker's logs; `clean` runs every log.cleaner.backoff.ms, and again as long as a log is dirty.

    idle: resolved while no log is being cleaned.
    """

    def __init__(self, broker: LogManagingBroker) -> None:
        self._broker = broker
        self._running = False
        self._stopped = False
        self.idle: Deferred[None] = resolved(None)
        # Logs that could not be cleaned are left alone until a restart, as Kafka marks them uncleanable.
        self._uncleanable: set[tuple[str, int]] = set()

    def stop(self) -> None:
        """Abort a rewrite that is under way."""
        self._stopped = True
        self._rest()

    def clean(self) -> None:
        """Begin with the dirtiest log that is due, unless a round is still running."""
        if self._running or self._stopped or not self._broker.settings.get_boolean("log.cleaner.enable"):
            return
        chosen = self._dirtiest()
        if chosen is None:
            return
        partition, work = chosen
        self._running = True
        try:
            round_ = plan(partition.log, work, self._broker.clock.now_ms())
        except ApiError as error:
            self._running = False
            log.error("compaction of %s: %s", partition, error)
            return
        if self.idle.done:
            self.idle = Deferred()
        rewritten = self._broker.executor.submit(lambda: round_.rewrite(lambda: self._stopped))
        rewritten.then(lambda done: self._finish(partition, done))

    def _rest(self) -> None:
        if not self.idle.done:
            self.idle.resolve(None)

    def idle_until(self) -> float:
        """The time (ms) before which `clean` would begin nothing, as long as nothing is written or removed."""
        if self._running or self._stopped or not self._broker.settings.get_boolean("log.cleaner.enable"):
            return inf
        if any(not only_by_size(partition.log.config) for partition in self._cleanable()):
            return 0
        return inf if self._dirtiest() is None else 0

    def _cleanable(self) -> Iterator[Partition]:
        for partition in self._broker.partitions():
            key = (partition.topic, partition.index)
            if partition.is_open and partition.log.config.compacts and key not in self._uncleanable:
                yield partition

    def _dirtiest(self) -> tuple[Partition, Work] | None:
        now_ms = self._broker.clock.now_ms()
        best: tuple[Partition, Work] | None = None
        for partition in self._cleanable():
            checkpoint = self._broker.directory.cleaner_offsets.get((partition.topic, partition.index))
            work = find_work(partition.log, checkpoint, now_ms)
            if work.due(partition.log.config) and (best is None or work.ratio > best[1].ratio):
                best = (partition, work)
        return best

    def _finish(self, partition: Partition, done: Deferred[Cleaned]) -> None:
        self._running = False
        if self._install(partition, done):
            self.clean()
        if not self._running:
            self._rest()

    def _install(self, partition: Partition, done: Deferred[Cleaned]) -> bool:
        """Replace the segments by the cleaned ones; whether the log was cleaned further than before."""
        key = (partition.topic, partition.index)
        try:
            cleaned = done.result()
            if self._stopped or not partition.is_open:
                cleaned.discard()
                return False
            if not install(partition.log, cleaned, self._broker.clock.now_ms()):
                return False
        except Stopped:
            return False
        except (ApiError, Malformed, StorageError) as error:
            log.error("compaction of %s: %s; it is left as it is", partition, error)
            self._uncleanable.add(key)
            return False
        directory = self._broker.directory
        progress = directory.cleaner_offsets.get(key) != cleaned.next_dirty
        directory.cleaner_offsets[key] = cleaned.next_dirty
        log.debug("compacted %s: %d bytes became %d", partition, cleaned.bytes_read, cleaned.bytes_written)
        self._broker.executor.submit(directory.write_cleaner_offsets).then(_report)
        return progress


def _report(done: Deferred[None]) -> None:
    try:
        done.result()
    except OSError as error:
        log.error("cleaner checkpoint not written: %s", error)
