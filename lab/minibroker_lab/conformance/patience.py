"""How long a step waits: the whole time at first, a short one after the same failure."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Final

SHORT_SECONDS: Final = 2.0


class Patience:
    """Shared by the scenarios of a run, on any thread. A broker that lacks something costs one whole wait for it, not
    one a scenario."""

    def __init__(self) -> None:
        self._failed: set[Hashable] = set()
        self._lock = threading.Lock()

    def limit(self, seconds: float, way: Hashable) -> float:
        """At most so many seconds for what would fail in this `way`."""
        with self._lock:
            return min(seconds, SHORT_SECONDS) if way in self._failed else seconds

    def failed(self, way: Hashable) -> None:
        """The whole time was not enough."""
        with self._lock:
            self._failed.add(way)
