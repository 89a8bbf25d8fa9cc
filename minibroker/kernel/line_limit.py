"""Log lines limited per period, so that a client that fails again and again does not flood the log."""

from __future__ import annotations

from collections.abc import Callable

from minibroker.kernel.clock import TimerHandle, Timers


class LineLimit:
    """The first `most` lines of a period are written; the others are counted, and their number is logged at its end.

    rest: the text of that line, with %-style places for the number and the period in seconds.
    """

    def __init__(self, timers: Timers, write: Callable[..., None], rest: str, *, most: int, seconds: float = 1) -> None:
        self._timers = timers
        self._write = write
        self._rest = rest
        self._most = most
        self._seconds = seconds
        self._said = 0
        self._unsaid = 0
        self._timer: TimerHandle | None = None

    def say(self, text: str, *values: object) -> None:
        """A line, with %-style `values`."""
        if self._timer is None:
            self._timer = self._timers.call_later(1000 * self._seconds, self.close)
        if self._said < self._most:
            self._said += 1
            self._write(text, *values)
        else:
            self._unsaid += 1

    def close(self) -> None:
        """Log the count of suppressed lines; also called at the end of a period."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._said, unsaid, self._unsaid = 0, self._unsaid, 0
        if unsaid:
            self._write(self._rest, unsaid, self._seconds)
