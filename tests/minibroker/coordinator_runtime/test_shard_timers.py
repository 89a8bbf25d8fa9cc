"""The timers of one coordinator shard, when time passes at once."""

from __future__ import annotations

import pytest
from manual_time import ManualTimers

from minibroker.coordinator_runtime.group_service import ShardTimers
from minibroker.coordinators.result import CoordinatorResult

EARLY, LATE = ("session", "a"), ("session", "b")


class Fired:
    """Timers and what they did. The early one does `then`."""

    def __init__(self) -> None:
        self.clock = ManualTimers()
        self.done: list[str] = []
        self.timers = ShardTimers(self.clock, lambda _: None)

    def arm(self, name: str, delay_ms: float, then: str = "") -> None:
        def fire() -> CoordinatorResult[None]:
            self.done.append(name)
            if then == "cancels b":
                self.timers.cancel(("session", "b"))
            elif then == "arms b anew":
                self.arm("b", 100)
            elif then == "closes":
                self.timers.close()
            return CoordinatorResult(None)

        self.timers.schedule(("session", name), delay_ms, fire)


@pytest.mark.parametrize(
    ("then", "at_once", "after_60", "after_120"),
    [
        ("", "ab", "ab", "ab"),
        ("cancels b", "a", "a", "a"),
        ("arms b anew", "a", "a", "ab"),
        ("closes", "a", "a", "a"),
    ],
)
def test_what_the_first_one_does_to_the_second(then: str, at_once: str, after_60: str, after_120: str) -> None:
    """Both would have been due; the second is armed anew for 100 ms, as a session that a rebalance renews."""
    fired = Fired()
    fired.arm("b", 20)
    fired.arm("a", 10, then)
    fired.timers.pass_time(50)
    assert "".join(fired.done) == at_once
    fired.clock.advance(60)
    assert "".join(fired.done) == after_60
    fired.clock.advance(60)
    assert "".join(fired.done) == after_120


def test_what_is_not_due_is_nearer() -> None:
    fired = Fired()
    fired.arm("a", 100)
    fired.timers.pass_time(60)
    fired.timers.pass_time(30)
    assert fired.done == []
    fired.clock.advance(9)
    assert fired.done == []
    fired.clock.advance(1)
    assert fired.done == ["a"]
    fired.timers.pass_time(1000)
    assert fired.done == ["a"]


def test_a_timer_is_armed_once_and_not_after_the_end() -> None:
    fired = Fired()
    fired.arm("a", 10)
    fired.arm("a", 30)
    fired.clock.advance(20)
    assert fired.done == []
    fired.timers.close()
    fired.arm("b", 5)
    fired.clock.advance(1000)
    assert fired.done == []
