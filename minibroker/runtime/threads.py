"""Slow disk work on a few threads, with results back on the loop's thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from minibroker.runtime.deferred import Deferred

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

T = TypeVar("T")

_MAX_THREADS = 4
# Syncs wait for the disk and not for each other: it takes many at once, and a stop has only seconds.
_CLOSING_THREADS = 16


class ThreadExecutor:
    """`Executor` over a thread pool, which is made by the first work that is submitted."""

    def __init__(self, loop: asyncio.AbstractEventLoop, max_threads: int = _MAX_THREADS) -> None:
        self._loop = loop
        self._max_threads = max_threads
        self._pool: ThreadPoolExecutor | None = None
        self._aside: ThreadPoolExecutor | None = None

    def submit(self, work: Callable[[], T]) -> Deferred[T]:
        """Run `work` on a thread; must be called on the loop's thread, where the Deferred is resolved as well."""
        if self._pool is None:
            from concurrent.futures import ThreadPoolExecutor

            self._pool = ThreadPoolExecutor(self._max_threads, thread_name_prefix="minibroker-disk")
        return self._delivered(self._pool.submit(work))

    def aside(self, work: Callable[[], T]) -> Deferred[T]:
        """The same on threads of their own."""
        if self._aside is None:
            from concurrent.futures import ThreadPoolExecutor

            self._aside = ThreadPoolExecutor(self._max_threads, thread_name_prefix="minibroker-aside")
        return self._delivered(self._aside.submit(work))

    def _delivered(self, future: Future[T]) -> Deferred[T]:
        outcome: Deferred[T] = Deferred()

        def deliver(done: Future[T]) -> None:
            error = done.exception()
            if error is not None:
                outcome.fail(error)
            else:
                outcome.resolve(done.result())

        def finished(done: Future[T]) -> None:
            # A closed loop has nobody left who waits.
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
        from concurrent.futures import ThreadPoolExecutor

        threads = min(_CLOSING_THREADS, len(pending))
        with ThreadPoolExecutor(threads, thread_name_prefix="minibroker-closing") as pool:
            for _ in pool.map(work, pending):
                pass

    def close(self) -> None:
        """Finish what was submitted and end the threads."""
        pools, self._pool, self._aside = (self._aside, self._pool), None, None
        for pool in pools:
            if pool is not None:
                pool.shutdown(wait=True)
