"""Requests of clients to a broker that is paused."""

from __future__ import annotations

from minibroker.broker.suspension import Suspension
from minibroker.handlers.dispatch import Answered, Exchange, Tap
from minibroker.kernel.deferred import Deferred


class PausedTap:
    """What requests of clients go through while the broker is paused; then through `otherwise`."""

    def __init__(self, suspension: Suspension, otherwise: Tap | None) -> None:
        self._suspension = suspension
        self._otherwise = otherwise

    def serve(self, exchange: Exchange) -> Answered | Deferred[Answered]:
        answer: Deferred[Answered] = Deferred()
        self._suspension.run(lambda: self._serve(exchange, answer))
        return answer

    def _serve(self, exchange: Exchange, answer: Deferred[Answered]) -> None:
        try:
            served = exchange.serve() if self._otherwise is None else self._otherwise.serve(exchange)
        except Exception as error:
            answer.fail(error)
            return
        if not isinstance(served, Deferred):
            answer.resolve(served)
            return
        served.then(answer.take)
