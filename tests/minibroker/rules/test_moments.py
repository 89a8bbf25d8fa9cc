"""A cluster that wrote on while its logs were read one after the other: nothing is found in it, and what is wrong in
what was there before any of them was read is found.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import pytest
from sampling import thinned

from minibroker.rules.catalogue import ERROR, NOTICE
from minibroker.rules.decisions import coordinators_whole
from minibroker.rules.file_rules import LogRows
from minibroker.rules.live import LiveJudge
from minibroker.rules.log_rules import LogVerdict, judge_log
from minibroker.rules.moments import APART_MS, CLOCKS_MS, Moments, newest_ms
from minibroker.rules.rows import (
    ABORT,
    COMMIT,
    EVERYTHING,
    NONE,
    Finding,
    Log,
    LogFacts,
    Marker,
    Span,
    Transaction,
    TxnState,
)
from minibroker.rules.rules import judge_verdicts
from minibroker.rules.state_rules import judge_states
from minibroker.rules.txn_rules import judge_transactions

STATES = Log("", "__transaction_state", 1)
DATA = Log("", "t", 0)
STEP = 10
STEPS = ("Ongoing", "data", "Prepare", "marker", "Complete")
TIMEOUT = 60_000


class Story(NamedTuple):
    """What one producer did, with the time of each row; `bumps`: its epoch rises with each transaction, as with
    transaction.version 2."""

    states: list[TxnState]
    transactions: list[Transaction]
    end: int


def told(outcomes: str, *, bumps: bool) -> Story:
    """C and A are transactions committed and aborted, each of five steps."""
    states: list[TxnState] = []
    transactions = []
    epoch, time = 3, 0

    def state(name: str, started: int) -> None:
        places = () if name.startswith("Complete") else (("t", 0),)
        states.append(TxnState(STATES, len(states), 0, "tx", 7, epoch, TIMEOUT, name, places, started, time))

    for number, letter in enumerate(outcomes):
        started, decision = time, "Commit" if letter == "C" else "Abort"
        state("Ongoing", started)
        data_epoch, first, written = epoch, 2 * number, time + STEP
        epoch += bumps
        time += 2 * STEP
        state(f"Prepare{decision}", started)
        time += STEP
        outcome = COMMIT if letter == "C" else ABORT
        transactions.append(
            Transaction(DATA, "", 7, data_epoch, first, first, first + 1, epoch, outcome, 0, written, time)
        )
        time += STEP
        state(f"Complete{decision}", started)
        time += STEP
    return Story(states, transactions, time)


def partition_at(story: Story, time: int, deleted: int) -> list[Transaction]:
    """The transactions as the partition showed them then, without the first ones."""
    rows = []
    for txn in story.transactions[deleted:]:
        if txn.end_timestamp < time:
            rows.append(txn)
        elif txn.start_timestamp < time:
            opened = {"marker_offset": NONE, "marker_epoch": NONE, "outcome": "", "coordinator_epoch": NONE}
            rows.append(txn._replace(**opened, end_timestamp=txn.start_timestamp))
    return rows


def states_at(story: Story, time: int, compacted: int) -> list[TxnState]:
    """The records that were there then, the first ones compacted: the id's newest always stays."""
    rows = [state for state in story.states if state.update_timestamp < time]
    return rows[min(compacted, max(len(rows) - 1, 0)) :]


def judged(
    transactions: list[Transaction], states: list[TxnState], facts: list[LogFacts], *, apart_ms: int = APART_MS
) -> list[Finding]:
    moments = Moments(facts, newest_ms(states, transactions), apart_ms)
    newest = max((row for row in newest_ms(states, transactions).values()), default=None)
    whole = coordinators_whole(facts)
    return judge_transactions(
        transactions, states, facts, coordinators_complete=whole, as_of_ms=newest, moments=moments
    )


