"""Record batches written from records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minibroker_protocol.fields import as_int64

from .batch import (
    CONTROL_MASK,
    DELETE_HORIZON_MASK,
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    BatchHeader,
    rewrite_header,
    write_crc,
)
from .compression import compress
from .sequences import NO_SEQUENCE
from .varints import SMALL_VARINTS, encode_varint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .batch import Buffer
    from .walk import Record


_NULL = encode_varint(-1)


def encode_record(record: Record, timestamp_delta: int, offset_delta: int) -> bytes:
    """One record, its size first."""
    key, value, headers = record.key, record.value, record.headers
    parts: list[bytes | bytearray | memoryview] = [
        b"\0",  # attributes, unused
        encode_varint(timestamp_delta),
        encode_varint(offset_delta),
        _NULL if key is None else encode_varint(len(key)),
        key or b"",
        _NULL if value is None else encode_varint(len(value)),
        value or b"",
        encode_varint(len(headers)),
    ]
    for name, content in headers:
        raw = name.encode() if isinstance(name, str) else name
        parts.append(encode_varint(len(raw)))
        parts.append(raw)
        parts.append(_NULL if content is None else encode_varint(len(content)))
        parts.append(content or b"")
    body = b"".join(parts)
    return encode_varint(len(body)) + body


def encode_records(records: Sequence[Record], *, base_timestamp: int, base_offset: int | None = None) -> bytes:
    """The records' bytes before compression. Offset deltas are 0, 1, 2, ... or, with `base_offset`, those of the
    records' own offsets."""
    parts: list[bytes] = []
    for i, record in enumerate(records):
        delta = as_int64(record.timestamp - base_timestamp)
        parts.append(encode_record(record, delta, i if base_offset is None else record.offset - base_offset))
    return b"".join(parts)


def build_batch(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
    compression: int = 0,
    compression_level: int | None = None,
    timestamp_type: int = 0,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
    delete_horizon_ms: int | None = None,
    keep_offsets: bool = False,
    last_offset_delta: int | None = None,
    base_timestamp: int | None = None,
    max_timestamp: int | None = None,
) -> bytearray:
    """One batch of magic 2 with a right CRC, writable so that its offsets can be patched.

    records: may be empty (compaction keeps such batches for their header); their timestamps are ms.
    keep_offsets: offset deltas from the records' own offsets instead of 0..n-1 (compaction leaves gaps);
        last_offset_delta then says where the batch ends.
    base_timestamp: default the first record's.
    max_timestamp: default the largest (with timestamp_type 1 it is every record's time). delete_horizon_ms takes
        base_timestamp's place (KIP-534).
    """
    if base_timestamp is None:
        base_timestamp = records[0].timestamp if records else NO_TIMESTAMP
    attributes = compression
    if delete_horizon_ms is not None:
        base_timestamp = delete_horizon_ms
        attributes |= DELETE_HORIZON_MASK
    if max_timestamp is None:
        max_timestamp = max([record.timestamp for record in records], default=NO_TIMESTAMP)
    if timestamp_type:
        attributes |= TIMESTAMP_TYPE_MASK
    if transactional:
        attributes |= TRANSACTIONAL_MASK
    if control:
        attributes |= CONTROL_MASK
    if last_offset_delta is None:
        if keep_offsets and records:
            last_offset_delta = records[-1].offset - base_offset
        else:
            last_offset_delta = max(len(records) - 1, 0)
    payload = encode_records(records, base_timestamp=base_timestamp, base_offset=base_offset if keep_offsets else None)
    if compression and records:
        payload = compress(compression, payload, compression_level)
    count = len(records)
    producer = (producer_id, producer_epoch, base_sequence, count)
    header = (leader_epoch, MAGIC, 0, attributes, last_offset_delta, base_timestamp, max_timestamp, *producer)
    return _headed(payload, base_offset, header)


def lone_batch(
    key: Buffer | None,
    value: Buffer | None,
    timestamp: int,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    *,
    transactional: bool = False,
    control: bool = False,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytearray:
    """`build_batch` of one record without headers, at half its cost: a transaction makes the broker write four."""
    size = 0 if value is None else len(value)
    value_part = _NULL if value is None else (SMALL_VARINTS[size] if size < 1024 else encode_varint(size)) + value
    if key is None:
        record = b"\0\0\0" + _NULL + value_part + b"\0"
    else:
        size = len(key)
        record = b"\0\0\0" + (SMALL_VARINTS[size] if size < 1024 else encode_varint(size)) + key + value_part + b"\0"
    size = len(record)
    payload = (SMALL_VARINTS[size] if size < 1024 else encode_varint(size)) + record
    attributes = (TRANSACTIONAL_MASK if transactional else 0) | (CONTROL_MASK if control else 0)
    producer = (producer_id, producer_epoch, base_sequence, 1)
    return _headed(payload, base_offset, (leader_epoch, MAGIC, 0, attributes, 0, timestamp, timestamp, *producer))


def _headed(payload: bytes, base_offset: int, header: tuple[int, ...]) -> bytearray:
    """A batch of these bytes; `header` is what follows the batch length."""
    out = bytearray(HEADER.pack(base_offset, HEADER_SIZE - LOG_OVERHEAD + len(payload), *header))
    out += payload
    write_crc(out, 0, len(out))
    return out


def assemble(header: BatchHeader, payload: bytes | bytearray | memoryview) -> bytearray:
    """A batch of this header and these bytes after it; batch length and CRC are set in `header` too."""
    header.batch_length = HEADER_SIZE - LOG_OVERHEAD + len(payload)
    out = bytearray(HEADER_SIZE)
    out += payload
    rewrite_header(out, 0, header)
    return out
