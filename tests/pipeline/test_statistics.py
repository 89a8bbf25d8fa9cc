"""Figures add up in any order, and the charts' time axis is even."""

from __future__ import annotations

import pickle
import random
from collections import Counter

import pytest

pytest.importorskip("numpy")

from minibroker.rules.rows import ABORT, COMMIT, LOST, Log, Run, Transaction
from minibroker_pipeline.epochs import Epochs
from minibroker_pipeline.report import MOST_STEPS, _over_time
from minibroker_pipeline.statistics import OPEN, Statistics

LOG = Log("", "t", 0)


def txn(end: int, outcome: str = COMMIT, *, held: int = 5, epoch: int = 0) -> Transaction:
    marker = 100 + held if outcome else -1
    return Transaction(LOG, "", 7, epoch, 100, 102, marker, epoch if outcome else -1, outcome, 0, end - 50, end)


def filled(*rows: Transaction) -> Statistics:
    figures = Statistics()
    for row in rows:
        figures.add_transaction(row)
    return figures


ROWS = [txn(n * 1_700, ABORT if n % 3 else COMMIT, held=n % 50, epoch=n % 9) for n in range(7_000)]


def test_merging_is_adding() -> None:
    whole = filled(*ROWS)
    for cut in (0, 1, 3_500, 6_999):
        one, other = filled(*ROWS[:cut]), filled(*ROWS[cut:])
        assert one.merge(other).as_json() == whole.as_json()
    assert whole.outcomes() == {COMMIT: 2_334, ABORT: 4_666}
    assert whole.epochs.bumps() == {8: 1}
    assert max(whole.lag.values()) == 49


def test_a_transaction_whose_marker_is_lost_is_not_open() -> None:
    lost = txn(1_000, LOST)._replace(marker_offset=-1, marker_epoch=-1)
    figures = filled(lost, txn(1_000, ""), txn(1_000))
    assert figures.outcomes() == {LOST: 1, OPEN: 1, COMMIT: 1}
    assert _over_time(figures)[1] == {COMMIT: [1], LOST: [1], OPEN: [1]}


def test_memory_for_the_time_axis_is_bounded() -> None:
    figures = filled(*ROWS)
    assert len(figures.lag) <= 2_000
    assert figures.bucket_ms > 1_000


def test_runs_count_epochs_too() -> None:
    figures = Statistics()
    for epoch in (3, 5):
        figures.add_run(Run(LOG, "", 0, 0, 2, 9, epoch, 0, 2, False, 1, 3, 0, 0, 0, 100))
    assert figures.epochs.bumps() == {2: 1}


def test_steps_of_time_are_even() -> None:
    labels, series, lag = _over_time(filled(txn(1_000_000), txn(1_010_000, ABORT, held=9), txn(1_003_000, "")))
    assert len(labels) == 11
    assert (series["COMMIT"][0], series["ABORT"][10], series["OPEN"][3]) == (1, 1, 1)
    assert sum(map(sum, series.values())) == 3
    assert lag == [5, *[0] * 9, 9]
    labels, series, lag = _over_time(filled(*ROWS))
    assert len(labels) == len(lag) <= MOST_STEPS
    assert sum(map(sum, series.values())) == 7_000
    assert _over_time(Statistics()) == ([], {}, [])


def test_epochs_of_many_producers() -> None:
    """Put together in pieces, merged and sent about, they are what a dictionary of all would say."""
    chance = random.Random(5)
    seen = [("ab"[chance.randrange(2)], chance.randrange(40), chance.randrange(32_767)) for _ in range(500)]
    expected: dict[tuple[str, int], list[int]] = {}
    parts = [Epochs(7) for _ in range(3)]
    for number, (root, producer_id, epoch) in enumerate(seen):
        parts[number % 3].add(root, producer_id, epoch)
        expected.setdefault((root, producer_id), []).append(epoch)
    whole = Epochs()
    for part in parts:
        whole.merge(pickle.loads(pickle.dumps(part)))
    assert len(whole) == len(expected)
    assert whole.bumps() == Counter(max(found) - min(found) for found in expected.values())
