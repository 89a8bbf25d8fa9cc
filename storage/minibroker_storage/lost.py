"""Missing data: offsets and files that a data directory's own small files name, and that do not exist.

A log's offset checkpoints, producer snapshots and indexes are written after the records they refer to are in the log's
file, so a killed process leaves none of them ahead of its log. They are ahead only after a power loss, which may lose
unsynced data, if a file was removed, emptied or truncated by hand, or in a copy of a running broker whose logs were
copied before its checkpoints. Kafka's LogLoader reports none of them. Reads only.

After a clean stop nothing explains it. Else what was not synced, from the recovery point on, may be missing; what was
synced may be missing in a copy only, whose log is then not newer than the checkpoint, and at most `APART_MS` older.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple, Protocol

from minibroker_protocol.records import HEADER_SIZE, MAGIC, MAGIC_OFFSET, CorruptBatch, parse_header
from minibroker_storage.checkpoints import HIGH_WATERMARK, LOG_START_OFFSET, RECOVERY_POINT
from minibroker_storage.disk import Disk, NotFound, join
from minibroker_storage.indexes import OFFSET_ENTRY, TIME_ENTRY
from minibroker_storage.producer_snapshot import SNAPSHOT_SUFFIX

CHECKPOINTS = (RECOVERY_POINT, LOG_START_OFFSET, HIGH_WATERMARK)
"""The checkpoints whose offsets must be in the log."""
POWER_LOSS = "a power loss takes what was not synced, a killed process loses nothing"
UNSYNCED = (
    "not synced yet: a power loss takes it, and a copy of a running broker may lack it; a killed process loses nothing"
)
COPIED = "synced: missing as in a copy of a running broker whose log was copied before this file"
SYNCED = "synced: neither a power loss nor a copy of a running broker explains it"
APART_MS = 3_600_000
"""A copy of a running broker takes so long at most."""
DIRECTORY = -1
"""The size that stands for a directory."""
_CHUNK_BYTES = 1 << 20
_CLEAN_FILE = ".kafka_cleanshutdown"
_UNFINISHED = (".cleaned", ".swap")
_LOG = re.compile(r"\d{20}\.log")
_INDEX = re.compile(r"\d{20}\.(index|timeindex|txnindex)")


class Lost(NamedTuple):
    """Missing data.

    path: the file that names it.
    said: its content.
    there: what exists instead.
    offset: the end of the log of `directory` according to the file, -1 if that is not the subject.
    usable: whether a broker can start without the data.
    rebuilt: the missing file, where opening the log makes it anew and no record is lost.
    cause: what is known of the cause.
    lawful: a power loss or a copy explains it, and no more can be known.
    """

    path: str
    said: str
    there: str
    directory: str = ""
    offset: int = -1
    usable: bool = True
    rebuilt: str = ""
    cause: str = POWER_LOSS
    lawful: bool = False

    def __str__(self) -> str:
        return f"{self.path} says {self.said}, {self.there}"

    @property
    def explained(self) -> str:
        """The line with the possible cause."""
        return f"{self} ({self.cause})" if self.usable and not self.rebuilt else str(self)


class DirectoryReader(Protocol):
    """Reads the files of a directory, wherever they are."""

    def sizes(self, path: str) -> Mapping[str, int]:
        """Name → size of the entries of a directory, DIRECTORY for a subdirectory; empty if the directory does not
        exist."""

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes: ...

    def modified_ms(self, path: str) -> int | None:
        """When a file was last written; None where the file system does not say."""


class DiskReader:
    """The files of a `Disk`."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def sizes(self, path: str) -> Mapping[str, int]:
        try:
            names = self._disk.list(path)
        except NotFound:
            return {}
        paths = {name: join(path, name) for name in names}
        return {name: DIRECTORY if self._disk.is_dir(at) else self._disk.size(at) for name, at in paths.items()}

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        if start == 0 and stop is None:
            return self._disk.read_bytes(path)
        file = self._disk.open(path)
        try:
            return file.pread((file.size if stop is None else stop) - start, start)
        finally:
            file.close()

    def modified_ms(self, path: str) -> int | None:
        return self._disk.modified_ms(path)


