"""Keeps the markers of queries that have nothing to write: a broker deletes an offset offsets.retention.minutes after
its commit."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from minibroker_pipeline.sink import Sink, SinkDriver, SinkRefused

EVERY: Final = 3600.0
"""Seconds without a batch after which a marker is committed again; far below the seven days of Kafka's default."""
_LOG: Final = logging.getLogger(__name__)


def _now() -> float:
    return time.time_ns() / 1e9


class Keeper:
    """Commits the markers of queries again when they start, and after each hour in which they write nothing.

    For the driver, whose process runs the queries.

    clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = _now) -> None:
        self._clock = clock
        self._sinks: dict[tuple[str, str], Sink] = {}
        self._kept: dict[str, float] = {}
        self._lock = threading.Lock()

    def add(self, sink: Sink) -> None:
        """A sink that a query may write to."""
        with self._lock:
            self._sinks[sink.bootstrap, sink.name] = sink

    def started(self, query: str) -> None:
        """Before its first batch. It may have been away for days."""
        self._keep(query)

    def wrote(self, query: str) -> None:
        """A batch was committed, and with it a marker."""
        self._kept[query] = self._clock()

    def idle(self, query: str) -> None:
        """The query has nothing to write. Called often, and for a while after the query's end. By then it may have been
        started again, so its state is never removed."""
        if self._clock() - self._kept.get(query, 0) >= EVERY:
            self._keep(query)

    def _keep(self, query: str) -> None:
        with self._lock:
            sinks = list(self._sinks.values())
        try:
            for sink in sinks:
                SinkDriver(sink).keep(query)
        except SinkRefused as error:  # tried again when idle; a batch shows the reason
            _LOG.warning("the marker of query %s was not kept: %s", query, error)
            return
        self._kept[query] = self._clock()
