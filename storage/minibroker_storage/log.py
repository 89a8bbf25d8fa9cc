"""One partition's log: append, high watermark, reading, truncation and deletion (Kafka's UnifiedLog).

A log is its segments, and four offsets:

    log start offset ≤ last stable offset ≤ high watermark ≤ log end offset

Only the last stable offset can be below the log start: of a transaction whose first records were deleted.

The end moves with an append; the high watermark when every in-sync replica has what is below it; the last stable offset
when a transaction ends below the high watermark; the start with retention and DeleteRecords. Beside the segments are
derived files, which `recovery` makes anew: indexes, aborted transactions, producer snapshots, leader epochs
(`docs/reference/storage.md` says what Kafka promises of each).

An append as leader: validate and assign offsets (`validator`), note a new leader epoch, roll if there is no room, check
the producer (`producer_state.prepare`), write, commit the producer state. So a refused batch leaves no record and no
producer state, though it may leave an epoch or an empty segment, as in Kafka. A write that failed half way is taken off
again, or the log goes offline (KAFKA_STORAGE_ERROR) until a restart, as it does after a failed sync.

What can go wrong: power loss takes what was not synced, and recovery cuts the log at the first batch that is not whole;
a follower is cut back where its leader's epochs end (KIP-101), and with the records goes the producer state that they
made.

Synchronous and without a clock: ``now_ms`` is handed in. One thread changes a log; others may read or flush it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from minibroker_protocol.errors import ApiError, ErrorCode, Malformed
from minibroker_protocol.records import UNHURRIED, Buffer, Pace
from minibroker_storage import appending, reading, recovery
from minibroker_storage.append_info import AppendInfo, storage_error, storage_errors
from minibroker_storage.config import LogConfig
from minibroker_storage.disk import Disk, DiskFull, NotFound, StorageError
from minibroker_storage.leader_epochs import LeaderEpochCache, read_epochs
from minibroker_storage.log_files import LogFiles
from minibroker_storage.origin import Origin
from minibroker_storage.partition_metadata import NO_TOPIC_ID, claim
from minibroker_storage.producer_state import ProducerAppend, ProducerRules, VerificationGuard
from minibroker_storage.reading import ReadResult, TimestampOffset
from minibroker_storage.segment import Segment
from minibroker_storage.snapshots import SnapshotFiles
from minibroker_storage.txn_index import AbortedTxn
from minibroker_storage.validator import CheckedBatch, ValidatedBatches, validate_and_assign

__all__ = ["AppendInfo", "PartitionLog", "ReadResult", "TimestampOffset", "storage_error"]


def _nothing_else(_: int) -> None:
    """The default of `before_truncation`: no file but the log's own depends on its end."""


