"""The records inside a batch: a strict walk that builds nothing, and decoding into objects.

Structure errors are those of Kafka's DefaultRecord: InvalidRecords for anything that does not add up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .batch import HEADER_SIZE, NO_TIMESTAMP, BatchHeader, CorruptBatch
from .compression import decompress
from .runs import equal_run
from .uneven import uneven_run
from .varints import INT64, InvalidRecords, varint, varlong

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .batch import Buffer

    RecordHeader = tuple[str | bytes, bytes | None]

DEFAULT_MAX_BYTES = 128 * 1024 * 1024
"""What a batch may decompress to unless the caller says otherwise."""
_INT64_SIGN = 1 << 63
_LONGER = 64
_ONE_BYTE = tuple((b >> 1) ^ -(b & 1) if b < 0x80 else _LONGER for b in range(256))
"""Zig-zag value of a varint's first byte when it is the only one (-64..63), else _LONGER."""
_FEW = 24
"""Fewer records than this are not worth looking for runs."""
_AFTER_RUN = 2
_BETWEEN_TRIES = 32
_MOST_BETWEEN_TRIES = 1024
"""Records walked one by one where a run has ended, and where none began; more and more where none ever does."""
_FIRST_RUN = 64
_LONGEST_RUN = 8192
"""Records looked at as a run at once; more and more while they are one."""


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


def _signed(timestamp: int) -> int:
    """A sum of two int64 as Java has it: wrapped."""
    if -_INT64_SIGN <= timestamp < _INT64_SIGN:
        return timestamp
    return (timestamp + _INT64_SIGN) % INT64 - _INT64_SIGN


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
    count, base = header.record_count, header.base_timestamp
    fixed_time = header.log_append_time  # the deltas then mean nothing
    walking = _Walking(
        data,
        count,
        base,
        -INT64 if min_timestamp is None or fixed_time else min_timestamp - base,
        INT64 if max_timestamp is None or fixed_time else max_timestamp - base,
        want_keys,
    )
    if count < _FEW:
        walking.one_by_one(count)
    else:
        walking.in_runs(count)
    walk, p = walking.walk, walking.position
    if p != len(data):
        raise InvalidRecords(f"record batch v2: {len(data) - p} bytes left after {count} records")
    if fixed_time:
        walk.max_timestamp = header.max_timestamp
    elif count > 0:
        walk.max_timestamp, walk.max_timestamp_index = _signed(base + walking.best), walking.best_index
    return walk


class _Walking:
    """A walk under way: `index` is the number of the next record, `position` where it begins."""

    __slots__ = (
        "base",
        "best",
        "best_index",
        "count",
        "data",
        "high",
        "index",
        "low",
        "null_keys",
        "position",
        "walk",
    )

    def __init__(self, data: bytes, count: int, base: int, low: int, high: int, want_keys: bool) -> None:
        self.data = data
        self.count = count
        self.base = base
        self.low = low
        self.high = high
        self.walk = Walk()
        self.null_keys = self.walk.null_keys if want_keys else None
        self.position = self.index = 0
        self.best = -INT64  # the largest timestamp delta so far, and the first record that has it
        self.best_index = 0

    def in_runs(self, limit: int) -> None:
        """Go on to record number `limit`, over many records at once where they are laid out alike."""
        longest, pause = _FIRST_RUN, _BETWEEN_TRIES
        while (index := self.index) < limit:
            run = equal_run(self.data, self.position, index, min(index + longest, limit), low=self.low, high=self.high)
            if run is None:
                run = uneven_run(self.data, self.position, index, limit, low=self.low, high=self.high)
            if run is None:
                self.one_by_one(min(index + pause, limit))
                longest, pause = _FIRST_RUN, min(pause * 2, _MOST_BETWEEN_TRIES)
                continue
            if run.delta > self.best:
                self.best, self.best_index = run.delta, index + run.delta_index
            if run.null_keys and self.null_keys is not None:
                self.null_keys += range(index, index + run.records)
            self.index = index + run.records
            self.position += run.size
            longest, pause = min(longest * 8, _LONGEST_RUN), _AFTER_RUN

    def one_by_one(self, limit: int) -> None:
        """Go on to record number `limit`, one after the other."""
        data, p, low, high, null_keys = self.data, self.position, self.low, self.high, self.null_keys
        best, best_index = self.best, self.best_index
        one, longer, end = _ONE_BYTE, _LONGER, len(data)
        i = start = self.index
        try:
            for i in range(start, limit):
                # Varints are read in place, not by a call: without runs this is the most expensive loop of a produce
                # request. One byte is looked up; two bytes with a value that is not negative (c << 6: zig-zag halves
                # it) come next.
                n = one[data[p]]
                if n < longer:
                    p += 1
                elif (c := data[p + 1]) < 0x80 and not (n := data[p]) & 1:
                    p += 2
                    n = (n & 0x7F) >> 1 | c << 6
                else:
                    n, p = varint(data, p)
                stop = p + n
                if n < 0 or stop > end:
                    raise _wrong_size(i, n, end - p)
                p += 1  # attributes, unused
                n = one[data[p]]
                if n < longer:
                    p += 1
                else:
                    n, p = varlong(data, p)
                if n > best:
                    best, best_index = n, i
                if (n < low or n > high) and self.base + n != NO_TIMESTAMP:
                    self.walk.bad_timestamps.append((i, _signed(self.base + n)))
                n = one[data[p]]
                if n < longer:
                    p += 1
                elif (c := data[p + 1]) < 0x80 and not (n := data[p]) & 1:
                    p += 2
                    n = (n & 0x7F) >> 1 | c << 6
                else:
                    n, p = varint(data, p)
                if n != i:
                    self.walk.consecutive = False
                n = one[data[p]]
                if n < longer:
                    p += 1
                else:
                    n, p = varint(data, p)
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
                    n, p = varint(data, p)
                if n > 0:
                    p += n
                if data[p]:
                    p = _skip_headers(data, p, stop, i)
                else:
                    p += 1
                if p != stop:
                    raise _wrong_end(i, stop, p)
        except IndexError:
            raise _premature_end(i, self.count) from None
        self.index, self.position, self.best, self.best_index = limit, p, best, best_index


def _skip_headers(data: bytes, p: int, stop: int, index: int) -> int:
    count, p = _header_count(data, p, stop, index)
    for _ in range(count):
        n, p = varint(data, p)
        if n < 0:
            raise InvalidRecords(f"record batch v2: record {index}: header name of {n} bytes")
        n, p = varint(data, p + n)
        if n > 0:
            p += n
    return p


def _header_count(data: bytes, p: int, stop: int, index: int) -> tuple[int, int]:
    count, p = varint(data, p)
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
            size, p = varint(data, p)
            stop = p + size
            if size < 0 or stop > end:
                raise _wrong_size(i, size, end - p)
            timestamp, p = varlong(data, p + 1)
            offset, p = varint(data, p)
            timestamp = _signed(base_timestamp + timestamp) if fixed_timestamp is None else fixed_timestamp
            key = value = None
            n, p = varint(data, p)
            if n >= 0:
                key = data[p : p + n]
                p += n
            n, p = varint(data, p)
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
        n, p = varint(data, p)
        if n < 0:
            raise InvalidRecords(f"record batch v2: record {index}: header name of {n} bytes")
        raw = data[p : p + n]
        n, p = varint(data, p + n)
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