def live(story: Story, before: int, read: int, after: int, *, compacted: int, deleted: int) -> list[Finding]:
    """Coordinators' log, partition, and the coordinators' log again, each at its time."""
    settled = sum(state.update_timestamp < before for state in story.states)
    facts = [
        LogFacts(DATA, start_offset=2 * deleted, first_offset=2 * deleted, indexed=False),
        LogFacts(STATES, cleaned_offset=EVERYTHING, indexed=False, settled_offset=settled),
    ]
    return judged(partition_at(story, read, deleted), states_at(story, after, compacted), facts)


def copied(story: Story, read: int, decided: int, *, compacted: int, deleted: int) -> list[Finding]:
    """A copy of a directory whose broker ran: the partition at one time, the coordinators' log at another."""
    facts = [
        LogFacts(DATA, start_offset=2 * deleted, first_offset=2 * deleted, clean=False),
        LogFacts(STATES, cleaned_offset=EVERYTHING if compacted else 0, clean=False),
    ]
    return judged(partition_at(story, read, deleted), states_at(story, decided, compacted), facts)


STORIES = {
    f"{outcomes}{'+' * bumps}": told(outcomes, bumps=bumps)
    for bumps, outcomes in product((False, True), ("CACA", "CCACC", "AACCA"))
}
IN_PART = thinned(list(STORIES), 3)
GONE = [(0, 0), (7, 0), (0, 2), (7, 1), (13, 3)]
"""(records compacted, transactions deleted)."""


def times(story: Story) -> Iterator[int]:
    """Between any two steps; the first transaction is over."""
    return iter(range(len(STEPS) * STEP + 5, story.end + STEP, STEP))


@pytest.mark.parametrize("name", IN_PART)
def test_whatever_was_written_while_a_cluster_was_listed_is_not_found(name: str) -> None:
    found, story = [], STORIES[name]
    for compacted, deleted in GONE:
        moments = list(times(story))
        for number, read in enumerate(moments):
            for before, after in product(moments[: number + 1 : 3], moments[number::4]):
                found += live(story, before, read, after, compacted=compacted, deleted=deleted)
    assert [str(one) for one in found] == []


@pytest.mark.parametrize("name", IN_PART)
def test_whatever_was_written_while_a_directory_was_copied_is_not_found(name: str) -> None:
    found, story = [], STORIES[name]
    for compacted, deleted in GONE:
        for read, decided in product(times(story), times(story)):
            found += copied(story, read, decided, compacted=compacted, deleted=deleted)
    assert [str(one) for one in found] == []


def changed(story: Story, number: int, **fields: object) -> Story:
    transactions = list(story.transactions)
    transactions[number] = transactions[number]._replace(**fields)  # type: ignore[arg-type]
    return story._replace(transactions=transactions)


@pytest.mark.parametrize("bumps", [False, True])
@pytest.mark.parametrize("ends_so", [ABORT, ""])
def test_what_was_torn_before_a_cluster_was_listed_is_found(ends_so: str, bumps: bool) -> None:
    """The last of the transactions that were complete has the other marker, or none."""
    story = told("CCCCC", bumps=bumps)
    wrong = {"outcome": ends_so} if ends_so else {"marker_offset": NONE, "marker_epoch": NONE, "outcome": ""}
    planted = changed(story, 2, **wrong)
    if not ends_so:
        planted = planted._replace(transactions=planted.transactions[:3])
    before = len(STEPS) * STEP * 3
    for after in range(before, story.end, STEP):
        found = live(planted, before, before + 5, after + 5, compacted=0, deleted=0)
        rule = "torn-transaction" if ends_so else "hanging-transaction"
        assert [(one.rule, one.first_offset) for one in found] == [(rule, 4)]


@pytest.mark.parametrize("bumps", [False, True])
def test_what_was_torn_in_the_middle_of_a_copied_directory_is_found(bumps: bool) -> None:
    story = told("CCCCC", bumps=bumps)
    planted = changed(story, 2, outcome=ABORT)
    for read, decided in product(range(205, story.end + STEP, STEP), repeat=2):
        found = copied(planted, read, decided, compacted=0, deleted=0)
        assert {(one.rule, one.first_offset) for one in found} == {("torn-transaction", 4)}, (read, decided)


