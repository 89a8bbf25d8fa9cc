"""One-line defects, each alone, must be found: a judge that finds nothing proves nothing."""

from __future__ import annotations

import pytest
from defects import DEFECTS, Defect, plant

from minibroker.simulation.run import simulate

SAMPLE = {
    "no-duplicate-detection": 20,
    "aborted-not-indexed": 40,
    "marker-on-first-partitions-only": 60,
}
"""Defect → seeds it is found within."""

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
    "minibroker_storage.log_files:LogFiles.flush",
    "segment.flush()",
    "pass",
)
"""Nothing that a client of one healthy broker could notice, so it is not among the others."""


def found_at(name: str, limit: int) -> int | None:
    """The first seed that finds a defect."""
    with plant(SKIP_THE_SYNC if name == SKIP_THE_SYNC.name else DEFECTS[name]):
        return next((seed for seed in range(limit) if simulate(seed).broken), None)


@pytest.mark.parametrize(("name", "limit"), SAMPLE.items())
def test_a_sample_of_defects_is_found(name: str, limit: int) -> None:
    seed = found_at(name, limit)
    assert seed is not None, f"{name} is not found within {limit} seeds"
    assert not simulate(seed).broken, "the seed is broken without the defect, too"


@pytest.mark.simulation
@pytest.mark.parametrize("name", FOUND)
def test_defects_are_found(name: str) -> None:
    seed = found_at(name, LIMIT)
    assert seed is not None, f"{name} is not found within {LIMIT} seeds"
    assert not simulate(seed).broken, f"seed {seed} is broken without {name}, too"
