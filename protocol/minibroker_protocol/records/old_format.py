"""Messages of magic 0 and 1, from before Kafka 0.11, which old segments still hold (AbstractLegacyRecordBatch).

A message is one record, or with a codec a wrapper: its value is the compressed messages, its offset that of the last.
Brokers of today store and serve them and take none from producers.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from .batch import (
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_OFFSET,
    SMALLEST_OLD_MESSAGE,
    BatchHeader,
    CorruptBatch,
    parse_header,
)
from .compression import Compression, UndecodablePayload, decompress
from .varints import InvalidRecords

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .batch import Buffer

_INT32 = struct.Struct(">i")


class OldRecord(NamedTuple):
    """A record of a message: absolute offset, timestamp in ms (-1 in magic 0), null key and value as None."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


def whole_header(buf: Buffer, pos: int, header: BatchHeader, max_bytes: int) -> BatchHeader:
    """The header of the whole batch at `pos`, whose first offset and count lie in the compressed payload where it is an
    old message with a codec; `parse_header` says of such a wrapper only its last offset. An undecodable one stays as it
    is, as reading its records says why."""
    if header.magic == MAGIC or not header.compression:
        return header
    try:
        records = old_records(buf, pos, header, max_bytes)
    except (InvalidRecords, UndecodablePayload, CorruptBatch):
        return header
    first, last = records[0].offset, header.last_offset
    if not 0 <= first <= last:
        return header
    header.base_offset, header.last_offset_delta, header.record_count = first, last - first, len(records)
    return header


def old_records(buf: Buffer, pos: int, header: BatchHeader, max_bytes: int) -> list[OldRecord]:
    """The records of the message at `pos`, decompressed to at most `max_bytes`. Raises InvalidRecords,
    UndecodablePayload (PayloadTooLarge) and CorruptBatch; the CRC is not looked at."""
    end = pos + header.size
    if end > len(buf):
        raise CorruptBatch(f"message: {header.size} bytes at {pos} end after the {len(buf)} there are")
    key, value = _fields(buf, pos, end, header.magic)
    if not header.compression:
        return [OldRecord(header.last_offset, header.max_timestamp, key, value)]
    if value is None:
        raise InvalidRecords(f"message at offset {header.last_offset}: compressed, and its value is null")
    if header.compression == Compression.ZSTD:
        raise InvalidRecords(f"message at offset {header.last_offset}: its format has no zstd")
    if header.compression == Compression.LZ4 and header.magic == 0:
        value = _with_right_checksum(value)
    records = list(_inner(decompress(header.compression, value, max_bytes), header))
    if not records:
        raise InvalidRecords(f"message at offset {header.last_offset}: compressed, and there is no message in it")
    if header.magic == 0:
        return records
    last, base = records[-1].offset, 0
    # Some versions of librdkafka wrote wrappers with offset 0, which an uncompressed broker's log may hold.
    if header.last_offset:
        base = header.last_offset - last
        if base < 0:
            raise InvalidRecords(f"message at offset {header.last_offset}: the last one in it has offset {last}")
    return [record._replace(offset=base + record.offset) for record in records]


def _inner(data: bytes, wrapper: BatchHeader) -> Iterator[OldRecord]:
    """The messages in a wrapper, with the offsets they have there; a cut one at the end is left out, as in Kafka."""
    position = 0
    while len(data) - position >= LOG_OVERHEAD:
        (length,) = _INT32.unpack_from(data, position + 8)
        if length < SMALLEST_OLD_MESSAGE - LOG_OVERHEAD:
            raise InvalidRecords(f"message at offset {wrapper.last_offset}: one in it has {length} bytes")
        end = position + LOG_OVERHEAD + length
        if end > len(data):
            return
        try:
            header = parse_header(data, position)
        except CorruptBatch as error:
            raise InvalidRecords(str(error)) from None
        if header.magic == MAGIC or header.compression:
            raise InvalidRecords(f"message at offset {wrapper.last_offset}: one in it is no plain message")
        timestamp = header.max_timestamp
        if wrapper.log_append_time and header.magic == 1:
            timestamp = wrapper.max_timestamp
        key, value = _fields(data, position, end, header.magic)
        yield OldRecord(header.base_offset, timestamp, key, value)
        position = end


def _fields(buf: Buffer, pos: int, end: int, magic: int) -> tuple[bytes | None, bytes | None]:
    at = pos + MAGIC_OFFSET + 2 + (8 if magic == 1 else 0)
    fields: list[bytes | None] = []
    for name in ("key", "value"):
        if end - at < 4:
            raise InvalidRecords(f"message of magic {magic}: it ends before the size of its {name}")
        (size,) = _INT32.unpack_from(buf, at)
        at += 4
        if size > end - at:
            raise InvalidRecords(f"message of magic {magic}: {name} of {size} bytes with {end - at} left")
        fields.append(None if size < 0 else bytes(buf[at : at + size]))
        at += max(size, 0)
    return fields[0], fields[1]


def _with_right_checksum(frame: bytes) -> bytes:
    """An LZ4 frame of magic 0 with the checksum that its descriptor must have: the one written covers the frame's magic
    too (KAFKA-3160)."""
    if len(frame) < 7 or frame[4] & 0x08:  # no frame, or one that says its size; Kafka writes none
        return frame
    return frame[:6] + bytes(((_xxh32(frame[4:6]) >> 8) & 0xFF,)) + frame[7:]


def _xxh32(data: bytes) -> int:
    """xxHash32, seed 0, of fewer than 16 bytes."""
    mask = 0xFFFFFFFF
    value = 374761393 + len(data)
    words = len(data) // 4 * 4
    for at in range(0, words, 4):
        value = (value + int.from_bytes(data[at : at + 4], "little") * 3266489917) & mask
        value = ((value << 17 | value >> 15) & mask) * 668265263 & mask
    for byte in data[words:]:
        value = (value + byte * 374761393) & mask
        value = ((value << 11 | value >> 21) & mask) * 2654435761 & mask
    value = (value ^ value >> 15) * 2246822519 & mask
    value = (value ^ value >> 13) * 3266489917 & mask
    return value ^ value >> 16
