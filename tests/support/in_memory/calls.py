"""How much work something is, in calls of functions: the same on every machine, fast or slow, idle or busy."""

from __future__ import annotations

import sys
from types import FrameType, TracebackType
from typing import Any


class Calls:
    """While entered, every call of this thread is counted, of C functions too; `count` has them after that.

    A loop that calls nothing counts as none: what is long calls something at each element.
    """

    count = 0

    def __enter__(self) -> Calls:
        events = 0

        def on_event(_frame: FrameType, _event: str, _arg: Any) -> None:
            nonlocal events
            events += 1

        self._events = lambda: events
        self._before = sys.getprofile()
        sys.setprofile(on_event)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        sys.setprofile(self._before)
        self.count = self._events() // 2  # a call and its return
