"""The files of data directories, on a local disk or any file system that pyarrow or fsspec knows.

Listing happens once, on the driver; what is to be read is handed out in parts of bounded size.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from minibroker.controller.journal import JOURNAL, MARK, lost_of_journal, topics_in
from minibroker.rules.catalogue import finding
from minibroker.rules.rows import CONSUMER_OFFSETS, TRANSACTION_STATE, Finding, Log, LogFacts
from minibroker.rules.scan import CLEAN_FILE, base_of, partition_of
from minibroker_protocol.errors import Malformed
from minibroker_storage.checkpoints import CLEANER_OFFSET, LOG_START_OFFSET, decode_offsets
from minibroker_storage.directory import META_FILE
from minibroker_storage.indexes import OFFSET_ENTRY
from minibroker_storage.lost import CHECKPOINTS, DIRECTORY, lost_of_partition
from minibroker_storage.producer_snapshot import SNAPSHOT_SUFFIX

TXN_INDEX_SUFFIX = ".txnindex"
EVERYTHING = 1 << 62
"""As a cleaned offset: any batch may be missing."""
SPLIT_BYTES = 256 << 20
TASK_BYTES = 64 << 20
"""Small files are read together by one task, up to so many bytes."""


class NotReadable(Exception):
    """What was named cannot be audited."""


class Part(NamedTuple):
    """Bytes [start, stop) of a file that one task reads; `cuts` are the offsets of snapshots within a log."""

    facts: LogFacts
    path: str
    start: int
    stop: int
    cuts: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        return self.stop - self.start

    @property
    def is_log(self) -> bool:
        """Batches, in contrast to the small files beside them."""
        return not self.path.endswith((TXN_INDEX_SUFFIX, SNAPSHOT_SUFFIX))


class Entry(NamedTuple):
    """A name in a directory."""

    name: str
    size: int
    is_dir: bool


class Files:
    """A tree of files under a path or URI. Can be pickled: each process opens its own file system."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.local = "://" not in uri or uri.startswith("file://")
        self._path = os.path.abspath(uri.removeprefix("file://"))  # here: workers have another working directory
        self._opened: tuple[Any, str] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def _file_system(self) -> tuple[Any, str]:
        if self._opened is None:
            from pyarrow import ArrowInvalid, fs

            try:
                if self.local:
                    self._opened = fs.LocalFileSystem(), self._path
                else:
                    self._opened = fs.FileSystem.from_uri(self.uri)
            except ArrowInvalid:
                self._opened = self._other_file_system()
        return self._opened

    def _other_file_system(self) -> tuple[Any, str]:
        try:
            import fsspec
            from pyarrow.fs import FSSpecHandler, PyFileSystem

            other, path = fsspec.core.url_to_fs(self.uri)
        except (ImportError, ValueError) as error:
            raise NotReadable(f"{self.uri}: {error}") from None
        return PyFileSystem(FSSpecHandler(other)), path

    def _full(self, path: str) -> tuple[Any, str]:
        system, root = self._file_system()
        return system, f"{root.rstrip('/')}/{path}" if path else root

    def list(self, path: str = "") -> list[Entry]:
        """The names in a directory, sorted; NotReadable when there is none."""
        from pyarrow import fs

        system, full = self._full(path)
        try:
            infos = system.get_file_info(fs.FileSelector(full))
        except OSError as error:
            raise NotReadable(f"{self.uri}: {os.strerror(error.errno) if error.errno else error}") from None
        found = [Entry(info.base_name, info.size or 0, info.type == fs.FileType.Directory) for info in infos]
        return sorted(found)

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        system, full = self._full(path)
        with system.open_input_file(full) as file:
            end = file.size() if stop is None else stop
            data: bytes = file.read_at(end - start, start)
            return data

    @contextmanager
    def view(self, part: Part) -> Iterator[tuple[memoryview, int]]:
        """(bytes, where in the file they begin): mapped where the file is local, else read."""
        if not self.local:
            yield memoryview(self.read(part.path, part.start, part.stop)), part.start
            return
        _, full = self._full(part.path)
        with open(full, "rb") as file:
            if not part.size:
                yield memoryview(b""), 0
                return
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            if hasattr(mapped, "madvise") and hasattr(mmap, "MADV_SEQUENTIAL"):
                mapped.madvise(mmap.MADV_SEQUENTIAL)
            whole = memoryview(mapped)
            try:
                yield whole, 0
            finally:
                # An exception on its way, such as an interrupt, holds views; the mapping goes with the last of them.
                with suppress(BufferError):
                    whole.release()
                    mapped.close()


