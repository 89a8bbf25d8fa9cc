"""What a real Kafka 4.4.0 leaves when it is stopped between two writes of its files is lawful."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from damage import IN_ANY_LOG, Plant
from planting import GOLDEN, Planted, stopped_directories, write_files
from sampling import thinned

pytest.importorskip("pyarrow")

from minibroker.cli import main
from minibroker.rules.directory import check_directory
from minibroker_pipeline.engine import audit_here
from minibroker_pipeline.files import Files
from minibroker_pipeline.listing import list_directory
from minibroker_pipeline.plan import Plan
from minibroker_storage.check_finding import ERROR
from minibroker_storage.checkpoints import CLEANER_OFFSET, LEADER_EPOCH, LOG_START_OFFSET, decode_offsets
from minibroker_storage.leader_epochs import LeaderEpochCache
from minibroker_storage.os_disk import OsDisk

NOTICES: dict[str, set[tuple[str, str]]] = {
    "metadata-snapshots-cleaned": set(),
    "records-deleted-then-killed": set(),
    "records-deleted-then-killed-then-stopped": set(),
    "killed-while-cleaning": set(),
    "stopped-while-cleaning": {("data-directory", "c")},
    "replica-of-a-compacted-log": {("offset-hole", "c")},  # whose cleanup.policy is delete by now
    "topic-made-again": {("torn-transaction", "t"), ("data-directory", "")},
}
"""What the audit says of each folder: rule and topic of the notices."""


@pytest.mark.parametrize("folder", NOTICES)
def test_nothing_is_wrong(folder: str, tmp_path: Path) -> None:
    path = write_files(stopped_directories()[folder], tmp_path / "data")
    assert [str(one) for one in check_directory(OsDisk(str(path), read_only=True)) if one.severity == ERROR] == []
    summary = tmp_path / "summary.json"
    assert main(["audit", str(path), "--quiet", "--json", str(summary)]) == 0
    shown = json.loads(summary.read_text())["shown"]
    left_out = {("offset-index", "__cluster_metadata")}  # of the archive
    assert {(one["rule"], one["topic"]) for one in shown} - left_out == NOTICES[folder]
    assert not [one for one in shown if one["severity"] == ERROR]


def test_the_files_are_as_they_are_meant() -> None:
    """Epochs that begin above the log, and cleaned logs that the cleaner's checkpoint does not name, or from 0 on."""
    assert stopped_directories().keys() == NOTICES.keys()
    for folder, log in (
        ("metadata-snapshots-cleaned", "__cluster_metadata-0"),
        ("records-deleted-then-killed", "t-0"),
        ("records-deleted-then-killed-then-stopped", "t-0"),
    ):
        files = stopped_directories()[folder]
        (_, begin), *_ = LeaderEpochCache.decode(files[f"{log}/{LEADER_EPOCH}"]).entries
        topic, _, partition = log.rpartition("-")
        start = decode_offsets(files.get(LOG_START_OFFSET, b""), "").get((topic, int(partition)), 0)
        assert f"{log}/{0:020}.log" in files
        assert begin > start == 0
    for folder in ("killed-while-cleaning", "stopped-while-cleaning", "replica-of-a-compacted-log"):
        assert not decode_offsets(stopped_directories()[folder].get(CLEANER_OFFSET, b""), "").get(("c", 0))


@pytest.mark.matrix
def test_nothing_is_wrong_with_a_copy_of_two_brokers_under_load(tmp_path: Path) -> None:
    """Followers that fetched much at once among it. The load itself, on live brokers: tests/jvm/test_lawful_load.py."""
    with tarfile.open(GOLDEN.parent / "kafka-4.4.0" / "under-load.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    assert main(["check", str(tmp_path), "--quiet"]) == 0
    assert main(["audit", str(tmp_path), "--quiet"]) == 0


HIGH_WATERMARKS = "replication-offset-checkpoint"
LOGS = {
    "metadata-snapshots-cleaned": "__cluster_metadata-0",
    "records-deleted-then-killed": "t-0",
    "records-deleted-then-killed-then-stopped": "t-0",
    "killed-while-cleaning": "c-0",
    "stopped-while-cleaning": "c-0",
    "replica-of-a-compacted-log": "c-0",
    "a-log-directory-that-the-last-partition-left": "__cluster_metadata-0",
}
"""The log that is damaged in each."""


def lawful(folder: str) -> Planted:
    """A directory that looks odd and is lawful, smaller: of a large log without the segments in the middle."""
    name = folder if folder in NOTICES else "metadata-snapshots-cleaned"
    planted = Planted(f"stopped/{name}")
    if name != folder:
        planted.files[HIGH_WATERMARKS] = b"0\n1\ngone 0 7\n"
    bases = sorted({file[4:24] for file in planted.files if file.startswith("c-0/") and file[4:24].isdecimal()})
    for file in [file for file in planted.files if file.startswith("c-0/") and file[4:24] in bases[2:-2]]:
        del planted.files[file]
    return planted


def found_by_both(planted: Planted, path: Path) -> list[set[tuple[str, str, str]]]:
    """What `check` and the audit find: rule, severity and file."""
    files = Files(str(write_files(planted.files, path)))
    checked = check_directory(OsDisk(str(path), read_only=True))
    listed = list_directory(files)
    audited = audit_here(Plan(files, tuple(listed.facts), tuple(listed.parts), files.uri, findings=listed.findings))[1]
    return [
        {(one.rule, one.severity, one.path) for one in checked},
        {(one.rule, one.severity, one.file) for one in audited},
    ]


CASES = [
    (folder, kind, plant, rule)
    for kind, plant, rule, of_producer in IN_ANY_LOG
    for folder, log in LOGS.items()
    if not of_producer or log != "__cluster_metadata-0"
]


@pytest.mark.parametrize("case", thinned(CASES, 41), ids=lambda case: f"{case[0]}: {case[1]}")
def test_damage_to_them_is_found_by_check_and_audit(case: tuple[str, str, Plant, str], tmp_path: Path) -> None:
    folder, _, plant, rule = case
    planted = lawful(folder)
    before = found_by_both(planted, tmp_path / "before")
    assert ERROR not in {severity for tool in before for _, severity, _ in tool}
    plant(planted, LOGS[folder])
    for tool, lawful_ones in zip(found_by_both(planted, tmp_path / "after"), before, strict=True):
        assert rule in {one for one, _, _ in tool - lawful_ones}, tool


def test_each_of_them_has_fourteen_kinds_at_least() -> None:
    for folder in LOGS:
        assert len([case for case in CASES if case[0] == folder]) >= 14
