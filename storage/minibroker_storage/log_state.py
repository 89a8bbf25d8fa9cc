"""A partition log's state: offsets, producers, leader epochs, segments; rolling, flushing and closing."""

from __future__ import annotations

from collections.abc import Callable

from minibroker_protocol.errors import ApiError
from minibroker_storage import recovery, retention
from minibroker_storage.append_info import storage_errors
from minibroker_storage.checkpoints import LEADER_EPOCH
from minibroker_storage.config import LogConfig
from minibroker_storage.disk import Disk, join, sync_file
from minibroker_storage.leader_epochs import LeaderEpochCache
from minibroker_storage.partition_metadata import FILE_NAME as METADATA_FILE
from minibroker_storage.segment import Segment
from minibroker_storage.snapshots import SnapshotFiles


def _nothing_else(_: int) -> None:
    """No file but the log's own speaks of its end."""


class LogState:
    """What the parts of :class:`~minibroker_storage.log.PartitionLog` have in common."""

    __slots__ = (
        "_dir_unsynced",
        "_epochs_unsynced",
        "_removals",
        "_segments",
        "_snapshots",
        "_truncations",
        "before_shortening",
        "closed",
        "config",
        "disk",
        "high_watermark",
        "leader_epochs",
        "log_end_offset",
        "log_start_offset",
        "offline",
        "on_roll",
        "partition",
        "path",
        "producers",
        "recovery_point",
        "topic",
        "topic_id",
        "warnings",
    )

    def __init__(
        self,
        disk: Disk,
        path: str,
        topic: str,
        partition: int,
        topic_id: bytes,
        config: LogConfig,
        loaded: recovery.Loaded,
        epochs: LeaderEpochCache,
        snapshots: SnapshotFiles,
        high_watermark: int,
    ) -> None:
        self.disk = disk
        self.path = path
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.config = config
        self.leader_epochs = epochs
        self.producers = loaded.producers
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = loaded.log_end_offset
        self.recovery_point = loaded.recovery_point
        self.high_watermark = max(loaded.log_start_offset, min(high_watermark, loaded.log_end_offset))
        self.producers.on_high_watermark(self.high_watermark)
        #: What was found wrong when the log was opened, one line each.
        self.warnings = loaded.warnings
        self._segments = loaded.segments
        self._snapshots = snapshots
        self._removals = retention.Removals(disk)
        self._epochs_unsynced = False
        self._dir_unsynced = False
        self._truncations = 0
        #: Called when a segment was sealed, which is the time to flush it.
        self.on_roll: Callable[[], None] | None = None
        #: Told the new end before the log is truncated, so that nothing else says that it reached further.
        self.before_shortening: Callable[[int], None] = _nothing_else
        #: Why the log takes no more writes until it was opened again; None as long as it does.
        self.offline: ApiError | None = None
        #: Set by a close that came to its end; only then may the directory be called clean.
        self.closed = False

    def assign_leader_epoch(self, epoch: int, start_offset: int | None = None) -> None:
        """Notes that ``epoch`` begins at ``start_offset`` (default: the log's end) and writes the epoch file."""
        if self.leader_epochs.assign(epoch, self.log_end_offset if start_offset is None else start_offset):
            self._save_epochs()

    def _save_epochs(self) -> None:
        with storage_errors():
            self.disk.write_atomic(join(self.path, LEADER_EPOCH), self.leader_epochs.encode(), sync=False)
        self._epochs_unsynced = True

    # -- high watermark ------------------------------------------------------------------------------------------

    @property
    def last_stable_offset(self) -> int:
        """Exclusive bound of read_committed: nothing below it belongs to an open transaction."""
        unstable = self.producers.first_unstable_offset
        if unstable is None or unstable >= self.high_watermark:
            return self.high_watermark
        return max(unstable, self.log_start_offset)

    def update_high_watermark(self, offset: int) -> bool:
        """Sets the high watermark, clamped to the log; True when it or the last stable offset moved."""
        if offset > self.log_end_offset:
            offset = self.log_end_offset
        if offset < self.log_start_offset:
            offset = self.log_start_offset
        let_go = self.producers.on_high_watermark(offset)
        if offset == self.high_watermark:
            return let_go
        self.high_watermark = offset
        return True

    @property
    def truncations(self) -> int:
        """How often it was cut since it was opened."""
        return self._truncations

    @property
    def size(self) -> int:
        """Bytes in all segments."""
        return self._segments.size

    @property
    def segments(self) -> list[Segment]:
        """The segments, oldest first, for tools, compaction and tests."""
        return self._segments.all

    # -- rolling and flushing ------------------------------------------------------------------------------------

    def roll(self, now_ms: int) -> None:
        """Starts a new segment at the log's end, unless the active one is empty."""
        if self._segments.active.size:
            self._roll_at(self.log_end_offset, now_ms)

    def _roll_at(self, base_offset: int, now_ms: int) -> Segment:
        old = self._segments.active
        with storage_errors():
            if old.size:
                old.seal()
                old.unload_indexes()
            self.producers.map_end_offset = base_offset
            self._snapshots.take(self.producers)
            segment = Segment.create(self.disk, self.path, base_offset, self.config, now_ms=now_ms)
            kept = self._segments.all
            if not old.size:
                # Nothing in it, yet it must not take the batch: an index limit, or offsets too far from its base.
                kept = kept[:-1]
                if old.base_offset != base_offset:
                    old.remove()
        self._segments.replace([*kept, segment])
        if self.on_roll is not None:
            self.on_roll()
        return segment

    @property
    def unflushed_messages(self) -> int:
        """Offsets past the recovery point; ``flush.messages`` is about them."""
        return self.log_end_offset - self.recovery_point

    @property
    def unflushed_sealed(self) -> bool:
        """Whether a segment before the active one is not synced yet; Kafka does that in the background after a roll."""
        return self.recovery_point < self._segments.active.base_offset

    def flush(self, up_to: int | None = None) -> None:
        """Returns when everything below ``up_to`` (default: all that was appended before the call) survives a power
        cut; may run in another thread."""
        end = self.log_end_offset if up_to is None else min(up_to, self.log_end_offset)
        if end <= self.recovery_point and not self._epochs_unsynced:
            return
        truncations = self._truncations
        with storage_errors():
            for segment in self._segments.from_offset(self.recovery_point):
                if segment.base_offset < end:
                    segment.flush()
            if self._epochs_unsynced:
                self._epochs_unsynced = False
                sync_file(self.disk, join(self.path, LEADER_EPOCH))
            self.disk.sync_dir(self.path)
            if self._dir_unsynced:
                if self.disk.exists(join(self.path, METADATA_FILE)):
                    sync_file(self.disk, join(self.path, METADATA_FILE))
                self.disk.sync_dir(self.path.rpartition("/")[0])
                self._dir_unsynced = False
        if truncations == self._truncations:  # otherwise other records may have these offsets now
            self.recovery_point = max(self.recovery_point, end)

    def close(self) -> None:
        """Clean end: producer snapshot and indexes written, everything synced, no handle left."""
        if self.offline is not None:
            raise self.offline
        with storage_errors():
            self._snapshots.take(self.producers, sync=True)
            active = self._segments.active
            active.take_off_leftovers()
            active.finish_time_index()
            active.save_indexes()
            self.flush()
            for segment in self._segments:
                segment.close_files()
            self._removals.finish()
        self.closed = True

    def abandon(self) -> None:
        """Gives the handles back and writes nothing, as a crash would."""
        for segment in self._segments:
            segment.close_files()
