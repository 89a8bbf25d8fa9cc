"""Scheduled work on a broker's logs: retention, producer expiration, checkpoints (Kafka's LogManager)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from minibroker.broker.log_cleaner import LogCleaner
from minibroker.broker.ports import LogManagingBroker
from minibroker.kernel.clock import IdleUntil, TimerHandle
from minibroker.kernel.deferred import Deferred, gather
from minibroker.kernel.logs import get_logger
from minibroker.kernel.turns import STEP, STEPS, InOrder
from minibroker.partitions.partition import Partition
from minibroker_protocol.errors import ApiError
from minibroker_storage.retention import delete_old_segments

log = get_logger(__name__)


class LogMaintenance:
    """Sweeps of one broker, in turns with other work. Those that remove records run on the broker clock, checkpoints on
    real time: advancing the clock does not make crashes likelier."""

    def __init__(self, broker: LogManagingBroker) -> None:
        self._broker = broker
        self._timers: dict[str, TimerHandle] = {}
        self._sweeps = InOrder(broker.timers)
        self.cleaner = LogCleaner(broker)

    def start(self) -> None:
        settings, timers = self._broker.settings, self._broker.timers
        self._repeat("retention", settings.get_int("log.retention.check.interval.ms"), self.apply_retention)
        self._repeat("producers", settings.get_int("producer.id.expiration.check.interval.ms"), self.expire_producers)
        cleaner = self.cleaner
        self._repeat("compaction", settings.get_int("log.cleaner.backoff.ms"), cleaner.clean, cleaner.idle_until)
        for name, key, write in (
            ("recovery points", "log.flush.offset.checkpoint.interval.ms", self.write_recovery_points),
            ("log starts", "log.flush.start.offset.checkpoint.interval.ms", self.write_log_starts),
            ("watermarks", "replica.high.watermark.checkpoint.interval.ms", self.write_high_watermarks),
        ):
            self._every(name, write, partial(timers.call_later, settings.get_int(key)))

    def stop(self) -> None:
        self._sweeps.close()
        self.cleaner.stop()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _repeat(
        self, name: str, interval_ms: int, sweep: Callable[[], object], idle_until: IdleUntil | None = None
    ) -> None:
        self._every(name, sweep, partial(self._broker.clock.call_later, interval_ms, idle_until=idle_until))

    def _every(self, name: str, sweep: Callable[[], object], arm: Callable[[Callable[[], None]], TimerHandle]) -> None:
        def run() -> None:
            # Armed first: a sweep that fails must not be the last one.
            self._timers[name] = arm(run)
            try:
                sweep()
            except Exception:
                log.exception("%s sweep failed", name)

        self._timers[name] = arm(run)

    @property
    def idle(self) -> Deferred[list[None]]:
        """Resolved once no sweep and no compaction is under way."""
        return gather([self._sweeps.idle, self.cleaner.idle])

    def apply_retention(self) -> None:
        """Delete old segments of every log that was ever written, opening those that are closed."""
        self._sweep(self._apply_retention)

    def expire_producers(self) -> None:
        """Forget idle producers (producer.id.expiration.ms)."""
        now_ms = self._broker.clock.now_ms()
        self._sweep(lambda partition: partition.is_open and partition.log.producers.expire(now_ms))

    def write_recovery_points(self) -> None:
        self._write(self._broker.directory.write_recovery_points)

    def write_log_starts(self) -> None:
        self._write(self._broker.directory.write_log_starts)

    def write_high_watermarks(self) -> None:
        self._write(self._broker.directory.write_high_watermarks)

    def _write(self, write: Callable[[], None]) -> None:
        self._sweep(self._note, lambda: self._broker.executor.submit(write).then(_report))

    def _note(self, partition: Partition) -> None:
        if partition.is_open:
            self._broker.directory.note((partition.log,))

    def _apply_retention(self, partition: Partition) -> None:
        if not partition.has_log:
            return
        try:
            before = partition.log.log_start_offset
            delete_old_segments(partition.log, self._broker.clock.now_ms())
            if partition.log.log_start_offset != before:
                partition.notify()
        except ApiError as error:
            log.error("retention of %s: %s", partition, error)

    def _sweep(self, look: Callable[[Partition], object], then: Callable[[], None] = lambda: None) -> None:
        """Call `look` for every partition, then `then`."""
        self._sweeps.run(self._swept(look, then))

    async def _swept(self, look: Callable[[Partition], object], then: Callable[[], None]) -> None:
        for partition in self._broker.partitions():
            await (STEP if partition.is_open or not partition.has_log else STEPS)  # to open a log takes longer
            if self._sweeps.closed:
                return
            look(partition)
        then()


def _report(done: object) -> None:
    assert isinstance(done, Deferred)
    try:
        done.result()
    except OSError as error:
        log.error("checkpoint not written: %s", error)