def test_a_missing_marker_is_found_once_no_copy_takes_so_long() -> None:
    """The marker of the last transaction is missing. The broker wrote on, elsewhere."""
    story = told("CCC", bumps=True)
    transactions = partition_at(changed(story, 2, marker_offset=NONE, end_timestamp=NONE, outcome=""), 1 << 40, 0)
    complete = story.states[-1].update_timestamp
    facts = [LogFacts(DATA, clean=False), LogFacts(STATES, clean=False)]
    for waited, expected in ((APART_MS, []), (APART_MS + 1, ["hanging-transaction"])):
        elsewhere = TxnState(STATES, 99, 0, "other", 8, 0, TIMEOUT, "Empty", (), NONE, complete + waited)
        found = judged(transactions, [*story.states, elsewhere], facts)
        assert [one.rule for one in found] == expected
    assert [one.rule for one in judged(transactions, story.states, facts, apart_ms=0)] == ["hanging-transaction"]


def test_a_missing_marker_is_found_where_its_log_has_a_later_one() -> None:
    """However lately it was copied: the copy has all that was there before that marker."""
    story = told("CCC", bumps=True)
    completed = story.states[-1].update_timestamp + 500
    states = [*story.states[:-1], story.states[-1]._replace(timestamp=completed)]
    transactions = partition_at(changed(story, 2, marker_offset=NONE, end_timestamp=NONE, outcome=""), 1 << 40, 0)
    for marked, expected in (
        (NONE, []),
        (completed + CLOCKS_MS, []),
        (completed + CLOCKS_MS + 1, ["hanging-transaction"]),
    ):
        facts = [LogFacts(DATA, clean=False, marked_ms=marked), LogFacts(STATES, clean=False)]
        assert [one.rule for one in judged(transactions, states, facts)] == expected
    assert judged(transactions, story.states, facts) == []  # when it was complete is not known


def test_the_last_marker_of_a_log_has_its_time() -> None:
    """Of any producer."""
    ended = Marker(DATA, "f", 0, 4, 9, 0, COMMIT, 0, 777)
    assert judge_log(LogRows(LogFacts(DATA), markers=(ended,))).facts.marked_ms == 777


def test_directories_that_were_closed_at_different_times() -> None:
    """A broker that was stopped a day before the others misses what came after, and so do the coordinators' logs of
    it."""
    story = told("CCCC", bumps=True)
    day = 86_400_000
    later = [
        state._replace(offset=state.offset + 99, update_timestamp=state.update_timestamp + day)
        for state in story.states
    ]
    behind, ahead = LogFacts(Log("b1", "t", 0)), LogFacts(Log("b2", "__transaction_state", 1))
    rows = [txn._replace(log=behind.log) for txn in story.transactions]
    states = [state._replace(log=ahead.log) for state in (*story.states, *later)]
    decided = [state._replace(producer_epoch=state.producer_epoch + 4) for state in states[len(story.states) :]]
    assert judged(rows, [*states[: len(story.states)], *decided], [behind, ahead]) == []
    together = [fact._replace(log=fact.log._replace(root="b1")) for fact in (behind, ahead)]
    missing = judged(rows, [*states[: len(story.states)], *decided], together)
    assert {one.rule for one in missing} == {"torn-transaction"}


SLOW = 100
"""Steps that far apart are more than the clocks of brokers differ by."""


def slowly(story: Story) -> Story:
    states = [
        state._replace(start_timestamp=state.start_timestamp * SLOW, update_timestamp=state.update_timestamp * SLOW)
        for state in story.states
    ]
    transactions = [
        txn._replace(start_timestamp=txn.start_timestamp * SLOW, end_timestamp=txn.end_timestamp * SLOW)
        for txn in story.transactions
    ]
    return Story(states, transactions, story.end * SLOW)


