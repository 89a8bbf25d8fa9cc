"""Kafka's Partition.maximalIsr, isFollowerInSync, maybeIncrementLeaderHW, maybeExpandIsr and maybeShrinkIsr."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from minibroker.partitions.in_sync import LAG_TICKS, Follower, InSync

END = 100
ALL = (1, 2, 3)


def everybody(broker: int, epoch: int) -> bool:
    return True


def nobody(broker: int, epoch: int) -> bool:
    return False


def leader(isr: tuple[int, ...] = ALL, tick: int = 0, **ends: int) -> InSync:
    """Broker 1 leads; `b2=90` says that broker 2 fetched from 90 on, at tick 0, when the log ended at 100."""
    state = InSync(1, ALL, isr, tick)
    for name, offset in ends.items():
        state.followers[int(name[1:])].fetch(offset, END, 0)
    return state


def test_the_leader_follows_nobody() -> None:
    assert set(leader().followers) == {2, 3}


def test_what_is_proposed_counts_until_it_is_confirmed() -> None:
    state = leader(isr=(1, 2), b2=100, b3=60)
    assert state.maximal == {1, 2}
    assert state.high_watermark(END, 1, 9, nobody) == 100
    state.proposed = frozenset({1, 2, 3})
    assert state.maximal == {1, 2, 3}
    assert state.high_watermark(END, 1, 9, nobody) == 60
    state.proposed = frozenset({1})  # 2 may still be in sync, as the controller has not said otherwise
    assert state.maximal == {1, 2}


@pytest.mark.parametrize(
    ("isr", "b3", "tick", "eligible", "expected"),
    [
        ((1, 2, 3), 60, 0, everybody, 60),
        ((1, 2), 60, 9, everybody, 100),  # has not caught up for long: does not hold the others back
        ((1, 2), 100, 9, everybody, 100),
        ((1, 2, 3), 0, 0, everybody, 0),
        ((1, 2, 3), -1, 0, everybody, None),  # has not fetched yet
        ((1, 2), -1, 9, everybody, 100),
    ],
)  # fmt: skip
def test_the_high_watermark_is_the_least_of_those_that_count(
    isr: tuple[int, ...], b3: int, tick: int, eligible: Callable[[int, int], bool], expected: int | None
) -> None:
    assert leader(isr, b2=100, b3=b3).high_watermark(END, 1, tick, eligible) == expected


@pytest.mark.parametrize(
    ("tick", "eligible", "expected"),
    [(0, everybody, 100), (LAG_TICKS, everybody, 100), (LAG_TICKS + 1, everybody, 150), (0, nobody, 150)],
)
def test_a_follower_about_to_join_counts(tick: int, eligible: Callable[[int, int], bool], expected: int) -> None:
    """3 had caught up at tick 0, with the log at 100; the log has gone on to 150 since."""
    state = leader((1, 2), b2=100, b3=100)
    state.followers[2].fetch(150, 150, tick)
    assert state.high_watermark(150, 1, tick, eligible) == expected


def test_a_joining_follower_is_asked_for_with_its_own_epoch() -> None:
    state = leader((1, 2), b2=100, b3=60)
    state.followers[3].broker_epoch = 7
    asked: list[tuple[int, int]] = []
    state.followers[3].caught_up = 0

    def eligible(broker: int, epoch: int) -> bool:
        asked.append((broker, epoch))
        return False

    assert state.high_watermark(END, 1, 0, eligible) == 100
    assert state.joining(50, 0, eligible) is None
    assert asked == [(3, 7), (3, 7)]


@pytest.mark.parametrize(("minimum", "expected"), [(1, 80), (2, 80), (3, None)])
def test_below_min_insync_replicas_the_high_watermark_stays(minimum: int, expected: int | None) -> None:
    assert leader((1, 2), b2=80, b3=60).high_watermark(END, minimum, 9, everybody) == expected


@pytest.mark.parametrize(
    ("isr", "b3", "high_watermark", "epoch_start", "expected"),
    [
        ((1, 2), 100, 90, 0, {1, 2, 3}),
        ((1, 2), 90, 90, 0, {1, 2, 3}),
        ((1, 2), 89, 90, 0, None),
        ((1, 2), 95, 90, 95, {1, 2, 3}),
        ((1, 2), 94, 90, 95, None),  # it may have another leader's records from there on
        ((1, 2), 0, 0, 0, {1, 2, 3}),
        ((1, 2), -1, 0, 0, None),  # has not fetched
        ((1, 2), -1, -1, -1, None),
        ((1, 2, 3), 100, 90, 0, None),  # is in
    ],
)  # fmt: skip
def test_a_follower_joins_at_the_high_watermark_and_the_epochs_start(
    isr: tuple[int, ...], b3: int, high_watermark: int, epoch_start: int, expected: set[int] | None
) -> None:
    state = leader(isr, b2=100, b3=b3)
    assert state.joining(high_watermark, epoch_start, everybody) == expected
    assert state.joining(high_watermark, epoch_start, nobody) is None
    state.proposed = frozenset(ALL)
    assert state.joining(high_watermark, epoch_start, everybody) is None


@pytest.mark.parametrize(
    ("b3", "tick", "expected"),
    [
        (99, LAG_TICKS, None),
        (99, LAG_TICKS + 1, {1, 2}),
        (100, LAG_TICKS + 1, None),  # it has all there is, however long ago it asked
        (-1, LAG_TICKS + 1, {1, 2}),
    ],
)
def test_a_follower_that_lags_goes(b3: int, tick: int, expected: set[int] | None) -> None:
    state = leader(b2=100, b3=b3)
    assert state.lagging(END, tick) == expected
    state.proposed = frozenset({1, 2})
    assert state.lagging(END, tick) is None


def test_having_everything_at_a_look_counts_as_caught_up_then() -> None:
    state = leader(b2=100, b3=100)
    assert state.lagging(END, 5) is None
    assert state.lagging(END + 1, 5 + LAG_TICKS) is None
    assert state.lagging(END + 1, 6 + LAG_TICKS) == {1}


def test_the_time_is_two_ticks() -> None:
    """Each is half of replica.lag.time.max.ms."""
    assert LAG_TICKS == 2


def test_those_in_sync_at_the_election_have_the_full_time() -> None:
    state = InSync(1, ALL, (1, 2), 10)
    assert state.lagging(END, 10 + LAG_TICKS) is None
    assert state.lagging(END, 11 + LAG_TICKS) == {1}
    assert state.followers[3].caught_up < 0
    assert InSync(1, (1, 2), (1, 2, 9), 0).isr == {1, 2, 9}  # 9 is being removed


def test_a_follower_keeps_pace_with_a_leader_that_goes_on_writing() -> None:
    """It never reaches the end, but each fetch asks from where the log ended at the fetch before."""
    follower = Follower()
    follower.fetch(0, 10, 0)
    assert follower.caught_up == -LAG_TICKS - 1
    follower.fetch(10, 20, 3)
    assert follower.caught_up == 0
    follower.fetch(19, 30, 5)  # not all of what there was
    assert follower.caught_up == 0
    follower.fetch(30, 30, 6)
    assert follower.caught_up == 6
    follower.fetch(30, 40, 7)  # all there was at 6
    assert follower.caught_up == 6
    assert (follower.end_offset, follower.leader_end, follower.fetched) == (30, 40, 7)


def test_the_low_watermark_is_that_of_the_living() -> None:
    state = leader(b2=100, b3=100)
    state.followers[2].log_start_offset, state.followers[3].log_start_offset = 5, 3
    assert state.low_watermark(9, lambda broker: True) == 3
    assert state.low_watermark(9, lambda broker: broker == 2) == 5
    assert state.low_watermark(9, lambda broker: False) == 9
    assert leader().low_watermark(9, lambda broker: True) == -1  # nothing is known before the first fetch


def test_a_reassignment_keeps_what_is_known_of_those_that_stay() -> None:
    state = leader(b2=100, b3=60)
    state.set_replicas((1, 3, 4))
    assert set(state.followers) == {3, 4}
    assert state.followers[3].end_offset == 60
    assert state.followers[4].end_offset == -1
