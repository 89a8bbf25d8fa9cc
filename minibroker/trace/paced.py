"""A recorder that costs a busy broker nothing: above a rate it rests, and in the meantime requests do not pass it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from minibroker.kernel.clock import TimerHandle, Timers
from minibroker.trace.recorder import Recorder

_TOGETHER: Final = 20
"""Exchanges recorded in a row before the next rest: enough to show a whole transaction."""
_REFUSED: Final = 200
_REFUSED_PER_SECOND: Final = 50
"""Limits for refused exchanges, which are recorded during a rest too: users look for refusals first."""


class _Room:
    """Room for `most` at once, which refills by `per_second`."""

    def __init__(self, most: int, per_second: float, now_ms: float) -> None:
        self.per_second = per_second
        self._most = most
        self._allowed = float(most)
        self._at_ms = now_ms

    def take(self, now_ms: float) -> bool:
        self._allowed = min(self._allowed + (now_ms - self._at_ms) * self.per_second / 1000, self._most)
        self._at_ms = now_ms
        if self._allowed < 1:
            return False
        self._allowed -= 1
        return True


class PacedRecorder(Recorder):
    """Records `kept` exchanges at once, then `per_second` on average: some in a row, then it rests.

    now_ms: for durations.
    """

    def __init__(self, kept: int, per_second: float, timers: Timers, now_ms: Callable[[], float]) -> None:
        super().__init__(kept)
        self._timers = timers
        self._now_ms = now_ms
        self._room = _Room(kept, per_second, now_ms())
        self._room_of_refused = _Room(_REFUSED, _REFUSED_PER_SECOND, now_ms())
        self._rest: TimerHandle | None = None

    @property
    def resting(self) -> bool:
        return self._rest is not None

    def pace(self, per_second: float) -> None:
        """Change the rate and end the rest under way."""
        self._room.per_second = per_second
        if self._rest is not None:
            self._rest.cancel()
            self._go_on()

    def wants(self) -> bool:
        if self._room.take(self._now_ms()):
            return True
        if self._rest is None:
            self.left_out += 1
            self._rest = self._timers.call_later(_TOGETHER * 1000 / self._room.per_second, self._go_on)
            self.changed()
        return False

    def _go_on(self) -> None:
        self._rest = None
        self.changed()

    def wants_refused(self) -> bool:
        return self._room_of_refused.take(self._now_ms())
