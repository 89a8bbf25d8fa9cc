"""A clock that waits for programs on a busy machine: what they are given does not depend on what else runs there."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

_WORK_SECONDS: Final = 0.01
"""Longer than a scheduler lets one thread run while others wait."""
_EVERY_SECONDS: Final = 1.0
_SLACK: Final = 5.0
"""Programs mostly wait, for which a busy machine needs no longer: a fifth of the time that they are given is enough for
their work on an idle one."""

Clock = Callable[[], float]
"""Gives seconds, from any start."""


def stretch(wall: Clock = time.monotonic, cpu: Clock = time.thread_time) -> float:
    """How many seconds pass while a thread works for one: 1 on an idle machine, 2 where it shares its CPU."""
    began, worked = wall(), cpu()
    while (used := cpu() - worked) < _WORK_SECONDS:
        pass
    return max((wall() - began) / used, 1.0)


class Pace:
    """A second of it does as much for a program as one of an idle machine; how slow this one is is measured once a
    second, for the time before."""

    def __init__(self, wall: Clock = time.monotonic, stretch: Callable[[], float] = stretch) -> None:
        self._wall, self._stretch = wall, stretch
        self._own, self._rate, self._now = 0.0, self._measured(), wall()

    def __call__(self) -> float:
        now = self._wall()
        if now - self._now >= _EVERY_SECONDS:
            self._rate = self._measured()
            self._own += (now - self._now) * self._rate
            self._now = now
        return self._own + (now - self._now) * self._rate

    def _measured(self) -> float:
        return min(1.0, _SLACK / self._stretch())
