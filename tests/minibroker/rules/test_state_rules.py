"""Records of a transactional id against the table of its states, and a coordinator's last word against the markers."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.rules.catalogue import ERROR, NOTICE
from minibroker.rules.rows import ABORT, COMMIT, Finding, Log, LogFacts, Transaction, TxnState
from minibroker.rules.state_rules import judge_states
from minibroker.rules.txn_rules import judge_transactions

STATES = Log("", "__transaction_state", 1)
DATA = Log("", "t", 0)
START, END = 1_000, 2_000
"""When a transaction began, and when it was decided."""


def state(name: str, epoch: int = 3, offset: int = 0, partition: int = 1, producer_id: int = 7) -> TxnState:
    if not name:
        return TxnState(STATES._replace(partition=partition), offset, 0, "tx", -1, -1, 0, "", (), -1, -1)
    log = STATES._replace(partition=partition)
    return TxnState(log, offset, 0, "tx", producer_id, epoch, 60_000, name, (), START, END)


def history(text: str) -> list[TxnState]:
    """`Name/epoch` one after another; a dash is a tombstone."""
    rows = []
    for offset, word in enumerate(text.split()):
        name, _, epoch = word.partition("/")
        rows.append(state("" if name == "-" else name, int(epoch or 3), offset))
    return rows


@pytest.mark.parametrize(
    "text",
    [
        "Empty Ongoing Ongoing PrepareCommit CompleteCommit Ongoing PrepareAbort CompleteAbort Empty",
        "Empty Ongoing PrepareCommit/4 CompleteCommit/4 Ongoing/4 PrepareAbort/5 CompleteAbort/5",
        "CompleteCommit/3 PrepareAbort/4 CompleteAbort/4 - Empty/0 Ongoing/0",  # v5 aborts nothing; expired; new
        "PrepareCommit PrepareCommit CompleteCommit CompleteCommit",  # repeated
        "Empty - - Empty",
    ],
)
def test_lawful_histories(text: str) -> None:
    assert judge_states(history(text)) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Empty CompleteCommit", "CompleteCommit after Empty at offset 0"),
        ("Ongoing CompleteAbort", "CompleteAbort after Ongoing at offset 0"),
        ("PrepareCommit CompleteAbort", "CompleteAbort after PrepareCommit at offset 0"),
        ("PrepareAbort PrepareCommit", "PrepareCommit after PrepareAbort at offset 0"),
        ("PrepareCommit Ongoing", "Ongoing after PrepareCommit at offset 0"),
        ("Ongoing Empty", "Empty after Ongoing at offset 0"),
        ("PrepareCommit PrepareCommit/4", "PrepareCommit after PrepareCommit at offset 0"),
        ("Ongoing -", "a tombstone after Ongoing at offset 0"),
        ("Empty - Ongoing", "Ongoing after a tombstone at offset 1"),
        ("Empty/4 Ongoing/3", "epoch 3 (Ongoing) after 4 (Empty) at offset 0"),
        ("9", "9 is no state"),
        ("Empty 9", "9 is no state"),
    ],
)
def test_illegal_histories(text: str, message: str) -> None:
    rows = history(text)
    for given in (rows, rows[::-1]):
        (found,) = judge_states(given)
        assert (found.rule, found.message, found.transactional_id) == ("txn-state", message, "tx")
        assert (str(found.log), found.first_offset) == ("__transaction_state-1", len(rows) - 1)


def test_each_replica_is_judged_by_itself() -> None:
    rows = history("Empty Ongoing PrepareCommit CompleteCommit")
    other = [
        row._replace(log=row.log._replace(root="b2")) for row in history("Empty Ongoing PrepareCommit CompleteAbort")
    ]
    (found,) = judge_states([*other, *rows])
    assert (found.log.root, found.first_offset) == ("b2", 3)


def last_word(name: str, outcome: str, *, data_epoch: int = 2, marker_at: int = END, data_at: int = START) -> list[str]:
    """What is found when a marker of epoch 3 has this outcome and only the coordinator's last record is left."""
    marked = Transaction(DATA, "", 7, data_epoch, 0, 4, 5, 3, outcome, 0, data_at, marker_at)
    found = judge_transactions([marked], [state(name)], [LogFacts(DATA), LogFacts(STATES, cleaned_offset=99)])
    return [f"{one.rule}: {one.message}" for one in found]


