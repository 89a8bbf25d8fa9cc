"""Work through long lists that lets the event loop have its turn in between.

The work is an ``async def`` function that awaits `STEP` at each element. `in_turns` runs it: a short
list to its end, at the cost of a function call, a long one some hundred elements at a time, with a turn of the event
loop in between. Under a seeded schedule the pause is one of its events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final, TypeVar

from minibroker.kernel.clock import Timers
from minibroker.kernel.deferred import Deferred, resolved
from minibroker.kernel.logs import get_logger

log = get_logger(__name__)

T = TypeVar("T")

STEPS_AT_ONCE: Final = 256
"""Elements in one turn of the loop. One takes about 10 to 40 µs of processor time; a refused one takes longest."""


class _Step:
    """One element is done: the loop may have its turn now."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        yield None


STEP: Final = _Step()

AT_A_TIME: Final = 32
"""Elements of a slice: so few that a turn of the loop always has time for them."""


class _Steps:
    """As many elements as a slice has are done."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        for _ in range(AT_A_TIME):
            yield None


STEPS: Final = _Steps()

Work = Coroutine[Deferred[Any] | None, None, T]
"""A coroutine that awaits Deferreds and `STEP`; only `in_turns` can run it."""


class Lane:
    """Turns of the loop for long work, one work a turn, in the order in which they ask.

    However many long requests there are, the loop looks at its sockets after each slice of one of them. A work asks
    for its next turn when it has had one, and a connection has one request at a time: so each connection gets as much
    as any other.
    """

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._waiting: deque[Callable[[], None]] = deque()
        self._armed = False

    def turn(self, work: Callable[[], None]) -> None:
        """Call `work` in a turn of its own."""
        self._waiting.append(work)
        if not self._armed:
            self._armed = True
            self._timers.call_later(0, self._next)

    def _next(self) -> None:
        work = self._waiting.popleft()
        self._armed = bool(self._waiting)
        if self._armed:  # before the work, which may fail
            self._timers.call_later(0, self._next)
        work()


def in_turns(lane: Lane, work: Work[T]) -> T | Deferred[T]:
    """What `work` returns, at once where it neither waits nor has many elements. Raises, or fails with, what `work`
    raises."""
    steps = STEPS_AT_ONCE
    try:
        while steps:
            awaited = work.send(None)
            if awaited is not None:
                break
            steps -= 1
    except StopIteration as stop:
        value: T = stop.value
        return value
    outcome: Deferred[T] = Deferred()
    _pause(lane, work, awaited, outcome)
    return outcome


def at_once(work: Work[T]) -> T:
    """What `work`, which waits for nothing, returns: every step of it in one turn."""
    while True:
        try:
            awaited = work.send(None)
        except StopIteration as stop:
            value: T = stop.value
            return value
        assert awaited is None, "it waits for something"


class InOrder:
    """Works in turns, one at a time, in the order they are given.

    idle: resolved once there is none left.
    closed: work under way must look at it after each step, and end.
    """

    def __init__(self, timers: Timers) -> None:
        self._lane = Lane(timers)
        self._waiting: deque[Work[None]] = deque()
        self.idle: Deferred[None] = resolved(None)
        self.closed = False

    def run(self, work: Work[None]) -> None:
        """Run it now, or after those before it. Raises what it raises before its first pause; what it raises later is
        logged."""
        if self.closed:
            work.close()
            return
        self._waiting.append(work)
        if self.idle.done:
            self._go_on()

    def close(self) -> None:
        self.closed = True
        while self._waiting:
            self._waiting.popleft().close()

    def _go_on(self) -> None:
        idle = self.idle = Deferred()
        try:
            outcome = in_turns(self._lane, self._all())
        except BaseException:
            idle.resolve(None)
            raise
        if isinstance(outcome, Deferred):
            outcome.then(self._ended)
        else:
            idle.resolve(None)

    async def _all(self) -> None:
        while self._waiting:
            await self._waiting.popleft()

    def _ended(self, outcome: Deferred[None]) -> None:
        try:
            outcome.result()
        except Exception:
            log.exception("work in turns failed")
        self.idle.resolve(None)
        if self._waiting and self.idle.done:
            self._go_on()


def _pause(lane: Lane, work: Work[T], awaited: Deferred[Any] | None, outcome: Deferred[T]) -> None:
    if awaited is None:
        lane.turn(lambda: _go_on(lane, work, outcome))
    else:  # its value is read by Deferred.__await__
        awaited.then(lambda _: _go_on(lane, work, outcome))


def _go_on(lane: Lane, work: Work[T], outcome: Deferred[T]) -> None:
    awaited: Deferred[Any] | None = None
    try:
        for _ in range(STEPS_AT_ONCE):
            awaited = work.send(None)
            if awaited is not None:
                break
    except StopIteration as stop:
        outcome.resolve(stop.value)
    except Exception as error:  # delivered to what waits for the answer
        outcome.fail(error)
    else:
        _pause(lane, work, awaited, outcome)
