"""The records inside a batch: a strict walk that builds nothing, and decoding into objects.

Structure errors are those of Kafka's DefaultRecord: InvalidRecords for anything that does not add up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minibroker_protocol.errors import Malformed

from .batch import HEADER_SIZE, NO_TIMESTAMP, BatchHeader, CorruptBatch
from .compression import decompress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .batch import Buffer

    RecordHeader = tuple[str | bytes, bytes | None]

DEFAULT_MAX_BYTES = 128 * 1024 * 1024
"""What a batch may decompress to unless the caller says otherwise."""
_INT64 = 1 << 64
_INT64_SIGN = 1 << 63
_LONGER = 64
_ONE_BYTE = tuple((b >> 1) ^ -(b & 1) if b < 0x80 else _LONGER for b in range(256))
"""Zig-zag value of a varint's first byte when it is the only one (-64..63), else _LONGER."""


class InvalidRecords(Malformed):
    """The records of a batch do not add up: sizes, counts, varints (Kafka: INVALID_RECORD)."""


class Record:
    """One record: offset and timestamp (ms, -1 none) absolute, key and value None when null.

    A header's name is text, or the bytes as they are when they are not UTF-8.
    """

    __slots__ = ("headers", "key", "offset", "timestamp", "value")

    def __init__(
        self,
        offset: int = 0,
        timestamp: int = NO_TIMESTAMP,
        key: Buffer | None = None,
        value: Buffer | None = None,
        headers: Sequence[RecordHeader] = (),
    ) -> None:
        self.offset = offset
        self.timestamp = timestamp
        self.key = key
        self.value = value
        self.headers = headers

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Record)
            and self.offset == other.offset
            and self.timestamp == other.timestamp
            and self.key == other.key
            and self.value == other.value
            and list(self.headers) == list(other.headers)
        )

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return (
            f"Record(offset={self.offset}, timestamp={self.timestamp}, key={self.key!r}, value={self.value!r}, "
            f"headers={self.headers!r})"
        )


class Walk:
    """What a strict walk found.

    max_timestamp: largest record timestamp (ms, -1 none); max_timestamp_index: index of the first record that has it.
    consecutive: whether offset deltas are 0, 1, 2, ...
    null_keys: indexes of records without a key (when asked for); bad_timestamps: indexes of records whose timestamp
    is set and out of bounds, with it.
    """

    __slots__ = ("bad_timestamps", "consecutive", "max_timestamp", "max_timestamp_index", "null_keys")

    def __init__(self) -> None:
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_index = 0
        self.consecutive = True
        self.null_keys: list[int] = []
        self.bad_timestamps: list[tuple[int, int]] = []


def records_payload(buf: Buffer, pos: int, header: BatchHeader, *, max_bytes: int = DEFAULT_MAX_BYTES) -> bytes:
    """The bytes of the records of the batch at `pos`, decompressed, at most `max_bytes`."""
    end = pos + header.size
    if end > len(buf):
        raise CorruptBatch(
            f"record batch v2: batch of {header.size} bytes at {pos} ends after the {len(buf)} there are"
        )
    return decompress(header.compression, memoryview(buf)[pos + HEADER_SIZE : end], max_bytes)


def _varint(data: bytes, p: int) -> tuple[int, int]:
    """A zig-zag varint of up to 32 bits: (value, position after)."""
    b = data[p]
    p += 1
    if b < 0x80:
        return (b >> 1) ^ -(b & 1), p
    n, shift = b & 0x7F, 7
    while True:
        b = data[p]
        p += 1
        n |= (b & 0x7F) << shift
        if b < 0x80:
            n &= 0xFFFFFFFF
            return (n >> 1) ^ -(n & 1), p
        shift += 7
        if shift > 28:
            raise InvalidRecords("record batch v2: records: varint of more than 5 bytes")


