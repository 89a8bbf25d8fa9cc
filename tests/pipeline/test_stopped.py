"""What a real Kafka 4.4.0 leaves when it is stopped between two writes of its files is lawful."""

from __future__ import annotations

import json
import tarfile
from functools import cache
from pathlib import Path

import pytest
from planting import write_files

pytest.importorskip("pyarrow")

from minibroker.cli import main
from minibroker.rules.directory import check_directory
from minibroker_storage.check_finding import ERROR
from minibroker_storage.checkpoints import CLEANER_OFFSET, LEADER_EPOCH, LOG_START_OFFSET, decode_offsets
from minibroker_storage.leader_epochs import LeaderEpochCache
from minibroker_storage.os_disk import OsDisk

ARCHIVE = Path(__file__).parent.parent / "golden" / "kafka-4.4.0" / "stopped.tar.xz"
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


@cache
def folders() -> dict[str, dict[str, bytes]]:
    found: dict[str, dict[str, bytes]] = {}
    with tarfile.open(ARCHIVE) as archive:
        for member in archive.getmembers():
            folder, _, name = member.name.partition("/")
            content = archive.extractfile(member)
            assert content is not None
            found.setdefault(folder, {})[name] = content.read()
    return found


@pytest.mark.parametrize("folder", NOTICES)
def test_nothing_is_wrong(folder: str, tmp_path: Path) -> None:
    path = write_files(folders()[folder], tmp_path / "data")
    assert [str(one) for one in check_directory(OsDisk(str(path), read_only=True)) if one.severity == ERROR] == []
    summary = tmp_path / "summary.json"
    assert main(["audit", str(path), "--quiet", "--json", str(summary)]) == 0
    shown = json.loads(summary.read_text())["shown"]
    left_out = {("offset-index", "__cluster_metadata")}  # of the archive
    assert {(one["rule"], one["topic"]) for one in shown} - left_out == NOTICES[folder]
    assert not [one for one in shown if one["severity"] == ERROR]


def test_the_files_are_as_they_are_meant() -> None:
    """Epochs that begin above the log, and cleaned logs that the cleaner's checkpoint does not name, or from 0 on."""
    assert folders().keys() == NOTICES.keys()
    for folder, log in (
        ("metadata-snapshots-cleaned", "__cluster_metadata-0"),
        ("records-deleted-then-killed", "t-0"),
        ("records-deleted-then-killed-then-stopped", "t-0"),
    ):
        files = folders()[folder]
        (_, begin), *_ = LeaderEpochCache.decode(files[f"{log}/{LEADER_EPOCH}"]).entries
        topic, _, partition = log.rpartition("-")
        start = decode_offsets(files.get(LOG_START_OFFSET, b""), "").get((topic, int(partition)), 0)
        assert f"{log}/{0:020}.log" in files
        assert begin > start == 0
    for folder in ("killed-while-cleaning", "stopped-while-cleaning", "replica-of-a-compacted-log"):
        assert not decode_offsets(folders()[folder].get(CLEANER_OFFSET, b""), "").get(("c", 0))
