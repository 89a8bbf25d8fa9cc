"""Lists a data directory: its logs, the parts to read, and the problems of its small files.

The work grows with the number of files, not of bytes. Each partition's directory is looked at by itself (`look_at`), so
that executors can do it; what is compared with other directories, and the files of the root, is the driver's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import NamedTuple, TypeAlias

from minibroker.controller.journal import JOURNAL, MARK, lost_of_journal, topics_in, wrong_in_journal
from minibroker.controller.kraft import DIRECTORY as METADATA_DIRECTORY
from minibroker.controller.kraft import KraftMetadata, read_kraft_metadata
from minibroker.rules.catalogue import ERROR, NOTICE, finding
from minibroker.rules.compaction import policies_of
from minibroker.rules.rows import NONE, Finding, Log, LogFacts
from minibroker.rules.scan import base_of, facts_of
from minibroker_pipeline.files import SMALL_SUFFIXES, DirectoryEntry, FileDisk, Files, FilesReader, NotReadable, Part
from minibroker_protocol.errors import Malformed
from minibroker_protocol.records import HEADER_SIZE, CorruptBatch, parse_header
from minibroker_storage import check_finding
from minibroker_storage.directory import CLEAN_FILE, META_FILE, partition_of
from minibroker_storage.index_entries import INDEX_SUFFIX, TIME_INDEX_SUFFIX
from minibroker_storage.indexes import OFFSET_ENTRY
from minibroker_storage.lost import CHECKPOINTS, DIRECTORY, Lost, lost_of_partition, may_be_of_a_copy
from minibroker_storage.producer_snapshot import SNAPSHOT_SUFFIX
from minibroker_storage.small_files import Offsets, RootFiles, identity_of, missing_indexes

SPLIT_BYTES = 256 << 20


class Directory(NamedTuple):
    """A data directory, or several: the logs, the parts to read, and what small files and names show by themselves."""

    facts: list[LogFacts]
    parts: list[Part]
    findings: tuple[Finding, ...] = ()

    @property
    def bytes(self) -> int:
        return sum(part.size for part in self.parts)


class Surroundings(NamedTuple):
    """What the directory of a partition is looked at with. Can be pickled.

    reached: what checkpoints say of each.
    """

    files: Files
    root: str
    split_bytes: int
    offsets: dict[str, Offsets]
    damaged: frozenset[str]
    policies: Mapping[str, bool | None]
    clean: bool
    reached: Mapping[tuple[str, int], Mapping[str, int]]

    def path(self, name: str) -> str:
        return f"{self.root}/{name}" if self.root else name


class PartitionLook(NamedTuple):
    """What the directory of a partition shows: `wrong` in its small files, missing indexes among it (`unindexed`)
    unless no directory has any (`indexed`)."""

    name: str
    facts: LogFacts
    parts: list[Part]
    topic_id: bytes | None
    wrong: list[check_finding.Finding]
    lost: list[Lost]
    unindexed: list[check_finding.Finding]
    indexed: bool


Spread: TypeAlias = Callable[[Callable[[str], PartitionLook], Sequence[str]], Iterable[PartitionLook]]
"""As `map`: looks at each of these directories, here or elsewhere."""


def local_partition(path: str) -> tuple[str, str, int] | None:
    """(data directory, topic, partition) when a local path is a partition's own directory."""
    folder, name = os.path.split(os.path.abspath(path.removeprefix("file://")))
    place = partition_of(name)
    if place is None or not os.path.isdir(os.path.join(folder, name)):
        return None
    if not any(entry.endswith(".log") for entry in os.listdir(os.path.join(folder, name))):
        return None
    return folder, *place


def list_directory(
    files: Files,
    *,
    topics: Collection[str] = (),
    partitions: Collection[int] = (),
    compacted: Collection[str] = (),
    split_bytes: int = SPLIT_BYTES,
    spread: Spread = map,
) -> Directory:
    """The logs of a data directory, or of all data directories in it. `topics` and `partitions` choose (all when
    empty); of `compacted` topics any batch may be missing.

    spread: who looks at the directories of partitions.

    NotReadable when there is no log.
    """
    facts: list[LogFacts] = []
    parts: list[Part] = []
    topic_ids: dict[str, tuple[bytes, str]] = {}

    def chosen(topic: str, partition: int) -> bool:
        return not (topics and topic not in topics) and not (partitions and partition not in partitions)

    roots = _roots(files)
    journal, findings = _journal(files, roots)
    policies = {**_policies(files, roots), **dict.fromkeys(compacted, True)}
    for root in roots:
        listing = _Root(files, root, policies, topic_ids)
        places = {name: place for name in listing.partition_names if (place := partition_of(name)) and chosen(*place)}
        for look in spread(partial(look_at, listing.surroundings(split_bytes)), [*places]):
            facts.append(look.facts)
            parts += look.parts
            listing.take(look)
        # A partition of a topic that exists may have lost its directory too.
        gone = {place for place in listing.reached if place[0] in journal and chosen(*place)}
        for place in sorted(gone.difference(places.values())):
            listing.lost(place)
        listing.checkpoints(chosen, gone)
        findings += listing.findings
    if not facts and not any(finding.rule == "lost-data" for finding in findings):
        raise NotReadable(f"{files.uri}: no directory of a partition in it")
    return Directory(facts, parts, tuple(findings))