def _varlong(data: bytes, p: int) -> tuple[int, int]:
    """A zig-zag varint of up to 64 bits: (value, position after)."""
    b = data[p]
    p += 1
    n, shift = b & 0x7F, 7
    while b >= 0x80:
        if shift > 63:
            raise InvalidRecords("record batch v2: records: varint of more than 10 bytes")
        b = data[p]
        p += 1
        n |= (b & 0x7F) << shift
        shift += 7
    n &= _INT64 - 1
    return (n >> 1) ^ -(n & 1), p


def _signed(timestamp: int) -> int:
    """A sum of two int64 as Java has it: wrapped."""
    if -_INT64_SIGN <= timestamp < _INT64_SIGN:
        return timestamp
    return (timestamp + _INT64_SIGN) % _INT64 - _INT64_SIGN


def _premature_end(index: int, count: int) -> InvalidRecords:
    return InvalidRecords(f"record batch v2: records end within record {index} of {count}")


def _wrong_size(index: int, declared: int, left: int) -> InvalidRecords:
    return InvalidRecords(f"record batch v2: record {index}: size {declared} with {left} bytes left")


def _wrong_end(index: int, stop: int, p: int) -> InvalidRecords:
    return InvalidRecords(f"record batch v2: record {index}: fields end {p - stop:+d} bytes from where its size says")


def validate_records(
    payload: Buffer,
    header: BatchHeader,
    *,
    want_keys: bool = False,
    min_timestamp: int | None = None,
    max_timestamp: int | None = None,
) -> Walk:
    """Walk the decompressed records of a batch and check all that Kafka's LogValidator does, building no objects.

    Raises InvalidRecords when sizes or counts don't add up. What depends on the topic (null keys, timestamps outside
    min..max, offset deltas with gaps) is returned, not raised.
    """
    data = payload if type(payload) is bytes else bytes(payload)
    end, count, base = len(data), header.record_count, header.base_timestamp
    walk = Walk()
    null_keys = walk.null_keys if want_keys else None
    fixed_time = header.log_append_time  # the deltas then mean nothing
    low = -_INT64 if min_timestamp is None or fixed_time else min_timestamp - base
    high = _INT64 if max_timestamp is None or fixed_time else max_timestamp - base
    best, best_index = -_INT64, 0
    one, longer = _ONE_BYTE, _LONGER
    p = i = 0
    try:
        for i in range(count):
            # Varints are read in place, not by a call: this is the most expensive loop of a produce request. One byte
            # is looked up; two bytes with a value that is not negative (c << 6: zig-zag halves it) come next.
            n = one[data[p]]
            if n < longer:
                p += 1
            elif (c := data[p + 1]) < 0x80 and not (n := data[p]) & 1:
                p += 2
                n = (n & 0x7F) >> 1 | c << 6
            else:
                n, p = _varint(data, p)
            stop = p + n
            if n < 0 or stop > end:
                raise _wrong_size(i, n, end - p)
            p += 1  # attributes, unused
            n = one[data[p]]
            if n < longer:
                p += 1
            else:
                n, p = _varlong(data, p)
            if n > best:
                best, best_index = n, i
            if (n < low or n > high) and base + n != NO_TIMESTAMP:
                walk.bad_timestamps.append((i, _signed(base + n)))
            n = one[data[p]]
            if n < longer:
                p += 1
            elif (c := data[p + 1]) < 0x80 and not (n := data[p]) & 1:
                p += 2
                n = (n & 0x7F) >> 1 | c << 6
            else:
                n, p = _varint(data, p)
            if n != i:
                walk.consecutive = False
            n = one[data[p]]
            if n < longer:
                p += 1
            else:
                n, p = _varint(data, p)
            if n >= 0:
                p += n
            elif null_keys is not None:
                null_keys.append(i)
            n = one[data[p]]
            if n < longer:
                p += 1
            elif (c := data[p + 1]) < 0x80 and not (n := data[p]) & 1:
                p += 2
                n = (n & 0x7F) >> 1 | c << 6
            else:
                n, p = _varint(data, p)
            if n > 0:
                p += n
            if data[p]:
                p = _skip_headers(data, p, stop, i)
            else:
                p += 1
            if p != stop:
                raise _wrong_end(i, stop, p)
    except IndexError:
        raise _premature_end(i, count) from None
    if p != end:
        raise InvalidRecords(f"record batch v2: {end - p} bytes left after {count} records")
    walk.max_timestamp_index = best_index
    if fixed_time:
        walk.max_timestamp, walk.max_timestamp_index = header.max_timestamp, 0
    elif count > 0:
        walk.max_timestamp = _signed(base + best)
    return walk


