"""Answers to the members of a group, of which there may be thousands: some hundred in one turn of the event loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from minibroker.coordinators.groups.environment import GroupTimers
from minibroker.coordinators.result import CoordinatorResult
from minibroker.kernel.deferred import Deferred
from minibroker.kernel.turns import STEPS_AT_ONCE


class Answer(NamedTuple):
    """parked: the request to answer, if there is one.
    response: creates the response when its turn comes.
    """

    parked: Deferred[Any] | None
    response: Callable[[], object]


_KEY = ("answers", "", "")


class Answers:
    """The answers of all groups of a shard, sent in the order they are given. The groups do not wait for them."""

    def __init__(self, timers: GroupTimers) -> None:
        self._timers = timers
        self._waiting: deque[Answer] = deque()

    def give(self, answers: list[Answer]) -> None:
        """Send the first answers now, the others in the next turns of the loop."""
        now = 0 if self._waiting else STEPS_AT_ONCE
        if len(answers) > now:
            if not self._waiting:
                self._timers.schedule(_KEY, 0, self._next_turn)
            self._waiting += answers[now:]
        _resolve(answers[:now])

    def finish(self) -> None:
        """Send all waiting answers now, as there will be no further turn."""
        while self._waiting:
            _resolve([self._waiting.popleft()])

    def _next_turn(self) -> CoordinatorResult[None]:
        if len(self._waiting) > STEPS_AT_ONCE:
            self._timers.schedule(_KEY, 0, self._next_turn)
        _resolve([self._waiting.popleft() for _ in range(min(len(self._waiting), STEPS_AT_ONCE))])
        return CoordinatorResult(None)


def _resolve(answers: Iterable[Answer]) -> None:
    for parked, response in [(answer.parked, answer.response()) for answer in answers]:
        if parked is not None and not parked.done:
            parked.resolve(response)
