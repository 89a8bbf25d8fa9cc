"""The broker clock: it follows the wall clock, or a test that freezes and advances it."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from math import ceil, inf

from minibroker.kernel.clock import IdleUntil, TimerHandle, Timers


class _BrokerTimer:
    __slots__ = ("callback", "due_ms", "idle_until", "interval_ms")

    def __init__(
        self, due_ms: int, callback: Callable[[], None], interval_ms: int, idle_until: IdleUntil | None
    ) -> None:
        self.due_ms = due_ms
        self.callback: Callable[[], None] | None = callback
        self.interval_ms = max(1, interval_ms)
        self.idle_until = idle_until

    def next_turn_ms(self) -> float:
        """The first of its calls that would do something: it runs at its due time and at every interval after that."""
        assert self.idle_until is not None
        idle_ms = self.idle_until()
        if idle_ms <= self.due_ms or idle_ms == inf:
            return max(self.due_ms, idle_ms)
        return self.due_ms + ceil((idle_ms - self.due_ms) / self.interval_ms) * self.interval_ms

    def cancel(self) -> None:
        self.callback = None


class BrokerClock:
    """Wall-clock milliseconds that can be frozen and moved forward, with timers that fire as it passes them.

    `advance` runs everything that falls due, in order, before it returns, except for sweeps that say that they would
    find nothing. While the clock runs, one real-time wake-up is kept armed for the earliest timer.
    """

    def __init__(self, timers: Timers, wall_ms: Callable[[], int] | None = None) -> None:
        self._timers = timers
        # Nanoseconds, because the time is asked for a dozen times in a transaction and Python has no milliseconds.
        self._wall_ns = time.time_ns if wall_ms is None else lambda: wall_ms() * 1_000_000
        self._offset_ms = 0
        self._frozen_at_ms: int | None = None
        self._queue: list[tuple[int, int, _BrokerTimer]] = []
        self._count = 0
        self._wakeup: TimerHandle | None = None
        self._wakeup_due_ms = 0

    def now_ms(self) -> int:
        if self._frozen_at_ms is not None:
            return self._frozen_at_ms
        return self._wall_ns() // 1_000_000 + self._offset_ms

    @property
    def frozen(self) -> bool:
        return self._frozen_at_ms is not None

    def freeze(self) -> int:
        """Stop the clock; returns the time it stopped at."""
        if self._frozen_at_ms is None:
            self._frozen_at_ms = self.now_ms()
        return self._frozen_at_ms

    def unfreeze(self) -> None:
        """Unfreeze: the clock runs on from its current time."""
        if self._frozen_at_ms is not None:
            self._offset_ms = self._frozen_at_ms - self._wall_ns() // 1_000_000
            self._frozen_at_ms = None
            self._arm()

    def advance(self, delta_ms: int) -> int:
        """Move forward by `delta_ms` (>= 0), running due timers on the way; returns the new time."""
        if delta_ms < 0:
            raise ValueError("the broker clock never goes back")
        target_ms = self.now_ms() + delta_ms
        # Weeks hold a hundred thousand sweeps that find nothing; those are left out.
        sweeps: list[_BrokerTimer] = []
        while self._advance_once(target_ms, sweeps):
            pass
        for sweep in sweeps:
            turns = max(0, (target_ms - sweep.due_ms) // sweep.interval_ms + 1)
            sweep.due_ms += turns * sweep.interval_ms
            self._push(sweep)
        self._set(max(target_ms, self.now_ms()))
        self._disarm()  # its due time was that of the clock before the jump
        self._arm()
        return self.now_ms()

    def _advance_once(self, target_ms: int, sweeps: list[_BrokerTimer]) -> bool:
        """Run the next timer that is due by `target_ms`; False if there is none.

        sweeps: taken out of the queue.
        """
        queue = self._queue
        while queue and (queue[0][2].idle_until is not None or queue[0][2].callback is None):
            timer = heapq.heappop(queue)[2]
            if timer.callback is not None:
                sweeps.append(timer)
        next_ms: float = queue[0][0] if queue else inf
        chosen: _BrokerTimer | None = None
        for sweep in sweeps:
            turn_ms = sweep.next_turn_ms()
            if turn_ms < next_ms:
                next_ms, chosen = turn_ms, sweep
        if next_ms > target_ms:
            return False
        if chosen is None:
            chosen = heapq.heappop(queue)[2]
        else:
            sweeps.remove(chosen)
        self._set(max(int(next_ms), self.now_ms()))
        self._fire(chosen)
        return True

    def call_later(
        self, delay_ms: float, callback: Callable[[], None], *, idle_until: IdleUntil | None = None
    ) -> TimerHandle:
        """Call `callback` once the broker clock has passed now + `delay_ms`."""
        interval_ms = max(0, round(delay_ms))
        timer = _BrokerTimer(self.now_ms() + interval_ms, callback, interval_ms, idle_until)
        self._push(timer)
        self._arm()
        return timer

    def _push(self, timer: _BrokerTimer) -> None:
        self._count += 1
        heapq.heappush(self._queue, (timer.due_ms, self._count, timer))

    def close(self) -> None:
        """Drop every timer."""
        self._queue.clear()
        self._disarm()

    def _disarm(self) -> None:
        if self._wakeup is not None:
            self._wakeup.cancel()
            self._wakeup = None

    def _set(self, now_ms: int) -> None:
        if self._frozen_at_ms is not None:
            self._frozen_at_ms = now_ms
        else:
            self._offset_ms = now_ms - self._wall_ns() // 1_000_000

    def _arm(self) -> None:
        while self._queue and self._queue[0][2].callback is None:
            heapq.heappop(self._queue)
        if self._frozen_at_ms is not None or not self._queue:
            return
        due_ms = self._queue[0][0]
        if self._wakeup is not None:
            if self._wakeup_due_ms <= due_ms:
                return
            self._wakeup.cancel()
        self._wakeup_due_ms = due_ms
        self._wakeup = self._timers.call_later(max(0, due_ms - self.now_ms()), self._wake)

    def _wake(self) -> None:
        self._wakeup = None
        if self._frozen_at_ms is not None:
            return
        now_ms = self.now_ms()
        while self._queue and self._queue[0][0] <= now_ms:
            _, _, timer = heapq.heappop(self._queue)
            self._fire(timer)
        self._arm()

    @staticmethod
    def _fire(timer: _BrokerTimer) -> None:
        callback, timer.callback = timer.callback, None
        if callback is not None:
            callback()
