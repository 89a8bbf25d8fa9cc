"""Waiting with an end: a Deferred or a time limit, whichever comes first."""

from __future__ import annotations

from typing import TypeVar

from minibroker.kernel.clock import Timers
from minibroker.kernel.deferred import Deferred, resolved

T = TypeVar("T")


def with_timeout(timers: Timers, waited: Deferred[T], timeout_ms: float) -> Deferred[bool]:
    """Resolved with True once `waited` is done, with False when `timeout_ms` of real time passed first."""
    if waited.done:
        return resolved(True)
    if timeout_ms <= 0:
        return resolved(False)
    first: Deferred[bool] = Deferred()

    def timed_out() -> None:
        if not first.done:
            first.resolve(False)

    handle = timers.call_later(timeout_ms, timed_out)

    def arrived(_: Deferred[T]) -> None:
        handle.cancel()
        if not first.done:
            first.resolve(True)

    waited.then(arrived)
    return first


def within(timers: Timers, waited: Deferred[T], timeout_ms: float, error: Exception) -> Deferred[T]:
    """What `waited` delivers, or `error` when `timeout_ms` of real time passed first."""
    if waited.done:
        return waited
    answer: Deferred[T] = Deferred()

    def decided(in_time: Deferred[bool]) -> None:
        if in_time.result():
            answer.take(waited)
        else:
            answer.fail(error)

    with_timeout(timers, waited, timeout_ms).then(decided)
    return answer


def sleep(timers: Timers, delay_ms: float) -> Deferred[None]:
    """Resolved after `delay_ms` of real time."""
    later: Deferred[None] = Deferred()
    timers.call_later(delay_ms, lambda: later.resolve(None))
    return later
