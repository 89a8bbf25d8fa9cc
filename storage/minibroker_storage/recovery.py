"""Opening a partition directory: leftovers, segments, the check after a crash, producer state (Kafka's LogLoader).

The log's four offsets, and what can go wrong: `minibroker_storage.log`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from minibroker_protocol.records import (
    MAGIC,
    BatchHeader,
    ControlRecord,
    CorruptBatch,
    InvalidRecords,
    UndecodablePayload,
    control_record,
)
from minibroker_storage import indexes
from minibroker_storage.checkpoints import LARGEST_OFFSET
from minibroker_storage.config import LogConfig
from minibroker_storage.disk import Disk, join
from minibroker_storage.file_errors import MalformedFile
from minibroker_storage.leader_epochs import LeaderEpochCache
from minibroker_storage.producer_state import ProducerRules, ProducerStateManager
from minibroker_storage.segment import Segment
from minibroker_storage.segments import Segments
from minibroker_storage.snapshots import SnapshotFiles
from minibroker_storage.txn_index import AbortedTxn

LOG_SUFFIX = ".log"
DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
INDEX_SUFFIXES = (".index", ".timeindex", ".txnindex")

#: Past every offset: the end of the last segment while it is not known, and the recovery point of a clean directory.
_UNKNOWN_END = 1 << 62

Warn = Callable[[str], None]


@dataclass
class Loaded:
    """The contents of a directory after opening."""

    segments: Segments
    producers: ProducerStateManager
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    #: One line for each fault that was found, and its repair.
    warnings: list[str] = field(default_factory=list)


def _control(segment: Segment, position: int, data: bytes, header: BatchHeader) -> ControlRecord | None:
    """`control_record` of a batch in a segment. Raises CorruptBatch for a malformed one, where Kafka's recovery cuts
    the log too."""
    try:
        return control_record(data, 0, header)
    except (InvalidRecords, UndecodablePayload) as error:
        place = f"{segment.log.path}: batch at byte {position} (offset {header.base_offset})"
        raise CorruptBatch(f"{place}: {error}") from None


def load(
    disk: Disk,
    directory: str,
    config: LogConfig,
    rules: ProducerRules,
    epochs: LeaderEpochCache,
    snapshots: SnapshotFiles,
    *,
    now_ms: int,
    clean: bool,
    recovery_point: int,
    log_start_offset: int,
) -> Loaded:
    """Reads the directory as Kafka does; after it the files hold what the returned object says.

    ``clean`` trusts the files. Otherwise every segment that reaches past ``recovery_point`` is checked batch by batch;
    the log is truncated at the first bad batch, and later segments are removed. Raises StorageError.
    """
    warnings: list[str] = []
    bases = _tidy(disk, directory, config, warnings)
    segments = Segments(Segment.existing(disk, directory, base, config, now_ms=now_ms) for base in bases)
    check = _Check(segments, rules, epochs, snapshots, log_start_offset, now_ms, warnings)
    if segments:
        if clean:
            recovery_point = _UNKNOWN_END
        elif not epochs.entries:
            check.take_epochs_from_batches()
        _check_index_files(disk, segments, recovery_point, warnings)
        check.recover(recovery_point)
    if not segments:
        segments.replace([Segment.create(disk, directory, log_start_offset, config, now_ms=now_ms)])
    end = check.log_end()
    if end < log_start_offset:
        warnings.append(f"{directory}: log ends at {end}, before its start {log_start_offset}; starting anew there")
        for segment in segments:
            segment.remove()
        snapshots.remove_where(lambda _: True)
        segments.replace([Segment.create(disk, directory, log_start_offset, config, now_ms=now_ms)])
        end = log_start_offset
    start = max(log_start_offset, segments.first.base_offset)
    # The file is written before the batches are synced, and deletion before the file (LogLoader.load).
    epochs.truncate_from_end(end)
    epochs.truncate_from_start(start)
    producers = ProducerStateManager(rules)
    # A clean shutdown leaves one past the last segment base; others without a segment are of one that was removed.
    snapshots.remove_strays(segment.base_offset for segment in segments)
    rebuild_producers(producers, segments, snapshots, start, end, now_ms=now_ms, clean=clean, warn=warnings.append)
    return Loaded(segments, producers, start, end, min(recovery_point, end), warnings)


def _tidy(disk: Disk, directory: str, config: LogConfig, warnings: list[str]) -> list[int]:
    """Removes what an interrupted deletion or compaction left, finishes a swap, and returns the segments' bases."""
    names = set(disk.list(directory))
    for name in sorted(names):
        if name.endswith(LOG_SUFFIX) and _base(name) > LARGEST_OFFSET:
            raise MalformedFile(join(directory, name), 0, "its name has an offset that no log reaches")
    # If there are .cleaned files, the compaction did not finish its group: the old files are complete.
    lowest_cleaned = min((_base(name) for name in names if name.endswith(CLEANED_SUFFIX)), default=_UNKNOWN_END)
    swapped = {_base(name) for name in names if name.endswith(SWAP_SUFFIX) and _base(name) < lowest_cleaned}
    for name in sorted(names):
        unfinished = name.endswith(SWAP_SUFFIX) and _base(name) not in swapped
        if unfinished or name.endswith((DELETED_SUFFIX, CLEANED_SUFFIX, ".tmp")):
            indexes.remove(disk, join(directory, name))
            names.discard(name)
    _finish_swap(disk, directory, config, names, swapped)
    logs = {_base(name) for name in names if name.endswith(LOG_SUFFIX) and name[:20].isdecimal()}
    for name in sorted(names):
        if name.endswith(INDEX_SUFFIXES) and _base(name) not in logs:
            warnings.append(f"{directory}/{name}: index of no log, removed")
            indexes.remove(disk, join(directory, name))
    return sorted(logs)


