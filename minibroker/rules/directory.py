"""Verifies a whole data directory, Kafka's or ours, without changing it: each log by `judge_log`, and the small files.

Partitions are not compared with one another, nor transactions with their coordinator's records; the audit does that.
Memory grows with the producers and transactions of a log, not with its batches.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from minibroker.controller.kraft import KraftMetadata, read_kraft_metadata
from minibroker.rules import rows as r
from minibroker.rules.compaction import policies_of
from minibroker.rules.file_rules import LogRow, LogRows, is_log_row
from minibroker.rules.log_rules import group_rows, judge_log
from minibroker.rules.runs import RunMerger, SpanMerger
from minibroker.rules.scan import base_of, facts_of, scan_file
from minibroker_protocol.errors import Malformed
from minibroker_storage.check_finding import DATA_DIRECTORY, ERROR, LOST_DATA, NOTICE, PRODUCER_SNAPSHOT, Finding
from minibroker_storage.checkpoints import LEADER_EPOCH
from minibroker_storage.directory import CLEAN_FILE, CLUSTER_METADATA, partition_of
from minibroker_storage.disk import Disk, join
from minibroker_storage.lost import CHECKPOINTS, DIRECTORY, DiskReader, Lost, lost_of_partition
from minibroker_storage.producer_snapshot import SNAPSHOT_SUFFIX
from minibroker_storage.small_files import RootFiles, missing_indexes

Progress = Callable[[str, int, int], None]
"""(partition, bytes of its logs done, bytes in all)."""
Policies = Mapping[str, bool | None]
"""Topic -> whether its cleanup.policy has compact, see `policies_of`."""


def check_directory(
    disk: Disk,
    *,
    topics: Collection[str] = (),
    policies: Policies | None = None,
    topic_ids: dict[str, tuple[bytes, str]] | None = None,
    progress: Progress = lambda *_: None,
) -> list[Finding]:
    """All errors and notices of the directory at the disk's root, in the order in which they are found.

    `topics` are known to exist, so a missing partition of theirs was not deleted.

    policies: those that are known beside what a metadata log in the directory says.
    topic_ids: those of the cluster's directories that were looked at before. `progress` is called after each segment.

    Raises StorageError when a file cannot be read at all.
    """
    findings: list[Finding] = []
    reader = DiskReader(disk)
    root = RootFiles(reader, findings.append, topic_ids)
    root.look()
    if not root.clean:
        reason = "not shut down cleanly: the logs' ends will be checked when opened"
        findings.append(Finding(DATA_DIRECTORY, CLEAN_FILE, reason, severity=NOTICE))
    places = {name: partition_of(name) for name, size in sorted(root.entries.items()) if size == DIRECTORY}
    metadata = metadata_of(disk)
    known_policies = {**policies_of(metadata), **(policies or {})}
    for name, place in places.items():
        if place is not None:
            findings += _partition(disk, root, name, place, known_policies, progress)
    findings += root.beyond_its_end()
    there = {place for place in places.values() if place is not None}
    known = {place for offsets in root.offsets.values() for place in offsets}
    # Of a topic that is not known to exist, it was deleted, or only the metadata know what became of it.
    existing = {*topics, *(() if metadata is None else (topic.name for topic in metadata.topics.values()))}
    findings += [finding for place, finding in root.without_directory(lambda: existing) if place[0] not in topics]
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


def metadata_of(disk: Disk) -> KraftMetadata | None:
    """What Kafka's metadata log in the directory says, where there is one that can be read."""
    try:
        return read_kraft_metadata(disk)
    except Malformed:
        return None


def check_partition(
    disk: Disk, name: str, *, policies: Policies | None = None, progress: Progress = lambda *_: None
) -> list[Finding]:
    """Likewise of one partition's directory, `name` below the disk's root, and of nothing beside it. Raises ValueError
    when it is not the name of a partition's directory."""
    findings: list[Finding] = []
    place = partition_of(name)
    if place is None:
        raise ValueError(f"{name} is not the directory of a partition")
    return findings + _partition(
        disk, RootFiles(DiskReader(disk), findings.append), name, place, policies or {}, progress
    )


def _partition(
    disk: Disk, root: RootFiles, name: str, place: tuple[str, int], policies: Policies, progress: Progress
) -> list[Finding]:
    """Checks a partition's directory. Findings of `root` in it go to the function that `root` was made with."""
    sizes = {file: size for file, size in DiskReader(disk).sizes(name).items() if size != DIRECTORY}
    root.partition(name, sizes)
    findings = [*missing_indexes(name, sizes)]
    facts = facts_of(r.Log("", *place), sizes, root.offsets, policies, clean=root.clean, damaged=root.damaged)
    judged = judge_log(_rows(disk, facts, name, sizes, progress))
    return findings + [_as_file_finding(finding, name) for finding in judged.findings]


def _rows(disk: Disk, facts: r.LogFacts, name: str, sizes: Mapping[str, int], progress: Progress) -> LogRows:
    """The rows of the partition's files, runs and spans put together."""
    total = sum(size for file, size in sizes.items() if file.endswith(".log"))
    runs = RunMerger(
        facts, [base_of(file) for file in sizes if file.endswith(SNAPSHOT_SUFFIX) and file[:20].isdecimal()]
    )
    spans = SpanMerger(facts)
    others: list[LogRow] = []
    done = 0
    for file in sorted(sizes):
        if not (file[:20].isdecimal() or file == LEADER_EPOCH):
            continue
        for row in scan_file(disk, facts, join(name, file)):
            if isinstance(row, (r.Run, r.Marker)):
                runs.add(row)
            if isinstance(row, r.Span):
                spans.add(row)
            elif is_log_row(row) and not isinstance(row, r.Run):
                others.append(row)
        if file.endswith(".log"):
            done += sizes[file]
            progress(name, done, total)
    (rows,) = group_rows([facts], [*runs.runs(), *spans.spans, *others])
    return rows


def _as_file_finding(finding: r.Finding, name: str) -> Finding:
    offset = finding.first_offset if finding.first_offset >= 0 else None
    position = finding.position if finding.position >= 0 else None
    # A file's reader names it, as every line about it does.
    message = finding.message.removeprefix(finding.file).lstrip(",: ") if finding.file else finding.message
    return Finding(finding.rule, finding.file or name, message, position, offset, finding.severity)
