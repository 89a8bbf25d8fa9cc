"""One segment: a ``.log`` file, its two sparse indexes and its aborted-transaction index (Kafka's LogSegment)."""

from __future__ import annotations

import contextlib
import threading
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from minibroker_protocol.records import HEADER_SIZE, LOG_OVERHEAD, BatchHeader, CorruptBatch, crc_ok, parse_header
from minibroker_storage import indexes
from minibroker_storage.config import LogConfig
from minibroker_storage.disk import Buffer, Disk, DiskFile, NotFound, StorageError, join, sync_file
from minibroker_storage.indexes import NO_TIMESTAMP, IndexCorrupt, OffsetIndex, TimeIndex
from minibroker_storage.txn_index import ENTRY_SIZE, AbortedTxn, TxnIndex
from minibroker_storage.validator import ValidatedBatches

#: Bytes read at once when batch headers are scanned.
SCAN_BYTES = 16 * 1024
_FIND_BYTES = 5 * 1024
"""Bytes read at once to find a batch: the default distance of two index entries, and the header after it."""
# The log last: a segment exists as long as its log does, and is removed in this order.
SEGMENT_FILES = (".index", ".timeindex", ".txnindex", ".log")
MAX_RELATIVE_OFFSET = (1 << 31) - 1
"""Indexes keep an offset as an int32, relative to the segment's base (AbstractIndex.canAppendOffset)."""
#: Newest batches whose positions are known exactly, so that reads near the end need no scan.
_TAIL = 512


class BatchPosition(NamedTuple):
    """The position and size of a whole batch in a segment's log, in bytes."""

    position: int
    size: int


class _Tail:
    """Exact positions of the newest batches. Lists only grow, and truncation replaces the object, so a reader in
    another thread sees lists that match."""

    __slots__ = ("first_offset", "last_offsets", "positions")

    def __init__(self, first_offset: int, last_offsets: list[int], positions: list[int]) -> None:
        self.first_offset = first_offset
        self.last_offsets = last_offsets
        self.positions = positions


def file_stem(base_offset: int) -> str:
    return f"{base_offset:020d}"


