"""Log compaction (Kafka's LogCleanerManager and Cleaner): find the dirty part, rewrite it, replace the segments.

Three steps, since one thread changes a log: `find_work` and `plan` on that thread, `Plan.rewrite` anywhere (it reads
sealed segments and writes `.cleaned` files), `install` on the log's thread again. A crash at any point leaves, for each
group of segments, the old ones or the new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from minibroker_protocol.records import BatchHeader, Buffer, decode_records, parse_control
from minibroker_storage.compaction_rules import Filter, OffsetMap, Transactions
from minibroker_storage.config import LogConfig
from minibroker_storage.disk import Disk
from minibroker_storage.log_scan import checked
from minibroker_storage.producer_entry import LastRecord
from minibroker_storage.recovery import CLEANED_SUFFIX
from minibroker_storage.segment import MAX_RELATIVE_OFFSET, Segment
from minibroker_storage.txn_index import AbortedTxn

if TYPE_CHECKING:
    from minibroker_storage.log import PartitionLog

MAP_BYTES = 128 * 1024 * 1024
"""log.cleaner.dedupe.buffer.size: memory for the keys of one round."""
MAX_BATCH_BYTES = 128 * 1024 * 1024
CHUNK_BYTES = 1 << 20

Stop = Callable[[], bool]


class Stopped(Exception):
    """The rewrite was stopped; its files are removed."""


class Work(NamedTuple):
    """What may be cleaned: offsets [first_dirty, upper_bound); sizes in bytes.

    `overdue`: a record waits longer than max.compaction.lag.ms.
    """

    first_dirty: int
    upper_bound: int
    clean_bytes: int
    cleanable_bytes: int
    overdue: bool

    @property
    def ratio(self) -> float:
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0

    def due(self, config: LogConfig) -> bool:
        return (self.overdue and self.cleanable_bytes > 0) or self.ratio > config.min_cleanable_dirty_ratio


def only_by_size(config: LogConfig) -> bool:
    """Whether the result of `find_work` does not depend on time: no lag makes records due or keeps them."""
    return config.min_compaction_lag_ms <= 0 and config.max_compaction_lag_ms == LogConfig().max_compaction_lag_ms


def find_work(log: PartitionLog, checkpoint: int | None, now_ms: int) -> Work:
    """The dirty part of the log. `checkpoint` is the first dirty offset after the last round, None before the first
    one.

    Never past the last stable offset, into the active segment or a segment younger than min.compaction.lag.ms; whole
    segments only.
    """
    segments = log.segments
    start = log.log_start_offset
    # A checkpoint outside of the log is of records that were truncated or deleted since (cleanableOffsets).
    first_dirty = start if checkpoint is None or not start <= checkpoint <= log.log_end_offset else checkpoint
    limits = [log.last_stable_offset]
    dirty = [s for s, end in _with_ends(segments[:-1], segments[-1].base_offset) if end > first_dirty]
    if log.config.min_compaction_lag_ms > 0:
        young = now_ms - log.config.min_compaction_lag_ms
        limits += [s.base_offset for s in dirty if s.largest_timestamp > young][:1]
    limit = max(min(limits), first_dirty)
    bases = [segment.base_offset for segment in segments if segment.base_offset <= limit]
    upper_bound = bases[-1] if bases else first_dirty
    first_dirty_base = max((base for base in bases if base <= first_dirty), default=upper_bound)
    clean = sum(s.size for s in segments if s.base_offset < first_dirty)
    cleanable = sum(s.size for s in segments if first_dirty_base <= s.base_offset < upper_bound)
    # Segments whose records have no timestamps are never overdue (LogCleanerManager.maxCompactionDelay).
    oldest = min((s.first_timestamp for s in dirty if s.size and s.first_timestamp > 0), default=now_ms)
    overdue = oldest < now_ms - max(log.config.max_compaction_lag_ms, 0)
    return Work(first_dirty, upper_bound, clean, cleanable, overdue)


def _with_ends(segments: Sequence[Segment], end: int) -> Iterator[tuple[Segment, int]]:
    bases = [segment.base_offset for segment in segments[1:]]
    return zip(segments, [*bases, end], strict=False)


@dataclass(slots=True)
class SegmentGroup:
    """Segments that became one."""

    old: list[Segment]
    new: Segment


@dataclass(slots=True)
class Cleaned:
    """A finished rewrite; `next_dirty` is the cleaner checkpoint once every group is in place."""

    groups: list[SegmentGroup] = field(default_factory=list)
    next_dirty: int = 0
    bytes_read: int = 0
    bytes_written: int = 0

    def discard(self) -> None:
        """Removes the files written so far."""
        for group in self.groups:
            group.new.remove()


class Plan(NamedTuple):
    """A round, as decided on the log's thread; its segments no longer change."""

    disk: Disk
    directory: str
    config: LogConfig
    segments: list[Segment]
    work: Work
    last_records: Mapping[int, LastRecord]
    aborted: list[AbortedTxn]
    now_ms: int

    def rewrite(
        self, stop: Stop = lambda: False, *, map_bytes: int = MAP_BYTES, chunk_bytes: int = CHUNK_BYTES
    ) -> Cleaned:
        """Writes the cleaned segments, about ``chunk_bytes`` at once. Raises CorruptBatch, StorageError or
        Stopped, leaving no file behind."""
        offsets = self._latest_offsets(map_bytes, stop)
        result = Cleaned(next_dirty=max(offsets.latest + 1, self.work.first_dirty))
        rules = Filter(
            offsets,
            Transactions(self.aborted),
            self.last_records,
            upper_bound=self.work.upper_bound,
            delete_retention_ms=self.config.delete_retention_ms,
            now_ms=self.now_ms,
            max_batch_bytes=MAX_BATCH_BYTES,
        )
        try:
            for group in self._groups(result.next_dirty):
                new = Segment.create(
                    self.disk,
                    self.directory,
                    group[0].base_offset,
                    self.config,
                    now_ms=self.now_ms,
                    suffix=CLEANED_SUFFIX,
                )
                result.groups.append(SegmentGroup(group, new))
                _write_group(group, new, rules, result, stop, chunk_bytes)
        except BaseException:
            result.discard()
            raise
        return result

    def _latest_offsets(self, map_bytes: int, stop: Stop) -> OffsetMap:
        offsets = OffsetMap(map_bytes)
        first_dirty = self.work.first_dirty
        transactions = Transactions([txn for txn in self.aborted if txn.last_offset >= first_dirty])
        for segment, end in _with_ends(self.segments, self.work.upper_bound):
            if end > first_dirty:
                if not _index(segment, first_dirty, offsets, transactions, stop):
                    break  # the map is full: the next round begins with the rest
                offsets.latest = max(offsets.latest, end - 1)
        return offsets

    def _groups(self, end: int) -> list[list[Segment]]:
        """Neighbours that fit into one segment and one index, with offsets relative to the first."""
        groups: list[list[Segment]] = []
        size = index_bytes = 0
        for segment, segment_end in _with_ends(self.segments, self.work.upper_bound):
            if segment.base_offset >= end:
                break
            own = max(len(segment.offset_index) * 8, len(segment.time_index) * 12)
            fits = (
                groups
                and size + segment.size <= self.config.segment_bytes
                and index_bytes + own <= self.config.segment_index_bytes
                and segment_end - 1 - groups[-1][0].base_offset <= MAX_RELATIVE_OFFSET
            )
            if fits:
                groups[-1].append(segment)
                size, index_bytes = size + segment.size, index_bytes + own
            else:
                groups.append([segment])
                size, index_bytes = segment.size, own
        return groups