def test_the_last_word_agrees_with_the_markers() -> None:
    assert last_word("CompleteCommit", COMMIT) == []
    assert last_word("CompleteAbort", ABORT) == []
    wrong = "torn-transaction: the coordinator's last word is Complete{}, the marker at 5 says {}"
    assert last_word("CompleteCommit", ABORT) == [wrong.format("Commit", ABORT)]
    assert last_word("CompleteAbort", COMMIT) == [wrong.format("Abort", COMMIT)]
    assert last_word("CompleteCommit", ABORT, data_epoch=3) == [wrong.format("Commit", ABORT)]


def test_an_earlier_transaction_of_the_epoch_is_another() -> None:
    assert last_word("CompleteCommit", ABORT, data_epoch=3, marker_at=START - 1, data_at=START - 9) == []
    assert last_word("CompleteCommit", ABORT, data_epoch=3, data_at=START - 9) == []  # a clock that is ahead
    assert last_word("CompleteCommit", ABORT, data_epoch=3, marker_at=START - 1) == []
    assert last_word("Ongoing", ABORT) == []


@pytest.mark.parametrize("names", [["PrepareCommit", "CompleteCommit"], ["CompleteCommit"]])
@pytest.mark.parametrize(("ended_at", "found"), [(START + 1, [0]), (START - 1, []), (END + 1, [])])
@pytest.mark.parametrize("bumps", [0, 1])
def test_an_abort_by_hand_of_what_was_committed(names: list[str], ended_at: int, found: list[int], bumps: int) -> None:
    """Records of offsets 0 to 4 were aborted on this partition, in the middle of a transaction that was committed."""
    states = [state(name, offset=number)._replace(partitions=(("t", 0),)) for number, name in enumerate(names)]
    by_hand = Transaction(DATA, "", 7, 3 - bumps, 0, 4, 5, 3 - bumps, ABORT, 0, START, ended_at)
    last = Transaction(DATA, "", 7, 3 - bumps, -1, -1, 6, 3, COMMIT, 0, -1, END)
    facts = [LogFacts(DATA), LogFacts(STATES, cleaned_offset=99)]
    torn = [one for one in judge_transactions([by_hand, last], states, facts) if one.rule == "torn-transaction"]
    assert [(str(one.log), one.first_offset) for one in torn] == [("t-0", first) for first in found]


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({}, True),
        ({"first_offset": 4}, True),
        ({"producer_epoch": 2}, True),
        ({"start_timestamp": START + 5}, True),
        ({"end_timestamp": END}, True),
        ({"marker_offset": 9}, False),  # after the coordinator's
        ({"first_offset": -1, "last_offset": -1}, False),  # of no records
        ({"outcome": COMMIT}, False),
        ({"start_timestamp": START - 1}, False),
        ({"end_timestamp": START}, False),
        ({"end_timestamp": END + 1}, False),
        ({"producer_epoch": 1}, False),
        ({"producer_epoch": 4, "marker_epoch": 4}, False),
    ],
)
def test_which_markers_took_records_from_the_transaction(change: dict[str, Any], found: bool) -> None:
    """Each thing that is otherwise alone makes it the end of another transaction."""
    by_hand = Transaction(DATA, "", 7, 3, 0, 4, 5, 3, ABORT, 0, START, START + 10)._replace(**change)
    last = Transaction(DATA, "", 7, 3, -1, -1, 6, 3, COMMIT, 0, -1, END)
    states = [state("CompleteCommit")._replace(partitions=(("t", 0),))]
    marked = sorted([by_hand, last], key=lambda txn: txn.marker_offset)
    told = judge_transactions(marked, states, [LogFacts(DATA), LogFacts(STATES, cleaned_offset=99)])
    assert any("which is not its own" in one.message for one in told) is found


