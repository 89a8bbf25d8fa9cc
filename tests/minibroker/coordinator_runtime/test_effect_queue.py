"""The queue of effects: in their order, in a later turn, held back and let go."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from manual_time import ManualTimers

from minibroker.coordinator_runtime.effect_queue import EffectQueue
from minibroker.coordinators.result import Effect


@dataclass(frozen=True)
class Named(Effect):
    name: str


class Story:
    def __init__(self) -> None:
        self.timers = ManualTimers()
        self.done: list[str] = []
        self.queue: EffectQueue[str] = EffectQueue(self.timers, self.perform)
        self.follows: dict[str, str] = {}

    def perform(self, shard: str, effect: Effect) -> None:
        assert isinstance(effect, Named)
        self.done.append(f"{shard} {effect.name}")
        if effect.name in self.follows:
            self.add(self.follows[effect.name])
            assert self.done[-1] == f"{shard} {effect.name}", "never inside what caused it"
        if effect.name == "fails":
            raise ValueError("fails")

    def add(self, *names: str, shard: str = "s") -> None:
        self.queue.add(shard, [Named(name) for name in names])


def test_effects_are_performed_in_their_order_in_a_later_turn() -> None:
    story = Story()
    story.follows["a"] = "c"
    story.add("a", "b")
    assert story.done == []
    story.timers.advance(0)
    assert story.done == ["s a", "s b", "s c"]
    assert story.timers.armed == 0


def test_at_once_they_are_performed_one_after_the_other_too() -> None:
    story = Story()
    story.queue.at_once = True
    story.follows["a"] = "c"
    story.add("a", "b")
    assert (story.done, story.timers.armed) == (["s a", "s b", "s c"], 0)


def test_many_effects_let_other_work_in_between() -> None:
    story = Story()
    story.add(*map(str, range(130)))
    turns = []
    story.timers.call_later(0, lambda: turns.append(len(story.done)))
    story.timers.advance(0)
    assert (turns, len(story.done)) == ([64], 130)


def test_an_effect_that_fails_does_not_stop_the_next_one() -> None:
    story = Story()
    story.add("fails", "b")
    with pytest.raises(ValueError, match="fails"):
        story.timers.advance(0)
    story.timers.advance(0)
    assert story.done == ["s fails", "s b"]


def test_effects_are_held_back_and_let_go() -> None:
    story = Story()
    story.queue.hold(lambda effect: isinstance(effect, Named) and effect.name != "other")
    story.add("a", "other", "b")
    story.timers.advance(0)
    assert (story.done, story.queue.held) == (["s other"], [Named("a"), Named("b")])
    assert story.queue.release(lambda effect: effect == Named("b")) == [Named("b")]
    story.add("c")
    story.timers.advance(0)
    assert (story.done[1:], story.queue.held) == (["s b"], [Named("a"), Named("c")])
    assert story.queue.release() == [Named("a"), Named("c")]
    story.add("d")
    story.timers.advance(0)
    assert (story.done[2:], story.queue.held) == (["s a", "s c", "s d"], [])


def test_effects_of_a_shard_that_has_resigned_are_dropped() -> None:
    story = Story()
    story.queue.hold(lambda effect: effect == Named("held"))
    story.add("a", "held")
    story.add("b", "held", shard="other")
    story.queue.drop("s")
    story.queue.release()
    story.timers.advance(0)
    assert story.done == ["other b", "other held"]
