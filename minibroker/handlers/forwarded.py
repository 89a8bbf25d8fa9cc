"""Requests that change metadata: any broker takes them and passes them to the controller (KIP-590).

Which these are, the rows of the table say; what the controller does with each: `minibroker.controller.controller`.
"""

from __future__ import annotations

from minibroker.handlers.context import RequestContext
from minibroker.handlers.error_responses import refused
from minibroker.kernel.deferred import Deferred
from minibroker_protocol.dsl import Request, Response
from minibroker_protocol.errors import ApiError, ErrorCode


def handle(ctx: RequestContext, request: Request) -> Deferred[Response]:
    """The controller's own answer; REQUEST_TIMED_OUT when there was none to give one for a minute."""
    sent = ctx.broker.controller_channel.send(request, ctx.api_version)
    if sent.done:
        return sent
    answer: Deferred[Response] = Deferred()

    def done(_: Deferred[Response]) -> None:
        try:
            answer.resolve(sent.result())
        except ApiError as error:
            if error.code != ErrorCode.REQUEST_TIMED_OUT:
                answer.fail(error)
                return
            answer.resolve(refused(request, ctx.api_version, error.code, error.message))
        except Exception as error:
            answer.fail(error)

    sent.then(done)
    return answer
