"""Keeps full garbage collections of `serve` short.

What the broker drops is freed by reference counts, and what young garbage there is by the collections of young objects.
A full collection goes through everything that the broker holds, about 0.25 µs for each object (ten thousand partitions
that were written to are half a million), while no client is served. It only finds cycles of objects that were in use
for long: the broker makes none that is known, asyncio one of a kilobyte for each connection, uvloop none. So each
object is gone through once at most, and then kept out of further collections (`gc.freeze`).
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

from minibroker.kernel.clock import TimerHandle
from minibroker.kernel.garbage import without_full_collections

LOOK_SECONDS: Final = 10.0
WORTH: Final = 50_000
MOST: Final = 150_000
"""Growth of the process since the last collection, in blocks of memory (sys.getallocatedblocks). From WORTH on a full
collection runs; from MOST on it would block the loop for too long, and the new objects are frozen instead."""


class FullCollections:
    """call_later: of the event loop, in seconds."""

    def __init__(self, call_later: Callable[[float, Callable[[], None]], TimerHandle]) -> None:
        self._call_later = call_later
        self._held = ExitStack()
        self._timer: TimerHandle | None = None
        self._blocks_before = 0

    def start(self) -> None:
        """Disable automatic full collections; only this object runs them, without the objects that exist now."""
        gc.freeze()
        self._held.enter_context(without_full_collections())
        self._blocks_before = sys.getallocatedblocks()
        self._wait()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._held.close()

    def _wait(self) -> None:
        self._timer = self._call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        blocks = sys.getallocatedblocks()
        grown = blocks - self._blocks_before
        if grown >= WORTH:
            if grown < MOST:
                gc.collect()
            gc.freeze()
            blocks = sys.getallocatedblocks()
        if grown >= WORTH or grown < 0:
            self._blocks_before = blocks
        self._wait()
