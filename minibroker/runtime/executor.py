"""Slow disk work off the event loop: syncs, recovery, compaction, deletion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from minibroker.runtime.deferred import Deferred

T = TypeVar("T")


class Executor(Protocol):
    def submit(self, work: Callable[[], T]) -> Deferred[T]:
        """Run `work` elsewhere; the Deferred is resolved on the loop's own thread."""
        ...


class InlineExecutor:
    """Runs work at once: memory disks, tests and the simulation, which has no threads."""

    def submit(self, work: Callable[[], T]) -> Deferred[T]:
        deferred: Deferred[T] = Deferred()
        try:
            deferred.resolve(work())
        except Exception as error:
            deferred.fail(error)
        return deferred
