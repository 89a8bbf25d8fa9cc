"""Time that moves only when a test says so."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class ManualTimer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class ManualTimers:
    """`minibroker.kernel.clock.Timers` whose time is moved with `advance`; `now_ms` can serve as a wall clock."""

    def __init__(self, now_ms: int = 1_000_000) -> None:
        self._now_ms = float(now_ms)
        self._count = 0
        self._queue: list[tuple[float, int, ManualTimer]] = []

    def now_ms(self) -> int:
        return int(self._now_ms)

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> ManualTimer:
        timer = ManualTimer(callback)
        self._count += 1
        heapq.heappush(self._queue, (self._now_ms + max(0, delay_ms), self._count, timer))
        return timer

    @property
    def armed(self) -> int:
        return sum(1 for _, _, timer in self._queue if timer.callback is not None)

    def hold_up(self, delta_ms: float) -> None:
        """Time goes by in which nothing runs, and every timer is late by it: a debugger, or a sleeping laptop."""
        self._queue = [(due + delta_ms, number, timer) for due, number, timer in self._queue]
        self._now_ms += delta_ms

    def stand_still(self, delta_ms: float) -> None:
        """Time goes by in which nothing runs; timers that were due in it are late."""
        self._now_ms += delta_ms

    def advance(self, delta_ms: float) -> None:
        target = self._now_ms + delta_ms
        while self._queue and self._queue[0][0] <= target:
            due, _, timer = heapq.heappop(self._queue)
            self._now_ms = max(self._now_ms, due)
            callback, timer.callback = timer.callback, None
            if callback is not None:
                callback()
        self._now_ms = target
