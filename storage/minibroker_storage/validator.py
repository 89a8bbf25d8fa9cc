"""Validation of batches by a leader, and the fields it writes into them (Kafka's LogValidator).

Kafka's ProduceRequest.validateRecords, UnifiedLog.analyzeAndValidateRecords and LogValidator, in their order: every
refusal is an ApiError whose message gives the value found. Batches are patched in place when the buffer is writable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.fields import as_int64
from minibroker_protocol.records import (
    COMPRESSION_MASK,
    CONTROL_MASK,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    MOST_FAULTS,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    UNHURRIED,
    BatchHeader,
    Buffer,
    Compression,
    CorruptBatch,
    InvalidRecords,
    NegativeTimestamp,
    OffsetsNotConsecutive,
    Pace,
    PayloadTooLarge,
    UndecodablePayload,
    Walk,
    assemble,
    compress,
    crc_ok,
    iter_batches,
    longer_than,
    pack_header,
    parse_header,
    patch_offsets,
    records_payload,
    renumbered,
    rewrite_header,
    validate_records,
)

from .config import LONGEST_RECORD
from .origin import Origin

if TYPE_CHECKING:
    from .config import LogConfig

_FIRST_VERSION_WITH_ZSTD = 7
_SMALLEST_MESSAGE = 14
"""The smallest valid length field: a message of magic 0 without key and value."""
_SIZE_UP_TO_MAGIC = 17
MAX_DECOMPRESSED_BYTES = 64 * 1024 * 1024
"""The largest size of a client's batch after decompression. One such batch is in memory at a time."""
_AS_PRODUCED = "producer"
_CODEC_OF_CONFIG = {
    "uncompressed": Compression.NONE,
    "gzip": Compression.GZIP,
    "snappy": Compression.SNAPPY,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
}


@dataclass(slots=True)
class ValidatedBatches:
    """Batches with their offsets, ready to be appended.

    buffers: the bytes to write, in order.
    headers: those in these bytes, one per batch. max_timestamp (ms, -1 none) is the largest of all records.
    log_append_time_ms: -1 unless the topic has LogAppendTime.
    size: bytes in all.
    """

    buffers: list[Buffer]
    headers: list[BatchHeader]
    max_timestamp: int
    log_append_time_ms: int
    size: int
    last_offset: int


def client_batch(records: Buffer | None, api_version: int) -> BatchHeader:
    """The header of the one batch that a Produce request may have for a partition.

    Raises ApiError: INVALID_RECORD for a missing, truncated or second batch and for an old magic; CORRUPT_MESSAGE for a
    length that no batch can have; before version 7 UNSUPPORTED_COMPRESSION_TYPE for zstd and UNKNOWN_SERVER_ERROR for
    an unknown codec. Incomplete bytes behind the batch are ignored.
    """
    if records is None or len(records) == 0:
        raise ApiError(ErrorCode.INVALID_RECORD, "no record batch in the request")
    header = None
    try:
        if len(records) >= HEADER_SIZE and records[_SIZE_UP_TO_MAGIC - 1] == MAGIC:
            header = parse_header(records)
        if header is None or header.batch_length + LOG_OVERHEAD != len(records):  # neither is the common case
            if not _whole_message_at(records, 0):
                raise ApiError(ErrorCode.INVALID_RECORD, f"the {len(records)} bytes of records are not a whole batch")
            magic = records[_SIZE_UP_TO_MAGIC - 1]
            if magic < MAGIC:
                raise ApiError(ErrorCode.INVALID_RECORD, f"record batch v2: magic is {magic} at position 0")
            header = parse_header(records)
    except CorruptBatch as exc:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, str(exc)) from None
    if api_version < _FIRST_VERSION_WITH_ZSTD:
        _refuse_codec(header, api_version)
    size = header.batch_length + LOG_OVERHEAD
    if size < len(records) and _whole_message_at(records, size):
        raise ApiError(ErrorCode.INVALID_RECORD, "more than one record batch for the partition")
    return header


def _refuse_codec(header: BatchHeader, api_version: int) -> None:
    """Before version 7 the codec is checked with the request, later with the log."""
    if header.compression > Compression.ZSTD:
        raise _unassigned(header)
    if header.compression == Compression.ZSTD:
        raise ApiError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"zstd needs Produce v{_FIRST_VERSION_WITH_ZSTD}, the request is v{api_version}",
        )


