"""Markers of two coordinators: one that the later sent again (KAFKA-19999), before a transaction whose own marker was
dropped; one of a decision that only the deposed one had."""

from __future__ import annotations

import pytest

from minibroker.rules.rows import ABORT, COMMIT, NONE, Log, LogFacts, Transaction, TxnState
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


@pytest.mark.parametrize("compacted", [False, True])
def test_a_marker_that_only_a_deposed_coordinator_decided_does_not_shift_those_after_it(compacted: bool) -> None:
    """Seen in a copy of a live Kafka 4.4.0: an ABORT of coordinator epoch 1 between the decisions of epoch 2, which are
    all carried out."""

    def state(offset: int, name: str, start: int, at: int) -> TxnState:
        coordinator_epoch = 1 if offset < 4 else 2
        places = (("t", 0),) if name[:7] in ("Ongoing", "Prepare") else ()
        return TxnState(STATES, offset, coordinator_epoch, "tx", 7, 0, 60_000, name, places, start, at, at)

    states, markers = [state(0, "Empty", NONE, 5)], []
    for number, name in enumerate(("Commit", "Abort", "Commit")):
        start = BEGAN_MS + number * APART_MS
        states += [
            state(3 * number + 1, "Ongoing", start, start),
            state(3 * number + 2, f"Prepare{name}", start, start + 20),
            state(3 * number + 3, f"Complete{name}", start, start + 40),
        ]
        first = 10 * number
        outcome, epoch = name.upper(), 1 if number == 0 else 2
        markers.append(Transaction(DATA, "", 7, 0, first, first, first + 1, 0, outcome, epoch, start, start + 30))
    stray_ms = BEGAN_MS + APART_MS // 2
    markers.insert(1, Transaction(DATA, "", 7, 0, NONE, NONE, 5, 0, ABORT, 1, NONE, stray_ms))
    facts = [LogFacts(DATA, cleaned_offset=2 if compacted else 0), LogFacts(STATES)]
    findings = judge_transactions(markers, states, facts, coordinators_complete=True)
    assert [line for line in (finding.message for finding in findings) if "says" in line or "decided in" in line] == []
