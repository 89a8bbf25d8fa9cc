"""The files of one partition's log: segments, producer snapshots and the leader epoch file (Kafka's LocalLog)."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from minibroker_storage.checkpoints import LEADER_EPOCH
from minibroker_storage.config import LogConfig
from minibroker_storage.disk import Disk, StorageError, join, sync_file
from minibroker_storage.leader_epochs import LeaderEpochCache
from minibroker_storage.partition_metadata import FILE_NAME as METADATA_FILE
from minibroker_storage.producer_state import ProducerStateManager
from minibroker_storage.recovery import SWAP_SUFFIX
from minibroker_storage.removals import Removals
from minibroker_storage.segment import SEGMENT_FILES, Segment
from minibroker_storage.segments import Segments
from minibroker_storage.snapshots import SnapshotFiles


class LogFiles:
    """The files in a partition's directory, and how far they are synced.

    It knows neither high watermark nor log start: the log passes the offsets. Every method may raise StorageError.
    `recovery_point` is the exclusive end of the data that survives a power loss, `cuts` the number of truncations since
    opening.

    ended: the handles were closed for good; a flush on another thread stops.
    """

    __slots__ = (
        "_dir_unsynced",
        "_epochs_unsynced",
        "_marking",
        "cuts",
        "disk",
        "ended",
        "path",
        "recovery_point",
        "removals",
        "segments",
        "snapshots",
    )

    def __init__(
        self, disk: Disk, path: str, segments: Segments, snapshots: SnapshotFiles, recovery_point: int, *, new: bool
    ) -> None:
        self.disk = disk
        self.path = path
        self.segments = segments
        self.snapshots = snapshots
        self.recovery_point = recovery_point
        self.cuts = 0
        self.ended = False
        self.removals = Removals(disk)
        self._dir_unsynced = new
        self._epochs_unsynced = False
        #: A flush ends on one thread while a truncation ends on another.
        self._marking = threading.Lock()

    def write_epochs(self, epochs: LeaderEpochCache) -> None:
        """Writes the leader epoch file. The next flush syncs it."""
        self.disk.write_atomic(join(self.path, LEADER_EPOCH), epochs.encode(), sync=False)
        self._epochs_unsynced = True

    # -- rolling and flushing ----------------------------------------------------------------------------------------

    def roll(self, base_offset: int, producers: ProducerStateManager, config: LogConfig, now_ms: int) -> Segment:
        """Seals the active segment, takes a snapshot of the producers and starts a segment at `base_offset`."""
        old = self.segments.active
        if old.size:
            old.seal()
            old.unload_indexes()
        # A start then replays the active segment only (ProducerStateManager.takeSnapshot).
        producers.map_end_offset = base_offset
        self.snapshots.take(producers)
        segment = Segment.create(self.disk, self.path, base_offset, config, now_ms=now_ms)
        kept = self.segments.all
        if not old.size:
            # It is empty, but the batch does not fit: an index limit, or offsets too far from its base.
            kept = kept[:-1]
            if old.base_offset != base_offset:
                old.remove()
        self.segments.replace([*kept, segment])
        return segment

    def flush(self, end: int, cuts: int) -> None:
        """Returns when everything below `end` survives a power loss; may run in another thread. `cuts` was read before
        `end` was: a truncation since then means that other records may have these offsets, which are not synced."""
        if self.ended or (end <= self.recovery_point and not self._epochs_unsynced):
            return
        try:
            self._sync(end)
        finally:
            if self.ended:  # it may have opened files again
                self._close_handles()
        with self._marking:
            if cuts == self.cuts and not self.ended:
                self.recovery_point = max(self.recovery_point, end)

    def _sync(self, end: int) -> None:
        # - 1: with the segment that ends at the recovery point.
        for segment in self.segments.from_offset(self.recovery_point - 1):
            if self.ended:
                return
            if self.segments.next_base(segment) == self.recovery_point:
                # Rolled where the last flush ended: only its time index has a new entry. Its log is left alone,
                # as LocalLog.flush does.
                segment.save_indexes(sync=True)
            elif segment.base_offset < end:
                segment.flush()
        # Before the recovery point gets there (UnifiedLog.flushProducerStateSnapshot).
        for offset in self.snapshots.unsynced(end):
            if self.ended:
                return
            self.snapshots.sync(offset)
        if self.ended:
            return
        if self._epochs_unsynced:
            self._epochs_unsynced = False
            try:
                sync_file(self.disk, join(self.path, LEADER_EPOCH))
            except StorageError:
                self._epochs_unsynced = True
                raise
        self.disk.sync_dir(self.path)
        if self._dir_unsynced:
            if self.disk.exists(join(self.path, METADATA_FILE)):
                sync_file(self.disk, join(self.path, METADATA_FILE))
            self.disk.sync_dir(self.path.rpartition("/")[0])
            self._dir_unsynced = False

    def close(self, producers: ProducerStateManager, end: int) -> None:
        """Writes producer snapshot and indexes, syncs everything below `end` and closes the handles."""
        self.snapshots.take(producers, sync=True)
        active = self.segments.active
        active.take_off_leftovers()
        active.finish_time_index()
        active.save_indexes()
        self.flush(end, self.cuts)
        self.abandon()
        self.removals.finish()

    def abandon(self) -> None:
        """Closes the handles and writes nothing, as in a crash. No flush writes anything after it."""
        self.ended = True
        self._close_handles()

    def _close_handles(self) -> None:
        for segment in self.segments:
            segment.close_files()

    # -- removing ----------------------------------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> None:
        """Truncates: removes every batch that reaches `offset` or past it. The first segment must begin before it.
        `ends_at` follows, once the log has its new end."""
        # Snapshots first: one past the log's end would be taken for lost records (`lost`).
        segments_below = [segment for segment in self.segments if segment.base_offset < offset]
        self.snapshots.remove_where(lambda taken: taken > offset)
        self._remove_from_the_end(self.segments.all[len(segments_below) :])
        self.segments.replace(segments_below)
        self.segments.active.truncate_to(offset)

    def truncate_fully_and_start_at(self, offset: int, config: LogConfig, now_ms: int) -> None:
        """Leaves one empty segment that begins at `offset`, and no snapshot. `ends_at` follows."""
        self.remove_snapshots()
        self._remove_from_the_end(self.segments.all)
        self.segments.replace([Segment.create(self.disk, self.path, offset, config, now_ms=now_ms)])

    def _remove_from_the_end(self, segments: Sequence[Segment]) -> None:
        """Removes the newest segment first, and syncs the removal before anything else changes: a crash leaves no
        gap."""
        for segment in reversed(segments):
            segment.remove()
        if segments:
            self.disk.sync_dir(self.path)

    def ends_at(self, offset: int) -> None:
        """The log was truncated and ends at `offset`: no flush that began before marks anything as synced."""
        with self._marking:
            self.cuts += 1
            self.recovery_point = min(self.recovery_point, offset)

    def remove_snapshots_up_to(self, offset: int) -> None:
        """The log starts at `offset` now: older snapshots go, but those of a segment that is still there."""
        self.snapshots.remove_where(lambda taken: taken <= offset and taken < self.segments.first.base_offset)

    def remove_snapshots(self) -> None:
        """Removes every snapshot, which makes the next rebuild read the whole log."""
        self.snapshots.remove_where(lambda _: True)

    def retire(self, gone: Sequence[Segment], remove_at_ms: int) -> None:
        """Takes the oldest segments out of the log. Their files are renamed now and removed after `remove_at_ms`. A
        rename that fails leaves them all in the log: the next start would find those that kept their names."""
        self._rename_for_removal(gone, remove_at_ms)
        self.segments.drop(gone)
        first = self.segments.first.base_offset
        self.snapshots.remove_where(lambda taken: taken < first)

    def replace(self, compacted: Segment, old: Sequence[Segment], remove_at_ms: int) -> None:
        """Puts a finished segment, written with the suffix ``.cleaned``, in the place of the `old` ones it was made
        from, which lie side by side and begin at its base offset. Its files must be synced.

        A crash at any point leaves the old segments or the new one (LogLoader).
        """
        compacted.rename_files(SWAP_SUFFIX)
        self.disk.sync_dir(self.path)
        gone = set(map(id, old))
        self.segments.replace([compacted, *(segment for segment in self.segments if id(segment) not in gone)])
        self._rename_for_removal(old, remove_at_ms)
        compacted.rename_files("")
        bases = {segment.base_offset for segment in old} - {compacted.base_offset}
        self.snapshots.remove_where(lambda taken: taken in bases)

    def _rename_for_removal(self, segments: Iterable[Segment], remove_at_ms: int) -> None:
        for segment in segments:
            segment.close_files()
            self.removals.later([segment.path(ending) for ending in SEGMENT_FILES], remove_at_ms)

    # -- the directory -----------------------------------------------------------------------------------------------

    def rename(self, path: str) -> None:
        """Moves the directory. The handles must be closed before."""
        self.abandon()
        self.disk.rename(self.path, path)
        self.path = path
        self.snapshots.dir = path
        for segment in self.segments:
            segment.move(path)

    def delete(self) -> None:
        """Removes the directory and all in it."""
        self.abandon()
        self.disk.remove_tree(self.path)
