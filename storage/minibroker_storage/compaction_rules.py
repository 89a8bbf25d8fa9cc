"""Which records compaction keeps, batch by batch (Kafka's Cleaner, CleanedTransactionMetadata and RecordFilter).

Nothing here reads or writes a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field, replace

from minibroker_protocol.records import (
    COMPRESSION_MASK,
    DELETE_HORIZON_MASK,
    MAGIC,
    NO_TIMESTAMP,
    BatchHeader,
    Buffer,
    ControlRecord,
    ControlType,
    Record,
    assemble,
    build_batch,
    decode_records,
    parse_control,
    parse_header,
)
from minibroker_storage.producer_entry import NO_OFFSET, LastRecord
from minibroker_storage.txn_index import AbortedTxn

KEY_OVERHEAD = 120
"""Bytes a key costs in memory besides its own, roughly."""


class OffsetMap:
    """The latest offset of each key in the dirty part; `latest` is the last offset read, -1 for none.

    Refuses keys once `max_bytes` are used: the rest of the dirty part then waits for the next round.
    """

    __slots__ = ("_offsets", "_room", "latest")

    def __init__(self, max_bytes: int) -> None:
        self._offsets: dict[bytes, int] = {}
        self._room = max_bytes
        self.latest = NO_OFFSET

    def put(self, key: bytes, offset: int) -> bool:
        """False when there is no room."""
        if key not in self._offsets:
            if self._room <= 0:
                return False
            self._room -= len(key) + KEY_OVERHEAD
        self._offsets[key] = offset
        return True

    def get(self, key: bytes) -> int:
        """-1 for a key the dirty part does not have."""
        return self._offsets.get(key, NO_OFFSET)

    def __len__(self) -> int:
        return len(self._offsets)


class Transactions:
    """Follows the log in order and decides whether each batch and marker is needed."""

    __slots__ = ("_aborted", "_committed", "_next", "_ongoing", "_seen")

    def __init__(self, aborted: Iterable[AbortedTxn]) -> None:
        self._aborted = sorted(aborted, key=lambda txn: txn.first_offset)
        self._next = 0
        self._ongoing: dict[int, AbortedTxn] = {}
        self._seen: set[int] = set()  # producers with a batch of the aborted transaction still in the log
        self._committed: set[int] = set()  # producers with a batch since their last marker

    def _reach(self, offset: int) -> None:
        while self._next < len(self._aborted) and self._aborted[self._next].first_offset <= offset:
            txn = self._aborted[self._next]
            self._ongoing.setdefault(txn.producer_id, txn)
            self._next += 1

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether a data batch belongs to an aborted transaction."""
        self._reach(header.last_offset)
        if not header.is_transactional:
            return False
        if header.producer_id in self._ongoing:
            self._seen.add(header.producer_id)
            return True
        self._committed.add(header.producer_id)
        return False

    def end(self, header: BatchHeader, control: ControlRecord | None) -> tuple[bool, AbortedTxn | None]:
        """For a control batch: whether it is no longer needed, and the abort index entry that is kept with it. A marker
        is needed if a batch of its transaction was found before it.
        """
        self._reach(header.last_offset)
        if control is None:
            return True, None
        producer_id = header.producer_id
        if control.type is ControlType.ABORT:
            txn = self._ongoing.pop(producer_id, None)
            if txn is not None and producer_id in self._seen:
                self._seen.discard(producer_id)
                return False, txn
            # No data of it is left here: an older pass has removed it, and the marker may follow
            # (CleanedTransactionMetadata.onControlBatchRead).
            return True, None
        if control.type is ControlType.COMMIT:
            needed = producer_id in self._committed
            self._committed.discard(producer_id)
            return not needed, None
        return False, None


