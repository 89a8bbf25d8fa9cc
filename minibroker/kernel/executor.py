"""Executors for slow work off the event loop: syncs, recovery, compaction, deletion, walks over large batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from minibroker.kernel.deferred import Deferred
from minibroker_protocol.records import UNHURRIED, Pace

T = TypeVar("T")


class Abandoned(Exception):
    """The work was ended because nothing waits for its result any more."""


class Executor(Protocol):
    def submit(self, work: Callable[[], T]) -> Deferred[T]:
        """Run `work` elsewhere; the Deferred is resolved on the loop's own thread."""

    def each(self, work: Callable[[T], None], items: Iterable[T]) -> None:
        """Run `work` for every item, several at a time, and return when all are done: for start and end, when the loop
        has nothing else to do, and inside `aside`. Errors are for `work` to deal with."""

    def aside(self, work: Callable[[], T]) -> Deferred[T]:
        """`submit` for work of seconds, such as recovery, that must not occupy the threads of syncs."""

    def compute(
        self,
        work: Callable[[Pace], T],
        wanted: Callable[[], bool] | None = None,
        *,
        keep: bool = False,
        walk: bool = False,
    ) -> Deferred[T]:
        """Run `work`, which is CPU-bound, elsewhere, in turns with others (`kernel.computing`). It calls the pace that
        it is given, which may end it, to begin it again later; after `close` the Deferred fails.

        wanted: whether something waits for the result, asked on any thread. Once it does not, the Deferred fails, or,
            with `keep`, the work is done after all others.
        walk: the work is long for the loop.
        """


class InlineExecutor:
    """Runs work at once: memory disks, tests and the simulation, which has no threads."""

    def submit(self, work: Callable[[], T]) -> Deferred[T]:
        deferred: Deferred[T] = Deferred()
        try:
            deferred.resolve(work())
        except Exception as error:
            deferred.fail(error)
        return deferred

    def each(self, work: Callable[[T], None], items: Iterable[T]) -> None:
        for item in items:
            work(item)

    def aside(self, work: Callable[[], T]) -> Deferred[T]:
        return self.submit(work)

    def compute(
        self,
        work: Callable[[Pace], T],
        wanted: Callable[[], bool] | None = None,
        *,
        keep: bool = False,
        walk: bool = False,
    ) -> Deferred[T]:
        return self.submit(lambda: work(UNHURRIED))


class DiskInline(InlineExecutor):
    """For memory disks: work that is slow on a real disk is done at once, work that computes where `elsewhere` does
    it."""

    def __init__(self, elsewhere: Executor) -> None:
        self._elsewhere = elsewhere

    def compute(
        self,
        work: Callable[[Pace], T],
        wanted: Callable[[], bool] | None = None,
        *,
        keep: bool = False,
        walk: bool = False,
    ) -> Deferred[T]:
        return self._elsewhere.compute(work, wanted, keep=keep, walk=walk)
