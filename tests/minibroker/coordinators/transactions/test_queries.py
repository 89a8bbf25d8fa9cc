"""Whom ListTransactions names, and who is told of a timeout: each condition by itself turns the answer."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.coordinators.transactions.metadata import ProducerIdAndEpoch, TransactionEntry, TransactionMetadata
from minibroker.coordinators.transactions.queries import TransactionFilter
from minibroker.coordinators.transactions.refusals import timed_out
from minibroker.coordinators.transactions.states import DEAD, ONGOING

NOW = 100


def entry(**changes: Any) -> TransactionEntry:
    """Producer id 5, epoch 4 after 3; its transaction began at 50 and got its last partition at 90."""
    known: dict[str, Any] = {
        "transactional_id": "x", "producer_id": 5, "producer_epoch": 4, "last_producer_epoch": 3, "timeout_ms": 30,
        "start_ms": 50, "last_update_ms": 90, "state": ONGOING,
    }  # fmt: skip
    return TransactionEntry(TransactionMetadata(**{**known, **changes}))


@pytest.mark.parametrize(
    ("wanted", "changes", "named"),
    [
        ({}, {}, True),
        ({"states": ["Ongoing"]}, {}, True),
        ({"states": ["Empty"]}, {}, False),
        ({"producer_ids": [5]}, {}, True),
        ({"producer_ids": [6]}, {}, False),
        ({"longer_than_ms": -1}, {"start_ms": NOW}, True),
        ({"longer_than_ms": 0}, {"start_ms": NOW}, False),
        ({"longer_than_ms": 49}, {}, True),  # by its begin, and not by the partition that was added last
        ({"longer_than_ms": 50}, {}, False),
        ({"longer_than_ms": 100}, {"start_ms": -1}, True),  # an id that never began one counts as old
        ({"longer_than_ms": 101}, {"start_ms": -1}, False),
        ({"matches": "x".__eq__}, {}, True),
        ({"matches": "y".__eq__}, {}, False),
        ({}, {"state": DEAD}, False),
    ],
)
def test_which_ids_are_listed(wanted: dict[str, Any], changes: dict[str, Any], named: bool) -> None:
    assert TransactionFilter(**wanted).passes("x", entry(**changes), NOW) is named


def test_an_id_whose_tombstone_is_on_its_way_is_not_listed() -> None:
    expiring = entry()
    expiring.volatile.pending_state = DEAD
    assert not TransactionFilter().passes("x", expiring, NOW)


ROTATED = {"producer_id": 9, "previous_producer_id": 5, "producer_epoch": 0, "last_producer_epoch": 32766}


@pytest.mark.parametrize(
    ("changes", "offered", "told"),
    [
        ({}, (5, 3), True),
        ({"timed_out": False}, (5, 3), False),
        ({}, (5, 4), False),
        ({}, (6, 3), False),
        ({"producer_epoch": 5}, (5, 3), False),  # a new instance has claimed an epoch since
        ({"last_producer_epoch": -1}, (5, -1), False),
        (ROTATED, (5, 32766), True),
        (ROTATED, (9, 32766), False),  # the new producer id never had the epoch
        (ROTATED, (6, 32766), False),
        ({**ROTATED, "producer_epoch": 1}, (5, 32766), False),
        ({**ROTATED, "last_producer_epoch": 7}, (5, 7), False),
    ],
)
def test_who_is_told_of_a_timeout(changes: dict[str, Any], offered: tuple[int, int], told: bool) -> None:
    known = entry(**{"timed_out": True, **changes})
    assert timed_out(known, ProducerIdAndEpoch(*offered)) is told


def test_a_fence_that_could_not_be_logged_tells_of_no_timeout() -> None:
    known = entry(timed_out=True)
    known.volatile.fence_epoch = 5
    assert not timed_out(known, ProducerIdAndEpoch(5, 3))