class PartitionLog:
    """Made by :meth:`open`. Offsets: ``log_start_offset`` first readable one, ``log_end_offset`` next one to be
    assigned, ``high_watermark`` and ``last_stable_offset`` exclusive bounds of readers, ``recovery_point`` end of
    synced data.

    Its parts: the files, the segments among them, the state of producers and the leader epochs. This class keeps them
    in step with its offsets.
    """

    __slots__ = (
        "_segments",
        "before_truncation",
        "closed",
        "config",
        "files",
        "high_watermark",
        "leader_epochs",
        "log_end_offset",
        "log_start_offset",
        "offline",
        "on_roll",
        "partition",
        "producers",
        "topic",
        "topic_id",
        "warnings",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        topic_id: bytes,
        config: LogConfig,
        loaded: recovery.Loaded,
        epochs: LeaderEpochCache,
        files: LogFiles,
        high_watermark: int,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.config = config
        self.leader_epochs = epochs
        self.producers = loaded.producers
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = loaded.log_end_offset
        self.high_watermark = max(loaded.log_start_offset, min(high_watermark, loaded.log_end_offset))
        self.producers.on_high_watermark(self.high_watermark)
        #: Faults found when the log was opened, one line each.
        self.warnings = loaded.warnings
        self.files = files
        self._segments = files.segments
        #: Called when a segment was sealed and can be flushed.
        self.on_roll: Callable[[], None] | None = None
        #: Called with the new end before the log is truncated, so that checkpoints beyond it are lowered first.
        self.before_truncation: Callable[[int], None] = _nothing_else
        #: Why the log refuses writes until it is opened again; None while it accepts them.
        self.offline: ApiError | None = None
        #: Set by a close that succeeded; only then may the directory count as closed cleanly.
        self.closed = False

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
        """The log in directory ``path``, created if missing.

        clean: its last writer closed it; otherwise the log past ``recovery_point`` is checked and truncated at the
            first bad batch.

        Raises ApiError KAFKA_STORAGE_ERROR, and INCONSISTENT_TOPIC_ID when the directory is another topic's.
        """
        with storage_errors():
            new = not disk.exists(path)
            disk.make_dir(path)
            warnings: list[str] = []
            topic_id = claim(disk, path, topic_id, clean, warnings)
            epochs, on_file = read_epochs(disk, path, clean, warnings)
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
            loaded.warnings[:0] = warnings
            files = LogFiles(disk, path, loaded.segments, snapshots, loaded.recovery_point, new=new or not clean)
            if epochs.entries != on_file:
                files.write_epochs(epochs)
        return cls(topic, partition, topic_id, config, loaded, epochs, files, high_watermark)

    def __repr__(self) -> str:
        return f"PartitionLog({self.topic}-{self.partition}, {self.log_start_offset}..{self.log_end_offset})"

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    def assign_leader_epoch(self, epoch: int, start_offset: int | None = None) -> None:
        """Notes that ``epoch`` begins at ``start_offset`` (default: the log's end) and writes the epoch file."""
        if self.leader_epochs.assign(epoch, self.log_end_offset if start_offset is None else start_offset):
            self.save_epochs()

    def save_epochs(self) -> None:
        """Writes the epoch file; the next flush syncs it."""
        with storage_errors():
            self.files.write_epochs(self.leader_epochs)

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
        """Validates, assigns offsets and writes. A writable buffer is patched in place; the caller must not use it
        again.

        Raises ApiError for a refusal, and then no record was written; KAFKA_STORAGE_ERROR when the disk failed. Raises
        TakesLong where ``pace`` ends the check of a client's batch: then call `check_client_batch` on another thread
        and pass its result as ``checked``.
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
            partition=self,
        )
        headers = batches.headers
        if self.leader_epochs.latest_epoch != leader_epoch and leader_epoch >= 0:
            self.assign_leader_epoch(leader_epoch)
        segment = self._segments.active
        if segment.should_roll(batches, now_ms):
            segment = self._roll_at(base_offset, now_ms)
        prepared: Sequence[ProducerAppend] = ()
        if len(headers) == 1 and headers[0].producer_id < 0:
            pass  # no producer's state to check
        elif origin is not Origin.CLIENT:
            prepared = appending.prepare(self.producers, records, headers, origin, transaction_version, guard)
        else:  # a client sends one batch, and no marker
            duplicate = self.producers.find_duplicate(headers[0])
            if duplicate is not None:
                return appending.duplicate(duplicate, self.log_start_offset)
            append = self.producers.prepare(headers[0], origin=origin, guard=guard)
            prepared = () if append is None else (append,)
        self._write(segment, batches, prepared, now_ms)
        return AppendInfo(
            base_offset,
            batches.last_offset,
            batches.log_append_time_ms,
            self.log_start_offset,
            False,
            batches.max_timestamp,
        )

    def append_as_follower(self, records: Buffer, leader_epoch: int, *, now_ms: int) -> AppendInfo:
        """Appends the leader's batches unchanged. Batches of a newer epoch than ``leader_epoch`` and all after them are
        left out, as is a batch that is cut off at the end (KAFKA-18723).

        Raises ApiError: CORRUPT_MESSAGE for broken bytes, INVALID_RECORD for offsets below the log's end.
        """
        batches = appending.batches_to_append(records, self.log_end_offset, leader_epoch)
        base_offset = self.log_end_offset
        start = self.log_start_offset
        if not batches.headers:
            return AppendInfo(base_offset, base_offset - 1, -1, start, False, -1)
        for header in batches.headers:
            # A follower learns from the batches where epochs begin, as nothing else tells it (KIP-101).
            latest = self.leader_epochs.latest_epoch
            if header.partition_leader_epoch > (-1 if latest is None else latest):
                self.assign_leader_epoch(header.partition_leader_epoch, header.base_offset)
        first_offset = batches.headers[0].base_offset
        segment = self._segments.active
        if segment.should_roll(batches, now_ms):
            segment = self._roll_at(first_offset, now_ms)
        prepared = appending.prepare(self.producers, records, batches.headers, Origin.REPLICATION)
        self._write(segment, batches, prepared, now_ms)
        return AppendInfo(
            first_offset,
            batches.last_offset,
            -1,
            start,
            False,
            batches.max_timestamp,
        )

    def _write(
        self, segment: Segment, batches: ValidatedBatches, prepared: Sequence[ProducerAppend], now_ms: int
    ) -> None:
        """Writes the log first, then changes the state; a disk failure leaves both unchanged."""
        if self.offline is not None:
            raise self.offline
        try:
            segment.append(batches.buffers, batches.headers)
        except StorageError as error:
            raise storage_error(error) from error
        producers = self.producers
        for append in prepared:
            txn = producers.commit(append, now_ms)
            if txn is not None and txn.aborted:
                segment.append_aborted(AbortedTxn.of(txn))
        producers.map_end_offset = self.log_end_offset = batches.last_offset + 1

    # -- high watermark ------------------------------------------------------------------------------------------

    @property
    def last_stable_offset(self) -> int:
        """Exclusive bound of read_committed: nothing below it belongs to an open transaction.

        Where records of an open transaction were deleted, it is the base offset of the batch that holds the log start,
        which may be below it (as a live Kafka 4.4.0 answers: UnifiedLog.maybeIncrementFirstUnstableOffset).
        """
        unstable = self.producers.first_unstable_offset
        if unstable is None or unstable >= self.high_watermark:
            return self.high_watermark
        if unstable >= self.log_start_offset:
            return unstable
        with storage_errors():
            return min(reading.batch_start(self._segments, self.log_start_offset), self.high_watermark)

    def update_high_watermark(self, offset: int) -> bool:
        """Sets the high watermark, clamped to the log; True when it or the last stable offset moved."""
        # A follower hears its leader's, which may lie past what it has fetched, or below a log start that DeleteRecords
        # has moved (UnifiedLog.updateHighWatermark).
        if offset > self.log_end_offset:
            offset = self.log_end_offset
        if offset < self.log_start_offset:
            offset = self.log_start_offset
        let_go = bool(self.producers.finished) and self.producers.on_high_watermark(offset)
        if offset == self.high_watermark:
            return let_go
        self.high_watermark = offset
        return True

    # -- reading -------------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, *, bound: int, min_one_message: bool = True) -> ReadResult:
        """A slice of whole batches from the one holding ``offset`` on, all below ``bound``; the last may be cut by
        ``max_bytes``. Raises ApiError OFFSET_OUT_OF_RANGE outside [log start, log end]."""
        if offset < self.log_start_offset or offset > self.log_end_offset:
            limits = f"between {self.log_start_offset} and {self.log_end_offset}"
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} is not {limits}")
        try:
            return reading.read(
                self._segments, self.log_end_offset, offset, max_bytes, bound=bound, min_one_message=min_one_message
            )
        except (StorageError, Malformed) as error:
            raise storage_error(error) from error

    def aborted_transactions(self, result: ReadResult) -> list[AbortedTxn]:
        """The aborted transactions that a read_committed reader of ``result`` needs."""
        if result.base_offset < 0:  # nothing was read
            return []
        try:
            return reading.aborted_transactions(self._segments, self.log_end_offset, result)
        except (StorageError, Malformed) as error:
            raise storage_error(error) from error

    def last_aborted(self, most: int) -> list[AbortedTxn]:
        """The aborted transactions whose markers come last, at most so many, in marker order."""
        newest = (aborted for segment in reversed(self.segments) for aborted in reversed(segment.txn_index))
        return [*islice(newest, most)][::-1]

    def bytes_between(self, offset: int, bound: int) -> int:
        """Bytes that a reader at ``offset`` can get up to ``bound``."""
        with storage_errors():
            return reading.bytes_between(self._segments, self.log_end_offset, offset, bound)

    def offset_for_timestamp(self, timestamp: int, bound: int, pace: Pace = UNHURRIED) -> TimestampOffset | None:
        """The first record below ``bound`` with a timestamp (ms) at or above the given one. Raises TakesLong where
        ``pace`` ends the search; fit for another thread."""
        with storage_errors():
            first = reading.offset_for_timestamp(self._segments, self.log_start_offset, timestamp, pace)
        return first if first is not None and first.offset < bound else None

    def max_timestamp_offset(self, bound: int, pace: Pace = UNHURRIED) -> TimestampOffset | None:
        """The record with the largest timestamp, when it is below ``bound``. Raises TakesLong where ``pace`` ends the
        search; fit for another thread."""
        with storage_errors():
            newest = reading.max_timestamp_offset(self._segments, pace)
        return newest if newest is not None and newest.offset < bound else None

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(largest known epoch <= ``epoch``, its exclusive end); (-1, -1) when unknown (KIP-101)."""
        return self.leader_epochs.end_offset_for(epoch, self.log_end_offset)

    # -- deletion and truncation ---------------------------------------------------------------------------------

    def delete_records(self, offset: int) -> int:
        """Moves the log start up to ``offset`` (-1: the high watermark) and returns where it is now. Segments go later.

        Raises ApiError OFFSET_OUT_OF_RANGE, POLICY_VIOLATION on a topic that is only compacted.
        """
        # As Partition.deleteRecordsOnLeader: the latest record of a key must not go.
        if self.config.compacts and not self.config.deletes:
            raise ApiError(ErrorCode.POLICY_VIOLATION, f"{self.topic} is compacted and its records are not deleted")
        if offset == -1:
            offset = self.high_watermark
        # Records above it may still be truncated, so that the log start would lie past the end of a new leader's log.
        if offset < 0 or offset > self.high_watermark:
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} is not between 0 and {self.high_watermark}")
        self.advance_log_start(offset)
        return self.log_start_offset

    def advance_log_start(self, offset: int) -> bool:
        """The log begins at ``offset`` from now on; never goes back. True when it moved."""
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        # A follower moves with its leader, whose log start may be past what it knows to be replicated.
        if self.high_watermark < offset:
            self.high_watermark = offset
        if self.leader_epochs.truncate_from_start(offset):
            self.save_epochs()
        self.producers.on_log_start(offset)
        self.files.remove_snapshots_up_to(offset)
        return True

    def ends_at(self, offset: int) -> None:
        """The files were truncated: the log ends at ``offset`` now."""
        self.log_end_offset = offset
        self.log_start_offset = min(self.log_start_offset, offset)
        self.high_watermark = min(self.high_watermark, offset)
        self.files.ends_at(offset)

    @contextlib.contextmanager
    def all_or_offline(self) -> Iterator[None]:
        """For changes that a failing disk leaves half-done: the log is then offline."""
        try:
            with storage_errors():
                yield
        except ApiError as error:
            self.offline = ApiError(error.code, error.message)  # without its cause: a later write does not mend it
            raise

    @contextlib.contextmanager
    def _synced_or_offline(self) -> Iterator[None]:
        """After a failed sync the log is offline (`SyncFailed`). A write without room, or to a file that has been
        renamed, may be tried again."""
        try:
            with storage_errors():
                yield
        except ApiError as error:
            if not isinstance(error.__cause__, DiskFull | NotFound):
                self.offline = error
            raise

    # -- rolling, flushing and closing -----------------------------------------------------------------------------

    @property
    def disk(self) -> Disk:
        """The disk that holds the log."""
        return self.files.disk

    @property
    def path(self) -> str:
        """The partition's directory on the disk."""
        return self.files.path

    @property
    def recovery_point(self) -> int:
        """Exclusive end of the records that survive a power loss."""
        return self.files.recovery_point

    @property
    def truncations(self) -> int:
        """How often the log was truncated since it was opened."""
        return self.files.cuts

    @property
    def size(self) -> int:
        """Bytes in all segments."""
        return self._segments.size

    @property
    def segments(self) -> list[Segment]:
        """The segments, oldest first, for tools, compaction and tests."""
        return self._segments.all

    def roll(self, now_ms: int) -> None:
        """Starts a new segment at the log's end, unless the active one is empty."""
        if self._segments.active.size:
            self._roll_at(self.log_end_offset, now_ms)

    def _roll_at(self, base_offset: int, now_ms: int) -> Segment:
        with storage_errors():
            segment = self.files.roll(base_offset, self.producers, self.config, now_ms)
        if self.on_roll is not None:
            self.on_roll()
        return segment

    def flush(self, up_to: int | None = None) -> None:
        """Returns when everything below ``up_to`` (default: all that was appended before the call) survives a power
        loss; may run in another thread."""
        if self.offline is not None:
            raise self.offline
        cuts = self.files.cuts  # before the end is read
        with self._synced_or_offline():
            self.files.flush(self.log_end_offset if up_to is None else min(up_to, self.log_end_offset), cuts)

    def close(self) -> None:
        """Clean shutdown: writes producer snapshot and indexes, syncs everything, closes all handles."""
        if self.offline is not None:
            raise self.offline
        with self._synced_or_offline():
            self.files.close(self.producers, self.log_end_offset)
        self.closed = True

    def abandon(self) -> None:
        """Closes the handles and writes nothing, as in a crash."""
        self.files.abandon()

    def rename(self, path: str) -> None:
        """Moves the directory, as deletion of a topic does first."""
        with storage_errors():
            self.files.rename(path)

    def delete(self) -> None:
        """Removes the directory and all in it."""
        with storage_errors():
            self.files.delete()

    def update_config(self, config: LogConfig) -> None:
        """Takes effect with the next append; segments that exist keep their index limits."""
        self.config = config
        for segment in self._segments:
            segment.config = config
