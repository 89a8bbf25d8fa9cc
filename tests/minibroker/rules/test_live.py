"""Rows that come in bit by bit give the findings that all of them give at once, and what is decided is dropped."""

from __future__ import annotations

import pytest
from followed_rows import FAULTS, at_once, followed, rows_of, skewed

from minibroker.rules import rows as r
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


def test_an_idle_producer_is_forgotten_and_one_with_an_open_transaction_is_not() -> None:
    log = r.Log("", "t", 0)
    opened = r.Run(log, "t-0", 0, 5, 5, 2, 0, 0, 0, True, 1, 1, 0, 0, 5, 80)
    state = LogState({1: Producer(0, 7, alive_ms=10), 2: Producer(0, 7, alive_ms=10, txn=opened), 3: Producer(0, 7)})
    state.producers[3].alive_ms = 20
    state.expire(20)
    assert [*state.producers] == [2, 3]
    assert state.expired


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
