"""The link of the chain at which faults act and exchanges are recorded."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from minibroker.handlers.table import rows
from minibroker.kernel.deferred import Deferred
from minibroker.requests.context import Answer, Handler, RequestContext
from minibroker.requests.tapped_request import TappedRequest
from minibroker.trace.recorder import Recorded, Recorder

if TYPE_CHECKING:
    from minibroker.faults.engine import SetRule
    from minibroker.kernel.refusals import Refusal
    from minibroker.requests.api import Api


@cache
def _api(key: int) -> Api:
    return rows()[key]


class RequestTap:
    """The `Link` of faults and trace, in place while one of them is in use.

    recorder: None to keep nothing.

    acts: False if `serve` would only pass requests on.
    serve: returns the answer, and the rule that gave it.
    wall_ms: wall clock.
    monotonic_ms: for durations.
    """

    def __init__(
        self,
        serve: Callable[[TappedRequest], tuple[Deferred[Any], SetRule | None]],
        *,
        wall_ms: Callable[[], int],
        monotonic_ms: Callable[[], float],
    ) -> None:
        self._serve = serve
        self.recorder: Recorder | None = None
        self.acts = True
        self._wall_ms = wall_ms
        self.monotonic_ms = monotonic_ms

    def around(self, api: Api, onward: Handler) -> Handler:
        def handle(ctx: RequestContext, request: Any) -> Answer:
            recorder = self.recorder
            if recorder is not None and recorder.wants():
                return self._recorded(recorder, TappedRequest(api, ctx, request, onward))
            return self._serve(TappedRequest(api, ctx, request, onward))[0] if self.acts else onward(ctx, request)

        return handle

    def refused(self, ctx: RequestContext, refusal: Refusal) -> None:
        """Begin to record an exchange with its first refusal, which the others follow."""
        recorder = self.recorder
        if recorder is None or ctx.request is None or not recorder.wants_refused():
            return
        api = _api(ctx.api_key)
        recorded = recorder.begin(TappedRequest(api, ctx, ctx.request, api.handler), self._wall_ms())
        recorded.refused(refusal)
        ctx.watchers = (*ctx.watchers, recorded.answered, lambda *_: recorder.end(recorded, None))

    def _recorded(self, recorder: Recorder, tapped: TappedRequest) -> Answer:
        recorded = recorder.begin(tapped, self._wall_ms())
        tapped.context.watchers = (*tapped.context.watchers, recorded.answered)
        started = self.monotonic_ms()
        served, rule = self._serve(tapped)
        outcome: Deferred[Any] = Deferred()

        def over(_: Deferred[Any]) -> None:
            try:
                answer = served.result()
                if recorder.takes_bytes and type(answer) is not list:
                    answer = tapped.encode(answer) or []
            except Exception as error:
                recorded.outcome = f"closed: {error}"
                self._end(recorded, started, rule)
                recorder.end(recorded, None)
                outcome.fail(error)
                return
            self._end(recorded, started, rule)
            if type(answer) is list:
                if not answer and recorded.outcome in ("answered", "waiting"):
                    recorded.outcome = "no answer"
                recorder.end(recorded, answer or None)
            else:  # framed where it would be without a recorder
                tapped.context.watchers = (*tapped.context.watchers, lambda *_: recorder.end(recorded, None))
            outcome.resolve(answer)

        if not served.done:
            recorded.outcome = "waiting"
            recorded.fault = rule.number if rule is not None else 0
        served.then(over)
        return outcome

    def _end(self, recorded: Recorded, started: float, rule: SetRule | None) -> None:
        recorded.took_ms = self.monotonic_ms() - started
        recorded.fault = rule.number if rule is not None else 0
