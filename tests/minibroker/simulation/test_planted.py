"""One-line defects, each alone, must be found: a judge that finds nothing proves nothing."""

from __future__ import annotations

import pytest

from minibroker.defects import DEFECTS, plant
from minibroker.simulation.run import simulate

SAMPLE = {
    "no-duplicate-detection": 20,
    "aborted-not-indexed": 40,
    "marker-on-first-partitions-only": 60,
}
"""Defect → seeds it is found within."""


def found_at(name: str, limit: int) -> int | None:
    """The first seed that finds a defect."""
    with plant(DEFECTS[name]):
        return next((seed for seed in range(limit) if simulate(seed).broken), None)


@pytest.mark.parametrize(("name", "limit"), SAMPLE.items())
def test_a_sample_of_defects_is_found(name: str, limit: int) -> None:
    seed = found_at(name, limit)
    assert seed is not None, f"{name} is not found within {limit} seeds"
    assert not simulate(seed).broken, "the seed is broken without the defect, too"
