"""Checks the client's rights and removes from a request what it may not do (Kafka's ``KafkaApis``).

The link stands before the handlers, only where an authorizer is set. A request without the right to its group,
transactional id or cluster is refused as a whole; of one about many topics, groups or ids the handler sees those that
the client has a right to, and the answer gets the others back with their errors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any

from minibroker.requests.answers import follow
from minibroker.requests.api import Api
from minibroker.requests.context import Answer, CloseConnection, Handler, RequestContext
from minibroker.requests.error_responses import refused_in_turns
from minibroker.requests.kinds import Each
from minibroker.requests.rights import CODES, Also, ItemRight, Refused, RequestRight, ServedWithoutItems, Shown
from minibroker.requests.slices import in_slices
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
            for right in also:
                error = right.error(ctx, request)
                if error is not None:
                    return _refuse(api, ctx, request, error)
            return onward(ctx, request)

        def in_part(ctx: RequestContext, request: Any) -> Answer:
            return _Checked(api, ctx, request, rules, also, pass_on).check()

        def pass_on(checked: _Checked) -> Answer:
            ctx, request, others = checked.ctx, checked.request, checked.others
            if not checked.has_items:
                if others and getattr(request, "acks", None) == 0:
                    raise _refused_without_answer(ctx)
                if served is None:
                    return _joined(others[0], others[1:])
                ctx = replace(ctx, api_version=max(served.min_version, ctx.api_version))

            def show(filters: Sequence[Shown], answer: Any) -> Answer:
                if answer is None and others:
                    raise _refused_without_answer(ctx)
                if answer is None or not filters:
                    return None if answer is None else _joined(answer, others)
                return follow(filters[0].part(ctx, request, answer), partial(show, filters[1:]))

            return follow(onward(ctx, request), partial(show, shown))

        return handle


def _refused_without_answer(ctx: RequestContext) -> CloseConnection:
    return CloseConnection(f"{ctx.connection.principal} may not write, and asked for no answer")


class _Checked:
    """A request whose rights are checked rule by rule, and list by list, in slices.

    request: what is left of it, with has_items: whether that has any.
    others: the answers for the rest.
    pass_on: called with it where it is not refused as a whole.
    """

    def __init__(
        self,
        api: Api,
        ctx: RequestContext,
        request: Any,
        rules: Sequence[tuple[RequestRight | ItemRight, Sequence[str]]],
        also: Sequence[Also],
        pass_on: Callable[[_Checked], Answer],
    ) -> None:
        self.ctx, self.request = ctx, request
        self.has_items = True
        self.others: list[Response] = []
        self._api, self._also, self._pass_on = api, also, pass_on
        self._checks: list[Callable[[], Answer]] = []
        for rule, fields in rules:
            if isinstance(rule, RequestRight):
                self._checks.append(partial(self._whole, rule))
            else:
                self._checks += [partial(self._items, rule, field) for field in fields]

    def check(self) -> Answer:
        """Make the checks that remain, then pass on what is left of the request."""
        if self._checks:
            return self._checks.pop(0)()
        for right in self._also:
            error = right.error(self.ctx, self.request)
            if error is not None:
                return _refuse(self._api, self.ctx, self.request, error)
        return self._pass_on(self)

    def _whole(self, rule: RequestRight) -> Answer:
        errors: list[ApiError] = []

        def look(names: Sequence[str]) -> None:
            error = None if errors else rule.error(self.ctx, names)
            if error is not None:
                errors.append(error)

        def decide() -> Answer:
            return _refuse(self._api, self.ctx, self.request, errors[0]) if errors else self.check()

        return in_slices(self.ctx, rule.names_in(self.request), look, decide)

    def _items(self, rule: ItemRight, field: str) -> Answer:
        allowed: list[Any] = []
        rest: list[Any] = []

        def split(items: Sequence[Any]) -> None:
            rule.split(self.ctx, self.request, items, allowed, rest)

        def decide() -> Answer:
            if not rest:
                return self.check()
            kind = self._api.kind
            refused = list(dict.fromkeys(rest)) if isinstance(kind, Each) and kind.once else rest  # as Kafka's set
            request = _with(self.request, field, refused)
            return follow(_refuse_some(self._api, self.ctx, request, CODES[rule.kind]), go_on)

        def go_on(answer: Response) -> Answer:
            self.others.append(answer)
            self.request, self.has_items = _with(self.request, field, allowed), bool(allowed)
            return self.check()

        return in_slices(self.ctx, rule.items(self.ctx, self.request, field), split, decide)


def _with(request: Any, field: str, items: list[Any]) -> Any:
    changed = copy(request)
    setattr(changed, field, items)
    return changed


def _refuse(api: Api, ctx: RequestContext, request: Any, error: ApiError) -> Answer:
    if getattr(request, "acks", None) == 0:
        raise CloseConnection(str(error))
    shapes = [rule for rule in api.rights if isinstance(rule, Refused) and rule.whole]
    return follow(refused_in_turns(ctx, request, error.code, error.message), partial(_shaped, shapes, ctx, request))


def _refuse_some(api: Api, ctx: RequestContext, request: Any, code: ErrorCode) -> Answer:
    """The answer for the refused items of a request whose other items are served: it has no error as a whole."""
    shapes = [rule for rule in api.rights if isinstance(rule, Refused) and rule.part]

    def without_error(answer: Any) -> Answer:
        if hasattr(answer, "error_code"):
            answer.error_code = ErrorCode.NONE
        return _shaped(shapes, ctx, request, answer)

    return follow(refused_in_turns(ctx, request, code), without_error)


def _shaped(shapes: Sequence[Refused], ctx: RequestContext, request: Any, answer: Response) -> Answer:
    if not shapes:
        return answer
    return follow(shapes[0].shape(ctx, request, answer), lambda _: _shaped(shapes[1:], ctx, request, answer))


def _joined(answer: Response, others: Sequence[Response]) -> Response:
    """Joins the lists of all answers into one answer."""
    for other in others:
        for field in answer.__fields__:
            more = getattr(other, field.name, None)
            if isinstance(more, list) and more:
                setattr(answer, field.name, [*(getattr(answer, field.name) or []), *more])
    return answer
