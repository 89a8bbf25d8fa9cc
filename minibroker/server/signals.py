"""SIGTERM and SIGINT: the first asks for an orderly stop, one more than a second later ends the process at once."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from minibroker.exit_codes import EXIT_SIGNALLED
from minibroker.program import SAME_SECONDS, say_interrupted

# SIGBREAK is what Windows sends for Ctrl+Break, and the only one another process can send there.
_NUMBERS = tuple(int(getattr(signal, n)) for n in ("SIGINT", "SIGTERM", "SIGBREAK") if hasattr(signal, n))


class StopSignals:
    """Calls `stop` on the loop's thread when the process is first asked to end.

    begun: False while there is nothing to end in order yet; a signal then ends the process at once.
    loop_handlers: use the loop's own signal handling; without it (Windows) Python's, which hands over to the loop.
    Use in the main thread only.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        stop: Callable[[], None],
        *,
        loop_handlers: bool = sys.platform != "win32",
        exit_now: Callable[[int], Any] = os._exit,
    ) -> None:
        self._loop = loop
        self._stop = stop
        self._loop_handlers = loop_handlers
        self._exit_now = exit_now
        self._since: float | None = None
        self.begun = True
        self._before: dict[int, Any] = {}

    def install(self) -> None:
        for number in _NUMBERS:
            if self._loop_handlers:
                self._loop.add_signal_handler(number, self._signalled, number)
            else:
                self._before[number] = signal.signal(number, self._python_handler)

    def remove(self) -> None:
        if self._loop_handlers:
            for number in _NUMBERS:
                self._loop.remove_signal_handler(number)
        for replaced, handler in self._before.items():
            signal.signal(replaced, handler)
        self._before = {}

    def _python_handler(self, number: int, frame: Any) -> None:
        if self._since is None:
            self._loop.call_soon_threadsafe(self._signalled, number)
        else:  # the loop may be stuck
            self._signalled(number)

    def _signalled(self, number: int) -> None:
        if self.begun and self._since is None:
            self._since = time.monotonic()
            self._stop()
        elif self._since is None or time.monotonic() - self._since > SAME_SECONDS:
            say_interrupted(number)
            self._exit_now(EXIT_SIGNALLED + number)
