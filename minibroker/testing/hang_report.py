"""Says what a test waits for while it runs longer than it should.

Imports nothing of a broker.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from minibroker.output import printable

Waits = tuple[str, Sequence[str]]
"""Bootstrap servers of a broker, and what it waits for."""


def text(title: str, waits: Sequence[Waits]) -> str:
    """The lines for a person.

    title: what is printed first.
    """
    lines = [title]
    for servers, what in waits:
        lines.append(
            f"  the broker at {servers} waits for:" if what else f"  the broker at {servers} waits for nothing"
        )
        lines += [f"    {line}" for line in what]
    if not any(what for _, what in waits):
        lines.append("  no request is unanswered and no transaction is open: the test or its client waits for itself")
    return "\n".join(map(printable, lines))


class HangWatch:
    """Calls `report` once, on a thread of its own, `seconds` after the first `start`. The thread is there while the
    test has a broker, so that a test that counts threads finds none of it afterwards."""

    def __init__(self, seconds: float, report: Callable[[], None]) -> None:
        self._seconds = seconds
        self._report = report
        self._due: float | None = None
        self._reported = False
        self._timer: threading.Timer | None = None

    def start(self) -> None:
        """The test has a broker."""
        if self._timer is not None or self._reported:
            return
        now = time.monotonic()
        self._due = now + self._seconds if self._due is None else self._due
        self._timer = threading.Timer(max(self._due - now, 0), self._expired)
        self._timer.name = "minibroker hang report"
        self._timer.daemon = True
        self._timer.start()

    def pause(self) -> None:
        """The test has no broker now, or is over."""
        timer, self._timer = self._timer, None
        if timer is not None and timer is not threading.current_thread():
            timer.cancel()
            timer.join(1)

    def _expired(self) -> None:
        self._reported = True
        self._report()
