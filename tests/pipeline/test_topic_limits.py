"""How much of topics the source `kafka-topics` reads at once."""

from __future__ import annotations

import json

import pytest

from minibroker.client.topics import Position, Span
from minibroker_pipeline.stream_offsets import TopicOffsets, to_json
from minibroker_pipeline.topic_limits import Delay, behind, limited, sizes, split


def test_a_batch_is_shared_by_partitions_in_proportion() -> None:
    start = {("t", 0): 10, ("t", 1): 0}
    end = {("t", 0): 110, ("t", 1): 300, ("t", 2): 0, ("u", 0): 1}
    assert sizes(start, end) == {("t", 0): 100, ("t", 1): 300, ("u", 0): 1}
    assert limited(start, end, 40) == {("t", 0): 19, ("t", 1): 29, ("t", 2): 0, ("u", 0): 1}
    assert limited(start, end, 401) == end
    # Every partition goes on, however small the limit.
    assert limited(start, end, 1) == {("t", 0): 11, ("t", 1): 1, ("t", 2): 0, ("u", 0): 1}
    # A log that was truncated: its new end is passed on.
    assert limited({("t", 0): 9, ("t", 1): 0}, {("t", 0): 3, ("t", 1): 50}, 10) == {("t", 0): 3, ("t", 1): 10}


def test_a_limit_reaches_the_end_after_a_few_batches() -> None:
    at, end, batches = {("t", n): 0 for n in range(3)}, {("t", 0): 5, ("t", 1): 1000, ("t", 2): 70}, 0
    while at != end:
        at, batches = limited(at, end, 100), batches + 1
    assert 11 <= batches <= 14


def test_numbers_beyond_a_float_are_exact() -> None:
    huge = (1 << 63) - 1
    assert limited({("t", 0): 0}, {("t", 0): huge}, huge - 1) == {("t", 0): huge - 1}


def test_a_small_batch_waits() -> None:
    now = [100.0]
    delay = Delay(10, 5000, lambda: now[0])
    assert delay.holds(0)
    assert not delay.holds(1)  # the first
    assert delay.holds(9)
    assert not delay.holds(10)
    now[0] += 4.9
    assert delay.holds(9)
    now[0] += 0.2
    assert delay.holds(0)
    assert not delay.holds(9)
    assert delay.holds(9)


def spans(*sizes: int) -> list[Span]:
    return [Span("t", number, 100, 100 + size, 7, b"i" * 16) for number, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("lengths", "least", "most", "expected"),
    [
        ((10, 20), None, None, [10, 20]),
        ((10, 20), 2, None, [10, 20]),
        ((10, 20), 3, None, [10, 10, 10]),
        ((1, 100), 5, None, [1, 25, 25, 25, 25]),
        ((3,), 8, None, [1, 1, 1]),
        ((), 8, 2, []),
        ((10, 3), None, 4, [3, 3, 4, 3]),
        ((10, 3), 5, 4, [2, 3, 2, 3, 3]),
    ],
)
def test_tasks(lengths: tuple[int, ...], least: int | None, most: int | None, expected: list[int]) -> None:
    tasks = split(spans(*lengths), least, most)
    assert [task.stop - task.start for task in tasks] == expected
    read = [(task.partition, offset) for task in tasks for offset in range(task.start, task.stop)]
    assert read == [(span.partition, offset) for span in spans(*lengths) for offset in range(span.start, span.stop)]
    assert all((task.leader_epoch, task.topic_id) == (7, b"i" * 16) for task in tasks)


def test_lag_in_the_progress_of_a_query() -> None:
    def offsets(*each: int) -> str:
        return json.dumps(to_json({"t": TopicOffsets(None, {n: Position(at) for n, at in enumerate(each)})}))

    assert behind({"latestOffset": offsets(10, 7), "endOffset": offsets(4, 7)}) == (0, 6, 3.0, 6)
    assert behind({"latestOffset": offsets(10, 7), "endOffset": offsets(4)}).total == 13
    with pytest.raises(ValueError, match="no offsets yet"):
        behind({"latestOffset": None, "endOffset": offsets(1)})