def lost_of_partition(
    reader: DirectoryReader, directory: str, reached: Mapping[str, int], *, clean: bool = False, compacted: bool = True
) -> list[Lost]:
    """The missing data of a partition.

    reached: checkpoint file → its offset for this partition.
    clean: the directory was shut down cleanly, so each log has its snapshot, and nothing else is missing lawfully.
    compacted: compaction may have taken records between segments.
    """
    entries = reader.sizes(directory)
    sizes = {name: size for name, size in entries.items() if size != DIRECTORY}
    bases = sorted(int(name[:20]) for name in sizes if _LOG.fullmatch(name))
    end = log_end(reader, directory, bases, sizes)
    if bases:
        there = f"its log ends at {end}"
    else:
        there = "it has no log" if sizes else "its directory is missing or empty"
    losses = [
        Lost(checkpoint, f"{directory} reached offset {offset}", there, directory, offset)
        for checkpoint, offset in reached.items()
        if offset > end
    ]
    losses += [
        Lost(join(directory, name), "by its name that it is a log file", "it is a directory", directory, usable=False)
        for name in sorted(entries.keys() - sizes.keys())
        if _LOG.fullmatch(name)
    ]
    for name in sorted(sizes):
        if not name[:20].isdecimal():
            continue
        base = int(name[:20])
        if name.endswith(SNAPSHOT_SUFFIX) and base > end:
            losses.append(Lost(join(directory, name), f"the log reached offset {base}", there, directory, base))
        elif _INDEX.fullmatch(name) and base not in bases and base >= end:
            # An index below the end belongs to a segment whose removal a crash interrupted.
            said = f"a log file began at offset {base}"
            losses.append(Lost(join(directory, name), said, "there is none", directory, base))
    # While a compaction is unfinished, the segments it replaces may be gone already: a gap says nothing then.
    if not any(name.endswith(_UNFINISHED) for name in sizes):
        for base, following in pairwise(bases):
            if following <= reached.get(RECOVERY_POINT, 0):
                lost = list(_lost_of_segment(reader, directory, base, sizes))
                losses += lost or ([] if compacted else _missing_segments(reader, directory, base, following, sizes))
    if clean:
        return [*losses, *(_missing_snapshot(reader, directory, bases, sizes, end) if bases else ())]
    return _with_causes(reader, directory, bases, losses, synced_is_lost=end < reached.get(RECOVERY_POINT, 0))


def _with_causes(
    reader: DirectoryReader, directory: str, bases: list[int], losses: list[Lost], *, synced_is_lost: bool
) -> list[Lost]:
    """What is missing at the end of a log of a directory that was not closed, with its cause."""
    cause, lawful = UNSYNCED, True
    if losses and synced_is_lost:
        lawful = bool(bases) and may_be_of_a_copy(reader, join(directory, f"{bases[-1]:020d}.log"), RECOVERY_POINT)
        cause = COPIED if lawful else SYNCED
    return [loss._replace(cause=cause, lawful=lawful) if loss.offset >= 0 else loss for loss in losses]


def may_be_of_a_copy(reader: DirectoryReader, earlier: str, later: str) -> bool:
    """Whether a copy of a running broker may have taken the file `earlier` before `later`: it is not newer, whether or
    not the tool keeps file times."""
    before, after = reader.modified_ms(earlier), reader.modified_ms(later)
    return before is not None and after is not None and before <= after <= before + APART_MS


def _lost_of_segment(reader: DirectoryReader, directory: str, base: int, sizes: Mapping[str, int]) -> Iterator[Lost]:
    """A synced segment whose indexes name batches that its log lacks."""
    stem = f"{base:020d}"
    size = sizes[stem + ".log"]
    log = join(directory, stem + ".log")
    for suffix, entry in ((".index", OFFSET_ENTRY), (".timeindex", TIME_ENTRY)):
        index = sizes.get(stem + suffix, 0) // entry.size * entry.size
        last = reader.read(join(directory, stem + suffix), index - entry.size, index) if index else b""
        if not last.strip(b"\0"):  # allocated ahead
            continue
        position = entry.unpack(last)[1] if suffix == ".index" else 0
        if position >= size:
            there = f"that file has {size} bytes" if size else "that file is empty"
            yield Lost(join(directory, stem + suffix), f"a batch is at byte {position} of {log}", there, directory)
            return