def _base(name: str) -> int:
    return int(name[:20]) if name[:20].isdecimal() else -1


def _finish_swap(disk: Disk, directory: str, config: LogConfig, names: set[str], swapped: set[int]) -> None:
    """Replaces segments by the compacted ones made from them."""
    ranges = []
    for base in swapped:
        if f"{base:020d}{LOG_SUFFIX}{SWAP_SUFFIX}" in names:
            segment = Segment(disk, directory, base, config, now_ms=0, suffix=SWAP_SUFFIX)
            segment.size = segment.log.size
            ends = [header.next_offset for _, header in segment.headers()]
            # One without batches, all compacted away, still replaces the segment of its own base.
            ranges.append((base, max(ends, default=base + 1)))
            segment.close_files()
    for name in sorted(names):
        if not name.endswith((LOG_SUFFIX, *INDEX_SUFFIXES)):
            continue
        if any(start <= _base(name) < end for start, end in ranges):
            indexes.remove(disk, join(directory, name))
            names.discard(name)
    for name in sorted(names):
        if name.endswith(SWAP_SUFFIX):
            plain = name.removesuffix(SWAP_SUFFIX)
            disk.rename(join(directory, name), join(directory, plain))
            names.discard(name)
            names.add(plain)


def _check_index_files(disk: Disk, segments: Segments, trusted_below: int, warnings: list[str]) -> None:
    """A log without offset index, or with a broken transaction index, gets its indexes rebuilt from its batches.

    Past the recovery point this is normal and not reported: indexes are written when a segment is flushed.
    """
    everything = segments.all
    for i, segment in enumerate(everything):
        try:
            _ = segment.txn_index
            if disk.exists(segment.path(".index")):
                continue
            reason = "no offset index"
        except MalformedFile as error:
            reason = str(error)
            segment.reset_txn_index()
        if not segment.size:
            segment.reset_indexes()
            continue
        segment.needs_recovery = True
        end = everything[i + 1].base_offset if i + 1 < len(everything) else _UNKNOWN_END
        if end <= trusted_below:
            warnings.append(f"{segment.log.path}: {reason}, rebuilding its indexes")


