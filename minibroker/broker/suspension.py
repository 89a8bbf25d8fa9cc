"""A paused broker: it keeps its connections and data and processes nothing, as a process after SIGSTOP.

Every event that makes the broker act passes through here: timers, requests of clients and of other brokers, answers to
its own requests, news of the controller, results of its threads. While it is paused they are queued, and processed
in order on resume. Disk work that a thread has begun is finished, as the kernel finishes writes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from minibroker.kernel.clock import ClockTimers, IdleUntil, TimerHandle, Timers
from minibroker.kernel.deferred import Deferred
from minibroker.kernel.logs import get_logger
from minibroker_protocol.dsl import Request, Response

if TYPE_CHECKING:
    from minibroker.kernel.executor import Executor
    from minibroker.kernel.transport import Receiver, Transport
    from minibroker_protocol.records import Pace

log = get_logger(__name__)

T = TypeVar("T")


class Suspension:
    """The pause of one broker."""

    def __init__(self) -> None:
        self.paused = False
        self._waiting: deque[Callable[[], None]] = deque()

    def run(self, work: Callable[[], None]) -> None:
        """Run `work` now, or on resume."""
        if self.paused:
            self._waiting.append(work)
        else:
            work()

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        """Process the requests received while paused, in order."""
        self.paused = False
        while self._waiting and not self.paused:
            work = self._waiting.popleft()
            try:
                work()
            except Exception:
                log.exception("what waited for a paused broker failed")

    def drop(self) -> None:
        """The broker was killed: drop the waiting requests."""
        self.paused = False
        self._waiting.clear()

    # -- what a broker is given instead of the real thing --------------------------------------------------------------

    def timers(self, timers: Timers) -> Timers:
        return _Timers(self, timers)

    def clock(self, clock: ClockTimers) -> ClockTimers:
        return _Clock(self, clock)

    def executor(self, executor: Executor) -> Executor:
        return _Executor(self, executor)

    def transport(self, transport: Transport, node_id: int) -> Transport:
        """The transport of broker `node_id`. What it sends to itself is held where it arrives."""
        return _Transport(self, transport, node_id)

    def node(self, node: Receiver) -> Receiver:
        """What receives the requests of other brokers."""

        def receive(request: Request, api_version: int) -> Deferred[Response]:
            if not self.paused:
                return node(request, api_version)
            answer: Deferred[Response] = Deferred()
            self.run(lambda: node(request, api_version).then(answer.take))
            return answer

        return receive


class _Timer:
    __slots__ = ("_callback", "_suspension", "handle")

    def __init__(self, suspension: Suspension, callback: Callable[[], None]) -> None:
        self._suspension = suspension
        self._callback: Callable[[], None] | None = callback
        self.handle: TimerHandle | None = None

    def due(self) -> None:
        if self._suspension.paused:
            self._suspension.run(self.due)
            return
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()

    def cancel(self) -> None:
        self._callback = None
        if self.handle is not None:
            self.handle.cancel()


class _Timers:
    __slots__ = ("_suspension", "_timers")

    def __init__(self, suspension: Suspension, timers: Timers) -> None:
        self._suspension = suspension
        self._timers = timers

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> TimerHandle:
        timer = _Timer(self._suspension, callback)
        timer.handle = self._timers.call_later(delay_ms, timer.due)
        return timer


class _Clock:
    __slots__ = ("_clock", "_suspension", "now_ms")

    def __init__(self, suspension: Suspension, clock: ClockTimers) -> None:
        self._suspension = suspension
        self._clock = clock
        self.now_ms = clock.now_ms

    def call_later(
        self, delay_ms: float, callback: Callable[[], None], *, idle_until: IdleUntil | None = None
    ) -> TimerHandle:
        timer = _Timer(self._suspension, callback)
        timer.handle = self._clock.call_later(delay_ms, timer.due, idle_until=idle_until)
        return timer


class _Executor:
    __slots__ = ("_executor", "_suspension", "each")

    def __init__(self, suspension: Suspension, executor: Executor) -> None:
        self._suspension = suspension
        self._executor = executor
        self.each: Callable[[Callable[[T], None], Iterable[T]], None] = executor.each

    def submit(self, work: Callable[[], T]) -> Deferred[T]:
        return self._brought_back(self._executor.submit(work))

    def aside(self, work: Callable[[], T]) -> Deferred[T]:
        return self._brought_back(self._executor.aside(work))

    def compute(
        self,
        work: Callable[[Pace], T],
        wanted: Callable[[], bool] | None = None,
        *,
        keep: bool = False,
        walk: bool = False,
    ) -> Deferred[T]:
        return self._brought_back(self._executor.compute(work, wanted, keep=keep, walk=walk))

    def _brought_back(self, outcome: Deferred[T]) -> Deferred[T]:
        if outcome.done:
            return outcome
        taken: Deferred[T] = Deferred()
        outcome.then(lambda done: self._suspension.run(partial(taken.take, done)))
        return taken


class _Transport:
    __slots__ = ("_inner", "_node_id", "_suspension")

    def __init__(self, suspension: Suspension, inner: Transport, node_id: int) -> None:
        self._suspension = suspension
        self._inner = inner
        self._node_id = node_id

    def send(self, node_id: int, request: Request, api_version: int) -> Deferred[Response]:
        suspension = self._suspension
        if not suspension.paused:
            sent = self._inner.send(node_id, request, api_version)
            if node_id == self._node_id or sent.done:
                return sent
            answer: Deferred[Response] = Deferred()
            sent.then(lambda done: suspension.run(partial(answer.take, done)))
            return answer
        later: Deferred[Response] = Deferred()
        suspension.run(lambda: self.send(node_id, request, api_version).then(later.take))
        return later

    @property
    def direct(self) -> bool:
        return not self._suspension.paused and self._inner.direct
