"""Seconds as an idle machine has them: what a program is given does not depend on what else runs beside it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

_WORK_SECONDS: Final = 0.01
"""Longer than a scheduler lets one thread run while others wait."""
_EVERY_SECONDS: Final = 1.0

Clock = Callable[[], float]
"""Gives seconds, from any start."""


def stretch(wall: Clock = time.monotonic, cpu: Clock = time.thread_time) -> float:
    """How many seconds pass while a thread works for one: 1 on an idle machine, 2 where it shares its CPU."""
    began, worked = wall(), cpu()
    while (used := cpu() - worked) < _WORK_SECONDS:
        pass
    return max((wall() - began) / used, 1.0)


class Pace:
    """A clock that goes as much slower as programs do: measured once a second, for the seconds before."""

    def __init__(self, wall: Clock = time.monotonic, stretch: Callable[[], float] = stretch) -> None:
        self._wall, self._stretch = wall, stretch
        self._own, self._measured, self._now = 0.0, stretch(), wall()

    def __call__(self) -> float:
        now = self._wall()
        if now - self._now >= _EVERY_SECONDS:
            self._measured = self._stretch()
            self._own += (now - self._now) / self._measured
            self._now = now
        return self._own + (self._wall() - self._now) / self._measured