def plan(log: PartitionLog, work: Work, now_ms: int) -> Plan:
    """Collects from the log what the rewrite needs. Raises MalformedFile for a broken abort index."""
    segments = [segment for segment in log.segments if segment.base_offset < work.upper_bound]
    aborted: list[AbortedTxn] = []
    for segment in log.segments:
        entries, complete = segment.txn_index.collect(log.segments[0].base_offset, work.upper_bound)
        aborted += entries
        if complete:
            break
    return Plan(log.disk, log.path, log.config, segments, work, log.producers.last_records(), aborted, now_ms)


def _index(segment: Segment, first_dirty: int, offsets: OffsetMap, transactions: Transactions, stop: Stop) -> bool:
    """Enters a segment's keys; False when the map is full. Aborted records are not in it."""
    for _, header, data in checked(segment.log, segment.size):
        if stop():
            raise Stopped
        if header.last_offset < first_dirty:
            continue
        records = decode_records(data, 0, header, max_bytes=MAX_BATCH_BYTES)
        if header.is_control:
            transactions.end(header, parse_control(records[0]) if records else None)
        elif not transactions.is_aborted(header):
            for record in records:
                if (
                    record.key is not None
                    and record.offset >= first_dirty
                    and not offsets.put(bytes(record.key), record.offset)
                ):
                    return False
        offsets.latest = max(offsets.latest, header.last_offset)
    return True


def _write_group(
    group: Sequence[Segment], new: Segment, rules: Filter, result: Cleaned, stop: Stop, chunk_bytes: int
) -> None:
    buffers: list[Buffer] = []
    headers: list[BatchHeader] = []
    waiting = 0

    def write() -> None:
        nonlocal waiting
        if buffers:
            new.append(buffers, headers)
            result.bytes_written += waiting
            buffers.clear()
            headers.clear()
            waiting = 0

    for segment in group:
        for _, header, data in checked(segment.log, segment.size):
            if stop():
                raise Stopped
            result.bytes_read += header.size
            cleaned = rules.clean(header, data)
            if cleaned is not None:
                headers.append(cleaned[0])
                buffers.append(cleaned[1])
                waiting += len(cleaned[1])
            if waiting >= chunk_bytes:
                write()
    write()
    for txn in rules.kept_aborts:
        new.append_aborted(txn)
    rules.kept_aborts.clear()
    new.seal()
    new.flush()
    new.close_files()


def install(log: PartitionLog, cleaned: Cleaned, now_ms: int) -> bool:
    """Puts the groups in place. False, with the rest discarded, when the log has lost one of the old segments since
    (truncation, retention); the checkpoint must then stay where it was. Raises ApiError KAFKA_STORAGE_ERROR."""
    while cleaned.groups:
        group = cleaned.groups[0]
        present = set(map(id, log.segments))
        if not all(id(segment) in present for segment in group.old):
            cleaned.discard()
            return False
        with log.all_or_offline():
            log.files.replace(group.new, group.old, now_ms + log.config.file_delete_delay_ms)
        cleaned.groups.pop(0)
    return True


def compact(
    log: PartitionLog, checkpoint: int | None, now_ms: int, *, force: bool = False, chunk_bytes: int = CHUNK_BYTES
) -> int | None:
    """One round in one go: the new checkpoint, or None when nothing was due (`force`: when nothing is dirty)."""
    work = find_work(log, checkpoint, now_ms)
    if work.cleanable_bytes == 0 or not (force or work.due(log.config)):
        return None
    cleaned = plan(log, work, now_ms).rewrite(chunk_bytes=chunk_bytes)
    return cleaned.next_dirty if install(log, cleaned, now_ms) else None
