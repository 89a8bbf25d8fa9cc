"""docs/explanation/what-kafka-does.md: twenty rows, and what each names as its proof is there and was seen."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest
from recorded_runs import load

from minibroker_lab.conformance.scenario import bundled
from minibroker_lab.museum.cases import read_all

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "explanation" / "what-kafka-does.md"
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if re.match(r"\| \d", line)
]


@functools.cache
def recorded() -> dict[str, str]:
    """Scenario → what became of it with Apache Kafka 4.4.0."""
    (kafka,) = [run for run in load() if run.broker == "Apache Kafka 4.4.0"]
    return {one.name: kafka.outcome(one) for one in bundled() if one.name in kafka.scenarios}


def test_there_are_twenty_whole_rows_with_a_version() -> None:
    assert [row[0] for row in ROWS] == [str(number) for number in range(1, 21)]
    assert all(len(row) == 5 and all(row) and re.search(r"\d\.\d", row[1]) for row in ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_what_a_row_names_shows_it(row: list[str]) -> None:
    shown = row[4]
    tests = re.findall(r"test \[(test_\w+)\]\((.+?)\)", shown)
    scenarios = re.findall(r"scenario `(.+?)`", shown)
    findings = re.findall(r"finding \[.+?\]\((.+?)\)", shown)
    cases = re.findall(r"case `(.+?)`", shown)
    assert tests or scenarios or findings or cases
    for name, path in tests:
        assert f"\ndef {name}(" in (PAGE.parent / path).read_text(encoding="utf-8")
    assert [recorded().get(name) for name in scenarios] == ["passed"] * len(scenarios)
    assert all((PAGE.parent / path).is_file() for path in findings)
    seen = {case.id for case in read_all(ROOT / "museum" / "cases") if any(one.broken for one in case.measured)}
    assert set(cases) <= seen
