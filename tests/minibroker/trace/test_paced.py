"""How many exchanges a paced recorder takes."""

from __future__ import annotations

from collections.abc import Callable

from minibroker.trace.paced import PacedRecorder


class Rest:
    """A timer that goes off when the test says so."""

    def __init__(self, delay_ms: float, callback: Callable[[], None]) -> None:
        self.delay_ms, self.over, self.cancelled = delay_ms, callback, False

    def cancel(self) -> None:
        self.cancelled = True


class Paced:
    """A recorder with a clock to move."""

    def __init__(self, kept: int, per_second: float) -> None:
        self.now = 0.0
        self.rests: list[Rest] = []
        self.resting: list[bool] = []
        self.recorder = PacedRecorder(kept, per_second, self, lambda: self.now)
        self.recorder.changed = lambda: self.resting.append(self.recorder.resting)

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Rest:
        self.rests.append(Rest(delay_ms, callback))
        return self.rests[-1]

    def taken(self, offered: int, ms_between: float = 0, wants: Callable[[], bool] | None = None) -> int:
        count = 0
        for _ in range(offered):
            count += (wants or self.recorder.wants)()
            self.now += ms_between
        return count

    def rest(self) -> None:
        """Let the rest that has begun end."""
        self.now += self.rests[-1].delay_ms
        self.rests[-1].over()


def test_a_burst_is_recorded_whole() -> None:
    paced = Paced(100, 10)
    assert paced.taken(100) == 100
    assert not paced.recorder.left_out
    assert not paced.rests


def test_above_the_rate_some_are_left_out() -> None:
    paced = Paced(100, 50)
    assert paced.taken(150) == 100
    assert paced.recorder.left_out
    assert 499 <= paced.taken(10_000, 1) <= 501  # ten seconds
    paced.recorder.pace(100)
    assert 999 <= paced.taken(10_000, 1) <= 1001


def test_above_the_rate_it_rests_and_then_takes_some_together() -> None:
    paced = Paced(100, 50)
    assert paced.taken(101) == 100
    assert paced.recorder.resting
    assert [rest.delay_ms for rest in paced.rests] == [400]
    paced.rest()
    assert not paced.recorder.resting
    assert paced.resting == [True, False]
    assert paced.taken(30) == 20
    assert paced.resting == [True, False, True]


def test_with_another_pace_it_does_not_rest() -> None:
    """A page that is opened shows what happens from now on."""
    paced = Paced(1, 20)
    paced.taken(2)
    paced.recorder.pace(250)
    assert paced.rests[0].cancelled
    assert paced.resting == [True, False]
    before = paced.recorder.left_out
    paced.taken(1)
    assert paced.recorder.left_out == before + 1
    assert paced.rests[1].delay_ms == 80


def test_below_the_rate_none_is() -> None:
    paced = Paced(10, 50)
    assert paced.taken(1000, 20) == 1000
    assert not paced.recorder.left_out


def test_room_comes_back_and_no_more_than_there_was() -> None:
    paced = Paced(100, 50)
    paced.taken(200)
    paced.now += 60_000
    assert paced.taken(200) == 100


def test_what_is_refused_has_room_of_its_own() -> None:
    paced = Paced(1, 1)
    assert paced.taken(1000) == 1
    assert paced.taken(999, wants=paced.recorder.wants_refused) == 200
