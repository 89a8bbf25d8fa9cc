"""The judge is judged: every deliberate defect fails the scenarios that say they catch it."""

from __future__ import annotations

from functools import cache

import pytest
from conformance_page import PAGE, with_counts
from defect_matrix import failures
from defects import DEFECTS

from minibroker_lab.conformance.scenario import Scenario, bundled


@cache
def catchers() -> dict[str, list[Scenario]]:
    """Defect → the scenarios that say they catch it."""
    found: dict[str, list[Scenario]] = {}
    for scenario in bundled():
        for defect in scenario.catches:
            found.setdefault(defect, []).append(scenario)
    return found


def test_every_defect_has_a_scenario_that_catches_it() -> None:
    assert sorted(DEFECTS) == sorted(catchers())
    assert len(DEFECTS) >= 60


@pytest.mark.slow
@pytest.mark.parametrize("defect", sorted(DEFECTS))
def test_a_defect_fails_its_scenarios(defect: str) -> None:
    wanted = {scenario.name for scenario in catchers()[defect]}
    assert set(failures([defect], catchers()[defect])) == wanted


def test_the_page_has_todays_counts() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_counts(page) == page, "run python tests/support conformance_page"
