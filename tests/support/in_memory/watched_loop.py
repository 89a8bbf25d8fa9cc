"""A broker in memory that tells how much is done in each turn of its event loop.

What is counted is the calls of functions in the loop's own thread, which are the same on every machine. The work for
the thread that computes is done in between and not counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from calls import Calls
from held_executor import HeldExecutor
from memory_cluster import MemoryCluster

from minibroker.broker.connection import ConnectionInfo
from minibroker.kernel.deferred import Deferred
from minibroker.kernel.executor import DiskInline
from minibroker.requests.context import CloseConnection
from minibroker_protocol.dsl import Request

MOST_CALLS = 200_000
"""In one turn: some 50 ms of a quick machine. What goes through a long list at once makes several times as many."""
MOST_AT_ONCE = 400
"""Elements of a list that are gone through in one turn."""


class WatchedLoop:
    """`turns` has the calls of every turn since the last request."""

    def __init__(self, topics: dict[str, int] | None = None, **config: str) -> None:
        self.computing = HeldExecutor()
        self.cluster = MemoryCluster(
            topics=topics,
            config={"unstable.api.versions.enable": "true", **config},
            executor=DiskInline(self.computing),
        )
        self.turns: list[int] = []
        arm = self.cluster.timers.call_later

        def call_later(delay_ms: float, callback: Any) -> Any:
            return arm(delay_ms, lambda: self._counted(callback))

        self.cluster.timers.call_later = call_later  # type: ignore[method-assign]

    def _counted(self, callback: Any) -> Any:
        calls = Calls()
        try:
            with calls:
                return callback()
        finally:
            self.turns.append(calls.count)

    def pass_time(self, ms: float) -> None:
        """What is due by the clock, in its turns."""
        self.turns.clear()
        self.cluster.timers.advance(ms)

    def serve(self, request: Request, version: int) -> Any:
        """The bytes of the answer; None where the connection is closed or there is no answer yet."""
        frame = self.cluster.frame(request, version)
        del request
        self.turns.clear()
        try:
            answer = self._counted(lambda: self.cluster.dispatcher.dispatch(frame, ConnectionInfo()))
        except CloseConnection:
            return None
        while (
            isinstance(answer, Deferred) and not answer.done and (self.computing.waiting or self.cluster.timers.armed)
        ):
            if self.computing.waiting:
                self.computing.work()
                self._counted(self.computing.run)
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
