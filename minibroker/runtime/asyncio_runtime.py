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
    """`Timers` on real time; callbacks run on the loop's thread, and not at all after `close`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._closed = False

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> TimerHandle:
        return self._loop.call_later(delay_ms / 1000, self._fire, callback)

    def _fire(self, callback: Callable[[], None]) -> None:
        if not self._closed:
            callback()

    def close(self) -> None:
        """Let no timer fire any more: a wait that ends after its broker was closed would open its logs again."""
        self._closed = True
