"""`--as-version X` is held to what Apache Kafka X answered, as far as a live one of it was asked (4.0.1, 3.9.1)."""

from __future__ import annotations

import pytest
from defect_matrix import CAUGHT, broker_like, results, running

from minibroker_lab.conformance.results import Status
from minibroker_lab.conformance.scenario import KAFKA, RELEASE_EXPECTATIONS, Scenario, bundled, every_step

OLDER = RELEASE_EXPECTATIONS[1:]
NOT_EMULATED = {
    "kafka-4.0": {"first-batch-of-v12-at-zero"},
    "kafka-3.9": {
        "txn-add-partitions-versions",
        "internal-topics-in-no-transaction",
        "versions-empty-add-partitions-batched",
        "offsets-by-time",
        "offset-commits-of-members",
    },
}
"""Scenarios that fail, each for what the release's file lists as not emulated."""


def sensitive(release: str) -> list[Scenario]:
    """Scenarios in which the release answered otherwise than the newest, or that are about it alone."""
    return [
        scenario
        for scenario in bundled()
        if release in scenario.only
        and (
            KAFKA not in scenario.only
            or any(step.expected(release) != step.expected(KAFKA) for step in every_step(scenario.steps))
        )
    ]


def failed(release: str, chosen: list[Scenario]) -> tuple[set[str], int]:
    """Names of those that fail, and how many pass, against a broker that runs as the release."""
    with running("short-expiry", broker_like(release)) as (bootstrap, _):
        ran = results(bootstrap, chosen, expectation=release)
    return (
        {f"{one.scenario.name}: {one.why}" for one in ran if one.outcome in CAUGHT},
        sum(one.outcome is Status.PASSED for one in ran),
    )


@pytest.mark.parametrize(("release", "passing"), [("kafka-3.9", 11), ("kafka-2.3", 2)])
def test_scenarios_that_tell_releases_apart(release: str, passing: int) -> None:
    """Those that need not wait for a timeout; the others are in the tier `slow`."""
    known = NOT_EMULATED.get(release, set())
    chosen = [one for one in sensitive(release) if one.name not in known and "timeout" not in one.tags]
    assert failed(release, chosen) == (set(), passing)


@pytest.mark.parametrize("release", OLDER)
def test_every_older_release_has_a_scenario_that_tells_it_apart(release: str) -> None:
    assert sensitive(release)


@pytest.mark.slow
@pytest.mark.parametrize("release", OLDER)
def test_every_scenario_as_an_older_release(release: str) -> None:
    chosen = [one for one in bundled() if release in one.only and "slow" not in one.tags]
    wrong, _ = failed(release, chosen)
    assert {one.partition(":")[0] for one in wrong} == NOT_EMULATED.get(release, set())