class Directory(NamedTuple):
    """What lies under a path: the logs, the parts to read, what could not be read and is taken as not there, and what
    is gone of what checkpoints, snapshots, indexes or the metadata journal say was there."""

    facts: list[LogFacts]
    parts: list[Part]
    warnings: tuple[str, ...] = ()
    lost: tuple[Finding, ...] = ()

    @property
    def bytes(self) -> int:
        return sum(part.size for part in self.parts)


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
) -> Directory:
    """The logs of a data directory, or of all data directories in it. `topics` and `partitions` choose (all when
    empty); of `compacted` topics any batch may be missing. NotReadable when there is no log."""
    facts: list[LogFacts] = []
    parts: list[Part] = []
    warnings: list[str] = []
    existing, lost = _journal(files)

    def chosen(topic: str, partition: int) -> bool:
        return not (topics and topic not in topics) and not (partitions and partition not in partitions)

    for root in _roots(files):
        listing = _Root(files, root, compacted)
        warnings += listing.warnings
        places = set()
        for name in listing.partition_names:
            place = partition_of(name)
            if place is None or not chosen(*place):
                continue
            fact, found = listing.partition(name, place, split_bytes)
            facts.append(fact)
            parts += found
            places.add(place)
        # A partition of a topic that exists may have lost its directory too.
        places |= {place for place in listing.reached if place[0] in existing and chosen(*place)}
        for place in sorted(places):
            lost += listing.lost(place)
    if not facts and not lost:
        raise NotReadable(f"{files.uri}: no directory of a partition in it")
    return Directory(facts, parts, tuple(warnings), tuple(lost))


def _journal(files: Files) -> tuple[set[str], list[Finding]]:
    """The topics that the controller's journal has, and what is gone of it."""
    names = {entry.name for entry in files.list()}
    journal, mark = (files.read(name) if name in names else None for name in (JOURNAL, MARK))
    lost = lost_of_journal(journal, mark)
    found = []
    if lost is not None:
        found.append(finding("lost-data", Log("", "__cluster_metadata", 0), lost.explained, file=lost.path))
    return topics_in(journal or b""), found


class _Reader:
    """The files below a data directory."""

    def __init__(self, files: Files, root: str) -> None:
        self._files = files
        self._root = f"{root}/" if root else ""

    def sizes(self, path: str) -> dict[str, int]:
        try:
            entries = self._files.list(self._root + path)
            return {entry.name: DIRECTORY if entry.is_dir else entry.size for entry in entries}
        except NotReadable:
            return {}

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        return self._files.read(self._root + path, start, stop)


def _roots(files: Files) -> list[str]:
    """Where partitions' directories lie: in the path itself, or in directories in it (`broker-1`)."""
    entries = files.list()
    if _is_data_directory(files, "", entries):
        return [""]
    inner = ((entry.name, files.list(entry.name)) for entry in entries if entry.is_dir)
    return [name for name, below in inner if _is_data_directory(files, name, below)]


def _is_data_directory(files: Files, root: str, entries: Sequence[Entry]) -> bool:
    if any(entry.name == META_FILE for entry in entries):
        return True
    for name in [entry.name for entry in entries if entry.is_dir]:
        if partition_of(name) is not None:
            path = f"{root}/{name}" if root else name
            if any(entry.name.endswith(".log") for entry in files.list(path)):
                return True
    return False