def closed(story: Story, kept: list[Transaction], *, compacted: int, deleted: int) -> list[tuple[str, str]]:
    """Rules and messages of a directory that was closed."""
    facts = [
        LogFacts(DATA, start_offset=2 * deleted, first_offset=2 * deleted),
        LogFacts(STATES, cleaned_offset=EVERYTHING if compacted else 0),
    ]
    found = judged(kept, states_at(story, story.end, compacted), facts, apart_ms=0)
    return [(one.rule, one.message) for one in found]


@pytest.mark.parametrize("outcomes", ["CACA", "ACCA", "CCACC", "AACCA"])
@pytest.mark.parametrize("compacted", [0, 7, 11])
def test_a_dropped_marker_says_nothing_of_the_others(outcomes: str, compacted: int) -> None:
    """Kafka drops the marker of a partition that has no leader. All these transactions have one epoch, as below
    transaction.version 2; the one without its marker has no record here."""
    story = slowly(told(outcomes, bumps=False))
    for dropped, deleted in product(range(1, len(outcomes)), (0, 1, 2)):
        kept = [txn for number, txn in enumerate(story.transactions) if number >= deleted and number != dropped]
        found = closed(story, kept, compacted=compacted, deleted=deleted)
        decision = COMMIT if outcomes[dropped] == "C" else ABORT
        missing = ("torn-transaction", f"the coordinator calls it complete ({decision}), the partition has no marker")
        assert found in ([], [missing]), (dropped, deleted)
        if not deleted and not compacted:
            assert found == [missing], dropped
    middle = [txn for number, txn in enumerate(story.transactions) if number != 2][1:]
    if not compacted and outcomes[2] != outcomes[1]:
        assert len(closed(story, middle, compacted=0, deleted=1)) == 1


@pytest.mark.parametrize("outcomes", ["CCACC", "ACCA"])
def test_a_wrong_marker_is_found_where_the_first_were_deleted(outcomes: str) -> None:
    story = slowly(told(outcomes, bumps=False))
    for wrong in range(1, len(outcomes)):
        other = ABORT if outcomes[wrong] == "C" else COMMIT
        planted = changed(story, wrong, outcome=other).transactions[1:]
        found = closed(story, planted, compacted=0, deleted=1)
        assert len(found) == 1
        assert found[0][1].endswith(f"the marker at offset {2 * wrong + 1} says {other}")


@pytest.mark.parametrize("first", ["PrepareAbort", "PrepareCommit"])
def test_a_decision_that_was_not_replicated_in_time_is_none(first: str) -> None:
    """A Kafka 4.4.0 one of whose two brokers was killed appended a decision at epoch 3 and refused it, and aborted the
    transaction at epoch 4 when it timed out: one marker, of that one."""
    names = ("Empty/3", "Ongoing/3", f"{first}/3", "PrepareAbort/4", "CompleteAbort/4")
    states = []
    for offset, (name, _, epoch) in enumerate(text.partition("/") for text in names):
        places = (("t", 0),) if name not in ("Empty", "CompleteAbort") else ()
        states.append(TxnState(STATES, offset, 0, "tx", 7, int(epoch), TIMEOUT, name, places, 10, 5_000 * offset))
    marked = Transaction(DATA, "", 7, 3, 0, 0, 1, 4, ABORT, 0, 5_000, 15_000)
    story = Story(states, [marked], 30_000)
    assert closed(story, [marked], compacted=0, deleted=0) == []
    (found,) = judge_states(states)
    assert (found.rule, found.severity) == ("txn-state", NOTICE)
    other = [*states[:3], states[3]._replace(start_timestamp=11), states[4]]
    (found,) = judge_states(other)
    assert found.severity == ERROR
    assert closed(Story(other, [marked], 30_000), [marked], compacted=0, deleted=0)


