"""Markers that were written by hand after a coordinator called the transaction complete."""

from __future__ import annotations

import pytest

from minibroker.rules.rows import ABORT, COMMIT, NONE, Log, LogFacts, Transaction, TxnState
from minibroker.rules.txn_rules import judge_transactions

STATES, DATA = Log("", "__transaction_state", 1), Log("", "t", 0)
LEADER_EPOCH = 3
STARTED, DECIDED, COMPLETE = 10, 20, 30


def judged(
    decision: str, outcome: str, at: int, *, marker_epoch: int, data_epoch: int = 0, epoch: int = 0
) -> list[str]:
    """Rules that a marker of coordinator epoch 0 breaks, written at this time."""

    def state(offset: int, name: str, producer_epoch: int, update: int, written: int) -> TxnState:
        places = () if name.startswith("Complete") else (("t", 0),)
        times = STARTED, update, written
        return TxnState(STATES, offset, LEADER_EPOCH, "tx", 7, producer_epoch, 60_000, name, places, *times)

    states = [
        state(0, "Empty", 0, STARTED, STARTED)._replace(partitions=(), start_timestamp=NONE),
        state(1, "Ongoing", 0, STARTED, STARTED),
        state(2, f"Prepare{decision}", epoch, DECIDED, DECIDED),
        state(3, f"Complete{decision}", epoch, DECIDED, COMPLETE),  # prepared before its markers were sent
    ]
    txn = Transaction(DATA, "", 7, 0, 0, 1, 2, marker_epoch, outcome, 0, STARTED, at)
    facts = [LogFacts(DATA), LogFacts(STATES)]
    return [one.rule for one in judge_transactions([txn], states, facts, coordinators_complete=True)]


@pytest.mark.parametrize(("epoch", "marker_epoch"), [(0, 0), (1, 0), (1, 1)])
def test_a_marker_that_carries_the_decision_out_is_no_finding(epoch: int, marker_epoch: int) -> None:
    epochs = {"epoch": epoch, "marker_epoch": marker_epoch}
    for decision, outcome, other in (("Commit", COMMIT, ABORT), ("Abort", ABORT, COMMIT)):
        assert judged(decision, outcome, COMPLETE + 1, **epochs) == []
        assert judged(decision, other, COMPLETE + 1, **epochs) == ["torn-transaction"]


def test_the_coordinators_own_marker_has_its_epochs() -> None:
    """A marker of before the completion."""
    assert judged("Commit", COMMIT, COMPLETE, marker_epoch=0) == ["coordinator-epoch"]
    assert judged("Commit", COMMIT, COMPLETE, marker_epoch=0, epoch=1) == ["marker-epoch"]
