"""Reading from a log: slices of batches, aborted transactions, offsets by timestamp (LocalLog and UnifiedLog).

The log's four offsets, and what can go wrong: `minibroker_storage.log`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from minibroker_protocol.records import NO_TIMESTAMP, UNHURRIED, Pace, each_timestamp
from minibroker_storage.disk import Buffer
from minibroker_storage.segment import Segment
from minibroker_storage.segments import Segments
from minibroker_storage.txn_index import AbortedTxn

EMPTY = b""
_BASE_OFFSET_BYTES = 8


@dataclass(slots=True)
class ReadResult:
    """A slice of one segment's log. It begins with the whole batch that holds ``fetch_offset`` and may end within one.

    ``position`` is the byte of the slice in the log of the segment with ``base_offset``; -1 if no batch was searched.
    """

    fetch_offset: int
    records: Buffer = EMPTY
    base_offset: int = -1
    position: int = -1

    def __len__(self) -> int:
        return len(self.records)


def read(
    segments: Segments, log_end_offset: int, offset: int, max_bytes: int, *, bound: int, min_one_message: bool
) -> ReadResult:
    """At most ``max_bytes`` of the batches in [offset, bound); with ``min_one_message`` at least the first one whole.

    Without it the result is empty if the first batch does not fit. One read does not cross a segment.
    """
    if offset >= bound:
        return ReadResult(offset)
    for segment in segments.from_offset(offset):
        at = segment.find(offset)
        if at is None:
            continue  # a gap: compaction, or the segment ends before the offset
        position, first_size = at
        end = end_position(segments, segment, bound, log_end_offset)
        # Else a batch larger than the client's limit would stop it for good (KIP-74).
        limit = max(max_bytes, first_size) if min_one_message else max_bytes
        n = min(end - position, limit)
        if n <= 0 or limit < first_size:
            return ReadResult(offset, EMPTY, segment.base_offset, position)
        return ReadResult(offset, segment.log.pread(n, position), segment.base_offset, position)
    return ReadResult(offset)


def batch_start(segments: Segments, offset: int) -> int:
    """Base offset of the first batch that reaches ``offset``; ``offset`` where there is none."""
    for segment in segments.from_offset(offset):
        at = segment.find(offset)
        if at is not None:
            return int.from_bytes(segment.log.pread(_BASE_OFFSET_BYTES, at.position), "big", signed=True)
    return offset


def end_position(segments: Segments, segment: Segment, bound: int, log_end_offset: int) -> int:
    """The byte in this segment's log at which offsets reach ``bound``."""
    # The usual case, without a look at the index: the reader may have all.
    if bound >= log_end_offset:
        return segment.size
    next_base = segments.next_base(segment)
    if next_base is not None and bound >= next_base:
        return segment.size
    if bound <= segment.base_offset:
        return 0
    at = segment.find(bound)
    return segment.size if at is None else at.position


def bytes_between(segments: Segments, log_end_offset: int, offset: int, bound: int) -> int:
    """How many bytes a read from ``offset`` up to ``bound`` would find, over all segments."""
    if offset >= bound:
        return 0
    total = 0
    for i, segment in enumerate(segments.from_offset(offset)):
        if segment.base_offset >= bound:
            break
        end = end_position(segments, segment, bound, log_end_offset)
        if i == 0:
            at = segment.find(offset)
            total += end - at.position if at is not None and at.position < end else 0
        else:
            total += end
    return total


def aborted_transactions(segments: Segments, log_end_offset: int, result: ReadResult) -> list[AbortedTxn]:
    """The aborted transactions that a reader of ``result`` needs. As in Kafka the upper end is the next offset index
    entry after the slice, so some that begin after it may be among them."""
    upper: int | None = None
    entries: list[AbortedTxn] = []
    for segment in segments.from_offset(result.base_offset):
        if upper is None:
            upper = segment.offset_index.upper_bound(result.position + len(result.records))
            if upper is None:
                upper = segments.next_base(segment)
            if upper is None:
                upper = log_end_offset
        some, complete = segment.txn_index.collect(result.fetch_offset, upper)
        entries += some
        if complete:
            break
    return entries


class TimestampOffset(NamedTuple):
    """An offset found by time; ``timestamp`` in ms, ``leader_epoch`` of the batch."""

    offset: int
    timestamp: int
    leader_epoch: int


def offset_for_timestamp(
    segments: Segments, log_start_offset: int, timestamp: int, pace: Pace = UNHURRIED
) -> TimestampOffset | None:
    """The first record at or after the log start with a timestamp at or above the given one."""
    for segment in segments.all:
        if segment.size and segment.largest_timestamp >= timestamp:
            first = _search(segment, log_start_offset, timestamp, pace)
            if first is not None:
                return first
    return None


def _search(segment: Segment, log_start_offset: int, timestamp: int, pace: Pace) -> TimestampOffset | None:
    indexed_offset = segment.time_index.lookup(timestamp)[1]
    start = segment.offset_index.lookup(max(indexed_offset, log_start_offset))[1]
    for position, header in segment.headers(start):
        # The time index says no more than that nothing before `start` is late enough.
        if header.max_timestamp < timestamp or header.last_offset < log_start_offset:
            continue
        for offset, record_timestamp in each_timestamp(segment.read_batch(position, header), 0, header, pace):
            if record_timestamp >= timestamp and offset >= log_start_offset:
                return TimestampOffset(offset, record_timestamp, header.partition_leader_epoch)
    return None


def max_timestamp_offset(segments: Segments, pace: Pace = UNHURRIED) -> TimestampOffset | None:
    """The first record with the largest timestamp, which may be -1; None when there is no such record."""
    best: Segment | None = None
    for segment in segments.all:
        if segment.size and (best is None or segment.largest_timestamp > best.largest_timestamp):
            best = segment
    if best is None:
        return None
    at = best.find(best.offset_of_max_timestamp)
    batch = None if at is None else next(best.headers(at.position), None)
    if batch is None:
        return None
    position, header = batch
    if header.magic == 0:
        return None  # messages without a timestamp
    for offset, timestamp in each_timestamp(best.read_batch(position, header), 0, header, pace):
        if timestamp == header.max_timestamp:
            return TimestampOffset(offset, timestamp, header.partition_leader_epoch)
    # No record has the -1 of a batch whose times all lie below.
    if header.max_timestamp == NO_TIMESTAMP:
        return None
    # Compaction may have taken the record and left the batch's header.
    return TimestampOffset(header.last_offset, header.max_timestamp, header.partition_leader_epoch)