def _unassigned(header: BatchHeader) -> ApiError:
    return ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"compression codec {header.compression} is not assigned")


def _whole_message_at(records: Buffer, pos: int) -> bool:
    """Whether a whole message or batch begins at `pos`; CORRUPT_MESSAGE when its length or magic is impossible."""
    available = len(records) - pos
    if available < LOG_OVERHEAD:
        return False
    length = int.from_bytes(records[pos + 8 : pos + 12], "big", signed=True)
    if length < _SMALLEST_MESSAGE:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"batch length {length} at position {pos}")
    if available < _SIZE_UP_TO_MAGIC:
        return False
    if records[pos + _SIZE_UP_TO_MAGIC - 1] > MAGIC:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"magic {records[pos + _SIZE_UP_TO_MAGIC - 1]} at position {pos}")
    return available >= LOG_OVERHEAD + length


def validate_and_assign(
    records: Buffer,
    *,
    base_offset: int,
    now_ms: int,
    leader_epoch: int,
    config: LogConfig,
    origin: Origin,
    api_version: int,
    checked: CheckedBatch | None = None,
    pace: Pace = UNHURRIED,
    partition: object = "",
) -> ValidatedBatches:
    """Check batches for a leader's append and give them offsets from `base_offset` on and the leader epoch.

    CLIENT: one batch, checked in full, unless it comes `checked` already. COORDINATOR: of batches that this broker
    built only size and wholeness are checked.

    Raises ApiError; `record_errors` names records at fault by their index in the batch. Raises TakesLong where `pace`
    ends the check, and then no byte of `records` was changed.
    """
    if origin is Origin.CLIENT:
        if checked is None:
            checked = check_client_batch(
                records, pace, now_ms=now_ms, config=config, api_version=api_version, partition=partition
            )
        return _assign_checked(checked, base_offset, leader_epoch)
    append_time = config.stamps_append_time
    if type(records) is bytearray and len(records) >= HEADER_SIZE and not append_time:
        # A coordinator's usual append, one batch in a buffer of its own: it needs no views.
        header = parse_header(records)
        size = header.batch_length + LOG_OVERHEAD
        if size == len(records) and size <= config.max_message_bytes and size <= config.segment_bytes:
            header.base_offset, header.partition_leader_epoch = base_offset, leader_epoch
            patch_offsets(records, 0, base_offset, leader_epoch)
            last_offset = base_offset + header.last_offset_delta
            return ValidatedBatches([records], [header], header.max_timestamp, NO_TIMESTAMP, size, last_offset)
    return _assign_trusted(records, base_offset, leader_epoch, config, now_ms if append_time else NO_TIMESTAMP)


@dataclass(slots=True)
class CheckedBatch:
    """A client's batch that passed all checks without the log. It has no offset yet.

    batch: the client's bytes, or the records with another codec.
    stamped_ms: log append time, None if the topic keeps the producer's.
    """

    batch: _Batch
    max_timestamp: int
    stamped_ms: int | None


@dataclass(slots=True)
class _Batch:
    """A batch at its position in a buffer."""

    buf: Buffer
    pos: int
    header: BatchHeader

    def with_header(self, *, new_crc: bool) -> list[Buffer]:
        """The batch's buffers with the header as it is now: in place, or beside the bytes that may not be written."""
        header, pos, buf = self.header, self.pos, self.buf
        end = pos + LOG_OVERHEAD + header.batch_length
        view = buf if type(buf) is memoryview else memoryview(buf)
        if not view.readonly:
            if new_crc:
                rewrite_header(view, pos, header)
            else:
                patch_offsets(view, pos, header.base_offset, header.partition_leader_epoch)
            return [view[pos:end]]
        if new_crc:
            whole = bytearray(view[pos:end])
            rewrite_header(whole, 0, header)
            return [whole]
        head = bytearray(HEADER_SIZE)
        pack_header(head, 0, header)
        return [head, view[pos + HEADER_SIZE : end]]


