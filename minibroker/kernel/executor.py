"""Executors for slow work off the event loop: syncs, recovery, compaction, deletion, walks over large batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from minibroker.kernel.deferred import Deferred
from minibroker_protocol.records import UNHURRIED, Pace

T = TypeVar("T")


class Executor(Protocol):
    def submit(self, work: Callable[[], T]) -> Deferred[T]:
        """Run `work` elsewhere; the Deferred is resolved on the loop's own thread."""

    def each(self, work: Callable[[T], None], items: Iterable[T]) -> None:
        """Run `work` for every item, several at a time, and return when all are done: for start and end, when the loop
        has nothing else to do, and inside `aside`. Errors are for `work` to deal with."""

    def aside(self, work: Callable[[], T]) -> Deferred[T]:
        """`submit` for work of seconds, such as recovery, that must not occupy the threads of syncs."""

    def compute(self, work: Callable[[Pace], T]) -> Deferred[T]:
        """Run `work`, which is CPU-bound, elsewhere: one at a time, in order, so that only one uses memory. It calls
        the pace that it is given, which lets the event loop run in between. After `close` the pace ends the work, and
        the Deferred fails."""


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

    def compute(self, work: Callable[[Pace], T]) -> Deferred[T]:
        return self.submit(lambda: work(UNHURRIED))


class DiskInline(InlineExecutor):
    """For memory disks: what is slow with a real one is done at once, and what computes where `elsewhere` does it."""

    def __init__(self, elsewhere: Executor) -> None:
        self._elsewhere = elsewhere

    def compute(self, work: Callable[[Pace], T]) -> Deferred[T]:
        return self._elsewhere.compute(work)
