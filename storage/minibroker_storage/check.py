"""Verifies a whole data directory, Kafka's or ours, without changing it."""

from __future__ import annotations

from collections.abc import Collection

from minibroker_storage.check_finding import (
    CHECKPOINT,
    DATA_DIRECTORY,
    ERROR,
    LOST_DATA,
    NOTICE,
    PRODUCER_SNAPSHOT,
    Finding,
    Report,
)
from minibroker_storage.check_partition import PartitionCheck, Progress
from minibroker_storage.checkpoints import CLEANER_OFFSET
from minibroker_storage.directory import CLEAN_FILE, CLUSTER_METADATA, partition_of
from minibroker_storage.disk import Disk
from minibroker_storage.lost import CHECKPOINTS, DIRECTORY, DiskReader, Lost, lost_of_partition
from minibroker_storage.small_files import RootFiles, missing_indexes

__all__ = ["ERROR", "NOTICE", "Finding", "check_directory", "check_partition", "partition_of"]


def check_directory(disk: Disk, *, topics: Collection[str] = (), progress: Progress = lambda *_: None) -> list[Finding]:
    """All errors and notices of the directory at the disk's root, in the order in which they are found.

    `topics` are known to exist, so a missing partition of theirs was not deleted. `progress` is called after each
    segment. Raises StorageError when a file cannot be read at all.
    """
    findings: list[Finding] = []
    reader = DiskReader(disk)
    root = RootFiles(reader, findings.append)
    root.look()
    if not root.clean:
        reason = "not shut down cleanly: the logs' ends will be checked when opened"
        findings.append(Finding(DATA_DIRECTORY, CLEAN_FILE, reason, severity=NOTICE))
    cleaned = root.offsets.get(CLEANER_OFFSET, {})
    places = {name: partition_of(name) for name, size in sorted(root.entries.items()) if size == DIRECTORY}
    for name, place in places.items():
        if place is None:
            continue
        end = _partition(disk, root, name, findings.append, progress)
        if cleaned.get(place, 0) > end:
            severity = ERROR if root.clean else NOTICE
            reason = f"{name} ends at {end}"
            findings.append(Finding(CHECKPOINT, CLEANER_OFFSET, reason, offset=cleaned[place], severity=severity))
    findings += root.beyond_its_end()
    there = {place for place in places.values() if place is not None}
    known = {place for offsets in root.offsets.values() for place in offsets}
    # Of a topic that is not known to exist, it was deleted, or only the metadata know what became of it.
    findings += [finding for place, finding in root.without_directory(lambda: topics) if place[0] not in topics]
    for place in sorted(there | {place for place in known if place[0] in topics}):
        reached = {name: root.offsets[name][place] for name in CHECKPOINTS if place in root.offsets.get(name, {})}
        for lost in lost_of_partition(reader, f"{place[0]}-{place[1]}", reached, clean=root.clean):
            if not (lost.rebuilt and place[0] == CLUSTER_METADATA):
                findings.append(finding_of(lost))
    return findings


def finding_of(lost: Lost) -> Finding:
    """An error, unless a broker starts without it or what is missing may be so."""
    message = f"says {lost.said}, {lost.there}" + (f" ({lost.cause})" if lost.lawful else "")
    return Finding(
        PRODUCER_SNAPSHOT if lost.rebuilt else LOST_DATA,
        lost.path,
        message,
        offset=lost.offset if lost.offset >= 0 else None,
        severity=NOTICE if lost.rebuilt or lost.lawful else ERROR,
    )


def _partition(disk: Disk, root: RootFiles, name: str, report: Report, progress: Progress) -> int:
    """Checks a partition's directory; returns where its log ends."""
    sizes = DiskReader(disk).sizes(name)
    root.partition(name, [file for file, size in sizes.items() if size != DIRECTORY])
    for missing in missing_indexes(name, sizes):
        report(missing)
    check = PartitionCheck(disk, name, report, clean=root.clean, progress=progress)
    check.run()
    return check.end


def check_partition(disk: Disk, name: str, *, progress: Progress = lambda *_: None) -> list[Finding]:
    """Likewise of one partition's directory, `name` below the disk's root, and of nothing beside it."""
    findings: list[Finding] = []
    _partition(disk, RootFiles(DiskReader(disk), findings.append), name, findings.append, progress)
    return findings