@dataclass(slots=True)
class Filter:
    """One cleaning round over segments in offset order.

    upper_bound: exclusive end of what may be cleaned; the batch that ends there is kept, emptied at worst, so that no
        offset is assigned twice.
    last_records: what must be kept of each live producer. `kept_aborts` collects the abort index entries that stay, in
        marker order.
    """

    offsets: OffsetMap
    transactions: Transactions
    last_records: Mapping[int, LastRecord]
    upper_bound: int
    delete_retention_ms: int
    now_ms: int
    max_batch_bytes: int
    kept_aborts: list[AbortedTxn] = field(default_factory=list)

    def clean(self, header: BatchHeader, data: Buffer) -> tuple[BatchHeader, Buffer] | None:
        """The batch that is kept: the same, a smaller one, an empty one, or None. Offsets and sequences never
        change."""
        records = decode_records(data, 0, header, max_bytes=self.max_batch_bytes)
        horizon = header.base_timestamp if header.has_delete_horizon else None
        unneeded_marker = False
        if header.is_control:
            unneeded_marker, kept = self.transactions.end(header, parse_control(records[0]) if records else None)
            if kept is not None:
                self.kept_aborts.append(kept)
            # Only after delete.retention.ms: a reader that has begun with the transaction's data must still meet its
            # end.
            discard = unneeded_marker and horizon is not None and horizon <= self.now_ms
        else:
            discard = self.transactions.is_aborted(header)
        if discard:
            retained: list[Record] = []
        elif header.is_control:
            retained = records
        else:
            retained = [record for record in records if self._keeps(record, horizon)]
        if header.magic != MAGIC:
            return self._upgraded(header, retained)
        if not retained:
            return self._emptied(header) if self._must_stay(header) else None
        tombstone = not header.is_control and _has_tombstone(retained)
        # The first pass that meets it notes until when it stays; a later one removes it (KIP-534).
        if (tombstone or unneeded_marker) and horizon is None:
            return _rebuilt(header, retained, self.now_ms + self.delete_retention_ms)
        if len(retained) == len(records):
            return header, data
        return _rebuilt(header, retained, horizon)

    def _keeps(self, record: Record, horizon: int | None) -> bool:
        # Past what the offset map knows, a later record of the key may be missing from it (Cleaner.shouldRetainRecord).
        if record.offset > self.offsets.latest:
            return True
        if record.key is None or record.offset < self.offsets.get(bytes(record.key)):
            return False
        return record.value is not None or horizon is None or self.now_ms < horizon

    def _must_stay(self, header: BatchHeader) -> bool:
        # The end of the cleaned part keeps its last offset, so that no offset is assigned twice.
        if header.next_offset == self.upper_bound:
            return True
        last = self.last_records.get(header.producer_id) if header.has_producer_id else None
        if last is None:
            return False
        # A start rebuilds the producer's epoch and last sequence from this batch; without it the next one would be out
        # of order (Cleaner.cleanInto, LastRecord).
        if last.last_data_offset != NO_OFFSET:
            return header.last_offset == last.last_data_offset
        return header.is_control and header.producer_epoch == last.producer_epoch

    def _upgraded(self, header: BatchHeader, retained: list[Record]) -> tuple[BatchHeader, Buffer] | None:
        """The rest of a message of magic 0 or 1 as a batch: Kafka 4.4's cleaner writes no old message and keeps no
        empty one."""
        if not retained:
            return None
        first, last = retained[0].offset, retained[-1].offset
        new = replace(header, base_offset=first, last_offset_delta=last - first)
        return _rebuilt(new, retained, self.now_ms + self.delete_retention_ms if _has_tombstone(retained) else None)

    @staticmethod
    def _emptied(header: BatchHeader) -> tuple[BatchHeader, Buffer]:
        empty = copy(header)
        # Nothing is left to compress, and a horizon would stand in the base timestamp
        # (DefaultRecordBatch.writeEmptyHeader).
        empty.attributes &= ~(COMPRESSION_MASK | DELETE_HORIZON_MASK)
        empty.base_timestamp = NO_TIMESTAMP
        empty.record_count = 0
        return empty, assemble(empty, b"")


def _has_tombstone(records: list[Record]) -> bool:
    return any(record.value is None for record in records)


def _rebuilt(header: BatchHeader, records: list[Record], horizon: int | None) -> tuple[BatchHeader, Buffer]:
    data = build_batch(
        records,
        base_offset=header.base_offset,
        leader_epoch=header.partition_leader_epoch,
        compression=header.compression,
        timestamp_type=1 if header.log_append_time else 0,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        transactional=header.is_transactional,
        control=header.is_control,
        delete_horizon_ms=horizon,
        keep_offsets=True,
        last_offset_delta=header.last_offset_delta,
    )
    return parse_header(data), data
