"""Progress of long work: one line on a terminal, overwritten, and nothing elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

from minibroker.output import printable

_INTERVAL_SECONDS = 0.2


class ProgressLine:
    """Writes to `stream` when that is a terminal, a few times a second.

    clock: seconds, as of ``time.monotonic``.
    at_once: show the first words too, as the work is long in any case.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic, *, at_once: bool = False) -> None:
        self._stream = stream
        self._clock = clock
        self._shown = 0
        self._next = clock() + (0 if at_once else _INTERVAL_SECONDS) if stream.isatty() else float("inf")

    def show(self, what: str, done: int, total: int) -> None:
        """`done` of `total` bytes of `what`."""
        self.say(f"{what}: {done * 100 // max(total, 1)} % of {total / 1e6:.1f} MB")

    def say(self, text: str) -> None:
        """Show any text that fits on a line."""
        now = self._clock()
        if now < self._next:
            return
        self._next = now + _INTERVAL_SECONDS
        text = printable(text)
        self._stream.write("\r" + text.ljust(self._shown))
        self._stream.flush()
        self._shown = len(text)

    def clear(self) -> None:
        """Clear the line, so that other output can be printed."""
        if self._shown:
            self._stream.write("\r" + " " * self._shown + "\r")
            self._stream.flush()
            self._shown = 0