@dataclass
class _Check:
    """Checks the batches of a log after a crash: the first bad one ends it, and indexes and epochs are rebuilt from the
    good ones."""

    segments: Segments
    rules: ProducerRules
    epochs: LeaderEpochCache
    snapshots: SnapshotFiles
    log_start_offset: int
    now_ms: int
    warnings: list[str]

    def recover(self, recovery_point: int) -> None:
        """Checks the segments that hold offsets from the recovery point on; the first bad batch ends the log."""
        everything = self.segments.all
        for i, segment in enumerate(everything):
            last = i == len(everything) - 1
            doubted = recovery_point < _UNKNOWN_END and (last or everything[i + 1].base_offset > recovery_point)
            if not doubted and not segment.needs_recovery:
                if not last and everything[i + 1].base_offset == recovery_point:
                    # Its batches are synced. Its last time index entry, which a roll writes, may not be.
                    segment.rebuild_indexes()
                    segment.save_indexes()
                continue
            if self.recover_segment(segment):
                gone = everything[i + 1 :]
                for later in reversed(gone):  # a crash in between leaves no gap
                    self.warnings.append(f"{later.log.path}: removed, as the log now ends before it")
                    later.remove()
                self.segments.drop(gone)
                return
            if doubted and not last and not segment.config.compacts:
                end, following = segment.next_offset(), everything[i + 1].base_offset
                if end < following:
                    # Power was lost before either segment was synced, and the disk had written the newer one first.
                    # LogLoader checks each segment by itself and keeps what it finds good.
                    missing = f"offsets {end} to {following - 1} are missing, lost before a sync"
                    self.warnings.append(f"{segment.log.path}: {missing}")

    def recover_segment(self, segment: Segment) -> int:
        """Scans one segment with checksums, rebuilds its indexes and truncates it at the first bad batch; bytes
        removed."""
        # Its own state, as of the segment's start: the batches before it decide which transactions its markers end
        # (LogLoader.recoverSegment).
        producers = ProducerStateManager(self.rules)
        rebuild_producers(
            producers,
            self.segments,
            self.snapshots,
            self.log_start_offset,
            segment.base_offset,
            now_ms=self.now_ms,
            clean=False,
            warn=self.warnings.append,
            take=False,
        )
        segment.reset_indexes()
        segment.reset_txn_index()
        valid = 0
        next_offset = segment.base_offset
        try:
            for position, header in segment.headers():
                if header.base_offset < next_offset:
                    problem = f"offset {header.base_offset}, expected {next_offset} or up"
                    raise CorruptBatch(f"{segment.log.path}: at byte {position}: {problem}")
                data = segment.read_batch(position, header)
                control = _control(segment, position, data, header) if header.is_control else None
                completed = producers.replay(header, control, self.now_ms)
                if completed is not None and completed.aborted:
                    segment.append_aborted(AbortedTxn.of(completed))
                if header.partition_leader_epoch > self._latest_epoch():
                    self.epochs.assign(header.partition_leader_epoch, header.base_offset)
                segment.count(header, position)
                next_offset = header.next_offset
                valid = position + header.size
        except CorruptBatch as error:
            self.warnings.append(f"{error}; cut there, {segment.size - valid} bytes lost")
        lost = segment.size - valid
        if lost:
            segment.cut_end(valid)
        segment.finish_time_index()
        segment.save_indexes()
        segment.needs_recovery = False
        # So that recovering the next segment need not read this one again.
        self.snapshots.take(producers)
        return lost

    def take_epochs_from_batches(self) -> None:
        """The epoch file is not synced at once, so a crash may take it; every batch carries its epoch."""
        for segment in self.segments:
            with contextlib.suppress(CorruptBatch):  # the check that follows truncates there
                for _, header in segment.headers():
                    if header.partition_leader_epoch > self._latest_epoch():
                        self.epochs.assign(header.partition_leader_epoch, header.base_offset)

    def _latest_epoch(self) -> int:
        latest = self.epochs.latest_epoch
        return -1 if latest is None else latest

    def log_end(self) -> int:
        """The log end. A directory that was closed cleanly but has bytes that are no batch is checked after all."""
        while len(self.segments) > 1 and not self.segments.active.size:
            before = self.segments.all[-2]
            if before.next_offset() <= self.segments.active.base_offset:
                break
            # A roll did not finish: its segment was created, and the batches went into the one before.
            self.segments.active.remove()
            self.segments.drop([self.segments.active])
        try:
            return self.segments.active.next_offset()
        except CorruptBatch as error:
            self.warnings.append(str(error))
            self.recover_segment(self.segments.active)
            return self.segments.active.next_offset()


