"""Effects of coordinator decisions, in the order they are due: what a coordinator does once its records are durable.

A decision does not act. It names its effects (`minibroker.coordinators.result.Effect`), and the host puts them here
when the records are durable and replayed, or with the append where it says so (`on_append`). They are performed one
after the other, the first in a later turn of the loop, so an effect never runs inside the call that caused it: the
answer of an EndTxn has left the coordinator before its first marker is written, as in Kafka. A test holds effects back
and performs them one by one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar

from minibroker.coordinators.result import Effect
from minibroker.kernel.clock import Timers

S = TypeVar("S")

_AT_ONCE: Final = 64
"""Effects performed in one turn of the loop."""


class EffectQueue(Generic[S]):
    """perform(shard, effect) does one of them. The effects of a shard that has resigned are dropped with `drop`.

    at_once: perform them when they are added, still one after the other; the simulation has worlds of both kinds.
    """

    def __init__(self, timers: Timers, perform: Callable[[S, Effect], None]) -> None:
        self._timers = timers
        self._perform = perform
        self._due: deque[tuple[S, Effect]] = deque()
        self._held: list[tuple[S, Effect]] = []
        self._holds: Callable[[Effect], bool] | None = None
        self._scheduled = False
        self.at_once = False

    @property
    def held(self) -> list[Effect]:
        """The effects that are held back, oldest first."""
        return [effect for _, effect in self._held]

    def add(self, shard: S, effects: Iterable[Effect]) -> None:
        """Queue `effects` behind those that are due already."""
        for effect in effects:
            if self._holds is not None and self._holds(effect):
                self._held.append((shard, effect))
            else:
                self._due.append((shard, effect))
        if self._due and not self._scheduled:
            self._schedule()

    def hold(self, wanted: Callable[[Effect], bool] = lambda _: True) -> None:
        """From now on hold back every effect for which `wanted` is true; those held before stay held."""
        self._holds = wanted

    def release(self, wanted: Callable[[Effect], bool] | None = None) -> list[Effect]:
        """Perform the held effects for which `wanted` is true, in their order, and return them; without `wanted` all,
        and hold back nothing more."""
        if wanted is None:
            self._holds = None
        released: list[tuple[S, Effect]] = []
        staying: list[tuple[S, Effect]] = []
        for held in self._held:
            (released if wanted is None or wanted(held[1]) else staying).append(held)
        self._held = staying
        self._due.extend(released)
        if self._due and not self._scheduled:
            self._schedule()
        return [effect for _, effect in released]

    def perform_due(self) -> None:
        """Perform all that is due, and what comes of it, now instead of in a later turn."""
        while self._due:
            self._perform(*self._due.popleft())

    def drop(self, shard: S) -> None:
        """Forget the effects of a shard: another broker, or another leader epoch of this one, performs its own."""
        self._due = deque(due for due in self._due if due[0] is not shard)
        self._held = [held for held in self._held if held[0] is not shard]

    def _schedule(self) -> None:
        self._scheduled = True
        if self.at_once:
            self._run()
        else:
            self._timers.call_later(0, self._run)

    def _run(self) -> None:
        try:
            for _ in range(_AT_ONCE):
                if not self._due:
                    return
                self._perform(*self._due.popleft())
        finally:
            self._scheduled = False
            if self._due:
                self._schedule()
