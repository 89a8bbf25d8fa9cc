"""The event loop, and timers on its clock."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable

from minibroker.kernel.clock import TimerHandle

_OF_NO_LOGGER = logging.Filter("no logger")


def wall_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def new_event_loop(*, uvloop: bool = True) -> asyncio.AbstractEventLoop:
    """uvloop's loop where it is wanted, installed and safe, else the platform's own."""
    if uvloop and _has_standard_streams():
        with contextlib.suppress(ImportError):
            import uvloop as fast

            # uvloop logs of a loop that it cannot make that it was not closed.
            logging.getLogger("asyncio").addFilter(_OF_NO_LOGGER)
            try:
                return fast.new_event_loop()
            finally:
                logging.getLogger("asyncio").removeFilter(_OF_NO_LOGGER)
    return asyncio.new_event_loop()


def _has_standard_streams() -> bool:
    """Whether descriptors 0 to 2 are taken.

    Where one is closed, a descriptor of the loop gets its number, and libuv ends the process when it closes such a one.
    """
    with contextlib.suppress(OSError):
        return all(os.fstat(fd) for fd in range(3))
    return False


class LoopTimers:
    """`Timers` on real time; callbacks run on the loop's thread, and not at all after `close`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._closed = False

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> TimerHandle:
        if delay_ms <= 0:
            # Before requests that arrive in the meantime: with call_later they would overtake it.
            return self._loop.call_soon(self._fire, callback)
        return self._loop.call_later(delay_ms / 1000, self._fire, callback)

    def _fire(self, callback: Callable[[], None]) -> None:
        if not self._closed:
            callback()

    def close(self) -> None:
        """Cancel all timers: one that fired after its broker was closed would open its logs again."""
        self._closed = True
