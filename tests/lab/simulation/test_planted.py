"""One-line defects, each alone, must be found: a judge that finds nothing proves nothing."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from defects import DEFECTS, Defect, plant

from minibroker_lab.simulation.run import simulate

SAMPLE = {
    "no-duplicate-detection": (11, 15, 13),
    "aborted-not-indexed": (31, 9, 26),
    "marker-on-first-partitions-only": (31, 9),
}
"""Defect → seeds of little work, one of which has to find it. When the simulation changes, others do."""

FOUND = (
    "abort-is-commit",
    "aborted-not-indexed",
    "aborted-offsets-kept",
    "aborted-only-from-fetch-offset",
    "accept-sequence-gap",
    "accept-stale-epoch",
    "append-without-verification",
    "commit-is-abort",
    "committed-listed-as-aborted",
    "committed-offsets-lost",
    "end-v5-answers-old-epoch",
    "end-v5-with-any-epoch",
    "end-with-any-epoch",
    "end-without-bump",
    "forget-last-epoch",
    "join-while-ending",
    "join-with-any-epoch",
    "lso-is-high-watermark",
    "lso-of-newest-transaction",
    "marker-keeps-epoch",
    "marker-leaves-transaction-open",
    "marker-of-stale-coordinator",
    "marker-on-first-partitions-only",
    "new-epoch-at-any-sequence",
    "new-epoch-keeps-batches",
    "new-instance-same-epoch",
    "no-aborted-transactions",
    "no-duplicate-detection",
    "no-implicit-add",
    "offsets-visible-before-commit",
    "opposite-end-accepted",
    "producer-id-given-twice",
    "read-committed-reads-everything",
    "read-past-the-bound",
    "remember-one-batch",
    "repeated-end-refused",
    "transactions-time-out-at-once",
    "verify-nothing",
    "skip-the-sync",
)
"""Every one of these is found within LIMIT seeds."""
LIMIT = 2000
SKIP_THE_SYNC = Defect(
    "skip-the-sync",
    "what is acknowledged after a sync survives a loss of power",
    "minibroker_storage.log_files:LogFiles._sync",
    "segment.flush()",
    "pass",
)
"""Nothing that a client of one healthy broker could notice, so it is not among the others."""


def found_at(name: str, seeds: Iterable[int]) -> int | None:
    """The first of these seeds that finds a defect."""
    with plant(SKIP_THE_SYNC if name == SKIP_THE_SYNC.name else DEFECTS[name]):
        return next((seed for seed in seeds if simulate(seed).broken), None)


@pytest.mark.parametrize(("name", "seeds"), SAMPLE.items())
def test_a_sample_of_defects_is_found(name: str, seeds: tuple[int, ...]) -> None:
    seed = found_at(name, seeds)
    assert seed is not None, f"{name} is not found by the seeds {seeds}"
    assert not simulate(seed).broken, "the seed is broken without the defect, too"


@pytest.mark.simulation
@pytest.mark.parametrize("name", FOUND)
def test_defects_are_found(name: str) -> None:
    seed = found_at(name, range(LIMIT))
    assert seed is not None, f"{name} is not found within {LIMIT} seeds"
    assert not simulate(seed).broken, f"seed {seed} is broken without {name}, too"
