"""The judge is judged: every deliberate defect fails the scenarios that say they catch it."""

from __future__ import annotations

import pytest
from conformance_page import PAGE, with_counts
from defect_matrix import failures
from defects import DEFECTS

from minibroker.conformance.scenario import Scenario, bundled

CATCHERS: dict[str, list[Scenario]] = {}
for _scenario in bundled():
    for _defect in _scenario.catches:
        CATCHERS.setdefault(_defect, []).append(_scenario)


def test_every_defect_has_a_scenario_that_catches_it() -> None:
    assert sorted(DEFECTS.keys() - CATCHERS.keys()) == []
    assert len(DEFECTS) >= 60


@pytest.mark.slow
@pytest.mark.parametrize("defect", sorted(CATCHERS))
def test_a_defect_fails_its_scenarios(defect: str) -> None:
    wanted = {scenario.name for scenario in CATCHERS[defect]}
    assert set(failures([defect], CATCHERS[defect])) == wanted


def test_the_page_has_todays_counts() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_counts(page) == page, "run python tests/support/conformance_page.py"
