"""The two clocks.

The *broker clock* drives transaction timeouts, expirations, retention and sweeps; a test can freeze and advance it.
Waits that a request carries (fetch max wait, produce timeout, rebalance delays) stay on real time and use `Timers`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Milliseconds since the epoch."""


class TimerHandle(Protocol):
    def cancel(self) -> None: ...


class Timers(Protocol):
    """Calls on real time (asyncio's loop, or the schedule of a simulation)."""

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> TimerHandle: ...


IdleUntil = Callable[[], float]
"""The time (ms) before which a sweep, called now or later, would find nothing to do, as long as nothing else happens;
infinite: it would never find anything."""


class ClockTimers(Clock, Timers, Protocol):
    """The broker clock as a broker sees it: the time, and calls on that time."""

    def call_later(
        self, delay_ms: float, callback: Callable[[], None], *, idle_until: IdleUntil | None = None
    ) -> TimerHandle:
        """idle_until: for a sweep that comes every `delay_ms`; a jump of the clock leaves out those of its calls that
        would have done nothing."""