def check_client_batch(
    records: Buffer,
    pace: Pace = UNHURRIED,
    *,
    now_ms: int,
    config: LogConfig,
    api_version: int,
    compacted: bool | None = None,
    strict: bool = True,
    max_decompressed: int = MAX_DECOMPRESSED_BYTES,
    partition: object = "",
) -> CheckedBatch:
    """All checks of a client's batch that need no log, so that they can run on another thread.

    strict=False (`broker.validate.records=light`): the records inside are only checked if the topic's configuration
    needs it.

    compacted: whether null keys are refused; default is what `config` says. A batch that decompresses to more than
        `max_decompressed` bytes is MESSAGE_TOO_LARGE.
    partition: what stands for its name in the text of a refusal.

    Raises ApiError, and TakesLong where `pace` ends it.
    """
    header = client_batch(records, api_version)
    batch = _Batch(records, 0, header)
    _check_header(batch, config)
    if compacted is None:
        compacted = config.compacts
    codec = header.attributes & COMPRESSION_MASK
    target = codec if config.compression_type == _AS_PRODUCED else _CODEC_OF_CONFIG[config.compression_type]
    payload: bytes | None = None
    # Another codec, keys that compaction needs and limits on single records ask for the records in any case.
    if strict or compacted or target != codec or _limits_records(codec, config):
        in_place = codec != Compression.NONE and target == codec
        payload, walk = _walk(batch, now_ms, config, compacted, in_place, max_decompressed, pace)
    else:
        walk = _walk_header_only(header, now_ms, config)
    if walk.null_keys or walk.bad_timestamps or header.attributes & TIMESTAMP_TYPE_MASK:
        _refuse_bad_records(walk, header, now_ms, config, partition)
    if payload is not None and target != codec:
        batch = _rebuild(payload, header, target, walk, config, pace)
    size = LOG_OVERHEAD + batch.header.batch_length
    if size > config.segment_bytes:
        raise _does_not_fit(size, config)
    # LogValidator begins at NO_TIMESTAMP, whatever lies before it.
    return CheckedBatch(batch, max(walk.max_timestamp, NO_TIMESTAMP), now_ms if config.stamps_append_time else None)


def _assign_checked(checked: CheckedBatch, base_offset: int, leader_epoch: int) -> ValidatedBatches:
    batch, header = checked.batch, checked.batch.header
    header.base_offset, header.partition_leader_epoch = base_offset, leader_epoch
    stamped_ms = checked.stamped_ms
    append_time = stamped_ms is not None
    max_timestamp = checked.max_timestamp if stamped_ms is None else stamped_ms
    # Base offset and leader epoch are outside of the checksum, so most batches keep the producer's.
    new_crc = (header.attributes & TIMESTAMP_TYPE_MASK != 0) != append_time or header.max_timestamp != max_timestamp
    if new_crc:
        header.attributes = header.attributes & ~TIMESTAMP_TYPE_MASK | (TIMESTAMP_TYPE_MASK if append_time else 0)
        header.max_timestamp = max_timestamp
    return ValidatedBatches(
        batch.with_header(new_crc=new_crc),
        [header],
        max_timestamp,
        NO_TIMESTAMP if stamped_ms is None else stamped_ms,
        header.batch_length + LOG_OVERHEAD,
        base_offset + header.last_offset_delta,
    )


def _check_header(batch: _Batch, config: LogConfig) -> None:
    """Checks base offset, size and checksum before any content is used, then the header's fields about records."""
    header = batch.header
    size = LOG_OVERHEAD + header.batch_length
    if header.base_offset != 0:
        raise ApiError(ErrorCode.INVALID_RECORD, f"base offset is {header.base_offset}, a producer sends 0")
    if size > config.max_message_bytes:
        raise _too_large(size, config)
    if not crc_ok(batch.buf, batch.pos, header):
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"the batch's bytes do not have its CRC {header.crc:#010x}")
    count, attributes = header.record_count, header.attributes
    if attributes & COMPRESSION_MASK > Compression.ZSTD:
        raise _unassigned(header)
    # Only compaction leaves gaps; a client's batch would leave offsets without a record (LogValidator.validateBatch).
    if count <= 0 or header.last_offset_delta + 1 != count:
        raise ApiError(
            ErrorCode.INVALID_RECORD,
            f"batch of {count} records has last offset delta {header.last_offset_delta}",
        )
    # A forged marker would end a transaction of another producer.
    if attributes & CONTROL_MASK:
        raise ApiError(ErrorCode.INVALID_RECORD, "clients may not write control batches")
    # A producer id without a sequence would escape the check for duplicates.
    if header.base_sequence < 0 and header.has_producer_id:
        raise ApiError(
            ErrorCode.INVALID_RECORD,
            f"batch of producer {header.producer_id} has base sequence {header.base_sequence}",
        )


