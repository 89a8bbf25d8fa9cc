"""A broker in memory that tells how long each turn of its event loop is.

What is timed is the processor time of the loop's own thread, which a busy machine does not add to. The work for the
thread that computes is done in between and not counted.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import thread_time
from typing import Any

from held_executor import HeldExecutor
from memory_cluster import MemoryCluster

from minibroker.broker.connection import ConnectionInfo
from minibroker.handlers.context import CloseConnection
from minibroker.kernel.deferred import Deferred
from minibroker.kernel.executor import DiskInline
from minibroker_protocol.dsl import Request

MOST_SECONDS = 0.05
TRIES = 3
"""A disturbed turn takes longer than it is long; a long one does so each time."""


class WatchedLoop:
    """`turns` has the seconds of every turn since the last request."""

    def __init__(self, topics: dict[str, int] | None = None, **config: str) -> None:
        self.computing = HeldExecutor()
        self.cluster = MemoryCluster(
            topics=topics,
            config={"unstable.api.versions.enable": "true", **config},
            executor=DiskInline(self.computing),
        )
        self.turns: list[float] = []
        arm = self.cluster.timers.call_later

        def call_later(delay_ms: float, callback: Any) -> Any:
            return arm(delay_ms, lambda: self._timed(callback))

        self.cluster.timers.call_later = call_later  # type: ignore[method-assign]

    def _timed(self, callback: Any) -> Any:
        begin = thread_time()
        try:
            return callback()
        finally:
            self.turns.append(thread_time() - begin)

    def _begin(self) -> None:
        gc.collect()
        gc.freeze()  # what was there before is not looked at for garbage in the turns
        self.turns.clear()

    def pass_time(self, ms: float) -> None:
        """What is due by the clock, in its turns."""
        self._begin()
        self.cluster.timers.advance(ms)

    def serve(self, request: Request, version: int) -> Any:
        """The bytes of the answer; None where the connection is closed or there is no answer yet."""
        frame = self.cluster.frame(request, version)
        del request
        self._begin()
        try:
            answer = self._timed(lambda: self.cluster.dispatcher.dispatch(frame, ConnectionInfo()))
        except CloseConnection:
            return None
        while (
            isinstance(answer, Deferred) and not answer.done and (self.computing.waiting or self.cluster.timers.armed)
        ):
            if self.computing.waiting:
                self.computing.work()
                self._timed(self.computing.run)
            else:
                self.cluster.timers.advance(10)
        if not isinstance(answer, Deferred):
            return answer
        with suppress(CloseConnection):
            return answer.result() if answer.done else None
        return None


@contextmanager
def watched(topics: dict[str, int] | None = None, **config: str) -> Iterator[WatchedLoop]:
    loop = WatchedLoop(topics, **config)
    try:
        yield loop
    finally:
        loop.cluster.stop()
