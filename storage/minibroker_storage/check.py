"""Verifies a whole data directory, Kafka's or ours, without changing it."""

from __future__ import annotations

import json
import re
from collections.abc import Collection

from minibroker_protocol.errors import Malformed
from minibroker_storage.check_partition import ERROR, NOTICE, Finding, PartitionCheck, Progress, Report
from minibroker_storage.checkpoints import (
    CLEANER_OFFSET,
    HIGH_WATERMARK,
    LOG_START_OFFSET,
    RECOVERY_POINT,
    decode_offsets,
)
from minibroker_storage.directory import wrong_in_meta
from minibroker_storage.disk import Disk, join
from minibroker_storage.dump import dump
from minibroker_storage.lost import CHECKPOINTS, DiskReader, lost_of_partition
from minibroker_storage.partition_metadata import FILE_NAME, topic_id_text

__all__ = ["ERROR", "NOTICE", "Finding", "check_directory", "check_partition", "partition_of"]

Offsets = dict[tuple[str, int], int]

CLEAN_FILE = ".kafka_cleanshutdown"
META_FILE = "meta.properties"
_CHECKPOINTS = (RECOVERY_POINT, LOG_START_OFFSET, HIGH_WATERMARK, CLEANER_OFFSET)
_PARTITION_DIR = re.compile(r"(?P<topic>[a-zA-Z0-9._-]+)-(?P<partition>\d+)")


def check_directory(disk: Disk, *, topics: Collection[str] = (), progress: Progress = lambda *_: None) -> list[Finding]:
    """Everything wrong or noteworthy in the directory at the disk's root, in the order it was found.

    `topics` are known to exist, so that their partitions cannot merely have been deleted. `progress` is told after each
    segment. Raises StorageError when a file cannot be read at all.
    """
    findings: list[Finding] = []
    names = disk.list()
    clean = CLEAN_FILE in names
    _meta(disk, names, clean, findings.append)
    checkpoints = {name: _offsets(disk, name, findings.append) for name in _CHECKPOINTS if name in names}
    log_starts = checkpoints.get(LOG_START_OFFSET, {})
    topic_ids: dict[str, tuple[bytes, str]] = {}
    ends: Offsets = {}
    for name in names:
        if not disk.is_dir(name):
            continue
        found = _PARTITION_DIR.fullmatch(name)
        if found is None:
            findings.append(Finding(name, "not the directory of a partition; not checked", severity=NOTICE))
            continue
        topic = found["topic"]
        key = topic, int(found["partition"])
        log_start = log_starts.get(key, 0)
        check = PartitionCheck(disk, name, findings.append, clean=clean, progress=progress, log_start=log_start)
        check.run()
        ends[key] = check.end
        if check.topic_id is not None:
            known, other = topic_ids.setdefault(topic, (check.topic_id, name))
            if known != check.topic_id:
                reason = f"topic id {topic_id_text(check.topic_id)}, {other} has {topic_id_text(known)}"
                findings.append(Finding(join(name, FILE_NAME), reason))
    reader = DiskReader(disk)
    for topic, partition in sorted({*ends, *(key for offsets in checkpoints.values() for key in offsets)}):
        key = topic, partition
        directory = f"{topic}-{partition}"
        if key not in ends and topic not in topics:
            # Its topic was deleted, or only the metadata know what became of it.
            for name, offsets in checkpoints.items():
                if key in offsets:
                    findings.append(Finding(name, f"{directory} has no directory", severity=NOTICE))
            continue
        reached = {name: checkpoints[name][key] for name in CHECKPOINTS if key in checkpoints.get(name, {})}
        findings += [
            Finding(lost.path, f"says {lost.said}, {lost.there}", offset=lost.offset if lost.offset >= 0 else None)
            for lost in lost_of_partition(reader, directory, reached)
        ]
        cleaned = checkpoints.get(CLEANER_OFFSET, {}).get(key, 0)
        if key in ends and cleaned > ends[key]:
            severity = ERROR if clean else NOTICE
            message = f"{directory} ends at {ends[key]}"
            findings.append(Finding(CLEANER_OFFSET, message, offset=cleaned, severity=severity))
    return findings


def check_partition(disk: Disk, name: str, *, progress: Progress = lambda *_: None) -> list[Finding]:
    """Likewise of one partition's directory, `name` below the disk's root, and of nothing beside it."""
    findings: list[Finding] = []
    PartitionCheck(disk, name, findings.append, clean=disk.exists(CLEAN_FILE), progress=progress, log_start=0).run()
    return findings


def partition_of(name: str) -> tuple[str, int] | None:
    """Topic and partition of a directory's name."""
    found = _PARTITION_DIR.fullmatch(name)
    return None if found is None else (found["topic"], int(found["partition"]))


def _meta(disk: Disk, names: list[str], clean: bool, report: Report) -> None:
    if META_FILE not in names:
        report(Finding(META_FILE, "the file is missing"))
    else:
        properties = {row["name"]: row["value"] for row in dump(disk, META_FILE)}
        for _, wrong in wrong_in_meta(properties):
            report(Finding(META_FILE, wrong))
    if not clean:
        report(
            Finding(CLEAN_FILE, "not shut down cleanly: the logs' ends will be checked when opened", severity=NOTICE)
        )
        return
    try:
        json.loads(disk.read_bytes(CLEAN_FILE) or b"{}")
    except ValueError:
        report(Finding(CLEAN_FILE, "expected JSON", 0))


def _offsets(disk: Disk, name: str, report: Report) -> Offsets:
    try:
        return decode_offsets(disk.read_bytes(name), name)
    except Malformed as error:
        report(Finding(name, str(error)))
        return {}
