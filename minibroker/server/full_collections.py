"""Schedules full garbage collections of `serve` for quiet moments.

What the broker drops is freed by reference counts, and what young garbage there is by the collections of young objects.
A full collection goes through everything that the broker holds, some 0.25 µs for each object (ten thousand partitions
that were written to are half a million), while no client is served. So it waits until there is little to do. It only
finds cycles of objects that were in use for long: the broker makes none that is known, asyncio one for each connection.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final, Protocol

from minibroker.kernel.garbage import without_full_collections

LOOK_SECONDS: Final = 10.0
QUIET_SECONDS: Final = 0.1
"""Processor time of the loop's thread between two looks that counts as nothing to do."""
WORTH: Final = 100_000
MOST: Final = 4_000_000
"""Blocks of memory (sys.getallocatedblocks) by which the process has grown since the last one: the first is enough in a
quiet moment, the second, some 400 MB, at any."""


class Handle(Protocol):
    def cancel(self) -> object: ...


class FullCollections:
    """call_later: of the event loop, in seconds. worked: processor time of its thread."""

    def __init__(
        self,
        call_later: Callable[[float, Callable[[], None]], Handle],
        worked: Callable[[], float] = time.thread_time,
    ) -> None:
        self._call_later = call_later
        self._worked = worked
        self._held = ExitStack()
        self._timer: Handle | None = None
        self._worked_before = 0.0
        self._blocks_before = 0

    def start(self) -> None:
        """From now on there are none but those that this object makes."""
        self._held.enter_context(without_full_collections())
        self._blocks_before = sys.getallocatedblocks()
        self._wait()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._held.close()

    def _wait(self) -> None:
        self._worked_before = self._worked()
        self._timer = self._call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        quiet = self._worked() - self._worked_before < QUIET_SECONDS
        blocks = sys.getallocatedblocks()
        if blocks - self._blocks_before >= (WORTH if quiet else MOST):
            gc.collect()
            self._blocks_before = sys.getallocatedblocks()
        else:
            self._blocks_before = min(self._blocks_before, blocks)
        self._wait()
