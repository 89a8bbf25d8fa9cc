"""Long lists in slices, with turns of the loop in between: what the two kinds of API (`kinds`) do with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from itertools import islice
from typing import Any, TypeVar

from minibroker.kernel.deferred import Deferred, gather, mapped, resolved
from minibroker.kernel.executor import Abandoned
from minibroker.kernel.turns import STEPS_AT_ONCE
from minibroker.requests.answers import settled
from minibroker.requests.api import Api
from minibroker.requests.context import Answer, Handler, RequestContext
from minibroker.requests.kinds import Each
from minibroker_protocol.dsl import Response

T = TypeVar("T")
U = TypeVar("U")


def in_slices(
    ctx: RequestContext,
    items: Sequence[T],
    work: Callable[[Sequence[T]], None],
    then: Callable[[], Answer],
    *,
    cost: int = 1,
    keep: bool = True,
) -> Answer:
    """Call `work` with slices of `items`, and answer with `then`.

    Items that fit into the rest of this turn of the loop (`RequestContext.room`) are done at once; a short list is
    answered at once.

    keep: go on when the client has left; else the answer fails with Abandoned.
    """
    elements = len(items) * cost
    if elements <= ctx.room:
        ctx.room -= elements
        work(items)
        return then()
    position = 0

    def work_on() -> bool:
        nonlocal position
        few = items[position : position + max(1, ctx.room // cost)]
        position += len(few)
        ctx.room -= len(few) * cost
        work(few)
        return position == len(items)

    return _in_turns(ctx, work_on, then, begin=ctx.room >= cost, keep=keep)


def in_slices_of(
    ctx: RequestContext,
    items: Iterator[T],
    work: Callable[[Sequence[T]], None],
    then: Callable[[], Answer],
    *,
    few: int,
) -> Answer:
    """The same for items that are found one after the other; `few` of them cost as much as an element of a list."""

    def work_on() -> bool:
        most = max(1, ctx.room) * few
        some = list(islice(items, most))
        ctx.room -= -(-len(some) // few)
        work(some)
        return len(some) < most

    return then() if work_on() else _in_turns(ctx, work_on, then, begin=False, keep=True)


def _in_turns(
    ctx: RequestContext, work_on: Callable[[], bool], then: Callable[[], Answer], *, begin: bool, keep: bool
) -> Deferred[Any]:
    """Call `work_on` once a turn of the loop until it is True, and answer with `then`.

    begin: the first time now.
    """
    ctx.takes_long()
    outcome: Deferred[Any] = Deferred()

    def go_on() -> None:
        try:
            if not (keep or ctx.wanted()):
                raise Abandoned
            ended = work_on()
            answer = settled(then()) if ended else None
        except Exception as error:
            outcome.fail(error)
            return
        if not ended:
            ctx.broker.lane.turn(in_next_turn)
        elif type(answer) is Deferred:
            answer.then(outcome.take)
        else:  # what its callbacks raise is theirs
            outcome.resolve(answer)

    def in_next_turn() -> None:
        ctx.begin_turn()
        go_on()

    if begin:
        go_on()
    else:
        ctx.broker.lane.turn(in_next_turn)
    return outcome


class Slices:
    """`Link` that serves the long lists of APIs of the kind *each*. A short one goes straight to the handler."""

    def around(self, api: Api, onward: Handler) -> Handler:
        kind = api.kind
        if not isinstance(kind, Each):
            return onward
        outer, _, inner = kind.items.partition(".")
        joined = _Joined(api.response)

        def handle(ctx: RequestContext, request: Any) -> Answer:
            items: Sequence[Any] = getattr(request, outer) or ()
            if kind.once and len(set(items)) < len(items):
                items = list(dict.fromkeys(items))
                request = _with(request, outer, items)
            count = len(items) + sum([len(getattr(item, inner)) for item in items]) if inner else len(items)
            if count * kind.cost <= STEPS_AT_ONCE:
                return onward(ctx, request)
            answers: list[tuple[bool, Deferred[Response]]] = []

            def serve(slices: Sequence[tuple[bool, list[Any]]]) -> None:
                for goes_on, few in slices:
                    answer: Any = settled(onward(ctx, _with(request, outer, few)))
                    answers.append((goes_on, answer if type(answer) is Deferred else resolved(answer)))

            def join() -> Deferred[Response]:
                return mapped(
                    gather(answer for _, answer in answers),
                    lambda served: joined.answer(served, [goes_on for goes_on, _ in answers]),
                )

            slices = list(cut(items, inner, max(1, STEPS_AT_ONCE // kind.cost)))
            return in_slices(ctx, slices, serve, join, cost=STEPS_AT_ONCE, keep=kind.changes)

        return handle


def _with(struct: Any, field: str, items: Sequence[Any]) -> Any:
    changed = copy(struct)
    setattr(changed, field, items)
    return changed


def cut(items: Sequence[Any], inner: str, size: int) -> Iterator[tuple[bool, list[Any]]]:
    """Slices of at most `size` elements. True: the first item of the slice is the rest of the last one of the slice
    before."""
    if not inner:
        for start in range(0, len(items), size):
            yield False, list(items[start : start + size])
        return
    few: list[Any] = []
    room = size
    goes_on = False
    for item in items:
        parts = getattr(item, inner)
        if room < 1:
            yield goes_on, few
            few, room, goes_on = [], size, False
        room -= 1
        taken = 0
        while len(parts) - taken > room:
            few.append(_with(item, inner, parts[taken : taken + room]))
            yield goes_on, few
            taken += room
            few, room, goes_on = [], size - 1, True
        few.append(item if taken == 0 else _with(item, inner, parts[taken:]))
        room -= len(parts) - taken
    yield goes_on, few


class _Joined:
    """Joins the answers to slices in one: the lists after each other, and the parts of an item that was cut."""

    def __init__(self, response: type[Response]) -> None:
        self._outer = next(field.name for field in response.__fields__ if field.array)

    def answer(self, answers: Sequence[Response], goes_on: Sequence[bool]) -> Response:
        first, *others = answers
        joined = getattr(first, self._outer)
        for other, cut in zip(others, goes_on[1:], strict=True):
            results = getattr(other, self._outer)
            if cut:
                last, rest = joined[-1], results[0]
                inner = next(field.name for field in rest.__fields__ if field.array)
                getattr(last, inner).extend(getattr(rest, inner))
                results = results[1:]
            joined.extend(results)
        return first