def _lost(lost: Lost, log: Log, file: str) -> Finding:
    severity = NOTICE if lost.lawful else ERROR
    return finding("lost-data", log, lost.explained, first_offset=lost.offset, file=file, severity=severity)


def _journal(files: Files, roots: Sequence[str]) -> tuple[set[str], list[Finding]]:
    """The topics in the controller's journal, and findings about the journal."""
    names = {entry.name for entry in files.list()}
    journal, mark = (files.read(name) if name in names else None for name in (JOURNAL, MARK))
    findings = []
    log = Log("", "__cluster_metadata", 0)
    running = journal is not None and any(CLEAN_FILE not in FilesReader(files, root).sizes("") for root in roots)
    lost = lost_of_journal(journal, mark, copied=running and may_be_of_a_copy(FilesReader(files), JOURNAL, MARK))
    if lost is not None:
        findings.append(_lost(lost, log, lost.path))
    for position, message, severity in wrong_in_journal(journal or b""):
        findings.append(finding("data-directory", log, message, file=JOURNAL, position=position, severity=severity))
    return topics_in(journal or b""), findings


def _roots(files: Files) -> list[str]:
    """Where partitions' directories lie: in the path itself, or in directories in it (`broker-1`)."""
    entries = files.list()
    if _is_data_directory(files, "", entries):
        return [""]
    inner = ((entry.name, files.list(entry.name)) for entry in entries if entry.is_dir)
    return [name for name, below in inner if _is_data_directory(files, name, below)]


def _is_data_directory(files: Files, root: str, entries: Sequence[DirectoryEntry]) -> bool:
    if any(entry.name == META_FILE for entry in entries):
        return True
    for name in [entry.name for entry in entries if entry.is_dir]:
        if partition_of(name) is not None:
            path = f"{root}/{name}" if root else name
            if any(entry.name.endswith(".log") for entry in files.list(path)):
                return True
    return False


def _metadata(reader: FilesReader) -> KraftMetadata | None:
    """What Kafka's metadata log says, where there is one that can be read."""
    try:
        names = reader.sizes(METADATA_DIRECTORY)
        return read_kraft_metadata(
            FileDisk(reader, *(f"{METADATA_DIRECTORY}/{name}" for name, size in names.items() if size >= 0))
        )
    except Malformed:
        return None


def _policies(files: Files, roots: Sequence[str]) -> dict[str, bool | None]:
    """What the journal and the metadata logs say of compaction."""
    names = {entry.name for entry in files.list()}
    journal = files.read(JOURNAL) if JOURNAL in names else b""
    return policies_of(*(_metadata(FilesReader(files, root)) for root in roots), journal=journal)


