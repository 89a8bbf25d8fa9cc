"""How many exchanges a paced recorder takes."""

from __future__ import annotations

from collections.abc import Callable

from minibroker.trace.paced import PacedRecorder


class Paced:
    """A recorder with a clock to move."""

    def __init__(self, kept: int, per_second: float) -> None:
        self.now = 0.0
        self.recorder = PacedRecorder(kept, per_second, lambda: self.now)

    def taken(self, offered: int, ms_between: float = 0, wants: Callable[[], bool] | None = None) -> int:
        count = 0
        for _ in range(offered):
            count += (wants or self.recorder.wants)()
            self.now += ms_between
        return count


def test_a_burst_is_recorded_whole() -> None:
    paced = Paced(100, 10)
    assert paced.taken(100) == 100
    assert paced.recorder.left_out == 0


def test_above_the_rate_some_are_left_out() -> None:
    paced = Paced(100, 50)
    assert paced.taken(150) == 100
    assert paced.recorder.left_out == 50
    assert 499 <= paced.taken(10_000, 1) <= 501  # ten seconds
    paced.recorder.pace(100)
    assert 999 <= paced.taken(10_000, 1) <= 1001


def test_below_the_rate_none_is() -> None:
    paced = Paced(10, 50)
    assert paced.taken(1000, 20) == 1000
    assert paced.recorder.left_out == 0


def test_room_comes_back_and_no_more_than_there_was() -> None:
    paced = Paced(100, 50)
    paced.taken(200)
    paced.now += 60_000
    assert paced.taken(200) == 100


def test_what_is_refused_has_room_of_its_own() -> None:
    paced = Paced(1, 1)
    assert paced.taken(1000) == 1
    assert paced.taken(999, wants=paced.recorder.wants_refused) == 200
    assert paced.recorder.left_out == 799
