"""A broker's channel to the active controller (Kafka's NodeToControllerChannelManager)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from minibroker.kernel.clock import TimerHandle, Timers
from minibroker.kernel.deferred import Deferred
from minibroker.kernel.transport import CONTROLLER, R, Transport
from minibroker_protocol.dsl import Request, Response
from minibroker_protocol.errors import ApiError, ErrorCode

RETRY_TIMEOUT_MS: Final = 60_000
"""How long a request waits for a controller; the value Kafka's BrokerServer gives its channel for forwarding."""

RETRY_BACKOFF_MS: Final = 50

_NO_CONTROLLER: Final = frozenset({ErrorCode.NETWORK_EXCEPTION, ErrorCode.NOT_CONTROLLER})


class ControllerChannel:
    """Sends to the active controller, and retries while there is none; one that fails over may serve a request twice,
    as in Kafka.

    followed: resolved once this broker has applied every metadata change that it knows of. A response is passed on
    after that, so that the client sees its change on this broker.
    """

    def __init__(self, transport: Transport, timers: Timers, followed: Callable[[], Deferred[None]]) -> None:
        self._followed = followed
        self._transport = transport
        self._timers = timers
        self._waiting: set[_Waiting] = set()
        self._closed = False

    def send(self, request: Request, api_version: int) -> Deferred[Response]:
        """Fails with ApiError REQUEST_TIMED_OUT when no controller answered in time."""
        first = self._transport.send(CONTROLLER, request, api_version)
        if first.done and self._followed().done and not _unanswered(first):
            return first
        waiting = _Waiting(request, api_version)
        first.then(lambda done: self._answered(waiting, done))
        return waiting.answer

    def close(self) -> None:
        """The broker ends: stop retrying and fail the waiting requests."""
        self._closed = True
        for waiting in tuple(self._waiting):
            self._end(waiting, ApiError(ErrorCode.NETWORK_EXCEPTION, "the broker ends"))

    def _answered(self, waiting: _Waiting, done: Deferred[Response]) -> None:
        if waiting.answer.done:
            return
        if not _unanswered(done) or self._closed:
            self._followed().then(lambda _: self._pass_on(waiting, done))
            return
        if waiting.expiry is None:
            self._waiting.add(waiting)
            late = ApiError(ErrorCode.REQUEST_TIMED_OUT, "no controller answered in time")
            waiting.expiry = self._timers.call_later(RETRY_TIMEOUT_MS, lambda: self._end(waiting, late))
        waiting.retry = self._timers.call_later(RETRY_BACKOFF_MS, lambda: self._again(waiting))

    def _pass_on(self, waiting: _Waiting, done: Deferred[Response]) -> None:
        if not waiting.answer.done:
            self._end(waiting, None)
            waiting.answer.take(done)

    def _again(self, waiting: _Waiting) -> None:
        if not waiting.answer.done:
            sent = self._transport.send(CONTROLLER, waiting.request, waiting.api_version)
            sent.then(lambda done: self._answered(waiting, done))

    def _end(self, waiting: _Waiting, error: ApiError | None) -> None:
        self._waiting.discard(waiting)
        for timer in (waiting.expiry, waiting.retry):
            if timer is not None:
                timer.cancel()
        if error is not None and not waiting.answer.done:
            waiting.answer.fail(error)


class _Waiting:
    """One request that is to be answered by a controller."""

    __slots__ = ("answer", "api_version", "expiry", "request", "retry")

    def __init__(self, request: Request, api_version: int) -> None:
        self.request = request
        self.api_version = api_version
        self.answer: Deferred[Response] = Deferred()
        self.expiry: TimerHandle | None = None
        self.retry: TimerHandle | None = None


def _unanswered(done: Deferred[Response]) -> bool:
    """Whether no controller processed the request."""
    try:
        done.result()
    except ApiError as error:
        return error.code in _NO_CONTROLLER
    except Exception:
        return False
    return False


async def ask_controller(channel: ControllerChannel, request: Request, api_version: int, response: type[R]) -> R:
    """Send and wait; checks that what came back is a `response`."""
    answer = await channel.send(request, api_version)
    if not isinstance(answer, response):
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"expected {response.__name__}, got {type(answer).__name__}")
    return answer
