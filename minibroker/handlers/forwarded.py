"""Requests that change metadata: any broker accepts them and passes them to the controller (KIP-590). The rows of the
table say which these are; the controller's handlers are in `minibroker.controller.controller`.
"""

from __future__ import annotations

from minibroker.handlers.context import RequestContext
from minibroker.handlers.error_responses import refused
from minibroker.kernel.deferred import Deferred
from minibroker_protocol.dsl import Request, Response
from minibroker_protocol.errors import ApiError, ErrorCode

_ANSWERED = (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.KAFKA_STORAGE_ERROR)


def handle(ctx: RequestContext, request: Request) -> Deferred[Response]:
    """The controller's own answer. REQUEST_TIMED_OUT after a minute without an active controller,
    KAFKA_STORAGE_ERROR when its journal failed."""
    sent = ctx.broker.controller_channel.send(request, ctx.api_version)
    answer: Deferred[Response] = Deferred()

    def done(_: Deferred[Response]) -> None:
        try:
            answer.resolve(sent.result())
        except ApiError as error:
            if error.code not in _ANSWERED:
                answer.fail(error)
                return
            answer.resolve(refused(request, ctx.api_version, error.code, error.message))
        except Exception as error:
            answer.fail(error)

    sent.then(done)
    return answer
