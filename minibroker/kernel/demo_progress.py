"""Progress of the demo: events as lines, and on a terminal one line with the counts."""

from __future__ import annotations

import time
from typing import TextIO

from minibroker.kernel.progress import ProgressLine
from minibroker.output import say


class Progress:
    """Writes to one text stream; the time of an event is in seconds since this object was made."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._start = time.monotonic()
        self._line = ProgressLine(stream)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start

    def event(self, text: str) -> None:
        """Something that happened once."""
        self._line.clear()
        say(f"{self.seconds:6.2f} s  {text}", to=self._stream, flush=True)

    def count(self, text: str) -> None:
        """Something that changes all the time; shown on a terminal only."""
        self._line.say(f"{self.seconds:6.2f} s  {text}")