class _Root:
    """One data directory."""

    def __init__(self, files: Files, root: str, compacted: Collection[str]) -> None:
        self._files = files
        self._root = root
        self._compacted = compacted
        entries = files.list(root)
        self._names = {entry.name for entry in entries}
        self.partition_names = [entry.name for entry in entries if entry.is_dir]
        self.warnings: list[str] = []
        offsets = {name: self._checkpoint(name) or {} for name in CHECKPOINTS}
        self._starts = offsets[LOG_START_OFFSET]
        self.reached: dict[tuple[str, int], dict[str, int]] = {}
        for name, of_partitions in offsets.items():
            for place, offset in of_partitions.items():
                self.reached.setdefault(place, {})[name] = offset
        cleaned = self._checkpoint(CLEANER_OFFSET)
        self._doubtful = cleaned is None  # any batch of any topic may be missing
        self._cleaned = cleaned or {}

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if self._root else name

    def _checkpoint(self, name: str) -> dict[tuple[str, int], int] | None:
        """The offsets in a checkpoint, none where there is no such file; None where it is damaged, which Kafka too
        takes for an empty one."""
        if name not in self._names:
            return {}
        path = self._path(name)
        try:
            return decode_offsets(self._files.read(path), path)
        except Malformed as error:
            self.warnings.append(f"{error}; taken as missing")
            return None

    def lost(self, place: tuple[str, int]) -> list[Finding]:
        """What is gone of a partition."""
        directory = f"{place[0]}-{place[1]}"
        return [
            finding(
                "lost-data",
                Log(self._root, *place),
                one.explained,
                first_offset=one.offset,
                file=self._path(one.path),
            )
            for one in lost_of_partition(_Reader(self._files, self._root), directory, self.reached.get(place, {}))
        ]

    def partition(self, name: str, place: tuple[str, int], split_bytes: int) -> tuple[LogFacts, list[Part]]:
        entries = [entry for entry in self._files.list(self._path(name)) if not entry.is_dir]
        bases = [base_of(e.name) for e in entries if e.name.endswith(".log") and e.name[:20].isdecimal()]
        first = min(bases, default=0)
        cleaned = self._cleaned.get(place, 0)
        internal = place[0] in (TRANSACTION_STATE, CONSUMER_OFFSETS)
        if self._doubtful or place[0] in self._compacted or (internal and CLEANER_OFFSET not in self._names):
            cleaned = EVERYTHING
        start = max(self._starts.get(place, 0), first)
        facts = LogFacts(Log(self._root, *place), start, first, cleaned, CLEAN_FILE in self._names)
        cuts = tuple(base_of(e.name) for e in entries if e.name.endswith(SNAPSHOT_SUFFIX))
        parts = []
        sizes = {entry.name: entry.size for entry in entries}
        for entry in entries:
            path = f"{self._path(name)}/{entry.name}"
            if entry.name.endswith(".log"):
                index = entry.name.removesuffix(".log") + ".index"
                splits = self._splits(path, entry.size, split_bytes) if index in sizes else []
                ends = [*splits, entry.size]
                parts += [
                    Part(facts, path, at, end, cuts) for at, end in zip([0, *splits], ends, strict=True) if end > at
                ]
            elif entry.name.endswith((TXN_INDEX_SUFFIX, SNAPSHOT_SUFFIX)):
                parts.append(Part(facts, path, 0, entry.size))
        return facts, parts

    def _splits(self, path: str, size: int, split_bytes: int) -> Sequence[int]:
        """Where a large log file may be split: positions that its offset index names. An entry that does not point at a
        batch is found out by the part before it, which ends elsewhere."""
        if size <= split_bytes:
            return []
        data = self._files.read(path.removesuffix(".log") + ".index")
        splits: list[int] = []
        last = 0
        for relative, position in OFFSET_ENTRY.iter_unpack(data[: len(data) - len(data) % OFFSET_ENTRY.size]):
            if position >= size or (not relative and last):
                break
            if position - last >= split_bytes:
                splits.append(position)
                last = position
        return splits


def bins(parts: Sequence[Part], task_bytes: int = TASK_BYTES) -> list[list[Part]]:
    """Parts put together to tasks of about as many bytes, largest first."""
    found: list[list[Part]] = []
    room = 0
    for part in sorted(parts, key=lambda one: -one.size):
        if room < part.size or not found:
            found.append([])
            room = task_bytes
        found[-1].append(part)
        room -= part.size
    return found
