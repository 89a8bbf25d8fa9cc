"""How much work something is, in calls of functions: the same on every machine, fast or slow, idle or busy."""

from __future__ import annotations

import functools
import sys
from types import TracebackType


class Calls:
    """While entered, every call of this thread is counted, of C functions too; `count` has them after that.

    A loop that calls nothing counts as none: what is long calls something at each element.
    """

    count = 0

    def __enter__(self) -> Calls:
        # A function of Python's own would take as long as what it counts; a cache of nothing counts without one, and a
        # slice is made of any three.
        self._on_event = functools.lru_cache(maxsize=0)(slice)
        self._before = sys.getprofile()
        sys.setprofile(self._on_event)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        sys.setprofile(self._before)
        self.count = self._on_event.cache_info().misses // 2  # a call and its return
