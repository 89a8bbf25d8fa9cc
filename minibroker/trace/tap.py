"""The one place between requests and handlers: faults act there, and what happened is recorded there."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from minibroker.handlers.dispatch import Answered, Exchange
from minibroker.kernel.deferred import Deferred
from minibroker.trace.recorder import Recorded, Recorder

if TYPE_CHECKING:
    from minibroker.faults.engine import FaultEngine, Served, SetRule


class ExchangeTap:
    """`Tap` of a cluster whose faults or trace are in use. recorder: None to keep nothing.

    wall_ms: wall clock; monotonic_ms: for durations.
    """

    def __init__(
        self,
        engine: FaultEngine,
        *,
        wall_ms: Callable[[], int],
        monotonic_ms: Callable[[], float],
    ) -> None:
        self.engine = engine
        self.recorder: Recorder | None = None
        self._wall_ms = wall_ms
        self._monotonic_ms = monotonic_ms

    def serve(self, exchange: Exchange) -> Served:
        if self.recorder is None:
            return self.engine.serve(exchange, Exchange.serve)[0]
        return self._recorded(self.recorder, exchange)

    def _recorded(self, recorder: Recorder, exchange: Exchange) -> Served:
        recorded = recorder.begin(exchange, self._wall_ms())
        started = self._monotonic_ms()
        exchange.watchers = (*exchange.watchers, recorded.answered)
        try:
            answer, rule = self.engine.serve(exchange, Exchange.serve)
        except Exception as error:
            self._closed(recorder, recorded, started, None, error)
            raise
        if not isinstance(answer, Deferred) or answer.done:
            try:
                buffers = answer.result() if isinstance(answer, Deferred) else answer
            except Exception as error:
                self._closed(recorder, recorded, started, rule, error)
                raise
            self._over(recorder, recorded, started, rule, buffers)
            return buffers

        def later(done: Deferred[Answered]) -> None:
            try:
                buffers = done.result()
            except Exception as error:
                self._closed(recorder, recorded, started, rule, error)
            else:
                self._over(recorder, recorded, started, rule, buffers)

        recorded.outcome = "waiting"
        recorded.fault = rule.number if rule is not None else 0
        answer.then(later)
        return answer

    def _over(
        self, recorder: Recorder, recorded: Recorded, started: float, rule: SetRule | None, buffers: Answered
    ) -> None:
        recorded.took_ms = self._monotonic_ms() - started
        recorded.fault = rule.number if rule is not None else 0
        if buffers is None and recorded.outcome in ("answered", "waiting"):
            recorded.outcome = "no answer"
        recorder.end(recorded, buffers)

    def _closed(
        self, recorder: Recorder, recorded: Recorded, started: float, rule: SetRule | None, error: Exception
    ) -> None:
        recorded.took_ms = self._monotonic_ms() - started
        recorded.fault = rule.number if rule is not None else 0
        recorded.outcome = f"closed: {error}"
        recorder.end(recorded, None)
