"""Seeds that must break no promise, and that a run is worth its time: the same again each time, and full of trouble."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from defects import Defect, plant
from sampling import thinned
from simulation_coverage import Coverage, report, sizes

from minibroker_lab.simulation.copier import Copier
from minibroker_lab.simulation.evidence import Evidence
from minibroker_lab.simulation.holes import HOLES
from minibroker_lab.simulation.nemesis import Nemesis
from minibroker_lab.simulation.own_records import OwnRecords
from minibroker_lab.simulation.plan import draw
from minibroker_lab.simulation.producers import Producer
from minibroker_lab.simulation.run import SeedResult, simulate
from minibroker_lab.simulation.world import World

SHOWN = Path(__file__).with_name("holes.txt")
REGRESSIONS = Path(__file__).with_name("regressions.txt")
SAMPLE = (20092, 20144, 20358, 20400, 20425, 20427, 20432, 20435, 20450, 20467)
"""Few that come through everything together; the tier `simulation` runs a thousand others."""
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
    *("reassigned", "unclean election", "disk error", "disk full", "controller absent", "member leaves"),
    *("DeleteRecords: NONE", "begins anew", "ConsumerGroupHeartbeat: NONE", "batch given up", "no producer id"),
    # The transaction machine: states, what came in them, and the ways between them.
    *(f"transaction: {state}, InitProducerId" for state in ("unknown", "Ongoing", "CompleteAbort", "CompleteCommit")),
    *(f"transaction: {state}, EndTxn commit" for state in ("Ongoing", "CompleteAbort", "CompleteCommit")),
    *(f"transaction: {state} (changing), AddPartitionsToTxn" for state in ("PrepareCommit", "PrepareAbort")),
    *("transaction: CompleteAbort, InitProducerId with epoch", "transaction: elsewhere, EndTxn commit"),
    *("transaction: Ongoing -> PrepareCommit", "transaction: Ongoing -> PrepareAbort", "transaction: Empty -> Ongoing"),
    *("transaction: CompleteCommit -> Ongoing", "transaction: CompleteAbort -> Ongoing"),
    *("transaction: CompleteAbort -> Empty", "transaction: PrepareAbort -> CompleteAbort"),
    # What a partition knows of a producer, and what it is sent.
    *(f"producer: known, {batch}" for batch in ("next batch", "batch again", "new epoch", "batch of an older epoch")),
    *("producer: in a transaction, batch again", "producer: unknown, later batch"),
    *("producer: known -> in a transaction", "producer: in a transaction -> known"),
    # In-sync sets and leaders.
    *("partition: 3 of 3 in sync -> 2 of 3 in sync", "partition: 2 of 3 in sync -> 3 of 3 in sync"),
    *("partition: 1 of 1 in sync -> 0 of 1 in sync, no leader", "partition: 3 of 3 in sync, new leader"),
    # Groups of both protocols.
    *("group: PreparingRebalance, JoinGroup", "group: Stable, TxnOffsetCommit"),
    *("group: Reconciling, ConsumerGroupHeartbeat", "group: unknown, ConsumerGroupHeartbeat"),
}
FLOOR = {
    "transaction: events in states": 24,
    "transaction: transitions": 10,
    "producer: events in states": 11,
    "producer: transitions": 4,
    "partition: transitions": 12,
    "group: events in states": 16,
    "events": 100,
}
"""Different ones that the sample has to come through, part by part of the report."""


def _lines(path: Path, separator: str) -> list[tuple[str, str]]:
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = [line.partition(separator) for line in lines if line and not line.startswith("#")]
    return [(before, after.strip()) for before, _, after in rows]


def regressions() -> list[int]:
    return [int(seed) for seed, _ in _lines(REGRESSIONS, " ")]


def shown() -> dict[str, list[int]]:
    """Name of a hole -> seeds."""
    return {name: [int(seed) for seed in seeds.split()] for name, seeds in _lines(SHOWN, ":")}


@pytest.mark.parametrize("name", thinned(list(shown()), 8))
def test_a_known_hole_is_found_and_named(name: str) -> None:
    seeds = shown()[name]
    for seed in seeds:
        outcome = simulate(seed)
        assert not outcome.broken, told(outcome)
        if outcome.counts[f"hole: {name}"]:
            return
    pytest.fail(f"none of the seeds {seeds} shows {name!r} any more")


FACTS: dict[str, tuple[type, str]] = {
    "marker dropped without a leader": (World, "_dropped"),
    "unclean election": (Evidence, "changed"),
    "window forgotten by restart": (Evidence, "changed"),
    "late EndTxn": (Producer, "served_late"),
    "late InitProducerId": (Producer, "served_late"),
    "late copy awaits verification": (Producer, "served_late"),
    "late WriteTxnMarkers": (World, "_strayed"),
    "coordinator loads what is not committed": (World, "_early"),
    "producers forgotten with their records": (World, "_note_files"),
    "producers found again below the log start": (World, "_note_files"),
    "fenced by a coordinator left behind": (World, "deposed"),
    "truncation undone by a lost machine": (Nemesis, "_note_uncut"),
    "late TxnOffsetCommit": (Copier, "served_late"),
    "own records below the log start": (OwnRecords, "arrives"),
}
"""Who notes what a hole rests on."""


@pytest.mark.parametrize("name", thinned(list(FACTS), 7))
def test_a_hole_without_its_facts_is_a_broken_promise(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The excuse is what was noted when it happened, not what a finding looks like."""
    monkeypatch.setattr(*FACTS[name], lambda *given: None)
    assert any(simulate(seed).broken for seed in shown()[name])