def _too_large(size: int, config: LogConfig) -> ApiError:
    return ApiError(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"batch of {size} bytes, the topic takes {config.max_message_bytes} (max.message.bytes)",
    )


def _does_not_fit(size: int, config: LogConfig) -> ApiError:
    return ApiError(
        ErrorCode.RECORD_LIST_TOO_LARGE,
        f"{size} bytes of records do not fit a segment of {config.segment_bytes} (segment.bytes)",
    )


def _walk(
    batch: _Batch,
    now_ms: int,
    config: LogConfig,
    compacted: bool,
    in_place: bool,
    max_decompressed: int,
    pace: Pace,
) -> tuple[bytes, Walk]:
    """in_place: the batch is compressed and stays as it is. Kafka 4.3.1 then skips keys and values while reading. If
    offset deltas are not 0, 1, 2, ... it tries to renumber the records, does not have them, and fails with
    UNKNOWN_SERVER_ERROR (LogValidator.buildRecordsAndAssignOffsets, PartialDefaultRecord.key)."""
    header = batch.header
    earliest = latest = None
    if not config.stamps_append_time:
        earliest = now_ms - config.message_timestamp_before_max_ms
        latest = now_ms + config.message_timestamp_after_max_ms
    try:
        payload = records_payload(batch.buf, batch.pos, header, max_bytes=max_decompressed, pace=pace)
        walk = validate_records(
            payload,
            header,
            want_keys=compacted,
            min_timestamp=earliest,
            max_timestamp=latest,
            consecutive=in_place,
            pace=pace,
        )
        if len(payload) > config.max_decompressed_message_bytes and _limits_records(header.compression, config):
            _check_records(payload, header, config, pace)
    except PayloadTooLarge as exc:
        raise ApiError(ErrorCode.MESSAGE_TOO_LARGE, str(exc)) from None
    except UndecodablePayload as exc:
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, str(exc)) from None
    except OffsetsNotConsecutive as exc:
        # Records without a key, which are refused by themselves, come first.
        walk = Walk()
        if compacted:
            walk = validate_records(
                payload, header, want_keys=True, min_timestamp=earliest, max_timestamp=latest, pace=pace
            )
        if not walk.null_keys:
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, str(exc)) from None
    except InvalidRecords as exc:
        raise ApiError(ErrorCode.INVALID_RECORD, str(exc)) from None
    return payload, walk


def _limits_records(codec: int, config: LogConfig) -> bool:
    """Whether the size of single records is limited; never for uncompressed ones."""
    return codec != Compression.NONE and config.max_decompressed_message_bytes < LONGEST_RECORD


def _check_records(payload: bytes, header: BatchHeader, config: LogConfig, pace: Pace) -> None:
    limit = config.max_decompressed_message_bytes
    long = longer_than(limit, payload, header, pace)
    if long is not None:
        raise ApiError(
            ErrorCode.INVALID_RECORD,
            f"record {long[0]} has {long[1]} bytes, the topic takes {limit} (max.decompressed.message.bytes)",
        )


def _walk_header_only(header: BatchHeader, now_ms: int, config: LogConfig) -> Walk:
    """Checks the header alone: the batch's largest timestamp is used for all records."""
    walk = Walk()
    walk.max_timestamp = header.max_timestamp
    if not config.stamps_append_time and not _in_bounds(header.max_timestamp, now_ms, config):
        walk.bad_timestamps.append((header.last_offset_delta, header.max_timestamp))
    return walk


def _in_bounds(timestamp: int, now_ms: int, config: LogConfig) -> bool:
    return timestamp == NO_TIMESTAMP or (
        now_ms - timestamp <= config.message_timestamp_before_max_ms
        and timestamp - now_ms <= config.message_timestamp_after_max_ms
    )


def _refuse_bad_records(walk: Walk, header: BatchHeader, now_ms: int, config: LogConfig, partition: object) -> None:
    """Null keys and timestamps; a bad timestamp decides the error code, as in Kafka. At most MOST_FAULTS records of
    each kind are named, while Kafka names every one: a kilobyte can have a million. The texts are Kafka's, because
    Java's producer puts them into its exception (LogValidator.processRecordErrors)."""
    no_key = f"Compacted topic cannot accept message without key in topic partition {partition}"
    errors = dict.fromkeys(walk.null_keys, no_key)
    code = ErrorCode.INVALID_RECORD
    bad_times = _bad_timestamps(walk, header, now_ms, config)
    for index, text in bad_times:
        if index not in errors:  # Kafka checks the key first and names a record once
            errors[index] = text
            code = ErrorCode.INVALID_TIMESTAMP
    if not errors:
        return
    ordered = sorted(errors.items())
    if code == ErrorCode.INVALID_TIMESTAMP:
        message = "One or more records have been rejected due to invalid timestamp"
    else:
        first = ", ".join(f"RecordError(batchIndex={index}, message='{text}')" for index, text in ordered[:3])
        message = (
            f"One or more records have been rejected due to {len(ordered)} record errors in total, and only showing "
            f"the first three errors at most: [{first}]"
        )
    raise ApiError(code, message, record_errors=ordered)