def _missing_segments(
    reader: DirectoryReader, directory: str, base: int, following: int, sizes: Mapping[str, int]
) -> Iterator[Lost]:
    """A segment begins where the one before it ended. What there was in between has left no file behind."""
    end = _closed_segment_end(reader, directory, base, sizes)
    if end < following:
        path = join(directory, f"{following:020d}.log")
        there = f"the segment before it ends at {end}: segments between them are missing"
        yield Lost(path, f"by its name that the log reached offset {following}", there, directory, cause=SYNCED)


def _closed_segment_end(reader: DirectoryReader, directory: str, base: int, sizes: Mapping[str, int]) -> int:
    """`_segment_end` of one that is not the last: its offset index has no room left at its end, so that only the last
    entry is read."""
    stem = f"{base:020d}"
    size, index = sizes[stem + ".log"], sizes.get(stem + ".index", 0) // OFFSET_ENTRY.size * OFFSET_ENTRY.size
    last = reader.read(join(directory, stem + ".index"), index - OFFSET_ENTRY.size, index) if index else b""
    if last.strip(b"\0"):
        end = _walk(reader, join(directory, stem + ".log"), OFFSET_ENTRY.unpack(last)[1], size, base)
        if end is not None:
            return end
    return _segment_end(reader, directory, base, sizes)


def _missing_snapshot(
    reader: DirectoryReader, directory: str, bases: list[int], sizes: Mapping[str, int], end: int
) -> Iterator[Lost]:
    """The snapshot of producers that a clean shutdown leaves at the log's end, unless the log is empty or of a format
    without producers."""
    name = f"{end:020d}{SNAPSHOT_SUFFIX}"
    if name in sizes:
        return
    newest = next((base for base in reversed(bases) if sizes[f"{base:020d}.log"]), None)
    if newest is None:
        return
    head = reader.read(join(directory, f"{newest:020d}.log"), 0, min(sizes[f"{newest:020d}.log"], HEADER_SIZE))
    if len(head) > MAGIC_OFFSET and head[MAGIC_OFFSET] == MAGIC:
        there = f"{join(directory, name)} is missing and rebuilt from the log"
        yield Lost(_CLEAN_FILE, f"{directory} was closed at offset {end}", there, directory, rebuilt=name)


def log_end(reader: DirectoryReader, directory: str, bases: list[int], sizes: Mapping[str, int]) -> int:
    """One past the last offset of the last whole batch; 0 without a log. Reads headers only, checksums are not
    verified."""
    end = 0
    for base in reversed(bases):
        end = max(end, base, _segment_end(reader, directory, base, sizes))
        if sizes[f"{base:020d}.log"]:
            break
    return end


def _segment_end(reader: DirectoryReader, directory: str, base: int, sizes: Mapping[str, int]) -> int:
    stem = f"{base:020d}"
    size = sizes[stem + ".log"]
    for start in (*_indexed(reader, directory, stem, sizes), 0):
        end = _walk(reader, join(directory, stem + ".log"), start, size, base)
        if end is not None:
            return end
    return base


def _indexed(reader: DirectoryReader, directory: str, stem: str, sizes: Mapping[str, int]) -> list[int]:
    """The last position within the log that the offset index names, so that not the whole log must be read."""
    if not sizes.get(stem + ".index"):
        return []
    data = reader.read(join(directory, stem + ".index"))
    last = 0
    for _, position in OFFSET_ENTRY.iter_unpack(data[: len(data) - len(data) % OFFSET_ENTRY.size]):
        if position <= last:  # allocated ahead with zeros
            break
        last = position
    # Past the end of the log: it lost its tail, and the walk begins at its start.
    return [last] if 0 < last < sizes[stem + ".log"] else []


def _walk(reader: DirectoryReader, path: str, position: int, size: int, base: int) -> int | None:
    """The end of the batches from `position` on; None when no batch of this segment begins there."""
    end: int | None = None
    chunk, start = b"", position
    while position < size:
        if position + HEADER_SIZE > start + len(chunk):
            chunk, start = reader.read(path, position, min(position + _CHUNK_BYTES, size)), position
        try:
            header = parse_header(chunk, position - start)
        except CorruptBatch:
            break
        if position + header.size > size or header.base_offset < (base if end is None else end):
            break
        end = header.next_offset
        position += header.size
    return end