@pytest.mark.parametrize("second", ["PrepareAbort", "PrepareCommit"])
def test_a_decision_that_was_not_replicated_in_time_and_taken_again_at_its_epoch_is_one(second: str) -> None:
    """From transaction.version 2 on the client's second EndTxn, or the timeout, bumps the open epoch again, to the same
    one: one marker, of the second."""
    complete = second.replace("Prepare", "Complete")
    names = ("Empty/3", "Ongoing/3", "PrepareCommit/4", f"{second}/4", f"{complete}/4")
    states = []
    for offset, (name, _, epoch) in enumerate(text.partition("/") for text in names):
        places = (("t", 0),) if name not in ("Empty", complete) else ()
        states.append(TxnState(STATES, offset, 0, "tx", 7, int(epoch), TIMEOUT, name, places, 10, 5_000 * offset))
    outcome = COMMIT if second == "PrepareCommit" else ABORT
    marked = Transaction(DATA, "", 7, 3, 0, 0, 1, 4, outcome, 0, 5_000, 15_000)
    assert closed(Story(states, [marked], 30_000), [marked], compacted=0, deleted=0) == []
    assert all(found.severity == NOTICE for found in judge_states(states))


def test_a_transaction_that_goes_on_after_an_abort_that_was_not_replicated_in_time() -> None:
    """From transaction.version 2 on a timeout bumps no epoch before its abort is replicated (TransactionCoordinator,
    Kafka 4.4.0), so that the client goes on: one marker, of its own end. With the epoch of the abort nobody can."""
    names = ("Empty/3", "Ongoing/3", "PrepareAbort/4", "Ongoing/3", "PrepareCommit/4", "CompleteCommit/4")
    states = []
    for offset, (name, _, epoch) in enumerate(text.partition("/") for text in names):
        places = (("t", 0),) if name not in ("Empty", "CompleteCommit") else ()
        states.append(TxnState(STATES, offset, 0, "tx", 7, int(epoch), TIMEOUT, name, places, 10, 5_000 * offset))
    marked = Transaction(DATA, "", 7, 3, 0, 0, 1, 4, COMMIT, 0, 5_000, 20_000)
    assert closed(Story(states, [marked], 30_000), [marked], compacted=0, deleted=0) == []
    (found,) = judge_states(states)
    assert (found.rule, found.severity) == ("txn-state", NOTICE)
    for wrong in (states[3]._replace(producer_epoch=4), states[3]._replace(start_timestamp=11)):
        other = [*states[:3], wrong, *states[4:]]
        assert [one.severity for one in judge_states(other)] == [ERROR]
        assert closed(Story(other, [marked], 30_000), [marked], compacted=0, deleted=0)


def of_a_replica_that_fell_behind(story: Story, low: int, high: int) -> list[str]:
    """Messages of a closed directory whose replica of the coordinator's log has the records before `low` and, as the
    leader's log was compacted meanwhile, those from `high` on; and of one that is followed, without the partition."""
    spans = Span(STATES, "", 0, 0, low), Span(STATES, "", 0, high, len(story.states))
    states = [*story.states[:low], *story.states[high:]]
    facts = LogFacts(STATES, cleaned_offset=EVERYTHING, compacts=True)
    verdicts = [
        judge_log(LogRows(facts, spans=spans)),
        LogVerdict(LogFacts(DATA), 2 * len(story.transactions), [], story.transactions, []),
    ]
    found = judge_verdicts(
        verdicts, states, (), (), as_of_ms=story.end, max_timeout_ms=TIMEOUT, apart_ms=0
    )  # fmt: skip
    follower = LiveJudge()
    follower.know(facts._replace(indexed=False))
    follower.take(STATES, [*states, *spans], story.end)
    return [one.message for one in (*found, *follower.judge(story.end))]


@pytest.mark.parametrize("bumps", [False, True])
def test_a_replica_that_fell_behind_has_a_hole_between_two_states(bumps: bool) -> None:
    """A follower of Kafka 4.4.0 that was down had PrepareAbort before the hole and Ongoing after it, of one id."""
    story = slowly(told("CAACCACA", bumps=bumps))
    for low, high in product((3, 5, 8, 9), (12, 15, 16, 19)):
        assert of_a_replica_that_fell_behind(story, low, high) == [], (low, high)
        wrong = changed(story, 6, outcome=ABORT)
        (message,) = of_a_replica_that_fell_behind(wrong, low, high)
        assert message.endswith("the marker at offset 13 says ABORT")