def _bad_timestamps(walk: Walk, header: BatchHeader, now_ms: int, config: LogConfig) -> list[tuple[int, str]]:
    if header.log_append_time:
        # Every record then has the batch's timestamp, and only a broker may set it.
        if config.stamps_append_time or header.max_timestamp == NO_TIMESTAMP:
            text = "a producer may not set the timestamp type LogAppendTime"
        elif not _in_bounds(header.max_timestamp, now_ms, config):
            return [
                (index, _out_of_bounds(index, header.max_timestamp, now_ms, config))
                for index in range(min(header.record_count, MOST_FAULTS))
            ]
        else:
            return []
        return [(index, text) for index in range(min(header.record_count, MOST_FAULTS))]
    return [(index, _out_of_bounds(index, timestamp, now_ms, config)) for index, timestamp in walk.bad_timestamps]


def _out_of_bounds(index: int, timestamp: int, now_ms: int, config: LogConfig) -> str:
    """The records of a client's batch have the offsets 0, 1, 2, ..."""
    first = as_int64(now_ms - config.message_timestamp_before_max_ms)
    last = as_int64(now_ms + config.message_timestamp_after_max_ms)
    return (
        f"Timestamp {timestamp} of message with offset {index} is out of range. The timestamp should be within "
        f"[{first}, {last}]"
    )


def _rebuild(payload: bytes, header: BatchHeader, target: int, walk: Walk, config: LogConfig, pace: Pace) -> _Batch:
    """The same records with another codec, numbered 0, 1, 2, ... Producer fields are kept."""
    try:
        header.base_timestamp, records = renumbered(payload, header, pace)
    except NegativeTimestamp as exc:
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, str(exc)) from None
    if header.producer_id >= 0 and header.producer_epoch == -1:
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "Invalid negative producer epoch")  # MemoryRecordsBuilder
    header.attributes = header.attributes & TRANSACTIONAL_MASK | target
    header.max_timestamp = walk.max_timestamp
    data = assemble(header, compress(target, records, _level(target, config), pace))
    if header.size > config.max_message_bytes:
        raise _too_large(header.size, config)
    return _Batch(data, 0, header)


def _level(codec: int, config: LogConfig) -> int | None:
    if codec == Compression.GZIP:
        return config.compression_gzip_level
    if codec == Compression.ZSTD:
        return config.compression_zstd_level
    return None  # the LZ4 block compressor here has no high-compression mode


def _assign_trusted(
    records: Buffer, base_offset: int, leader_epoch: int, config: LogConfig, append_time_ms: int
) -> ValidatedBatches:
    if len(records) > config.segment_bytes:
        raise _does_not_fit(len(records), config)
    append_time = append_time_ms != NO_TIMESTAMP
    buffers: list[Buffer] = []
    headers: list[BatchHeader] = []
    max_timestamp = NO_TIMESTAMP
    end = 0
    for pos, header in iter_batches(records):
        if header.size > config.max_message_bytes:
            raise _too_large(header.size, config)
        header.base_offset, header.partition_leader_epoch = base_offset, leader_epoch
        end = pos + header.batch_length + LOG_OVERHEAD
        if append_time:
            header.attributes |= TIMESTAMP_TYPE_MASK
            header.max_timestamp = append_time_ms
        buffers += _Batch(records, pos, header).with_header(new_crc=append_time)
        headers.append(header)
        max_timestamp = max(max_timestamp, header.max_timestamp)
        base_offset += header.last_offset_delta + 1
    if not headers or end != len(records):
        raise ApiError(ErrorCode.INVALID_RECORD, f"{len(records) - end} bytes are not a whole batch")
    return ValidatedBatches(buffers, headers, max_timestamp, append_time_ms, len(records), base_offset - 1)
