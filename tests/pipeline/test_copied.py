"""Directories that were copied while their broker ran: each log is of another time, and none of them torn."""

from __future__ import annotations

from pathlib import Path

import pytest
from planting import Planted, flipped_marker, header_of, write_files

pytest.importorskip("pyarrow")

from minibroker.rules.catalogue import ERROR
from minibroker.rules.rows import Finding
from minibroker_pipeline.engine import audit_here
from minibroker_pipeline.files import Files
from minibroker_pipeline.listing import list_directory
from minibroker_pipeline.plan import Plan

VERSIONS = [f"transaction-version-{version}" for version in (0, 1, 2)]
STATES = "__transaction_state-0"


def copied(version: str) -> Planted:
    """What a copy of a running broker has: no sign that it was closed, nor how far it was compacted."""
    planted = Planted(version)
    for name in (".kafka_cleanshutdown", "cleaner-offset-checkpoint"):
        planted.files.pop(name, None)
    return planted


def copied_earlier(planted: Planted, partition: str, batches: int) -> None:
    """The log is of a time before its last batches, and before the snapshots that came after them."""
    planted.write(partition, planted.batches(partition)[:-batches])
    for name in [name for name in planted.files if name.startswith(f"{partition}/") and name.endswith(".snapshot")]:
        del planted.files[name]


def audited(planted: Planted, path: Path) -> list[Finding]:
    files = Files(str(write_files(planted.files, path)))
    listed = list_directory(files)
    return audit_here(Plan(files, tuple(listed.facts), tuple(listed.parts), files.uri, findings=listed.findings))[1]


@pytest.mark.parametrize("version", VERSIONS)
def test_logs_of_different_times(version: str, tmp_path: Path) -> None:
    for partition in (STATES, "t-0", "__consumer_offsets-0"):
        for batches in (1, 2, 3, 8):
            planted = copied(version)
            copied_earlier(planted, partition, batches)
            found = [str(one) for one in audited(planted, tmp_path / f"{partition}-{batches}") if one.severity == ERROR]
            assert found == [], (partition, batches)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("partition", [STATES, "t-0"])
def test_what_was_torn_before_is_found(version: str, partition: str, tmp_path: Path) -> None:
    planted = copied(version)
    markers = [header_of(one) for one in planted.batches("t-0") if header_of(one).is_control]
    torn = markers[len(markers) // 2].base_offset
    planted.change("t-0", torn, flipped_marker)
    copied_earlier(planted, partition, 3)
    found = {(one.rule, str(one.log), one.last_offset) for one in audited(planted, tmp_path) if one.severity == ERROR}
    assert ("torn-transaction", "t-0", torn) in found
