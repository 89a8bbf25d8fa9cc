"""Disk work that waits until a test lets it run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from minibroker.kernel.deferred import Deferred
from minibroker.kernel.executor import Abandoned, InlineExecutor
from minibroker_protocol.records import UNHURRIED, Pace

T = TypeVar("T")


class HeldExecutor(InlineExecutor):
    """`Executor` that queues; `waiting` says how much, `run` does the oldest, `run_all` everything there is.

    `work` does the oldest and keeps what came of it to itself until the next `run`: a thread that is not back yet.
    """

    def __init__(self) -> None:
        self._queue: deque[tuple[Callable[[], Any], Deferred[Any]]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def submit(self, work: Callable[[], T]) -> Deferred[T]:
        outcome: Deferred[T] = Deferred()
        self._queue.append((work, outcome))
        return outcome

    def work(self) -> None:
        work, outcome = self._queue.popleft()
        done: Deferred[Any] = Deferred()
        try:
            done.resolve(work())
        except Exception as error:
            done.fail(error)
        self._queue.appendleft((done.result, outcome))

    def run(self) -> None:
        work, outcome = self._queue.popleft()
        try:
            result = work()
        except Exception as error:
            outcome.fail(error)
        else:
            outcome.resolve(result)

    def run_all(self) -> None:
        while self._queue:
            self.run()

    def compute(
        self,
        work: Callable[[Pace], T],
        wanted: Callable[[], bool] | None = None,
        *,
        keep: bool = False,
        walk: bool = False,
    ) -> Deferred[T]:
        def run() -> T:
            if wanted is not None and not wanted() and not keep:
                raise Abandoned
            return work(UNHURRIED)

        return self.submit(run)
