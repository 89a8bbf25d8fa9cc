"""The producers' part of an append, and the batches that a follower appends (UnifiedLog.append).

The log's four offsets, and what can go wrong: `minibroker_storage.log`.
"""

from __future__ import annotations

from collections.abc import Sequence

from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.records import (
    CONTROL_MASK,
    LOG_OVERHEAD,
    NO_TIMESTAMP,
    BatchHeader,
    Buffer,
    CorruptBatch,
    control_record,
    crc_ok,
    iter_batches,
)
from minibroker_storage.append_info import AppendInfo
from minibroker_storage.origin import Origin
from minibroker_storage.producer_entry import BatchMetadata
from minibroker_storage.producer_state import ProducerAppend, ProducerStateManager, VerificationGuard
from minibroker_storage.validator import ValidatedBatches


def batches_to_append(records: Buffer, log_end_offset: int, leader_epoch: int) -> ValidatedBatches:
    """The whole batches up to the first one of an epoch above ``leader_epoch`` (KAFKA-18723), as they are.

    Raises ApiError: CORRUPT_MESSAGE for broken bytes, INVALID_RECORD for offsets that do not follow the log's end.
    """
    headers: list[BatchHeader] = []
    end, expected = 0, log_end_offset
    newest = NO_TIMESTAMP
    try:
        for position, header in iter_batches(records):
            # The batch is of a newer leader than this replica follows: it may have to truncate before it appends these.
            if header.partition_leader_epoch > leader_epoch:
                break
            # Kafka checks what comes from a leader too: it has been on a disk and a network since the producer's
            # checksum (UnifiedLog.analyzeAndValidateRecords).
            if not crc_ok(records, position, header):
                raise CorruptBatch(f"the batch at offset {header.base_offset} does not have its CRC")
            if header.base_offset < expected:
                raise ApiError(
                    ErrorCode.INVALID_RECORD, f"batch at offset {header.base_offset}, the log ends at {expected}"
                )
            expected = header.next_offset
            headers.append(header)
            end = position + header.size
            newest = max(newest, header.max_timestamp)
    except CorruptBatch as error:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, str(error)) from None
    return ValidatedBatches([memoryview(records)[:end]], headers, newest, -1, end, expected - 1)


def duplicate(known: BatchMetadata, log_start_offset: int) -> AppendInfo:
    """The result for a batch that is in the log already, as it was remembered."""
    return AppendInfo(known.first_offset, known.last_offset, known.timestamp, log_start_offset, True, known.timestamp)


def prepare(
    producers: ProducerStateManager,
    records: Buffer,
    headers: Sequence[BatchHeader],
    origin: Origin,
    transaction_version: int = 0,
    guard: VerificationGuard | None = None,
) -> list[ProducerAppend]:
    """The changes that the batches of one append make to their producers; nothing is changed yet. Raises ApiError for a
    refusal."""
    prepared: list[ProducerAppend] = []
    position = 0
    for header in headers:
        if header.producer_id >= 0:
            append = producers.prepare(
                header,
                control_record(records, position, header) if header.attributes & CONTROL_MASK else None,
                origin=origin,
                transaction_version=transaction_version,
                guard=guard,
                after=prepared,
            )
            if append is not None:
                prepared.append(append)
        position += header.batch_length + LOG_OVERHEAD
    return prepared
