"""Logs a warning when the event loop was blocked."""

from __future__ import annotations

import asyncio
import time

from minibroker.kernel.logs import get_logger

log = get_logger(__name__)

_BEAT_SECONDS = 0.02


class LoopWatchdog:
    """Measures how late the loop runs a timer, and logs a warning above `max_lag_ms`.

    The line also says how much of that was this thread's own processor time: little of it means that the machine was
    busy with something else. `worst_ms` keeps the largest own share seen.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, max_lag_ms: int) -> None:
        self._loop = loop
        self._max_lag_ms = max_lag_ms
        self._due = 0.0
        self._cpu = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.late = 0
        self.worst_ms = 0.0

    def start(self) -> None:
        self._due = self._loop.time() + _BEAT_SECONDS
        self._cpu = time.thread_time()
        self._timer = self._loop.call_at(self._due, self._beat)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _beat(self) -> None:
        lag_ms = (self._loop.time() - self._due) * 1000
        own_ms = (time.thread_time() - self._cpu) * 1000
        if lag_ms > self._max_lag_ms:
            self.late += 1
            self.worst_ms = max(self.worst_ms, min(lag_ms, own_ms))
            log.warning("the event loop ran %.1f ms late; of these its thread worked %.1f ms", lag_ms, own_ms)
        self.start()
