"""What makes a partition log shorter: deleted records, retention, truncation, compacted segments."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_storage import recovery, retention
from minibroker_storage.append_info import storage_errors
from minibroker_storage.log_state import LogState
from minibroker_storage.segment import SEGMENT_FILES, Segment


class Truncation(LogState):
    """The half of :class:`~minibroker_storage.log.PartitionLog` that takes records away."""

    __slots__ = ()

    # -- shortening ----------------------------------------------------------------------------------------------

    def delete_records(self, offset: int) -> int:
        """Moves the log start up to ``offset`` (-1: the high watermark) and returns where it is now. Segments go later.

        Raises ApiError OFFSET_OUT_OF_RANGE, POLICY_VIOLATION on a topic that is only compacted.
        """
        if self.config.compacts and not self.config.deletes:
            raise ApiError(ErrorCode.POLICY_VIOLATION, f"{self.topic} is compacted and its records are not deleted")
        if offset == -1:
            offset = self.high_watermark
        if offset < 0 or offset > self.high_watermark:
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} is not between 0 and {self.high_watermark}")
        self.advance_log_start(offset)
        return self.log_start_offset

    def advance_log_start(self, offset: int) -> bool:
        """The log begins at ``offset`` from now on; never goes back. True when it moved."""
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        if self.high_watermark < offset:
            self.high_watermark = offset
        if self.leader_epochs.truncate_from_start(offset):
            self._save_epochs()
        self.producers.on_log_start(offset)
        self._snapshots.remove_where(lambda taken: taken <= offset and taken < self._segments.first.base_offset)
        return True

    def delete_old_segments(self, now_ms: int) -> int:
        """Applies retention (log start, size, time, in this order) and returns how many segments went.

        Their files are renamed at once and removed by a later call, ``file.delete.delay.ms`` on.
        """
        with storage_errors():
            self._removals.due(now_ms)
            gone = retention.expired_segments(self, now_ms)
            if not gone:
                return 0
            if gone[-1] is self._segments.active:
                self.roll(now_ms)
            self._discard(gone, now_ms)
        self.advance_log_start(self._segments.first.base_offset)
        return len(gone)

    def _discard(self, gone: Sequence[Segment], now_ms: int) -> None:
        self._segments.drop(gone)
        first = self._segments.first.base_offset
        for segment in gone:
            segment.close_files()
            self._removals.later(
                [segment.path(ending) for ending in SEGMENT_FILES],
                now_ms + self.config.file_delete_delay_ms,
            )
        self._snapshots.remove_where(lambda taken: any(taken == s.base_offset for s in gone) and taken < first)

    def truncate_to(self, offset: int, *, now_ms: int) -> bool:
        """Drops every batch that reaches ``offset`` or past it; False when the log already ends there or before.

        When the disk fails half-way the log takes no more writes until it was opened again.
        """
        if offset >= self.log_end_offset:
            # A leader deposed before its first append has an epoch that no other replica knows. With it follower and
            # leader would never find their last common offset (UnifiedLog.truncateTo).
            if self.leader_epochs.truncate_from_end(self.log_end_offset):
                self._save_epochs()
            return False
        kept = [segment for segment in self._segments if segment.base_offset < offset]
        if not kept:
            first = self._segments.first.base_offset
            self.truncate_fully_and_start_at(offset if first else 0, now_ms=now_ms)
            return True
        with self._all_or_offline():
            self.before_shortening(offset)
            self._snapshots.remove_where(lambda taken: taken > offset)
            self._remove_from_the_end(self._segments.all[len(kept) :])
            self._segments.replace(kept)
            self._segments.active.truncate_to(offset)
            self._end_at(offset)
            if self.leader_epochs.truncate_from_end(offset):
                self._save_epochs()
            self._rebuild_producers(offset, now_ms)
        self.producers.on_high_watermark(self.high_watermark)
        return True

    def rebuild_producers_from_log(self, *, now_ms: int) -> None:
        """Forgets every snapshot and remembers only producers that the log still shows, as a replica does that was made
        by reassignment (KIP-360)."""
        with storage_errors():
            self._snapshots.remove_where(lambda _: True)
            self.producers.clear(self.log_start_offset)
            self._rebuild_producers(self.log_end_offset, now_ms, as_new_replica=True)
        self.producers.on_high_watermark(self.high_watermark)

    def _rebuild_producers(self, end: int, now_ms: int, *, as_new_replica: bool = False) -> None:
        recovery.rebuild_producers(
            self.producers,
            self._segments,
            self._snapshots,
            self.log_start_offset,
            end,
            now_ms=now_ms,
            clean=False,
            warn=self.warnings.append,
            as_new_replica=as_new_replica,
        )

    def truncate_fully_and_start_at(self, offset: int, *, now_ms: int) -> None:
        """Empties the log, producer state and snapshots included; it begins anew at ``offset``."""
        with self._all_or_offline():
            self.before_shortening(offset)
            self._snapshots.remove_where(lambda _: True)
            self._remove_from_the_end(self._segments.all)
            self._segments.replace([Segment.create(self.disk, self.path, offset, self.config, now_ms=now_ms)])
            self.producers.truncate_fully_and_start_at(offset)
            self.log_start_offset = offset
            self._end_at(offset)
            self.high_watermark = offset
            if self.leader_epochs.clear():
                self._save_epochs()

    def _remove_from_the_end(self, segments: Sequence[Segment]) -> None:
        """The newest first, and for good before anything else changes: a crash in between leaves no gap."""
        for segment in reversed(segments):
            segment.remove()
        if segments:
            self.disk.sync_dir(self.path)

    @contextlib.contextmanager
    def _all_or_offline(self) -> Iterator[None]:
        """For changes that a failing disk leaves half-done: the log is then offline."""
        try:
            with storage_errors():
                yield
        except ApiError as error:
            self.offline = error
            raise

    def _end_at(self, offset: int) -> None:
        self._truncations += 1
        self.log_end_offset = offset
        self.log_start_offset = min(self.log_start_offset, offset)
        self.recovery_point = min(self.recovery_point, offset)
        self.high_watermark = min(self.high_watermark, offset)

    def replace_segments(self, compacted: Segment, old: Sequence[Segment], now_ms: int) -> None:
        """Puts a finished segment, written with the suffix ``.cleaned``, in the place of the ``old`` ones it was made
        from, which lie side by side and begin at its base offset. Its files must be synced.

        A crash at any point leaves the old segments or the new one (LogLoader).
        """
        with self._all_or_offline():
            compacted.rename_files(recovery.SWAP_SUFFIX)
            self.disk.sync_dir(self.path)
            gone = set(map(id, old))
            self._segments.replace([compacted, *(segment for segment in self._segments if id(segment) not in gone)])
            bases = {segment.base_offset for segment in old} - {compacted.base_offset}
            for segment in old:
                segment.close_files()
                paths = [segment.path(ending) for ending in SEGMENT_FILES]
                self._removals.later(paths, now_ms + self.config.file_delete_delay_ms)
            compacted.rename_files("")
            self._snapshots.remove_where(lambda taken: taken in bases)
