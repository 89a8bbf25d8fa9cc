"""A recorder that costs a busy broker little: above a rate it leaves exchanges out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from minibroker.trace.recorder import Recorder

_REFUSED: Final = 200
_REFUSED_PER_SECOND: Final = 50
"""Of refused exchanges that are recorded all the same: what one looks for first, unless everything is refused."""


class _Room:
    """Room for `most` at once, and for `per_second` on and on."""

    def __init__(self, most: int, per_second: float, now_ms: float) -> None:
        self.per_second = per_second
        self._most = most
        self._left = float(most)
        self._at_ms = now_ms

    def take(self, now_ms: float) -> bool:
        self._left = min(self._left + (now_ms - self._at_ms) * self.per_second / 1000, self._most)
        self._at_ms = now_ms
        if self._left < 1:
            return False
        self._left -= 1
        return True


class PacedRecorder(Recorder):
    """Records `kept` exchanges at once, and `per_second` of them on and on. now_ms: for durations."""

    def __init__(self, kept: int, per_second: float, now_ms: Callable[[], float]) -> None:
        super().__init__(kept)
        self._now_ms = now_ms
        self._room = _Room(kept, per_second, now_ms())
        self._room_of_refused = _Room(_REFUSED, _REFUSED_PER_SECOND, now_ms())

    def pace(self, per_second: float) -> None:
        """Record so many from now on."""
        self._room.per_second = per_second

    def wants(self) -> bool:
        wanted = self._room.take(self._now_ms())
        self.left_out += not wanted
        return wanted

    def wants_refused(self) -> bool:
        wanted = self._room_of_refused.take(self._now_ms())
        self.left_out -= wanted
        return wanted
