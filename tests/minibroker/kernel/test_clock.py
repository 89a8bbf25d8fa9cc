from __future__ import annotations

import pytest
from manual_time import ManualTimers

from minibroker.kernel.broker_clock import BrokerClock


def make() -> tuple[ManualTimers, BrokerClock]:
    timers = ManualTimers()
    return timers, BrokerClock(timers, timers.now_ms)


def test_a_running_clock_follows_the_wall_and_fires_its_timers() -> None:
    timers, clock = make()
    fired: list[int] = []
    clock.call_later(50, lambda: fired.append(clock.now_ms()))
    timers.advance(49)
    assert fired == []
    timers.advance(1)
    assert fired == [1_000_050]


def test_a_frozen_clock_stands_and_fires_nothing() -> None:
    timers, clock = make()
    fired: list[str] = []
    clock.call_later(50, lambda: fired.append("x"))
    clock.freeze()
    timers.advance(10_000)
    assert clock.now_ms() == 1_000_000
    assert fired == []


def test_advance_runs_what_falls_due_in_order_each_at_its_own_time() -> None:
    _, clock = make()
    clock.freeze()
    seen: list[tuple[str, int]] = []
    clock.call_later(200, lambda: seen.append(("late", clock.now_ms())))
    clock.call_later(100, lambda: seen.append(("early", clock.now_ms())))
    clock.call_later(5000, lambda: seen.append(("never", clock.now_ms())))
    assert clock.advance(300) == 1_000_300
    assert seen == [("early", 1_000_100), ("late", 1_000_200)]


def test_a_sweep_that_arms_itself_again_runs_once_per_interval_of_a_jump() -> None:
    _, clock = make()
    clock.freeze()
    runs: list[int] = []

    def sweep() -> None:
        runs.append(clock.now_ms())
        clock.call_later(10, sweep)

    clock.call_later(10, sweep)
    clock.advance(35)
    assert runs == [1_000_010, 1_000_020, 1_000_030]


def test_after_unfreezing_the_clock_goes_on_from_where_it_stood() -> None:
    timers, clock = make()
    clock.freeze()
    timers.advance(500)
    fired: list[int] = []
    clock.call_later(10, lambda: fired.append(clock.now_ms()))
    clock.unfreeze()
    assert clock.now_ms() == 1_000_000
    timers.advance(10)
    assert fired == [1_000_010]


def test_advancing_a_running_clock_moves_it_ahead_of_the_wall() -> None:
    timers, clock = make()
    clock.advance(3_600_000)
    timers.advance(5)
    assert clock.now_ms() == 1_000_000 + 3_600_000 + 5


def test_the_clock_never_goes_back() -> None:
    _, clock = make()
    with pytest.raises(ValueError, match="never goes back"):
        clock.advance(-1)


def test_a_cancelled_timer_does_not_fire_and_close_drops_the_rest() -> None:
    timers, clock = make()
    fired: list[str] = []
    clock.call_later(10, lambda: fired.append("cancelled")).cancel()
    clock.call_later(20, lambda: fired.append("dropped"))
    clock.close()
    timers.advance(100)
    assert fired == []


def sweeping(clock: BrokerClock, interval_ms: int, busy_at: list[int]) -> list[int]:
    """A sweep that has something to do at each of `busy_at`; the times of its runs."""
    runs: list[int] = []

    def sweep() -> None:
        runs.append(clock.now_ms())
        busy_at[:] = [at for at in busy_at if at > clock.now_ms()]
        arm()

    def arm() -> None:
        clock.call_later(interval_ms, sweep, idle_until=lambda: min(busy_at, default=float("inf")))

    arm()
    return runs


def test_a_jump_leaves_out_sweeps_that_would_find_nothing_and_keeps_their_beat() -> None:
    _, clock = make()
    clock.freeze()
    runs = sweeping(clock, 10, [1_000_042, 1_000_100, 1_000_101])
    clock.advance(95)
    assert runs == [1_000_050]
    clock.advance(10)
    assert runs == [1_000_050, 1_000_100]
    clock.advance(1_000_000)
    assert runs == [1_000_050, 1_000_100, 1_000_110]
    clock.advance(9)  # to one before the next beat after the jump to 2_000_105
    assert clock.now_ms() == 2_000_114


def test_what_happens_on_the_way_gives_a_sweep_something_to_do() -> None:
    _, clock = make()
    clock.freeze()
    busy: list[int] = []
    runs = sweeping(clock, 10, busy)
    clock.call_later(33, lambda: busy.append(1_000_077))
    clock.advance(500)
    assert runs == [1_000_080]


def test_sweeps_run_at_every_beat_of_a_clock_that_is_not_moved() -> None:
    timers, clock = make()
    runs = sweeping(clock, 10, [])
    timers.advance(35)
    assert runs == [1_000_010, 1_000_020, 1_000_030]


def test_a_sweep_goes_on_with_real_time_after_a_jump() -> None:
    timers, clock = make()
    runs = sweeping(clock, 10, [])
    clock.advance(1_000_005)
    assert runs == []
    timers.advance(5)
    assert runs == [clock.now_ms()]


def test_a_cancelled_sweep_is_left_out_too() -> None:
    _, clock = make()
    clock.freeze()
    fired: list[str] = []
    handle = clock.call_later(10, lambda: fired.append("x"), idle_until=lambda: 0)
    clock.call_later(5, handle.cancel)
    clock.advance(100)
    assert fired == []
