"""Slow disk work on a few threads, with results back on the loop's thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from minibroker.runtime.deferred import Deferred

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

T = TypeVar("T")

_MAX_THREADS = 4


class ThreadExecutor:
    """`Executor` over a thread pool, which is made by the first work that is submitted."""

    def __init__(self, loop: asyncio.AbstractEventLoop, max_threads: int = _MAX_THREADS) -> None:
        self._loop = loop
        self._max_threads = max_threads
        self._pool: ThreadPoolExecutor | None = None

    def submit(self, work: Callable[[], T]) -> Deferred[T]:
        """Run `work` on a thread; must be called on the loop's thread, where the Deferred is resolved as well."""
        if self._pool is None:
            from concurrent.futures import ThreadPoolExecutor

            self._pool = ThreadPoolExecutor(self._max_threads, thread_name_prefix="minibroker-disk")
        outcome: Deferred[T] = Deferred()
        future = self._pool.submit(work)

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

    def close(self) -> None:
        """Finish what was submitted and end the threads."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)
            self._pool = None
