"""Checks the client's rights and removes from a request what it may not do (Kafka's ``KafkaApis``).

The link stands before the handlers, only where an authorizer is set. A request without the right to its group,
transactional id or cluster is refused as a whole; of one about many topics, groups or ids the handler sees those that
the client has a right to, and the answer gets the others back with their errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Any

from minibroker.kernel.deferred import Deferred
from minibroker.kernel.turns import STEPS, parts
from minibroker.requests.api import Api
from minibroker.requests.context import Answer, CloseConnection, Handler, RequestContext, settled
from minibroker.requests.error_responses import refused
from minibroker.requests.kinds import Each
from minibroker.requests.rights import CODES, Also, ItemRight, Refused, RequestRight, ServedWithoutItems, Shown
from minibroker_protocol.dsl import Response
from minibroker_protocol.errors import ApiError, ErrorCode


class Rights:
    """`Link` with the rights of the row."""

    def around(self, api: Api, onward: Handler) -> Handler:
        if not api.rights:
            return onward
        also = tuple(rule for rule in api.rights if isinstance(rule, Also))
        shown = tuple(rule for rule in api.rights if isinstance(rule, Shown))
        rules = tuple(
            (rule, rule.fields(api.request) if isinstance(rule, ItemRight) else ())
            for rule in api.rights
            if isinstance(rule, RequestRight | ItemRight)
        )
        served = next((rule for rule in api.rights if isinstance(rule, ServedWithoutItems)), None)

        def handle(ctx: RequestContext, request: Any) -> Answer:
            """A short request that is fully allowed, as most are, is passed on at once."""
            if shown or ctx.long:
                return in_part(ctx, request)
            for rule, fields in rules:
                if not rule.holds(ctx, request, fields):
                    return in_part(ctx, request)
            for one in also:
                error = one.error(ctx, request)
                if error is not None:
                    return _refuse(api, ctx, request, error)
            return onward(ctx, request)

        async def in_part(ctx: RequestContext, request: Any) -> Response | None:
            checked = await _check(api, rules, also, ctx, request)
            if isinstance(checked, Response):
                return checked
            request, served_items, others = checked
            if others and getattr(request, "acks", None) == 0:
                raise CloseConnection(f"{ctx.connection.principal} may not write, and asked for no answer")
            if not served_items:
                if served is None:
                    return _joined(others[0], others[1:])
                ctx = replace(ctx, api_version=max(served.min_version, ctx.api_version))
            answer: Any = settled(ctx, onward(ctx, request))
            if type(answer) is Deferred:
                answer = await answer
            if answer is None:
                return None
            for filtered in shown:
                answer = await filtered.part(ctx, request, answer)
            return _joined(answer, others)

        return handle


async def _check(
    api: Api,
    rules: Sequence[tuple[RequestRight | ItemRight, Sequence[str]]],
    also: Sequence[Also],
    ctx: RequestContext,
    request: Any,
) -> Response | tuple[Any, bool, list[Response]]:
    """The refusal of the whole request; or what is left of it, whether that has items, and the answers for the rest."""
    others: list[Response] = []
    has_items = True
    for rule, fields in rules:
        if isinstance(rule, RequestRight):
            for number, names in enumerate(parts(rule.asked(request))):
                if number:
                    await STEPS
                error = rule.error(ctx, names)
                if error is not None:
                    return await _refuse(api, ctx, request, error)
            continue
        for field in fields:
            allowed: list[Any] = []
            rest: list[Any] = []
            for number, items in enumerate(parts(rule.items(ctx, request, field))):
                if number:
                    await STEPS
                rule.split(ctx, request, items, allowed, rest)
            if rest:
                if isinstance(api.kind, Each) and api.kind.once:  # Kafka looks at distinct names only
                    rest = list(dict.fromkeys(rest))
                others.append(await _refuse_some(api, ctx, _with(request, field, rest), CODES[rule.kind]))
                request, has_items = _with(request, field, allowed), bool(allowed)
    for right in also:
        error = right.error(ctx, request)
        if error is not None:
            return await _refuse(api, ctx, request, error)
    return request, has_items, others


def _with(request: Any, field: str, items: list[Any]) -> Any:
    changed = copy(request)
    setattr(changed, field, items)
    return changed


async def _refused(ctx: RequestContext, request: Any, code: ErrorCode, message: str | None = None) -> Any:
    """`refused`; of a long request on the thread that computes, as nothing else holds the request."""
    if not ctx.long:
        return refused(request, ctx.api_version, code, message)
    return await ctx.broker.executor.compute(lambda _: refused(request, ctx.api_version, code, message), ctx.wanted)


async def _refuse(api: Api, ctx: RequestContext, request: Any, error: ApiError) -> Response:
    if getattr(request, "acks", None) == 0:
        raise CloseConnection(str(error))
    answer: Response = await _refused(ctx, request, error.code, error.message)
    for rule in api.rights:
        if isinstance(rule, Refused) and rule.whole:
            await _shaped(rule, ctx, request, answer)
    return answer


async def _refuse_some(api: Api, ctx: RequestContext, request: Any, code: ErrorCode) -> Response:
    """The answer for the refused items of a request whose other items are served: it has no error as a whole."""
    answer = await _refused(ctx, request, code)
    if hasattr(answer, "error_code"):
        answer.error_code = ErrorCode.NONE
    for rule in api.rights:
        if isinstance(rule, Refused) and rule.part:
            await _shaped(rule, ctx, request, answer)
    return answer  # type: ignore[no-any-return]


async def _shaped(rule: Refused, ctx: RequestContext, request: Any, answer: Response) -> None:
    waited = rule.shape(ctx, request, answer)
    if waited is not None:
        await waited


def _joined(answer: Response, others: Sequence[Response]) -> Response:
    """The lists of all answers in one."""
    for other in others:
        for field in answer.__fields__:
            more = getattr(other, field.name, None)
            if isinstance(more, list) and more:
                setattr(answer, field.name, [*(getattr(answer, field.name) or []), *more])
    return answer