@pytest.mark.parametrize(("began_at", "found"), [(0, True), (-1, False)])
@pytest.mark.parametrize("names", [["PrepareCommit", "CompleteCommit"], ["CompleteCommit"]])
def test_a_transaction_may_have_begun_at_time_0(names: list[str], began_at: int, found: bool) -> None:
    """-1 is a time that is not known."""
    began = {"start_timestamp": began_at, "partitions": (("t", 0),)}
    states = [state(name, offset=number)._replace(**began) for number, name in enumerate(names)]
    by_hand = Transaction(DATA, "", 7, 3, 0, 4, 5, 3, ABORT, 0, START, START + 10)
    last = Transaction(DATA, "", 7, 3, -1, -1, 6, 3, COMMIT, 0, -1, END)
    facts = [LogFacts(DATA), LogFacts(STATES, cleaned_offset=99)]
    findings = judge_transactions([by_hand, last], states, facts)
    assert any("which is not its own" in one.message for one in findings) is found
    wrong = judge_transactions([by_hand], states[-1:], facts)
    assert any("the coordinator's last word is" in one.message for one in wrong) is found


def test_the_next_transaction_by_a_clock_that_is_behind_took_no_records() -> None:
    """Committed and aborted in turn; the partition's leader dates the second one into the first."""
    states, marks = [state("Empty")], []
    for number, (name, outcome) in enumerate([("Commit", COMMIT), ("Abort", ABORT)]):
        times = {"start_timestamp": START + 100 * number, "update_timestamp": START + 100 * number + 50}
        for written in ("Ongoing", f"Prepare{name}", f"Complete{name}"):
            states.append(state(written, offset=len(states))._replace(partitions=(("t", 0),), **times))
        first = 10 * number
        at = START + number, START + 40 + number
        marks.append(Transaction(DATA, "", 7, 3, first, first + 4, first + 5, 3, outcome, 0, *at))
    assert judge_transactions(marks, states, [LogFacts(DATA), LogFacts(STATES)], coordinators_complete=True) == []


def of_one_epoch(decided: str, marked: str, *, whole: bool = True) -> list[str]:
    """The rules that are broken."""
    return [one.rule for one in found_of_one_epoch(decided, marked, whole=whole)]


def found_of_one_epoch(decided: str, marked: str, *, whole: bool) -> list[Finding]:
    """C and A are transactions committed and aborted, c and a markers without data. Unless `whole`, earlier decisions
    may be gone."""
    names = {"C": ("Commit", COMMIT), "A": ("Abort", ABORT)}
    states, marks = [state("Empty")], []
    for number, letter in enumerate(decided):
        for name in ("Ongoing", f"Prepare{names[letter][0]}", f"Complete{names[letter][0]}"):
            times = {"start_timestamp": START + 100 * number, "update_timestamp": START + 100 * number + 50}
            states.append(state(name, offset=len(states))._replace(partitions=(("t", 0),), **times))
    for number, letter in enumerate(marked):
        at, first = 10 * number + 5, -1 if letter.islower() else 10 * number
        outcome = names[letter.upper()][1]
        marks.append(Transaction(DATA, "", 7, 3, first, first, at, 3, outcome, 0, 0, START + 90 * number))
    facts = [LogFacts(DATA), LogFacts(STATES, cleaned_offset=0 if whole else 99)]
    return judge_transactions(marks, states, facts, coordinators_complete=whole)


@pytest.mark.parametrize(("marked", "severity"), [("C", NOTICE), ("A", NOTICE), ("c", ERROR), ("a", ERROR)])
def test_a_transaction_that_was_ended_by_hand_is_a_notice_and_a_marker_alone_an_error(
    marked: str, severity: str
) -> None:
    found = found_of_one_epoch("", marked, whole=True)
    assert [(one.rule, one.severity) for one in found] == [("marker-without-transaction", severity)]


@pytest.mark.parametrize(
    ("decided", "marked", "found"),
    [
        ("CACA", "CACA", []),
        ("CA", "CcA", []),  # written twice (KAFKA-19999)
        ("CA", "CcAa", []),
        ("CA", "CccAaa", []),
        ("AC", "AaC", []),
        ("CC", "CcC", []),
        ("CC", "Cc", []),
        ("CA", "AA", ["torn-transaction"]),
        ("CA", "CC", ["torn-transaction"]),
        ("CA", "C", ["torn-transaction"]),
        ("C", "CA", ["marker-without-transaction"]),
        ("C", "Ca", ["marker-without-transaction"]),
    ],
)
def test_markers_of_an_epoch_are_those_that_were_decided_in_their_order(
    decided: str, marked: str, found: list[str]
) -> None:
    assert of_one_epoch(decided, marked) == found


