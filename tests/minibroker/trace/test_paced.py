"""How many exchanges a paced recorder takes, and when it takes none."""

from __future__ import annotations

from minibroker.trace.paced import REST_MS, PacedRecorder


class Paced:
    """A recorder with a clock to move, and the rests that it asked for."""

    def __init__(self, kept: int, per_second: float) -> None:
        self.now = 0.0
        self.rests: list[float] = []
        self.recorder = PacedRecorder(kept, per_second, lambda: self.now, self.rests.append)

    def taken(self, offered: int, ms_between: float = 0) -> int:
        count = 0
        for _ in range(offered):
            count += self.recorder.wants()
            self.now += ms_between
        return count


def test_a_burst_is_recorded_whole() -> None:
    paced = Paced(100, 10)
    assert paced.taken(100) == 100
    assert paced.rests == []


def test_above_the_rate_it_rests() -> None:
    paced = Paced(100, 50)
    assert paced.taken(150) == 100
    assert (paced.rests, paced.recorder.rests) == ([REST_MS], 1)
    assert 450 < paced.taken(10_000, 1) <= 500  # ten seconds
    assert paced.recorder.rests == len(paced.rests) > 40


def test_below_the_rate_it_never_rests() -> None:
    paced = Paced(10, 50)
    assert paced.taken(1000, 20) == 1000
    assert paced.rests == []


def test_room_comes_back_and_no_more_than_there_was() -> None:
    paced = Paced(100, 50)
    paced.taken(200)
    paced.now += 60_000
    assert paced.taken(200) == 100
