"""One partition's log: append, high watermark, reading, and everything that shortens it (Kafka's UnifiedLog).

Synchronous and without a clock: ``now_ms`` is handed in. One thread changes a log; others may read or flush meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence

from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.records import BatchHeader, Buffer
from minibroker_storage import follower, reading, recovery, retention
from minibroker_storage.checkpoints import LEADER_EPOCH
from minibroker_storage.config import LogConfig
from minibroker_storage.disk import Disk, StorageError, join
from minibroker_storage.file_errors import MalformedFile
from minibroker_storage.leader_epochs import LeaderEpochCache
from minibroker_storage.origin import Origin
from minibroker_storage.partition_metadata import FILE_NAME as METADATA_FILE
from minibroker_storage.partition_metadata import decode_partition_metadata, encode_partition_metadata
from minibroker_storage.producer_state import CompletedTxn, ProducerAppend, ProducerRules, VerificationGuard
from minibroker_storage.reading import ReadResult, TimestampOffset
from minibroker_storage.segment import Segment
from minibroker_storage.snapshots import SnapshotFiles
from minibroker_storage.txn_index import AbortedTxn
from minibroker_storage.validator import ValidatedBatches, validate_and_assign

__all__ = ["AppendInfo", "PartitionLog", "ReadResult", "TimestampOffset", "storage_error"]

NO_TOPIC_ID = bytes(16)
_NO_TXNS: Sequence[CompletedTxn] = ()


class AppendInfo:
    """What became of an append. Offsets are inclusive; times in ms, -1 for none.

    ``duplicate``: nothing was written, the offsets are those of the batch that is there already.
    """

    __slots__ = (
        "base_offset",
        "completed_transactions",
        "duplicate",
        "first_leader_epoch",
        "last_offset",
        "log_append_time_ms",
        "log_start_offset",
        "max_timestamp",
    )

    def __init__(
        self,
        base_offset: int,
        last_offset: int,
        log_append_time_ms: int,
        log_start_offset: int,
        duplicate: bool,
        max_timestamp: int,
        first_leader_epoch: int,
        completed_transactions: Sequence[CompletedTxn] = _NO_TXNS,
    ) -> None:
        self.base_offset = base_offset
        self.last_offset = last_offset
        self.log_append_time_ms = log_append_time_ms
        self.log_start_offset = log_start_offset
        self.duplicate = duplicate
        self.max_timestamp = max_timestamp
        self.first_leader_epoch = first_leader_epoch
        self.completed_transactions = completed_transactions

    def __repr__(self) -> str:
        return f"AppendInfo({', '.join(f'{name}={getattr(self, name)!r}' for name in self.__slots__)})"


def storage_error(error: StorageError) -> ApiError:
    """A failed disk call as clients see it."""
    return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{error.filename}: {error.strerror}")


class PartitionLog:
    """Made by :meth:`open`. Offsets: ``log_start_offset`` first one readable, ``log_end_offset`` next one to be given,
    ``high_watermark`` and ``last_stable_offset`` exclusive bounds of readers, ``recovery_point`` end of synced data."""

    __slots__ = (
        "_disk",
        "_epochs_unsynced",
        "_removals",
        "_segments",
        "_snapshots",
        "config",
        "high_watermark",
        "leader_epochs",
        "log_end_offset",
        "log_start_offset",
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
        self._disk = disk
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

    @classmethod
    def open(
        cls,
        disk: Disk,
        path: str,
        *,
        topic: str,
        partition: int,
        topic_id: bytes = NO_TOPIC_ID,
        config: LogConfig,
        rules: ProducerRules,
        now_ms: int,
        clean: bool = True,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        high_watermark: int = 0,
    ) -> PartitionLog:
        """The log in directory ``path``, made when there is none. ``clean``: whoever wrote it closed it; otherwise what
        lies past ``recovery_point`` is checked and cut at the first bad batch.

        Raises ApiError KAFKA_STORAGE_ERROR, and INCONSISTENT_TOPIC_ID when the directory is another topic's.
        """
        try:
            disk.make_dir(path)
            topic_id = _claim(disk, path, topic_id)
            epochs = _read_epochs(disk, path)
            before = epochs.entries
            snapshots = SnapshotFiles(disk, path)
            loaded = recovery.load(
                disk,
                path,
                config,
                rules,
                epochs,
                snapshots,
                now_ms=now_ms,
                clean=clean,
                recovery_point=recovery_point,
                log_start_offset=log_start_offset,
            )
            log = cls(disk, path, topic, partition, topic_id, config, loaded, epochs, snapshots, high_watermark)
            if epochs.entries != before:
                log._save_epochs()
        except StorageError as error:
            raise storage_error(error) from error
        except MalformedFile as error:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        return log

    def __repr__(self) -> str:
        return f"PartitionLog({self.topic}-{self.partition}, {self.log_start_offset}..{self.log_end_offset})"

    # -- appending -----------------------------------------------------------------------------------------------

    def append_as_leader(
        self,
        records: Buffer,
        *,
        origin: Origin,
        leader_epoch: int,
        now_ms: int,
        guard: VerificationGuard | None = None,
        transaction_version: int = 0,
        api_version: int = -1,
        strict: bool = True,
    ) -> AppendInfo:
        """Validates, gives offsets and writes. A writable buffer is patched in place; the caller must not use it again.

        Raises ApiError with the reason of the refusal, and then nothing was written; KAFKA_STORAGE_ERROR when the
        disk refused. ``strict``: whether the records inside a batch are looked at even where nothing depends on it.
        """
        base_offset = self.log_end_offset
        batches = validate_and_assign(
            records,
            base_offset=base_offset,
            now_ms=now_ms,
            leader_epoch=leader_epoch,
            config=self.config,
            origin=origin,
            api_version=api_version,
            strict=strict,
        )
        headers = batches.headers
        if self.leader_epochs.latest_epoch != leader_epoch and leader_epoch >= 0:
            self.assign_leader_epoch(leader_epoch)
        segment = self._room_for(batches, now_ms)
        prepared: list[ProducerAppend] = []
        position = 0
        for header in headers:
            if header.producer_id >= 0:
                if origin is Origin.CLIENT:
                    known = self.producers.find_duplicate(header)
                    if known is not None:
                        return AppendInfo(
                            known.first_offset,
                            known.last_offset,
                            known.timestamp,
                            self.log_start_offset,
                            True,
                            known.timestamp,
                            leader_epoch,
                        )
                control = None
                if header.attributes & 0x20:
                    control = recovery.control_record(records, position, header)
                append = self.producers.prepare(
                    header,
                    control,
                    origin=origin,
                    transaction_version=transaction_version,
                    guard=guard,
                    after=prepared,
                )
                if append is not None:
                    prepared.append(append)
            position += header.batch_length + 12
        completed = self._write(segment, batches.buffers, headers, prepared, now_ms)
        return AppendInfo(
            base_offset,
            self.log_end_offset - 1,
            batches.log_append_time_ms,
            self.log_start_offset,
            False,
            batches.max_timestamp,
            leader_epoch,
            completed,
        )

    def append_as_follower(self, records: Buffer, leader_epoch: int, *, now_ms: int) -> AppendInfo:
        """Appends what the leader sent as it is. Batches of a newer epoch than ``leader_epoch`` and all after them are
        left out, as is a batch that is cut off at the end (KAFKA-18723).

        Raises ApiError: CORRUPT_MESSAGE for broken bytes, INVALID_RECORD for offsets below the log's end.
        """
        batches = follower.batches_to_append(records, self.log_end_offset, leader_epoch)
        base_offset = self.log_end_offset
        start = self.log_start_offset
        if not batches.headers:
            return AppendInfo(base_offset, base_offset - 1, -1, start, False, -1, leader_epoch)
        for header in batches.headers:
            latest = self.leader_epochs.latest_epoch
            if header.partition_leader_epoch > (-1 if latest is None else latest):
                self.assign_leader_epoch(header.partition_leader_epoch, header.base_offset)
        segment = self._room_for(batches, now_ms, batches.headers[0].base_offset)
        prepared: list[ProducerAppend] = []
        position = 0
        for header in batches.headers:
            control = recovery.control_record(records, position, header) if header.is_control else None
            append = self.producers.prepare(header, control, origin=Origin.REPLICATION, after=prepared)
            if append is not None:
                prepared.append(append)
            position += header.size
        completed = self._write(segment, batches.buffers, batches.headers, prepared, now_ms)
        first = batches.headers[0]
        return AppendInfo(
            first.base_offset,
            self.log_end_offset - 1,
            -1,
            start,
            False,
            batches.max_timestamp,
            first.partition_leader_epoch,
            completed,
        )

    def _room_for(self, batches: ValidatedBatches, now_ms: int, first_offset: int | None = None) -> Segment:
        """The active segment, rolled when it must not take these batches."""
        segment = self._segments.active
        headers = batches.headers
        size = headers[0].batch_length + 12 if len(headers) == 1 else batches.size
        last = headers[-1]
        if segment.should_roll(size, batches.max_timestamp, last.base_offset + last.last_offset_delta, now_ms):
            return self._roll_at(self.log_end_offset if first_offset is None else first_offset, now_ms)
        return segment

    def _write(
        self,
        segment: Segment,
        buffers: Sequence[Buffer],
        headers: Sequence[BatchHeader],
        prepared: Sequence[ProducerAppend],
        now_ms: int,
    ) -> Sequence[CompletedTxn]:
        """Log first, then the state; a disk that refuses leaves both as they were."""
        try:
            segment.append(buffers, headers)
        except StorageError as error:
            raise storage_error(error) from error
        last = headers[-1]
        end = last.base_offset + last.last_offset_delta + 1
        completed: list[CompletedTxn] | None = None
        for append in prepared:
            txn = self.producers.commit(append, now_ms)
            if txn is not None:
                if txn.aborted:
                    segment.append_aborted(AbortedTxn.of(txn))
                completed = [txn] if completed is None else [*completed, txn]
        self.producers.map_end_offset = end
        self.log_end_offset = end
        return completed or _NO_TXNS

    def assign_leader_epoch(self, epoch: int, start_offset: int | None = None) -> None:
        """Notes that ``epoch`` begins at ``start_offset`` (default: the log's end) and writes the epoch file."""
        if self.leader_epochs.assign(epoch, self.log_end_offset if start_offset is None else start_offset):
            self._save_epochs()

    def _save_epochs(self) -> None:
        try:
            self._disk.write_atomic(join(self.path, LEADER_EPOCH), self.leader_epochs.encode(), sync=False)
        except StorageError as error:
            raise storage_error(error) from error
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
        offset = max(self.log_start_offset, min(offset, self.log_end_offset))
        if offset == self.high_watermark and not self.producers.on_high_watermark(offset):
            return False
        self.high_watermark = offset
        self.producers.on_high_watermark(offset)
        return True

    # -- reading -------------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, *, bound: int, min_one_message: bool = True) -> ReadResult:
        """A slice of whole batches from the one holding ``offset`` on, all below ``bound``; the last may be cut by
        ``max_bytes``. Raises ApiError OFFSET_OUT_OF_RANGE outside [log start, log end]."""
        if offset < self.log_start_offset or offset > self.log_end_offset:
            raise reading.out_of_range(offset, self.log_start_offset, self.log_end_offset)
        try:
            return reading.read(
                self._segments, self.log_end_offset, offset, max_bytes, bound=bound, min_one_message=min_one_message
            )
        except StorageError as error:
            raise storage_error(error) from error

    def aborted_transactions(self, fetch_offset: int, result: ReadResult) -> list[AbortedTxn]:
        """What a read_committed reader of ``result`` must be told."""
        del fetch_offset  # the result knows it
        return reading.aborted_transactions(self._segments, self.log_end_offset, result)

    def bytes_between(self, offset: int, bound: int) -> int:
        """Bytes a reader at ``offset`` could have up to ``bound``."""
        return reading.bytes_between(self._segments, self.log_end_offset, offset, bound)

    def offset_for_timestamp(self, timestamp: int, bound: int) -> TimestampOffset | None:
        """The first record below ``bound`` with a timestamp (ms) at or above the given one."""
        found = reading.offset_for_timestamp(self._segments, self.log_start_offset, timestamp)
        return found if found is not None and found.offset < bound else None

    def max_timestamp_offset(self, bound: int) -> TimestampOffset | None:
        """The record with the largest timestamp, when it is below ``bound``."""
        found = reading.max_timestamp_offset(self._segments)
        return found if found is not None and found.offset < bound else None

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(largest known epoch <= ``epoch``, its exclusive end); (-1, -1) when unknown (KIP-101)."""
        return self.leader_epochs.end_offset_for(epoch, self.log_end_offset)

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
        try:
            if not old.size:
                # Nothing in it, yet it must not take the batch: an index limit, or offsets too far from its base.
                old.remove()
                self._segments.drop([old])
            else:
                old.seal()
                old.unload_indexes()
            segment = Segment.create(self._disk, self.path, base_offset, self.config, now_ms=now_ms)
            self.producers.map_end_offset = base_offset
            self._snapshots.take(self.producers)
        except StorageError as error:
            raise storage_error(error) from error
        self._segments.add(segment)
        return segment

    @property
    def unflushed_messages(self) -> int:
        """Offsets past the recovery point; ``flush.messages`` is about them."""
        return self.log_end_offset - self.recovery_point

    def flush(self) -> None:
        """Returns when everything appended before the call survives a power cut; may run in another thread."""
        end = self.log_end_offset
        if end <= self.recovery_point and not self._epochs_unsynced:
            return
        try:
            for segment in self._segments.from_offset(self.recovery_point):
                segment.flush()
            if self._epochs_unsynced:
                self._epochs_unsynced = False
                self._disk.write_atomic(join(self.path, LEADER_EPOCH), self.leader_epochs.encode())
            self._disk.sync_dir(self.path)
        except StorageError as error:
            raise storage_error(error) from error
        self.recovery_point = max(self.recovery_point, end)

    def close(self) -> None:
        """Clean end: producer snapshot and indexes written, everything synced, no handle left."""
        try:
            self._snapshots.take(self.producers, sync=True)
            active = self._segments.active
            active.finish_time_index()
            active.save_indexes()
            self.flush()
            for segment in self._segments:
                segment.close_files()
            self._removals.finish()
        except StorageError as error:
            raise storage_error(error) from error

    def abandon(self) -> None:
        """Gives the handles back and writes nothing, as a crash would."""
        for segment in self._segments:
            segment.close_files()

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
        try:
            self._removals.due(now_ms)
            gone = retention.expired_segments(self, now_ms)
            if not gone:
                return 0
            if gone[-1] is self._segments.active:
                self.roll(now_ms)
            self._discard(gone, now_ms)
        except StorageError as error:
            raise storage_error(error) from error
        self.advance_log_start(self._segments.first.base_offset)
        return len(gone)

    def _discard(self, gone: Sequence[Segment], now_ms: int) -> None:
        self._segments.drop(gone)
        first = self._segments.first.base_offset
        for segment in gone:
            segment.close_files()
            self._removals.later(
                [segment.path(suffix) for suffix in (".log", ".index", ".timeindex", ".txnindex")],
                now_ms + self.config.file_delete_delay_ms,
            )
        self._snapshots.remove_where(lambda taken: any(taken == s.base_offset for s in gone) and taken < first)

    def truncate_to(self, offset: int, *, now_ms: int) -> bool:
        """Drops every batch that reaches ``offset`` or past it; False when the log already ends there or before."""
        if offset >= self.log_end_offset:
            return False
        if offset <= self._segments.first.base_offset and self._segments.first.base_offset > 0:
            self.truncate_fully_and_start_at(offset, now_ms=now_ms)
            return True
        try:
            gone = [segment for segment in self._segments if segment.base_offset >= offset]
            if len(gone) == len(self._segments):
                self.truncate_fully_and_start_at(offset, now_ms=now_ms)
                return True
            self._segments.drop(gone)
            for segment in gone:
                segment.remove()
            self._segments.active.truncate_to(offset)
        except StorageError as error:
            raise storage_error(error) from error
        self._end_at(offset)
        if self.leader_epochs.truncate_from_end(offset):
            self._save_epochs()
        recovery.rebuild_producers(
            self.producers,
            self._segments,
            self._snapshots,
            self.log_start_offset,
            offset,
            now_ms=now_ms,
            clean=False,
            warn=self.warnings.append,
        )
        self.producers.on_high_watermark(self.high_watermark)
        return True

    def truncate_fully_and_start_at(self, offset: int, *, now_ms: int) -> None:
        """Empties the log, producer state and snapshots included; it begins anew at ``offset``."""
        try:
            for segment in self._segments:
                segment.remove()
            self._snapshots.remove_where(lambda _: True)
            self._segments.replace([Segment.create(self._disk, self.path, offset, self.config, now_ms=now_ms)])
        except StorageError as error:
            raise storage_error(error) from error
        self.producers.truncate_fully_and_start_at(offset)
        if self.leader_epochs.clear():
            self._save_epochs()
        self.log_start_offset = offset
        self._end_at(offset)
        self.high_watermark = offset

    def _end_at(self, offset: int) -> None:
        self.log_end_offset = offset
        self.recovery_point = min(self.recovery_point, offset)
        self.high_watermark = min(self.high_watermark, offset)

    # -- configuration and the directory -------------------------------------------------------------------------

    def update_config(self, config: LogConfig) -> None:
        """Takes effect with the next append; segments that exist keep their index limits."""
        self.config = config
        for segment in self._segments:
            segment.config = config

    def rename(self, path: str) -> None:
        """Moves the directory, as deletion of a topic does first."""
        self.abandon()
        try:
            self._disk.rename(self.path, path)
        except StorageError as error:
            raise storage_error(error) from error
        self.path = path
        self._snapshots.dir = path
        for segment in self._segments:
            segment.move(path)

    def delete(self) -> None:
        """Removes the directory and all in it."""
        self.abandon()
        try:
            self._disk.remove_tree(self.path)
        except StorageError as error:
            raise storage_error(error) from error


def _claim(disk: Disk, path: str, topic_id: bytes) -> bytes:
    """Reads the directory's topic id, or writes down the given one."""
    file = join(path, METADATA_FILE)
    if disk.exists(file):
        found = decode_partition_metadata(disk.read_bytes(file), file)
        if topic_id not in (NO_TOPIC_ID, found):
            raise ApiError(
                ErrorCode.INCONSISTENT_TOPIC_ID, f"{path} holds topic id {found.hex()}, expected {topic_id.hex()}"
            )
        return found
    if topic_id != NO_TOPIC_ID:
        disk.write_atomic(file, encode_partition_metadata(topic_id), sync=False)
    return topic_id


def _read_epochs(disk: Disk, path: str) -> LeaderEpochCache:
    file = join(path, LEADER_EPOCH)
    return LeaderEpochCache.decode(disk.read_bytes(file), file) if disk.exists(file) else LeaderEpochCache()