def rebuild_producers(
    producers: ProducerStateManager,
    segments: Segments,
    snapshots: SnapshotFiles,
    log_start_offset: int,
    end_offset: int,
    *,
    now_ms: int,
    clean: bool,
    warn: Warn,
    take: bool = True,
    as_new_replica: bool = False,
) -> None:
    """Brings the manager to ``end_offset``: newest snapshot, then the batches after it.

    Kafka's UnifiedLog.rebuildProducerState; with ``take`` it also leaves snapshots for the next time.

    as_new_replica: from the log start on, regardless of the rules, as a replica that has fetched the whole log.
    """
    rules = producers.rules
    if rules.rebuild_from == "log_start" or rules.forget_with_records or as_new_replica:
        beginning, oldest_snapshot = log_start_offset, log_start_offset + 1
    else:
        # An older snapshot lacks deleted batches; the batches after them would look like a gap.
        beginning = oldest_snapshot = segments.first.base_offset
    if clean and not snapshots.offsets and take and not _may_have_producers(segments):
        # Written before snapshots existed; after a clean shutdown there was no producer state.
        for offset in _bases_for_snapshots(segments, end_offset):
            producers.clear(offset)
            snapshots.take(producers)
    snapshots.remove_where(lambda offset: not oldest_snapshot <= offset <= end_offset)
    snapshots.load_latest(producers, beginning, now_ms, warn)
    start = producers.map_end_offset
    snapshot_at = set(_bases_for_snapshots(segments, end_offset)) if take else set()
    if start < end_offset:
        for segment in segments.from_offset(start):
            if segment.base_offset >= end_offset:
                break
            if segment.base_offset in snapshot_at and segment.base_offset >= start:
                producers.map_end_offset = segment.base_offset
                snapshots.take(producers)
            _replay(producers, segment, max(start, segment.base_offset), end_offset, now_ms)
    producers.map_end_offset = end_offset
    if take:
        snapshots.take(producers)


def _may_have_producers(segments: Segments) -> bool:
    """Whether the log's newest batches are of the format that has producers. Every Kafka that writes it also writes a
    snapshot when it stops, so that a missing one was removed."""
    for segment in reversed(segments.all):
        for _, header in segment.headers():
            return header.magic == MAGIC
    return False


def _bases_for_snapshots(segments: Segments, end_offset: int) -> Sequence[int]:
    bases = [segment.base_offset for segment in segments]
    # So that a truncation into the last two segments need not read the whole log (UnifiedLog.rebuildProducerState).
    return [*bases[-2:], end_offset]


def _replay(producers: ProducerStateManager, segment: Segment, start: int, end_offset: int, now_ms: int) -> None:
    at = segment.find(start)
    if at is None:
        return
    for position, header in segment.headers(at.position):
        if header.base_offset >= end_offset:
            return
        control = None
        if header.is_control:
            control = _control(segment, position, segment.read_batch(position, header), header)
        producers.replay(header, control, now_ms)
