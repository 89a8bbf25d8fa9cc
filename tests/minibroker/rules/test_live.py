"""Rows that come in bit by bit give the findings that all of them give at once, and what is decided is dropped."""

from __future__ import annotations

import pytest
from followed_rows import (
    DATA,
    FAULTS,
    LOGS,
    OFFSETS,
    STATES,
    Application,
    Cluster,
    at_once,
    facts_of,
    followed,
    rows_of,
    skewed,
)

from minibroker.rules import rows as r
from minibroker.rules.catalogue import ERROR, NOTICE
from minibroker.rules.live import FORGOTTEN_MS, LiveJudge, identity
from minibroker.rules.log_rules import LogState, Producer

SEEDS = 2


@pytest.mark.parametrize("fault", ["", *FAULTS])
def test_bit_by_bit_as_at_once(fault: str) -> None:
    seen = set()
    for seed in range(SEEDS):
        cluster = rows_of(seed, fault, 300)
        expected = at_once(cluster)
        seen |= {rule for rule, *_ in expected}
        for rounds in (1, 25):
            new, _, judge = followed(cluster, seed, rounds)
            assert {identity(one) for one in new} == expected, (seed, rounds)
            assert len(new) == len(expected), "told twice"
            assert {identity(one) for one in judge.present} == expected
    assert seen >= ({fault} - {""})


@pytest.mark.parametrize("behind_ms", [500, 3000])
@pytest.mark.parametrize("fault", ["", "sequence-gap"])
def test_clocks_that_differ(fault: str, behind_ms: int) -> None:
    for seed in range(SEEDS):
        cluster = skewed(rows_of(seed, fault, 300), behind_ms)
        new, kept, _ = followed(cluster, seed, 25)
        assert {identity(one) for one in new} == at_once(cluster), seed
        assert max(kept) < 100


@pytest.mark.parametrize("fault", ["", "torn-transaction", "sequence-gap"])
def test_what_is_kept_does_not_grow(fault: str) -> None:
    """Neither with rounds nor with transactions, also after a fault."""
    cluster = rows_of(0, fault, 1000)
    _, kept, _ = followed(cluster, 0, 50)
    assert len(cluster.rows) > 2000
    assert max(kept[25:]) <= max(kept[5:25]) + 5 < 80


def test_offsets_of_a_transaction_whose_marker_is_lost_are_decided() -> None:
    """With those after them of the group."""
    log, judge, kept = r.Log("", r.CONSUMER_OFFSETS, 0), LiveJudge(), []
    facts = r.LogFacts(log, cleaned_offset=r.EVERYTHING, compacts=True, indexed=False)
    lost = r.Run(log, "f", 0, 0, 0, 7, 0, 0, 0, True, 1, 1, 100, 100, 0, 100)
    commits = [r.CommittedOffset(log, at, 7 if at < 9 else r.NONE, 0, "g", "t", 0, at) for at in (0, *range(9, 60))]
    rows: list[object] = [r.Span(log, "f", 0, 0, 1), lost, commits[0]]  # what was there when the audit began
    for commit in commits[1:]:
        rows += [r.Span(log, "f", 0, commit.offset, commit.offset + 1), commit]
        judge.know(facts)
        judge.take(log, rows, 1_000)
        judge.judge(1_000)
        kept.append(judge.kept)
        rows = []
    assert judge.commits == commits[-1:]
    assert max(kept) < 10


@pytest.mark.parametrize("logs", [LOGS, LOGS[:-1]])
@pytest.mark.parametrize("fault", ["", "torn-transaction"])
def test_an_idle_producer_of_a_group_holds_up_nothing(fault: str, logs: list[r.Log]) -> None:
    """Its last commit is decided, though its last transaction is kept. With the coordinator's log and without."""
    cluster = Cluster()
    idle, busy = (Application(cluster, name, pid, fault, 1, group="g").steps() for pid, name in ((1, "b"), (2, "c")))
    for steps, application in ((40, idle), (1500, busy)):
        for _ in range(steps):
            next(application)
    new, kept, _ = followed(cluster, 0, 20, logs=logs)
    assert max(kept) < 60, kept
    if logs == LOGS:
        assert {identity(one) for one in new} == at_once(cluster)
        assert ("offset-outcome" in {one.rule for one in new}) == bool(fault)


