"""The time axis of a verdict's page."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from minibroker_lab.judge.run import JudgedRun
from minibroker_lab.judge.scripts import Script
from minibroker_lab.judge.timeline import lasted, ticks, timeline

BEGAN = 1_795_000_000_000


@pytest.mark.parametrize(
    ("ms", "said"),
    [
        (20, "20 ms"),
        (1_500, "1.5 s"),
        (60_000, "1 min"),
        (150_000, "2 min 30 s"),
        (3_600_000, "1 h"),
        (5_400_000, "1 h 30 min"),
    ],
)
def test_a_time_has_its_unit(ms: int, said: str) -> None:
    assert lasted(ms) == said


def test_half_a_second_beside_seconds() -> None:
    assert lasted(500, 2_000) == "0.5 s"


@pytest.mark.parametrize("length", [1, 7, 100, 950, 6_300, 59_000, 61_000, 20 * 60_000, 7 * 3_600_000, 90 * 3_600_000])
def test_an_axis_has_a_few_ticks(length: int) -> None:
    found = ticks(length)
    assert found[0] == 0
    assert found[-1] <= length
    assert (2 if length < 10 else 3) <= len(found) <= 10
    assert len({after - before for before, after in itertools.pairwise(found)}) == 1


def exchange(number: int, ms: int, **more: Any) -> dict[str, Any]:
    return {
        "number": number, "time_ms": BEGAN + ms, "took_ms": 1.0, "client_id": "c", "client": "127.0.0.1:5", "broker": 1,
        "api": "Produce", "version": 9, "request": {}, "errors": [], "reasons": [], "outcome": "answered",
        "fault": None, **more,
    }  # fmt: skip


def test_exchanges_stand_below_the_axis_and_the_clock_is_marked() -> None:
    last = exchange(3, 2_000, fault=1)
    run = JudgedRun(
        Script("s", "", ()), exchanges=[exchange(1, 0), exchange(2, 500), last], moved=[(BEGAN + 1_000, 3_600_000)]
    )
    page = timeline(run, last)
    found = dict(re.findall(r'<s style="left:([\d.]+)%"><span>(.+?)</span>', page))
    assert (found["0.00"], found["25.00"], found["100.00"]) == ("0", "0.5 s", "2 s")
    assert '<s class="moved" style="left:50.00%"><span>clock +1 h</span></s>' in page
    assert re.findall(r'<i class="(\w*)" style="left:([\d.]+)%', page) == [
        ("", "0.00"),
        ("", "25.00"),
        ("first", "100.00"),
    ]
    assert timeline(JudgedRun(Script("s", "", ())), None) == ""