class Segment:
    """Batches from ``base_offset`` on. ``size`` is the log's length in bytes; nothing past it is ever read.

    Offset and time index are loaded on first use and rebuilt when their files are malformed.
    """

    __slots__ = (
        "_disk",
        "_first_timestamp",
        "_indexes",
        "_may_be_full",
        "_saving",
        "_suffix",
        "_tail",
        "_torn",
        "_txn_file",
        "_txn_index",
        "_txn_written",
        "_unloaded_unsynced",
        "base_offset",
        "bytes_since_index",
        "config",
        "created_ms",
        "dir",
        "log",
        "max_timestamp",
        "needs_recovery",
        "offset_of_max_timestamp",
        "size",
    )

    def __init__(
        self, disk: Disk, directory: str, base_offset: int, config: LogConfig, *, now_ms: int, suffix: str = ""
    ) -> None:
        self._disk = disk
        self._suffix = suffix
        self.dir = directory
        self.base_offset = base_offset
        self.config = config
        self.created_ms = now_ms
        self.log = disk.open(self.path(".log"))
        self._txn_file: DiskFile = disk.open(self.path(".txnindex"))
        self._txn_index: TxnIndex | None = None
        self._txn_written = -1  # entries in the file; -1: no file
        self.size = 0
        self._torn = False  # a failed write may have left bytes past `size`
        self.bytes_since_index = 0
        #: Index files are missing or malformed, and must be rebuilt from the batches.
        self.needs_recovery = False
        #: Largest batch timestamp (ms) and the last offset of the first batch that has it; None: not known yet.
        self.max_timestamp: int | None = None
        self.offset_of_max_timestamp = base_offset
        self._first_timestamp: int | None = None
        self._indexes: tuple[OffsetIndex, TimeIndex] | None = None
        #: Rolling writes them, unloads them, and leaves the sync to the next flush.
        self._unloaded_unsynced = False
        self._may_be_full = True  # whether an index has grown since the last check of its size
        #: A flush in another thread and a roll may write the same index files.
        self._saving = threading.Lock()
        self._tail = _Tail(base_offset, [], [])

    @classmethod
    def create(
        cls, disk: Disk, directory: str, base_offset: int, config: LogConfig, *, now_ms: int, suffix: str = ""
    ) -> Segment:
        """A new empty segment. Its log file is created now, its index files when they are first written. ``suffix`` is
        appended to every file name, as compaction does for unfinished segments.
        """
        segment = cls(disk, directory, base_offset, config, now_ms=now_ms, suffix=suffix)
        segment.log = disk.open(segment.path(".log"), create=True)
        if segment.log.size:
            segment.log.truncate(0)
        segment.max_timestamp = NO_TIMESTAMP
        segment._indexes = segment._new_indexes()
        segment._txn_index = TxnIndex(base_offset)
        return segment

    @classmethod
    def existing(cls, disk: Disk, directory: str, base_offset: int, config: LogConfig, *, now_ms: int) -> Segment:
        """A segment from existing files, which are trusted until a contradiction is found."""
        segment = cls(disk, directory, base_offset, config, now_ms=now_ms)
        segment.size = segment.log.size
        if segment.size:
            segment._tail = _Tail(1 << 62, [], [])  # until the log's end is known
        return segment

    def path(self, suffix: str) -> str:
        return join(self.dir, file_stem(self.base_offset) + suffix + self._suffix)

    def __repr__(self) -> str:
        return f"Segment({self.dir}, base_offset={self.base_offset}, size={self.size})"

    # -- indexes -------------------------------------------------------------------------------------------------

    def _new_indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        limit = self.config.segment_index_bytes
        return (
            OffsetIndex(self.path(".index"), self.base_offset, limit),
            TimeIndex(self.path(".timeindex"), self.base_offset, limit),
        )

    def _loaded(self) -> tuple[OffsetIndex, TimeIndex]:
        if self._indexes is None:
            fresh = self._new_indexes()
            try:
                for index in fresh:
                    data = self._disk.read_bytes(index.path)
                    index.decode(data, self.size)
            except (NotFound, IndexCorrupt):
                self.rebuild_indexes()
                assert self._indexes is not None
                with contextlib.suppress(StorageError):  # they are served from memory, and rebuilt at the next opening
                    self.save_indexes()
                return self._indexes
            self._indexes = fresh
            self._may_be_full = True
        return self._indexes

    @property
    def offset_index(self) -> OffsetIndex:
        return (self._indexes or self._loaded())[0]

    @property
    def time_index(self) -> TimeIndex:
        return (self._indexes or self._loaded())[1]

    @property
    def txn_index(self) -> TxnIndex:
        """Aborted transactions whose markers lie here. Raises MalformedFile when the file is broken."""
        if self._txn_index is None:
            path = self._txn_file.path
            exists = self._disk.exists(path)
            self._txn_index = TxnIndex.decode(self._disk.read_bytes(path) if exists else b"", self.base_offset, path)
            self._txn_written = len(self._txn_index) if exists else -1
        return self._txn_index

    def append_aborted(self, aborted: AbortedTxn) -> None:
        """Enters an aborted transaction. If the write fails, the next flush writes it: the marker is in the log, so
        after a crash before that the entry is rebuilt from there."""
        self.txn_index.append(aborted)
        with contextlib.suppress(StorageError), self._saving:
            self._save_txn_index()

    def _save_txn_index(self) -> None:
        """Makes the file contain the index's entries; without aborted transactions there is no file."""
        index = self._txn_index
        if index is None or self._txn_written == len(index) or not (len(index) or self._txn_written > 0):
            return
        if self._txn_written < 0:
            self._txn_file = self._disk.open(self._txn_file.path, create=True)
            self._txn_written = 0
        start = self._txn_written * ENTRY_SIZE
        if self._txn_file.size > start:
            self._txn_file.truncate(start)
        count = len(index)
        self._txn_file.pwrite(index.encode()[start : count * ENTRY_SIZE], start)
        self._txn_written = count

    def reset_txn_index(self) -> None:
        indexes.remove(self._disk, self._txn_file.path)
        self._txn_file = self._disk.open(self._txn_file.path)
        self._txn_index = TxnIndex(self.base_offset)
        self._txn_written = -1

    def unload_indexes(self) -> None:
        """Drops indexes from memory that are completely in their files."""
        if self._indexes is not None and all(index.written == len(index) for index in self._indexes):
            self._indexes = None
            self._unloaded_unsynced = True

    def rebuild_indexes(self) -> None:
        """Rebuilds offset and time index from the batch headers. Raises CorruptBatch for bytes that are no batch."""
        self.reset_indexes()
        for position, header in self.headers():
            self.count(header, position)
        self.finish_time_index()

    def reset_indexes(self) -> None:
        self._indexes = self._new_indexes()
        self._may_be_full = True
        for index in self._indexes:
            indexes.remove(self._disk, index.path)
        self.bytes_since_index = 0
        self.max_timestamp = NO_TIMESTAMP
        self.offset_of_max_timestamp = self.base_offset

    def count(self, header: BatchHeader, position: int) -> None:
        """Takes a batch at ``position`` into account: timestamps, and an index entry when enough bytes have passed."""
        max_timestamp = self.max_timestamp
        if max_timestamp is None:
            max_timestamp = self.largest_timestamp
        last_offset = header.base_offset + header.last_offset_delta
        if header.max_timestamp > max_timestamp:
            self.max_timestamp = max_timestamp = header.max_timestamp
            self.offset_of_max_timestamp = last_offset
        if self.bytes_since_index > self.config.index_interval_bytes:
            offset_index, time_index = self._indexes or self._loaded()
            # As Kafka: the last offset with the position where its batch begins; a look-up never starts too late.
            offset_index.append(last_offset, position)
            time_index.maybe_append(max_timestamp, self.offset_of_max_timestamp)
            self.bytes_since_index = 0
            self._may_be_full = True
        self.bytes_since_index += header.batch_length + LOG_OVERHEAD

    def finish_time_index(self) -> None:
        """The last entry, which rolling and closing add: the largest timestamp of all."""
        if self.size:
            timestamp = self.largest_timestamp
            self.time_index.maybe_append(timestamp, self.offset_of_max_timestamp)

    @property
    def largest_timestamp(self) -> int:
        """Largest batch timestamp in ms, -1 when no batch has one."""
        if self.max_timestamp is None:
            self.max_timestamp, self.offset_of_max_timestamp = self.time_index.last
        return self.max_timestamp

    @property
    def first_timestamp(self) -> int:
        """Largest timestamp of the first batch in ms, -1 without one: what ``segment.ms`` counts from."""
        if self._first_timestamp is None:
            if not self.size:
                return NO_TIMESTAMP
            self._first_timestamp = parse_header(self.log.pread(HEADER_SIZE, 0)).max_timestamp
        return self._first_timestamp

    # -- writing -------------------------------------------------------------------------------------------------

    def append(self, buffers: Sequence[Buffer], headers: Sequence[BatchHeader]) -> None:
        """Appends whole batches. A StorageError leaves the segment as it was."""
        if self._torn:
            self.take_off_leftovers()
        try:
            position = self.log.append(buffers)
        except StorageError:
            self._torn = True
            raise
        if not position:
            self._first_timestamp = headers[0].max_timestamp
        tail = self._tail
        for header in headers:
            self.count(header, position)
            tail.positions.append(position)
            tail.last_offsets.append(header.base_offset + header.last_offset_delta)
            position += header.batch_length + LOG_OVERHEAD
        self.size = position
        # At twice the length only, so that batches are seldom copied.
        if len(tail.positions) > 2 * _TAIL:
            self._tail = _Tail(tail.last_offsets[-_TAIL - 1] + 1, tail.last_offsets[-_TAIL:], tail.positions[-_TAIL:])

    def should_roll(self, batches: ValidatedBatches, now_ms: int) -> bool:
        """Whether these batches need a new segment (Kafka's LogSegment.shouldRoll)."""
        config = self.config
        if self.size > config.segment_bytes - batches.size:
            return True
        if batches.last_offset - self.base_offset > MAX_RELATIVE_OFFSET:
            return True
        if self._indexes is None:
            self._loaded()
        assert self._indexes is not None
        if self._may_be_full:
            if self._indexes[0].full or self._indexes[1].full:
                return True
            self._may_be_full = False
        if not self.size:
            return False
        first = self._first_timestamp if self._first_timestamp is not None else self.first_timestamp
        # By record time where there is one, so that a segment has records of one period whenever they are written
        # (LogSegment.timeWaitedForRoll).
        waited = batches.max_timestamp - first if first >= 0 else now_ms - self.created_ms
        return waited > config.segment_ms - config.segment_jitter_ms

    def truncate_to(self, offset: int) -> None:
        """Drops every batch from the one that holds ``offset`` on."""
        at = self.find(offset)
        if at is not None:
            self.cut(at.position, offset)

    def cut(self, position: int, offset: int) -> None:
        """Drops all bytes from ``position`` on, the first of which belong to the batch holding ``offset``."""
        self.log.truncate(position)
        self.size = position
        self.offset_index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        with contextlib.suppress(StorageError):  # after a crash they would name batches that are gone
            self.save_indexes()
        if self.txn_index.truncate_to(offset):
            self._txn_written = len(self.txn_index)
            self._txn_file.truncate(self._txn_written * ENTRY_SIZE)
        self.max_timestamp, self.offset_of_max_timestamp = self.time_index.last
        self.bytes_since_index = 0
        self._tail = _Tail(offset, [], [])
        # Batches after the last index entry may hold a larger timestamp than the time index knows of.
        for _, header in self.headers(self.offset_index.lookup(offset)[1]):
            if header.max_timestamp > self.max_timestamp:
                self.max_timestamp, self.offset_of_max_timestamp = header.max_timestamp, header.last_offset
        if not position:
            self._first_timestamp = None

    def cut_end(self, position: int) -> None:
        """Drops bytes that belong to no batch; the indexes have no entry for them."""
        self.log.truncate(position)
        self.size = position
        self._tail = _Tail(1 << 62, [], [])

    def save_indexes(self, *, sync: bool = False) -> None:
        """Writes the entries that are missing in the index files."""
        with self._saving:
            self._save_txn_index()
            for index in self._indexes or ():
                indexes.save(self._disk, index)
        if not sync:
            return
        for index in self._indexes or ():
            if index.written > 0:  # an empty file that is lost is created again
                sync_file(self._disk, index.path)
        if self._unloaded_unsynced:
            self._unloaded_unsynced = False
            try:
                for ending in (".index", ".timeindex"):
                    if self._disk.exists(self.path(ending)):
                        sync_file(self._disk, self.path(ending))
            except StorageError:
                self._unloaded_unsynced = True
                raise

    def flush(self) -> None:
        """Returns when the log and its indexes survive a power loss."""
        self.log.sync()
        self.save_indexes(sync=True)
        if self._txn_written > 0:
            self._txn_file.sync()

    def take_off_leftovers(self) -> None:
        """Truncates the bytes that a failed write left. In a segment that is no longer the last, recovery would treat
        them as the end of the log."""
        if self._torn:
            self.log.truncate(self.size)
            self._torn = False

    def seal(self) -> None:
        """Add the last time index entry, write the index files and close the handles, for a roll or at close."""
        self.take_off_leftovers()
        self.finish_time_index()
        self.save_indexes()
        self.close_files()

    def close_files(self) -> None:
        self.log.close()
        self._txn_file.close()

    def move(self, directory: str) -> None:
        """The files are in another directory now; no handle may be open."""
        self.dir = directory
        self._reopen()

    def rename_files(self, suffix: str) -> None:
        """Gives the files another suffix, the log last: a segment exists if its log file does."""
        self.close_files()
        old = [self.path(ending) for ending in SEGMENT_FILES]
        self._suffix = suffix
        for source, ending in zip(old, SEGMENT_FILES, strict=True):
            if self._disk.exists(source):
                self._disk.rename(source, self.path(ending))
        self._reopen()

    def _reopen(self) -> None:
        self.log = self._disk.open(self.path(".log"))
        self._txn_file = self._disk.open(self.path(".txnindex"))
        if self._indexes is not None:
            self._indexes[0].path = self.path(".index")
            self._indexes[1].path = self.path(".timeindex")

    def remove(self) -> None:
        """Removes the segment's files; some may not exist."""
        self.close_files()
        for ending in SEGMENT_FILES:
            indexes.remove(self._disk, self.path(ending))

    def modified_ms(self) -> int:
        return self._disk.modified_ms(self.log.path)

    # -- reading -------------------------------------------------------------------------------------------------

    def find(self, offset: int) -> BatchPosition | None:
        """The first batch whose last offset is at or above ``offset``; None when the segment ends before it."""
        tail = self._tail
        if offset >= tail.first_offset:
            size = self.size
            positions = tail.positions
            i = bisect_left(tail.last_offsets, offset)
            if i == len(tail.last_offsets):
                return None
            return BatchPosition(positions[i], (positions[i + 1] if i + 1 < len(positions) else size) - positions[i])
        for position, header in self.headers(self.offset_index.lookup(offset)[1], chunk_bytes=_FIND_BYTES):
            if header.base_offset + header.last_offset_delta >= offset:
                return BatchPosition(position, header.batch_length + LOG_OVERHEAD)
        return None

    def headers(self, position: int = 0, *, chunk_bytes: int = SCAN_BYTES) -> Iterator[tuple[int, BatchHeader]]:
        """(position, header) of every batch from a batch's start on; CorruptBatch for bytes that are no batch."""
        chunk, start, size = b"", position, self.size
        while position < size:
            if position + HEADER_SIZE > start + len(chunk):
                chunk, start = self.log.pread(min(chunk_bytes, size - position), position), position
            try:
                header = parse_header(chunk, position - start)
            except CorruptBatch as error:
                raise CorruptBatch(f"{self.log.path}: at byte {position} of {size}: {error}") from None
            if position + header.size > size:
                raise CorruptBatch(f"{self.log.path}: batch of {header.size} bytes at byte {position} of {size}")
            if not 0 <= header.base_offset + header.last_offset_delta - self.base_offset <= MAX_RELATIVE_OFFSET:
                raise CorruptBatch(
                    f"{self.log.path}: batch at byte {position} ends at offset {header.last_offset}, which cannot be in"
                    f" a segment that begins at {self.base_offset}"
                )
            yield position, header
            position += header.size

    def read_batch(self, position: int, header: BatchHeader) -> bytes:
        """The bytes of one batch; CorruptBatch if its checksum is wrong or the file was truncated in the meantime."""
        data = self.log.pread(header.size, position)
        if not crc_ok(data, 0, header):
            raise CorruptBatch(
                f"{self.log.path}: batch at byte {position} (offset {header.base_offset}) has a wrong checksum"
            )
        return data

    def next_offset(self) -> int:
        """One past the last batch's last offset, found from the last index entry; the base offset when empty."""
        end = self.base_offset
        largest = self.largest_timestamp
        for _, header in self.headers(self.offset_index.lookup(self.base_offset + MAX_RELATIVE_OFFSET)[1]):
            end = header.next_offset
            if header.max_timestamp > largest:
                largest = self.max_timestamp = header.max_timestamp
                self.offset_of_max_timestamp = header.last_offset
        self._tail = _Tail(end, [], [])
        return end
