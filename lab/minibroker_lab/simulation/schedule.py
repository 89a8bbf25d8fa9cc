"""Virtual time: every wait of brokers, network and clients is an entry of one queue, run in the order of its time."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import TypeVar

from minibroker.kernel.deferred import Deferred
from minibroker.kernel.executor import InlineExecutor

T = TypeVar("T")

START_MS = 1_700_000_000_000


LONGEST = 40_000
"""Entries run in one world; the busiest that is sound runs a quarter of it."""


class Runaway(Exception):
    """The world does not come to rest."""


class _Entry:
    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class Schedule:
    """`minibroker.kernel.clock.Timers`, and the wall clock, of a simulated world. Times are ms; entries that are due
    at the same time run in the order they were made, as in an event loop."""

    def __init__(self) -> None:
        self.time_ms = float(START_MS)
        self.steps = 0
        self._count = 0
        self._queue: list[tuple[float, int, _Entry]] = []

    def now_ms(self) -> int:
        return int(self.time_ms)

    @property
    def elapsed_ms(self) -> float:
        """Since the beginning of the simulation."""
        return self.time_ms - START_MS

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> _Entry:
        entry = _Entry(callback)
        self._count += 1
        heappush(self._queue, (self.time_ms + max(0.0, delay_ms), self._count, entry))
        return entry

    def run(self, for_ms: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Let `for_ms` pass, or less when `until` comes true; returns whether it did."""
        end = self.time_ms + for_ms
        queue = self._queue
        while not until():
            if not queue or queue[0][0] > end:
                self.time_ms = end
                return until()
            due, _, entry = heappop(queue)
            callback, entry.callback = entry.callback, None
            if callback is not None:
                self.time_ms = due
                self.steps += 1
                if self.steps > LONGEST:
                    raise Runaway(f"not at rest after {LONGEST} steps, at {self.elapsed_ms / 1000:.1f} s")
                callback()
        return True


class ScheduledExecutor(InlineExecutor):
    """`minibroker.kernel.executor.Executor` without threads: the work is done some time later, all at once."""

    def __init__(self, schedule: Schedule, delay_ms: Callable[[], float]) -> None:
        self._schedule = schedule
        self._delay_ms = delay_ms

    def submit(self, work: Callable[[], T]) -> Deferred[T]:
        done: Deferred[T] = Deferred()

        def run() -> None:
            try:
                value = work()
            except Exception as error:
                done.fail(error)
            else:
                done.resolve(value)

        self._schedule.call_later(self._delay_ms(), run)
        return done

    def aside(self, work: Callable[[], T]) -> Deferred[T]:
        # A broker comes up and goes down in one step here, so a caller can rely on it.
        return super().submit(work)
