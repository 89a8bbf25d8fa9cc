"""Client requests to a paused broker."""

from __future__ import annotations

from typing import Any

from minibroker.broker.suspension import Suspension
from minibroker.kernel.deferred import Deferred
from minibroker.requests.answers import later
from minibroker.requests.api import Api
from minibroker.requests.context import Answer, Handler, RequestContext


class Pause:
    """`Link` of a broker while it is paused: requests wait, in order, until it is resumed."""

    def __init__(self, suspension: Suspension) -> None:
        self._suspension = suspension

    def around(self, api: Api, onward: Handler) -> Handler:
        def handle(ctx: RequestContext, request: Any) -> Answer:
            answer: Deferred[Any] = Deferred()
            self._suspension.run(lambda: later(ctx, onward, request).then(answer.take))
            return answer

        return handle