@pytest.mark.parametrize("fenced", [False, True])
def test_an_id_goes_on_beside_a_transaction_that_hangs(fenced: bool) -> None:
    """Of its second transaction one marker never came, and that partition has none of the later ones."""
    cluster, judge, new, kept, read = Cluster(), LiveJudge(), [], [], 0
    cluster.state("a", 1, 0, "Empty", (), -1)
    for number in range(40):
        epoch, begun = number * fenced, cluster.now_ms + 7
        logs = DATA if number < 2 else DATA[:1]
        places = [(log.topic, log.partition) for log in logs]
        cluster.state("a", 1, epoch, "Ongoing", places, begun)
        for log in logs:
            cluster.data(log, 1, epoch, 0 if fenced else number)
        outcome = r.ABORT if number % 3 == 2 else r.COMMIT
        cluster.state("a", 1, epoch + fenced, f"Prepare{outcome.capitalize()}", places, begun)
        for log in logs[: 1 + (number == 0)]:
            cluster.marker(log, 1, epoch + fenced, outcome)
        cluster.state("a", 1, epoch + fenced, f"Complete{outcome.capitalize()}", (), begun)
        for fact in facts_of():
            judge.know(fact)
        for log in LOGS:
            judge.take(log, [row for row in cluster.rows[read:] if row.log == log], cluster.now_ms)
        new += judge.judge(cluster.now_ms)
        kept.append(judge.kept)
        read = len(cluster.rows)
    assert [(one.rule, one.log) for one in new] == [("hanging-transaction", DATA[1])]
    assert {identity(one) for one in new} == at_once(cluster)
    assert judge.present == new
    assert max(kept) < 30, kept


def test_an_idle_producer_is_forgotten_and_one_with_an_open_transaction_is_not() -> None:
    log = r.Log("", "t", 0)
    opened = r.Run(log, "t-0", 0, 5, 5, 2, 0, 0, 0, True, 1, 1, 0, 0, 5, 80)
    state = LogState({1: Producer(0, 7, alive_ms=10), 2: Producer(0, 7, alive_ms=10, txn=opened), 3: Producer(0, 7)})
    state.producers[3].alive_ms = 20
    state.expire(20)
    assert [*state.producers] == [2, 3]
    assert state.expired


def test_faults_at_one_place_are_told_apart() -> None:
    """Markers that never came have no offset: one before the topic was made again, two after that."""
    cluster, judge = Cluster(), LiveJudge()
    cluster.state("a", 1, 0, "Empty", (), -1)
    new, read = [], 0
    for epoch, marked in enumerate(([], DATA, DATA[:1], DATA[:1])):
        begun = cluster.now_ms + 7
        cluster.state("a", 1, epoch, "Ongoing", [("t", 0), ("t", 1)], begun)
        cluster.state("a", 1, epoch + 1, "PrepareCommit", [("t", 0), ("t", 1)], begun)
        for log in marked:
            cluster.marker(log, 1, epoch + 1, r.COMMIT)
        cluster.state("a", 1, epoch + 1, "CompleteCommit", (), begun)
        for fact in facts_of():
            judge.know(fact)
        for log in LOGS:
            judge.take(log, [row for row in cluster.rows[read:] if row.log == log], cluster.now_ms)
        new += judge.judge(cluster.now_ms)
        read = len(cluster.rows)
    of_log = [(one.severity, one.producer_epoch) for one in new if one.log == DATA[1]]
    assert of_log == [(NOTICE, 1), (ERROR, 3), (ERROR, 4)]
    assert {identity(one) for one in new} == at_once(cluster)
    assert len(judge.present) == len(new)


