"""Slow disk work on a few threads, with results back on the loop's thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent import futures
from typing import TYPE_CHECKING, TypeVar

from minibroker.kernel.computing import Computing
from minibroker.kernel.deferred import Deferred
from minibroker_protocol.records import Pace

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

T = TypeVar("T")

_MAX_THREADS = 4
# Syncs wait for the disk and not for each other: it takes many at once, and a stop has only seconds.
_CLOSING_THREADS = 16


class ThreadExecutor:
    """`Executor` over a thread pool, which is made by the first work that is submitted."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._pool: ThreadPoolExecutor | None = None
        self._aside: ThreadPoolExecutor | None = None
        self._computing: Computing | None = None

    def submit(self, work: Callable[[], T]) -> Deferred[T]:
        """Run `work` on a thread; must be called on the loop's thread, where the Deferred is resolved as well."""
        if self._pool is None:
            self._pool = futures.ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="minibroker-disk")
        return self._delivered(self._pool.submit(work))

    def aside(self, work: Callable[[], T]) -> Deferred[T]:
        """The same on threads of their own."""
        if self._aside is None:
            self._aside = futures.ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="minibroker-aside")
        return self._delivered(self._aside.submit(work))

    def compute(
        self,
        work: Callable[[Pace], T],
        wanted: Callable[[], bool] | None = None,
        *,
        keep: bool = False,
        walk: bool = False,
    ) -> Deferred[T]:
        """The same on one thread: two at a time would only take the interpreter from the loop more often."""
        if self._computing is None:
            self._computing = Computing()
        return self._delivered(self._computing.submit(work, wanted, keep=keep, walk=walk))

    def _delivered(self, future: Future[T]) -> Deferred[T]:
        outcome: Deferred[T] = Deferred()

        def deliver(done: Future[T]) -> None:
            error = done.exception()
            if error is not None:
                outcome.fail(error)
            else:
                outcome.resolve(done.result())

        def finished(done: Future[T]) -> None:
            # On a closed loop nothing waits any more.
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(deliver, done)

        future.add_done_callback(finished)
        return outcome

    def each(self, work: Callable[[T], None], items: Iterable[T]) -> None:
        """Run `work` for every item on many threads; blocks until all are done."""
        pending = list(items)
        if len(pending) < 2:
            for item in pending:
                work(item)
            return
        threads = min(_CLOSING_THREADS, len(pending))
        with futures.ThreadPoolExecutor(threads, thread_name_prefix="minibroker-closing") as pool:
            for _ in pool.map(work, pending):
                pass

    def close(self) -> None:
        """Finish what was submitted, but not what is only computed, and end the threads."""
        if self._computing is not None:
            self._computing.close()
        pools = (self._aside, self._pool)
        self._aside = self._pool = None
        for pool in pools:
            if pool is not None:
                pool.shutdown(wait=True)
