"""A marker that a later coordinator sent again (KAFKA-19999), before a transaction whose own marker was dropped."""

from __future__ import annotations

import pytest

from minibroker.rules.rows import COMMIT, NONE, Log, LogFacts, Transaction, TxnState
from minibroker.rules.txn_rules import judge_transactions

STATES, DATA = Log("", "__transaction_state", 1), Log("", "t", 0)
BEGAN_MS, APART_MS = 1_000_000, 100_000


def judged(again_ms: int, *, records: bool = False, coordinator_epoch: int = 9) -> list[tuple[str, str]]:
    """Rules and messages of a COMMIT and then an ABORT that one epoch decided. Of the ABORT there is no marker, of the
    COMMIT are two, the second so long after its decision, with records of the second transaction or without any."""

    def state(offset: int, name: str, start: int, at: int, written: int) -> TxnState:
        places = (("t", 0),) if name[:7] in ("Ongoing", "Prepare") else ()
        return TxnState(STATES, offset, 3, "tx", 7, 0, 60_000, name, places, start, at, written)

    states = [state(0, "Empty", NONE, 5, 5)]
    for number, name in enumerate(("Commit", "Abort")):
        start = BEGAN_MS + number * APART_MS
        states += [
            state(3 * number + 1, "Ongoing", start, start, start),
            state(3 * number + 2, f"Prepare{name}", start, start + 20, start + 20),
            state(3 * number + 3, f"Complete{name}", start, start + 20, start + 60),
        ]
    first = Transaction(DATA, "", 7, 0, 0, 3, 4, 0, COMMIT, 7, BEGAN_MS, BEGAN_MS + 30)
    at = BEGAN_MS + 20 + again_ms
    again = Transaction(DATA, "", 7, 0, NONE, NONE, 9, 0, COMMIT, coordinator_epoch, NONE, at)
    if records:
        again = again._replace(first_offset=5, last_offset=8, start_timestamp=BEGAN_MS + APART_MS)
    facts = [LogFacts(DATA), LogFacts(STATES)]
    found = judge_transactions([first, again], states, facts, coordinators_complete=True)
    return [(one.rule, one.message) for one in found]


AFTER_THE_NEXT_DECISION_MS = (APART_MS + 5, APART_MS + 5_000)


@pytest.mark.parametrize("again_ms", [20, *AFTER_THE_NEXT_DECISION_MS])
def test_the_only_finding_is_the_transaction_without_its_marker(again_ms: int) -> None:
    ((rule, message),) = judged(again_ms)
    assert rule == "torn-transaction"
    assert "no marker" in message


@pytest.mark.parametrize("again_ms", AFTER_THE_NEXT_DECISION_MS)
def test_a_marker_that_ended_the_next_transaction_tears_it(again_ms: int) -> None:
    ((rule, message),) = judged(again_ms, records=True)
    assert rule == "torn-transaction"
    assert message == "the coordinator decided ABORT, the marker at offset 9 says COMMIT"


@pytest.mark.parametrize("again_ms", AFTER_THE_NEXT_DECISION_MS)
def test_a_marker_of_the_same_coordinator_is_no_later_ones(again_ms: int) -> None:
    ((rule, message),) = judged(again_ms, coordinator_epoch=7)
    assert rule == "torn-transaction"
    assert message == "the coordinator decided ABORT, the marker at offset 9 says COMMIT"