@pytest.mark.parametrize("left", [1, 2, 3])
@pytest.mark.parametrize("outcomes", ["CC", "CA", "AC", "AA"])
@pytest.mark.parametrize("fenced", [False, True])
def test_decisions_that_compaction_took_before_they_were_read(outcomes: str, left: int, fenced: bool) -> None:
    """Of two transactions while the follower was down only the last records of the id are `left`."""
    cluster, judge = Cluster(), LiveJudge()
    cluster.state("a", 1, 0, "Empty", (), -1)
    found, read = [], 0
    for number, outcome in enumerate(f"C{outcomes}C"):
        cluster.now_ms += 5000
        epoch = number * fenced
        cluster.state("a", 1, epoch, "Ongoing", [("t", 0)], begun := cluster.now_ms + 7)
        cluster.data(DATA[0], 1, epoch, 0 if fenced else number)
        word, outcome = {"C": ("Commit", r.COMMIT), "A": ("Abort", r.ABORT)}[outcome]
        cluster.state("a", 1, epoch + fenced, f"Prepare{word}", [("t", 0)], begun, prepared := cluster.now_ms + 7)
        cluster.marker(DATA[0], 1, epoch + fenced, outcome)
        cluster.state("a", 1, epoch + fenced, f"Complete{word}", (), begun, prepared)
        if number == 1:
            continue
        rows, read = cluster.rows[read:], len(cluster.rows)
        if number == 2:
            least = cluster.ends[STATES] - left
            states = [row for row in rows if row.log == STATES]
            rows = [row for row in rows if row not in states] + [
                row for row in states if (row.offset if isinstance(row, r.TxnState) else row.first_offset) >= least
            ]
        for fact in facts_of():
            judge.know(fact)
        for log in LOGS:
            judge.take(log, [row for row in rows if row.log == log], cluster.now_ms)
        found += judge.judge(cluster.now_ms)
    assert [str(one) for one in found] == []


def test_offsets_that_compaction_took_before_they_were_read() -> None:
    """While the follower was down the group was empty for a while, and its offsets were reset."""
    cluster, judge = Cluster(), LiveJudge()
    cluster.member("g", present=True)
    cluster.commit(-1, -1, "g", 20)
    for compacted in (False, True):
        if compacted:
            cluster.ends[OFFSETS] += 10
            cluster.commit(-1, -1, "g", 10)
        for fact in facts_of():
            judge.know(fact)
        judge.take(OFFSETS, cluster.rows, cluster.now_ms)
        cluster.rows.clear()
        assert [one for one in judge.judge(cluster.now_ms) if one.rule != "offset-end"] == []


def test_faults_of_readable_batches_are_not_kept() -> None:
    """Each is told once. What could not be read is kept: it excuses a hole."""
    judge, kept, new = LiveJudge(), [], []
    judge.know(r.LogFacts(DATA[0], indexed=False))
    for offset in range(10):
        fault = r.LogFault(DATA[0], "t-0", 0, offset, offset, "timestamp", "another one", readable=True)
        judge.take(DATA[0], [fault, r.Span(DATA[0], "t-0", 0, offset, offset + 1)], 1)
        new += judge.judge(1)
        kept.append(judge.kept)
    assert [one.first_offset for one in new] == [*range(10)]
    assert set(kept) == {1}
    judge.take(DATA[0], [r.LogFault(DATA[0], "t-0", 0, 10, 10, "checksum", "broken")], 1)
    assert [one.rule for one in judge.judge(1)] == ["checksum"]
    judge.take(DATA[0], [r.Span(DATA[0], "t-0", 0, 11, 12)], 1)
    assert judge.judge(1) == []


def test_deleted_ids_leave_nothing() -> None:
    """An application that takes a new id for each run."""
    states, kept = r.Log("", r.TRANSACTION_STATE, 0), []
    judge, offset = LiveJudge(), 0
    for run in range(30):
        judge.know(r.LogFacts(states, indexed=False, cleaned_offset=r.EVERYTHING, compacts=True))
        names = ("Empty", "Ongoing", "PrepareCommit", "CompleteCommit", "")
        history = [
            r.TxnState(states, offset + n, 0, f"run-{run}", run, 0, 60_000, name, (), 1, 1 + n, 1 + n)
            for n, name in enumerate(names)
        ]
        offset += len(names)
        judge.take(states, [*history, r.Span(states, "", 0, offset - len(names), offset)], FORGOTTEN_MS)
        assert judge.judge(FORGOTTEN_MS) == []
        kept.append(len(judge.states))
    assert set(kept) == {0}
