"""Seeds that must break no promise, and that a run is worth its time: the same again each time, and full of trouble."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from minibroker.simulation.command import coverage
from minibroker.simulation.holes import HOLES
from minibroker.simulation.plan import draw
from minibroker.simulation.run import Outcome, simulate

REGRESSIONS = Path(__file__).with_name("regressions.txt")
SAMPLE = range(20_000, 20_080)
SEEDS = 1000
CHUNK = 50

MUST_HAPPEN = {
    *("broker crashed", "broker stopped", "broker started", "power lost", "broker isolated", "broker fenced"),
    *("leader moved", "instance started", "client died", "dawdles", "abortable", "producer ended", "assigned"),
    *("client: lost", "client: late", "client: answer lost", "between brokers: lost", "between brokers: late"),
    *("between brokers: answer lost", "Produce: NONE", "Produce: NOT_LEADER_OR_FOLLOWER", "Produce: REQUEST_TIMED_OUT"),
    *("Produce: INVALID_PRODUCER_EPOCH", "EndTxn: NONE", "EndTxn: PRODUCER_FENCED", "EndTxn: NOT_COORDINATOR"),
    *("InitProducerId: CONCURRENT_TRANSACTIONS", "TxnOffsetCommit: NONE", "JoinGroup: MEMBER_ID_REQUIRED"),
    *("OffsetFetch: UNSTABLE_OFFSET_COMMIT", "AddPartitionsToTxn: CONCURRENT_TRANSACTIONS", "AddOffsetsToTxn: NONE"),
}


def regressions() -> list[int]:
    lines = REGRESSIONS.read_text(encoding="utf-8").splitlines()
    return [int(line.split()[0]) for line in lines if line and not line.startswith("#")]


def told(outcome: Outcome) -> str:
    return f"minibroker simulate --seed {outcome.plan.seed}: {outcome.why()}\n{outcome.crash}"


@pytest.mark.parametrize("seed", regressions())
def test_seeds_that_showed_something(seed: int) -> None:
    outcome = simulate(seed)
    assert not outcome.broken, told(outcome)


def test_a_sample_breaks_nothing_and_comes_through_everything() -> None:
    counts: Counter[str] = Counter()
    for seed in SAMPLE:
        outcome = simulate(seed)
        assert not outcome.broken, told(outcome)
        counts.update(outcome.counts)
    missing = sorted(MUST_HAPPEN - set(counts))
    assert not missing, "\n".join([f"never happened: {missing}", *coverage(counts)])


@pytest.mark.simulation
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_a_thousand_seeds(first: int) -> None:
    for seed in range(first, first + CHUNK):
        outcome = simulate(seed)
        assert not outcome.broken, told(outcome)


def test_a_seed_is_the_same_again() -> None:
    first, again = simulate(324, telling=True), simulate(324, telling=True)
    assert len(first.story) > 100
    assert first.story == again.story
    assert simulate(325, telling=True).story != first.story


def test_plans_differ_in_every_way() -> None:
    plans = [draw(seed) for seed in range(200)]
    assert {plan.brokers for plan in plans} == {1, 3}
    assert {(plan.semantics, plan.client_version) for plan in plans} == {
        ("kafka", 0),
        ("kafka", 1),
        ("kafka", 2),
        ("kip", 1),
    }
    assert {plan.copiers for plan in plans} == {0, 1, 2}


def test_known_holes_are_named_once_and_cited() -> None:
    assert len({hole.name for hole in HOLES}) == len(HOLES)
    for hole in HOLES:
        assert hole.source
        assert hole.what.endswith(".")