def _skip_headers(data: bytes, p: int, stop: int, index: int) -> int:
    count, p = _header_count(data, p, stop, index)
    for _ in range(count):
        n, p = _varint(data, p)
        if n < 0:
            raise InvalidRecords(f"record batch v2: record {index}: header name of {n} bytes")
        n, p = _varint(data, p + n)
        if n > 0:
            p += n
    return p


def _header_count(data: bytes, p: int, stop: int, index: int) -> tuple[int, int]:
    count, p = _varint(data, p)
    if not 0 <= count <= stop - p:
        raise InvalidRecords(f"record batch v2: record {index}: {count} headers with {stop - p} bytes left")
    return count, p


def decode_records(buf: Buffer, pos: int, header: BatchHeader, *, max_bytes: int = DEFAULT_MAX_BYTES) -> list[Record]:
    """The records of the batch at `pos`, decompressed to at most `max_bytes`.

    Raises InvalidRecords, UndecodablePayload (PayloadTooLarge) or CorruptBatch; the CRC is not looked at.
    """
    return decode_payload(records_payload(buf, pos, header, max_bytes=max_bytes), header)


def decode_payload(data: bytes, header: BatchHeader) -> list[Record]:
    """The records in the decompressed payload of a batch with this header."""
    base_offset, base_timestamp, count = header.base_offset, header.base_timestamp, header.record_count
    fixed_timestamp = header.max_timestamp if header.log_append_time else None
    end = len(data)
    out: list[Record] = []
    p = 0
    try:
        for i in range(count):
            size, p = _varint(data, p)
            stop = p + size
            if size < 0 or stop > end:
                raise _wrong_size(i, size, end - p)
            timestamp, p = _varlong(data, p + 1)
            offset, p = _varint(data, p)
            timestamp = _signed(base_timestamp + timestamp) if fixed_timestamp is None else fixed_timestamp
            key = value = None
            n, p = _varint(data, p)
            if n >= 0:
                key = data[p : p + n]
                p += n
            n, p = _varint(data, p)
            if n >= 0:
                value = data[p : p + n]
                p += n
            headers: list[RecordHeader] = []
            if data[p]:
                p = _decode_headers(data, p, stop, i, headers)
            else:
                p += 1
            if p != stop:
                raise _wrong_end(i, stop, p)
            out.append(Record(base_offset + offset, timestamp, key, value, headers))
    except IndexError:
        raise _premature_end(len(out), count) from None
    if p != end:
        raise InvalidRecords(f"record batch v2: {end - p} bytes left after {count} records")
    return out


def _decode_headers(data: bytes, p: int, stop: int, index: int, out: list[RecordHeader]) -> int:
    count, p = _header_count(data, p, stop, index)
    for _ in range(count):
        n, p = _varint(data, p)
        if n < 0:
            raise InvalidRecords(f"record batch v2: record {index}: header name of {n} bytes")
        raw = data[p : p + n]
        n, p = _varint(data, p + n)
        value = None
        if n >= 0:
            value = data[p : p + n]
            p += n
        name: str | bytes
        try:
            name = raw.decode()
        except UnicodeDecodeError:
            name = raw
        out.append((name, value))
    return p
