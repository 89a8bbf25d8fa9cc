"""Cases of the museum, their clients installed by version: seen with their failures, not without them or the bug.

The quick ones run for every change, the others at night.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from minibroker.cli import main
from minibroker_lab.museum.cases import Case, read_all

pytestmark = pytest.mark.clients

QUICK = [
    "aiokafka-fenced-produce",
    "aiokafka-late-end-txn",
    "aiokafka-late-produce",
    "aiokafka-torn-commit",
    "franz-go-unconfirmed-end-txn",
    "kafka-python-late-produce",
    "librdkafka-3020",
    "librdkafka-3369",
    "librdkafka-late-end-txn",
    "librdkafka-lost-first-batch",
    "librdkafka-topic-away",
    "sarama-late-end-txn",
    "segmentio-kafka-go-1332",
]

CASES = read_all(Path(__file__).parents[2] / "museum" / "cases")


def ran(capsys: pytest.CaptureFixture[str], case: str, *options: str) -> tuple[int, str]:
    """Status and output of one run; skips what cannot be installed here."""
    ended = main(["museum", "run", case, *options])
    said = capsys.readouterr().out
    if ended == 77:
        pytest.skip(said)
    return ended, said


@pytest.mark.parametrize("case", QUICK)
def test_a_case_is_seen(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, said = ran(capsys, case)
    assert status == 1, said


def test_a_case_is_not_seen_when_nothing_fails(capsys: pytest.CaptureFixture[str]) -> None:
    status, said = ran(capsys, "aiokafka-torn-commit", "--calm")
    assert status == 0, said


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in CASES if case.id not in QUICK], ids=lambda case: case.id)
def test_every_other_case_is_seen(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    status, said = ran(capsys, case.id, "--times", "3")
    assert status == 1, said


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in CASES if case.good], ids=lambda case: case.id)
def test_every_good_version_holds(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    versions = [option for version in case.good for option in ("--client", f"{case.client}=={version}")]
    status, said = ran(capsys, case.id, *versions)
    assert status == 0, said
