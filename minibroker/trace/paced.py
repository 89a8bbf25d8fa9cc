"""A recorder that costs a busy broker little: above a rate it leaves exchanges out."""

from __future__ import annotations

from collections.abc import Callable

from minibroker.trace.recorder import Recorder

REST_MS = 200
"""So long nothing is recorded once there is no room; for that time the tap can be taken out of the chain."""


class PacedRecorder(Recorder):
    """Records `kept` exchanges at once, and `per_second` of them on and on.

    now_ms: for durations; rest: called with the ms in which nothing will be recorded.
    """

    def __init__(
        self, kept: int, per_second: float, now_ms: Callable[[], float], rest: Callable[[float], None]
    ) -> None:
        super().__init__(kept)
        self.per_second = per_second
        self._most = kept
        self._room = float(kept)
        self._now_ms = now_ms
        self._rest = rest
        self._at_ms = now_ms()
        self._resting_until_ms = self._at_ms

    def wants(self) -> bool:
        """Whether there is room for the next exchange, which takes it."""
        now = self._now_ms()
        if now < self._resting_until_ms:
            return False
        self._room = min(self._room + (now - self._at_ms) * self.per_second / 1000, self._most)
        self._at_ms = now
        if self._room >= 1:
            self._room -= 1
            return True
        self.rests += 1
        self._resting_until_ms = now + REST_MS
        self._rest(REST_MS)
        return False