@pytest.mark.parametrize(
    ("decided", "marked", "found"),
    [
        ("AC", "CAC", []),
        ("C", "AAC", []),
        ("AC", "AC", []),
        ("AC", "CCC", ["torn-transaction"]),
        ("CC", "CA", ["torn-transaction"]),
    ],
)
def test_of_decisions_that_are_gone_the_markers_may_be_left(decided: str, marked: str, found: list[str]) -> None:
    assert of_one_epoch(decided, marked, whole=False) == found


def test_a_missing_marker_of_another_epoch_leaves_an_open_transaction_to_be_judged() -> None:
    """Found torn without a transaction of its own, the producer's open one is not called hanging besides."""
    states = [state("Empty")]
    for name in ("Ongoing", "PrepareCommit", "CompleteCommit"):
        states.append(state(name, offset=len(states))._replace(partitions=(("t", 0),)))
    open_one = Transaction(DATA, "", 7, 1, 0, 4, -1, -1, "", 0, START, -1)
    facts = [LogFacts(DATA), LogFacts(STATES)]
    found = judge_transactions([open_one], states, facts)
    assert [one.rule for one in found] == ["torn-transaction"]


@pytest.mark.parametrize(
    ("marked", "rules"),
    [
        ({1: ABORT, 3: COMMIT}, set()),
        ({0: COMMIT, 3: COMMIT}, set()),
        ({2: COMMIT}, set()),
        ({0: COMMIT, 1: COMMIT, 2: COMMIT, 3: COMMIT}, {"torn-transaction"}),
        ({3: ABORT}, {"torn-transaction"}),
    ],
)
def test_compaction_takes_markers_anywhere(marked: dict[int, str], rules: set[str]) -> None:
    """The cleaner takes the marker of a transaction none of whose batches is left, newer ones or not."""
    states, marks = [state("Empty")], []
    for number, (name, _) in enumerate([("Commit", COMMIT), ("Abort", ABORT), ("Commit", COMMIT), ("Commit", COMMIT)]):
        at = START + 10_000 * number
        for written in ("Ongoing", f"Prepare{name}", f"Complete{name}"):
            times = {"start_timestamp": at, "update_timestamp": at + 50}
            states.append(state(written, offset=len(states))._replace(partitions=(("t", 0),), **times))
        if number in marked:
            first = 10 * number
            outcome = marked[number]
            marks.append(Transaction(DATA, "", 7, 3, first, first, first + 5, 3, outcome, 0, at, at + 60))
    facts = [LogFacts(DATA, cleaned_offset=29, compacts=True), LogFacts(STATES)]
    found = judge_transactions(marks, states, facts, coordinators_complete=True)
    assert {one.rule for one in found} == rules


def test_a_transaction_that_never_began() -> None:
    """Kafka 4.4.0 after a kill: the record was appended and not replicated in time, and the next instance begins from
    the state before."""
    (notice,) = judge_states(history("CompleteCommit Ongoing Empty/4 Ongoing/4"))
    assert (notice.rule, notice.severity, notice.first_offset) == ("txn-state", NOTICE, 2)
    (error,) = judge_states(history("CompleteCommit Ongoing Empty/5"))
    assert error.severity == ERROR


@pytest.mark.parametrize(("marker", "rules"), [(10, []), (8, []), (7, ["coordinator-epoch"])])
def test_a_coordinator_whose_partition_was_elected_again(marker: int, rules: list[str]) -> None:
    """As a live Kafka 4.4.0: it decided in leader epoch 10, and its marker had the epoch of before."""
    states = [
        state(name, offset=offset)._replace(leader_epoch=epoch, partitions=(("t", 0),))
        for offset, (name, epoch) in enumerate(
            [("Empty", 8), ("Ongoing", 8), ("PrepareCommit", 10), ("CompleteCommit", 10)]
        )
    ]
    txn = Transaction(DATA, "", 7, 3, 0, 4, 5, 3, COMMIT, marker, START, END)
    facts = [LogFacts(DATA), LogFacts(STATES)]
    assert [one.rule for one in judge_transactions([txn], states, facts, coordinators_complete=True)] == rules