class _Root:
    """One data directory.

    findings: those about its small files.
    """

    def __init__(
        self, files: Files, root: str, policies: Mapping[str, bool | None], topic_ids: dict[str, tuple[bytes, str]]
    ) -> None:
        self._files = files
        self._root = root
        self.findings: list[Finding] = []
        self._reader = FilesReader(files, root)
        self._small = RootFiles(self._reader, self._take, topic_ids)
        self._small.look()
        self._policies = policies
        self.partition_names = [name for name, size in sorted(self._small.entries.items()) if size == DIRECTORY]
        self.reached: dict[tuple[str, int], dict[str, int]] = {}
        for name in CHECKPOINTS:
            for place, offset in self._offsets(name).items():
                self.reached.setdefault(place, {})[name] = offset
        self._unindexed: list[check_finding.Finding] = []
        self._indexed = False  # a directory may have been copied without indexes

    def _offsets(self, name: str) -> Offsets:
        """The offsets in a checkpoint; empty when it is missing or damaged, which Kafka treats alike."""
        return self._small.offsets.get(name, {})

    def _take(self, about_file: check_finding.Finding, place: tuple[str, int] | None = None) -> None:
        """A finding of the files as one of the rules: at the partition that it is about, else at the directory. Notices
        about a directory that was not closed are left out, because opening it settles them."""
        if about_file.severity == NOTICE and about_file.rule != check_finding.CHECKPOINT and not self._small.clean:
            return
        place = place or partition_of(about_file.path.partition("/")[0]) or ("", NONE)
        self.findings.append(
            finding(
                about_file.rule,
                Log(self._root, *place),
                about_file.message
                if about_file.path in about_file.message
                else f"{about_file.path}: {about_file.message}",
                first_offset=NONE if about_file.offset is None else about_file.offset,
                file=self._path(about_file.path),
                position=NONE if about_file.position is None else about_file.position,
                severity=about_file.severity,
            )
        )

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if self._root else name

    def surroundings(self, split_bytes: int) -> Surroundings:
        small = self._small
        damaged = frozenset(small.damaged)
        return Surroundings(
            self._files, self._root, split_bytes, small.offsets, damaged, self._policies, small.clean, self.reached
        )

    def take(self, look: PartitionLook) -> None:
        """What the directory of a partition shows as findings."""
        for file_finding in look.wrong:
            self._take(file_finding)
        if look.topic_id is not None:
            self._small.compare_id(look.name, look.topic_id)
        self._unindexed += look.unindexed
        self._indexed = self._indexed or look.indexed
        self._lost(look.facts.log, look.lost)

    def lost(self, place: tuple[str, int]) -> None:
        """Find the lost data of a partition whose directory is missing."""
        reached = self.reached.get(place, {})
        lost = lost_of_partition(self._reader, f"{place[0]}-{place[1]}", reached, clean=self._small.clean)
        self._lost(Log(self._root, *place), lost)

    def _lost(self, log: Log, lost: Iterable[Lost]) -> None:
        for loss in lost:
            if not loss.rebuilt:  # which `check` shows
                self.findings.append(_lost(loss, log, self._path(loss.path)))

    def checkpoints(self, chosen: Callable[[str, int], bool], missing: Collection[tuple[str, int]]) -> None:
        """Find checkpoint entries without a log, and checkpoints that contradict each other."""
        for file_finding in self._small.beyond_its_end():
            self._take(file_finding)
        for place, file_finding in self._small.without_directory(lambda: self.topics):
            if chosen(*place) and place not in missing:
                self._take(file_finding, place)
        for file_finding in self._unindexed if self._indexed else ():
            self._take(file_finding)

    @cached_property
    def topics(self) -> set[str] | None:
        """The topics that Kafka's metadata log has, where it is here and can be read."""
        metadata = _metadata(self._reader)
        return None if metadata is None else {*metadata.topics}


def look_at(around: Surroundings, name: str) -> PartitionLook:
    """Looks at the directory of a partition: one listing, `partition.metadata`, and what tells the end of its
    log. Raises NotReadable where the directory cannot be seen, as by an executor without the data."""
    reader = FilesReader(around.files, around.root)
    place = partition_of(name)
    assert place is not None
    sizes = {file: size for file, size in reader.present(name).items() if size != DIRECTORY}
    topic_id, wrong = identity_of(reader, name, sizes)
    facts = facts_of(
        Log(around.root, *place),
        sizes,
        around.offsets,
        around.policies,
        clean=around.clean,
        damaged=around.damaged,
    )
    cuts = tuple(base_of(file) for file in sizes if file.endswith(SNAPSHOT_SUFFIX))
    parts = []
    for file, size in sorted(sizes.items()):
        path = f"{around.path(name)}/{file}"
        if file.endswith(".log"):
            stem = file.removesuffix(".log")
            indexes = sizes.get(stem + INDEX_SUFFIX, NONE), sizes.get(stem + TIME_INDEX_SUFFIX, NONE)
            splits = _splits(around.files, path, size, around.split_bytes) if indexes[0] >= 0 else []
            ends = [*splits, size]
            parts += [
                Part(facts, path, at, end, cuts, indexes, end == size)
                for at, end in zip([0, *splits], ends, strict=True)
                if end > at or (not size and max(indexes) > 0)
            ]
        elif file.endswith(SMALL_SUFFIXES):
            parts.append(Part(facts, path, 0, size))
    lost = lost_of_partition(reader, name, around.reached.get(place, {}), clean=around.clean)
    indexed = any(file.endswith(INDEX_SUFFIX) for file in sizes)
    return PartitionLook(name, facts, parts, topic_id, wrong, lost, [*missing_indexes(name, sizes)], indexed)


def _splits(files: Files, path: str, size: int, split_bytes: int) -> Sequence[int]:
    """Where a large log file may be split: positions that its offset index names and where a batch begins that
    ends at the offset it names."""
    if size <= split_bytes:
        return []
    data = files.read(path.removesuffix(".log") + ".index")
    splits: list[int] = []
    last = 0
    for relative, position in OFFSET_ENTRY.iter_unpack(data[: len(data) - len(data) % OFFSET_ENTRY.size]):
        if position >= size or (not relative and last):
            break
        if position - last >= split_bytes and _begins(files, path, position, base_of(path) + relative):
            splits.append(position)
            last = position
    return splits


def _begins(files: Files, path: str, position: int, last_offset: int) -> bool:
    try:
        header = parse_header(files.read(path, position, position + HEADER_SIZE))
    except CorruptBatch:
        return False
    return header.last_offset == last_offset
