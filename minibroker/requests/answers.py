"""What handlers and links do with answers, whether these are there at once or come later.

A handler returns its answer, or a Deferred of it; most answers are there at once, and then no Deferred is made.

    follow(answer, use)               go on with an answer of either kind: in every handler and link
    outcome_of(ask, then, refused)    the same where an ApiError, raised or brought, becomes an answer
    in_slices(ctx, items, work, then) work through a list that may be long, then answer (`minibroker.requests.slices`)
    later(ctx, handler, request)      a Deferred in any case, also of what was raised: for those who keep it
    settled(answer)                   a Deferred that is done, replaced by its value: before its type is asked for

Below, for whom everything is a Deferred (`minibroker.kernel.deferred`, `minibroker.kernel.waiting`):

    mapped(source, change)            of the changed value
    after(source, act)                of what `act` makes, after a value or a failure
    gather, when_all_done             of all values; of the end of all
    within, with_timeout              of the value in time, or an error; of whether it came in time
    started, spawn                    of a coroutine that awaits Deferreds: only where a loop waits in its middle
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from minibroker.kernel.deferred import Deferred, after, failed, resolved
from minibroker.requests.context import Answer, Handler, RequestContext
from minibroker_protocol.errors import ApiError

T = TypeVar("T")
U = TypeVar("U")


def settled(answer: Answer) -> Answer:
    """The value of a Deferred that is done; raises what failed it. Anything else as it is."""
    return answer.result() if type(answer) is Deferred and answer.done else answer


def follow(answer: Answer, use: Callable[[Any], Answer]) -> Answer:
    """The result of `use(answer)`, once the answer is there; what failed the answer fails it too, or is raised."""
    if type(answer) is not Deferred:
        return use(answer)
    if answer.done:
        return use(answer.result())
    return after(answer, lambda: use(answer.result()))


def later(ctx: RequestContext, handler: Handler, request: Any) -> Deferred[Any]:
    """What a handler answers, or raises, as a Deferred."""
    try:
        answer = handler(ctx, request)
    except Exception as error:
        return failed(error)
    return answer if type(answer) is Deferred else resolved(answer)


def outcome_of(
    ask: Callable[[], Deferred[T]], then: Callable[[T], U | Deferred[U]], refused: Callable[[ApiError], U]
) -> U | Deferred[U]:
    """`then` of what `ask` brings, or `refused` of its ApiError, raised or brought: at once where it is there.

    What `then` and `refused` raise themselves is raised here, or fails the Deferred.
    """
    try:
        pending = ask()
        if not pending.done:
            return after(pending, lambda: outcome_of(lambda: pending, then, refused))
        value = pending.result()
    except ApiError as error:
        return refused(error)
    return then(value)
