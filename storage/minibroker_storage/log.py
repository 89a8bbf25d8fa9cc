"""One partition's log: append, high watermark, reading, and everything that shortens it (Kafka's UnifiedLog).

Synchronous and without a clock: ``now_ms`` is handed in. One thread changes a log; others may read or flush it.
"""

from __future__ import annotations

from collections.abc import Sequence

from minibroker_protocol.errors import ApiError, ErrorCode, Malformed
from minibroker_protocol.records import UNHURRIED, BatchHeader, Buffer, Pace
from minibroker_storage import follower, reading, recovery
from minibroker_storage.append_info import NO_TXNS, AppendInfo, storage_error, storage_errors
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
from minibroker_storage.truncation import Truncation
from minibroker_storage.txn_index import AbortedTxn
from minibroker_storage.validator import CheckedBatch, ValidatedBatches, validate_and_assign

__all__ = ["AppendInfo", "PartitionLog", "ReadResult", "TimestampOffset", "storage_error"]

NO_TOPIC_ID = bytes(16)


class PartitionLog(Truncation):
    """Made by :meth:`open`. Offsets: ``log_start_offset`` first one readable, ``log_end_offset`` next one to be given,
    ``high_watermark`` and ``last_stable_offset`` exclusive bounds of readers, ``recovery_point`` end of synced data."""

    __slots__ = ()

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
        """The log in directory ``path``, created if missing. ``clean``: its last writer closed it; otherwise what
        lies past ``recovery_point`` is checked and cut at the first bad batch.

        Raises ApiError KAFKA_STORAGE_ERROR, and INCONSISTENT_TOPIC_ID when the directory is another topic's.
        """
        with storage_errors():
            new = not disk.exists(path)
            disk.make_dir(path)
            warnings: list[str] = []
            topic_id = _claim(disk, path, topic_id, clean, warnings)
            epochs, on_file = _read_epochs(disk, path, clean, warnings)
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
            log.warnings[:0] = warnings
            log._dir_unsynced = new
            if epochs.entries != on_file:
                log._save_epochs()
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
        checked: CheckedBatch | None = None,
        pace: Pace = UNHURRIED,
    ) -> AppendInfo:
        """Validates, gives offsets and writes. A writable buffer is patched in place; the caller must not use it again.

        Raises ApiError with the reason of the refusal, and then nothing was written; KAFKA_STORAGE_ERROR when the
        disk refused. Raises TakesLong where ``pace`` ends the check of a client's batch: `check_client_batch` can be
        called on another thread, and its result be handed in here as ``checked``.
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
            checked=checked,
            pace=pace,
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
        if self.offline is not None:
            raise self.offline
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
        return completed or NO_TXNS

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
        except (StorageError, Malformed) as error:
            raise storage_error(error) from error

    def aborted_transactions(self, fetch_offset: int, result: ReadResult) -> list[AbortedTxn]:
        """What a read_committed reader of ``result`` must be told."""
        del fetch_offset  # the result knows it
        with storage_errors():
            return reading.aborted_transactions(self._segments, self.log_end_offset, result)

    def bytes_between(self, offset: int, bound: int) -> int:
        """Bytes a reader at ``offset`` could have up to ``bound``."""
        with storage_errors():
            return reading.bytes_between(self._segments, self.log_end_offset, offset, bound)

    def offset_for_timestamp(self, timestamp: int, bound: int, pace: Pace = UNHURRIED) -> TimestampOffset | None:
        """The first record below ``bound`` with a timestamp (ms) at or above the given one. Raises TakesLong where
        ``pace`` ends the search; fit for another thread."""
        with storage_errors():
            found = reading.offset_for_timestamp(self._segments, self.log_start_offset, timestamp, pace)
        return found if found is not None and found.offset < bound else None

    def max_timestamp_offset(self, bound: int, pace: Pace = UNHURRIED) -> TimestampOffset | None:
        """The record with the largest timestamp, when it is below ``bound``. Raises TakesLong where ``pace`` ends the
        search; fit for another thread."""
        with storage_errors():
            found = reading.max_timestamp_offset(self._segments, pace)
        return found if found is not None and found.offset < bound else None

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(largest known epoch <= ``epoch``, its exclusive end); (-1, -1) when unknown (KIP-101)."""
        return self.leader_epochs.end_offset_for(epoch, self.log_end_offset)

    # -- configuration and the directory -------------------------------------------------------------------------

    def update_config(self, config: LogConfig) -> None:
        """Takes effect with the next append; segments that exist keep their index limits."""
        self.config = config
        for segment in self._segments:
            segment.config = config

    def rename(self, path: str) -> None:
        """Moves the directory, as deletion of a topic does first."""
        self.abandon()
        with storage_errors():
            self.disk.rename(self.path, path)
        self.path = path
        self._snapshots.dir = path
        for segment in self._segments:
            segment.move(path)

    def delete(self) -> None:
        """Removes the directory and all in it."""
        self.abandon()
        with storage_errors():
            self.disk.remove_tree(self.path)


def _claim(disk: Disk, path: str, topic_id: bytes, clean: bool, warnings: list[str]) -> bytes:
    """Reads the directory's topic id, or writes down the given one."""
    file = join(path, METADATA_FILE)
    if disk.exists(file):
        try:
            found = decode_partition_metadata(disk.read_bytes(file), file)
        except MalformedFile as error:
            if clean or topic_id == NO_TOPIC_ID:
                raise
            warnings.append(f"{error}; written anew, as the file was not synced before the crash")
        else:
            if topic_id not in (NO_TOPIC_ID, found):
                raise ApiError(
                    ErrorCode.INCONSISTENT_TOPIC_ID, f"{path} holds topic id {found.hex()}, expected {topic_id.hex()}"
                )
            return found
    if topic_id != NO_TOPIC_ID:
        disk.write_atomic(file, encode_partition_metadata(topic_id), sync=False)
    return topic_id


def _read_epochs(
    disk: Disk, path: str, clean: bool, warnings: list[str]
) -> tuple[LeaderEpochCache, list[tuple[int, int]] | None]:
    """The epoch file's content, and what is on the disk, None for what must be written anew; after a crash an
    unreadable file is as good as none: batches know their epochs."""
    file = join(path, LEADER_EPOCH)
    try:
        epochs = LeaderEpochCache.decode(disk.read_bytes(file), file) if disk.exists(file) else LeaderEpochCache()
    except MalformedFile as error:
        if clean:
            raise
        warnings.append(f"{error}; epochs are taken from the batches")
        return LeaderEpochCache(), None
    return epochs, epochs.entries
