"""Log lines about closed connections, which a client that comes again and again must not turn into a flood."""

from __future__ import annotations

import asyncio

from minibroker.kernel.logs import get_logger

log = get_logger("minibroker.server")

_PER_SECOND = 10


class ConnectionLog:
    """The first ten lines of a second are written, the others counted, and their number told at its end."""

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
        """Tell what is left to tell; at the end of a second too."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._said, unsaid, self._unsaid = 0, self._unsaid, 0
        if unsaid:
            log.warning("%d more connections were closed or refused within %g s", unsaid, self._seconds)