def told(outcome: SeedResult) -> str:
    return f"minibroker simulate --seed {outcome.plan.seed}: {outcome.why()}\n{outcome.crash}"


@pytest.mark.parametrize("seed", thinned(regressions(), 16))
def test_seeds_that_showed_something(seed: int) -> None:
    outcome = simulate(seed)
    assert not outcome.broken, told(outcome)


def test_a_sample_breaks_nothing_and_comes_through_everything() -> None:
    counts: Counter[str] = Counter()
    for seed in SAMPLE:
        outcome = simulate(seed, coverage=Coverage)
        assert not outcome.broken, told(outcome)
        counts.update(outcome.counts)
    missing = sorted(MUST_HAPPEN - set(counts))
    assert not missing, "\n".join([f"never happened: {missing}", *report(counts)])
    assert not _lazy(counts), "\n".join([f"too few: {_lazy(counts)}", *report(counts)])


def _lazy(counts: Counter[str]) -> dict[str, int]:
    found = sizes(counts)
    return {part: found.get(part, 0) for part, floor in FLOOR.items() if found.get(part, 0) < floor}


@pytest.mark.simulation
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_a_thousand_seeds(first: int) -> None:
    for seed in range(first, first + CHUNK):
        outcome = simulate(seed)
        assert not outcome.broken, told(outcome)


def test_a_seed_is_the_same_again() -> None:
    first, again = simulate(91, telling=True), simulate(91, telling=True)
    assert len(first.story) > 100
    assert first.story == again.story
    assert simulate(31, telling=True).story != first.story


def test_plans_differ_in_every_way() -> None:
    plans = [draw(seed) for seed in range(200)]
    assert {plan.brokers for plan in plans} == {1, 3}
    assert {(plan.semantics, plan.client_version) for plan in plans} == {
        ("kafka", 0),
        ("kafka", 1),
        ("kafka", 2),
        ("kip", 1),
        ("kip", 2),
    }
    assert {plan.copiers for plan in plans} == {0, 1, 2}


def test_known_holes_are_named_once_and_cited() -> None:
    assert len({hole.name for hole in HOLES}) == len(HOLES)
    for hole in HOLES:
        assert hole.source
        assert hole.what.endswith(".")


FORGETFUL = Defect(
    "forgetful",
    "a copier commits where it is",
    f"{Copier.__module__}:{Copier._round.__qualname__}",
    "await self._send_offsets(moved, generation)",
    "await self._send_offsets({place: at * self.random.randrange(2) for place, at in moved.items()}, generation)",
)


def test_offsets_that_go_back_are_counted() -> None:
    """A member that forgets where it was: no broken promise of the broker's, so a notice."""

    def counted() -> int:
        return simulate(139).counts["notice: offset-rewind"]

    honest = counted()
    with plant(FORGETFUL):
        assert counted() > honest + 1
