"""The event loop, and timers on its clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from minibroker.runtime.clock import TimerHandle


def new_event_loop(*, uvloop: bool = True) -> asyncio.AbstractEventLoop:
    """uvloop's loop where it is wanted and installed, else the platform's own."""
    if uvloop:
        try:
            import uvloop as fast
        except ImportError:
            pass
        else:
            return fast.new_event_loop()
    return asyncio.new_event_loop()


class LoopTimers:
    """`Timers` on real time; callbacks run on the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> TimerHandle:
        return self._loop.call_later(delay_ms / 1000, callback)
