"""Log lines about closed connections, limited so that a client that reconnects in a loop does not flood the log."""

from __future__ import annotations

import asyncio

from minibroker.kernel.logs import get_logger

log = get_logger("minibroker.server")

_PER_SECOND = 10


class ConnectionLog:
    """The first ten lines of a second are written; the others are counted, and their number is logged at its end."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float = 1) -> None:
        self._loop = loop
        self._seconds = seconds
        self._said = 0
        self._unsaid = 0
        self._timer: asyncio.TimerHandle | None = None

    def say(self, text: str, *values: object) -> None:
        """A warning, with %-style `values`."""
        if self._timer is None:
            self._timer = self._loop.call_later(self._seconds, self.close)
        if self._said < _PER_SECOND:
            self._said += 1
            log.warning(text, *values)
        else:
            self._unsaid += 1

    def close(self) -> None:
        """Log the count of suppressed lines; also called at the end of a second."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._said, unsaid, self._unsaid = 0, self._unsaid, 0
        if unsaid:
            log.warning("%d more connections were closed or refused within %g s", unsaid, self._seconds)
