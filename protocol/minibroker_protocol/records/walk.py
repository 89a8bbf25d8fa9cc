"""The records inside a batch: a strict walk that builds nothing, and decoding into objects.

Structure errors are those of Kafka's DefaultRecord: InvalidRecords for anything that does not add up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from minibroker_protocol.errors import Malformed
from minibroker_protocol.fields import as_int64

from .batch import (
    COMPRESSION_MASK,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_MASK,
    BatchHeader,
    CorruptBatch,
)
from .compression import Compression, PayloadTooLarge, decompress
from .native import IS_NATIVE, native_run
from .old_format import old_records, whole_header
from .pace import STEP, UNHURRIED, Pace, TakesLong
from .runs import Run, equal_run
from .varints import INT64, InvalidRecords, encode_varint, varint, varlong

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .batch import Buffer

    RecordHeader = tuple[str | bytes, bytes | None]

DEFAULT_MAX_BYTES = 128 * 1024 * 1024
"""Bytes that a batch may decompress to by default."""
MOST_FAULTS = 1000
"""Faulty records of one kind after which a walk ends: the batch is refused in any case."""
_COPIED_PER_DECOMPRESSED = 8
"""How much faster bytes are copied than decompressed, at the least."""
_SMALLEST_RECORD = 7
"""Bytes of a record with nothing in it: its size, attributes, two deltas, null key, null value, no headers."""
_LONGER = 64
_ONE_BYTE = tuple((b >> 1) ^ -(b & 1) if b < 0x80 else _LONGER for b in range(256))
"""Zig-zag value of a varint's first byte when it is the only one (-64..63), else _LONGER."""
_LATEST = 1 << 63
_FEW = 24
"""Fewer records than this are not worth looking for runs."""
_MANY = 2048
"""With compiled code, looking for records of one layout costs more than it saves below this number of records."""
_FEW_HEADERS = 4
"""Up to this number a record's headers are not reported to the pace: the record is."""
_AFTER_RUN = 2
_BETWEEN_TRIES = 32
_MOST_BETWEEN_TRIES = 1024
"""Records walked one by one where a run has ended, and where none began; more and more where none ever does."""
_FIRST_RUN = 64
_LONGEST_RUN = 8192
"""Records looked at as a run at once; more and more while they are one."""


@dataclass(slots=True, eq=False)
class Record:
    """One record: offset and timestamp (ms, -1 none) absolute, key and value None when null.

    A header's name is text, or the bytes as they are when they are not UTF-8.
    """

    offset: int = 0
    timestamp: int = NO_TIMESTAMP
    key: Buffer | None = None
    value: Buffer | None = None
    headers: Sequence[RecordHeader] = ()

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


class OffsetsNotConsecutive(InvalidRecords):
    """Offset deltas are not 0, 1, 2, ... in a batch where they must be."""


class NegativeTimestamp(Malformed):
    """A record's timestamp is negative, and not -1."""


class Walk:
    """What a strict walk found.

    max_timestamp: largest record timestamp (ms, -1 none).
    consecutive: whether offset deltas are 0, 1, 2, ...
    null_keys: indexes of records without a key (when asked for).
    bad_timestamps: indexes of records whose timestamp is set and out of bounds, with it.
    ended_early: one of the two has MOST_FAULTS, and the rest was not looked at.
    """

    __slots__ = ("bad_timestamps", "consecutive", "ended_early", "max_timestamp", "null_keys")

    def __init__(self) -> None:
        self.max_timestamp = NO_TIMESTAMP
        self.consecutive = True
        self.ended_early = False
        self.null_keys: list[int] = []
        self.bad_timestamps: list[tuple[int, int]] = []


def records_payload(
    buf: Buffer, pos: int, header: BatchHeader, *, max_bytes: int = DEFAULT_MAX_BYTES, pace: Pace = UNHURRIED
) -> bytes:
    """The bytes of the records of the batch at `pos` (magic 2), decompressed, at most `max_bytes`.

    Raises UndecodablePayload (PayloadTooLarge), CorruptBatch, and TakesLong where `pace` ends it.
    """
    end = pos + LOG_OVERHEAD + header.batch_length
    if end > len(buf):
        raise CorruptBatch(
            f"record batch v2: batch of {header.size} bytes at {pos} ends after the {len(buf)} there are"
        )
    data = memoryview(buf)[pos + HEADER_SIZE : end]
    most, codec = pace.most_bytes, header.attributes & COMPRESSION_MASK
    if most is None or most >= max_bytes:
        return decompress(codec, data, max_bytes, pace)
    plain = codec == Compression.NONE
    if len(data) > (most * _COPIED_PER_DECOMPRESSED if plain else most):
        raise TakesLong(f"{len(data)} bytes of records")
    if plain:
        return bytes(data)
    try:
        return decompress(codec, data, most)
    except PayloadTooLarge:
        raise TakesLong(f"decompresses to more than {most} bytes") from None


def _premature_end(index: int, count: int) -> InvalidRecords:
    return InvalidRecords(f"record batch v2: records end within record {index} of {count}")


def _wrong_size(index: int, declared: int, available: int) -> InvalidRecords:
    return InvalidRecords(f"record batch v2: record {index}: size {declared} with {available} bytes left")


def _wrong_end(index: int, stop: int, p: int) -> InvalidRecords:
    return InvalidRecords(f"record batch v2: record {index}: fields end {p - stop:+d} bytes from where its size says")


def validate_records(
    payload: Buffer,
    header: BatchHeader,
    *,
    want_keys: bool = False,
    min_timestamp: int | None = None,
    max_timestamp: int | None = None,
    consecutive: bool = False,
    pace: Pace = UNHURRIED,
) -> Walk:
    """Walk the decompressed records of a batch and check all that Kafka's LogValidator does, building no objects.

    Raises InvalidRecords when sizes or counts don't add up, OffsetsNotConsecutive at the first offset delta that is not
    the record's index where `consecutive` asks for it, and TakesLong where `pace` ends it. What depends on the topic
    (null keys, timestamps outside min..max, offset deltas with gaps) is returned, not raised.
    """
    data = payload if type(payload) is bytes else bytes(payload)
    count, base = header.record_count, header.base_timestamp
    if count > STEP and count * _SMALLEST_RECORD > len(data):
        raise InvalidRecords(f"record batch v2: {len(data)} bytes cannot be {count} records")
    fixed_time = header.attributes & TIMESTAMP_TYPE_MASK  # the deltas then mean nothing
    walking = _Walking(
        data,
        count,
        base,
        -INT64 if min_timestamp is None or fixed_time else min_timestamp - base,
        INT64 if max_timestamp is None or fixed_time else max_timestamp - base,
        want_keys,
        consecutive,
        pace,
    )
    if count < _FEW and not IS_NATIVE:
        walking.one_by_one(count)
    else:
        walking.in_runs(count)
    walk, p = walking.walk, walking.position
    if walk.ended_early:
        return walk
    if p != len(data):
        raise InvalidRecords(f"record batch v2: {len(data) - p} bytes left after {count} records")
    if fixed_time:
        walk.max_timestamp = header.max_timestamp
    elif count > 0:
        latest = base + walking.best
        walk.max_timestamp = latest if 0 <= latest < _LATEST else as_int64(latest)
    return walk


def walk_batch(buf: Buffer, pos: int, header: BatchHeader) -> Walk:
    """Walk the records of the whole batch at `pos`, of any magic. Raises as `records_payload` and `validate_records`
    do."""
    if header.magic == MAGIC:
        return validate_records(records_payload(buf, pos, header), header)
    old_records(buf, pos, header, DEFAULT_MAX_BYTES)
    walk = Walk()
    walk.max_timestamp = header.max_timestamp
    return walk


def complete_header(buf: Buffer, pos: int, header: BatchHeader) -> BatchHeader:
    """`header` with the first offset and count of its records, which `parse_header` does not know of an old message
    with a codec; any other as it is."""
    return whole_header(buf, pos, header, DEFAULT_MAX_BYTES) if header.magic != MAGIC else header


class _Walking:
    """A walk under way: `index` is the number of the next record, `position` where it begins."""

    def __init__(
        self,
        data: bytes,
        count: int,
        base: int,
        low: int,
        high: int,
        want_keys: bool,
        consecutive: bool,
        pace: Pace,
    ) -> None:
        self.consecutive = consecutive
        self.pace = pace
        self.data = data
        self.count = count
        self.base = base
        self.low = low
        self.high = high
        self.walk = Walk()
        self.null_keys = self.walk.null_keys if want_keys else None
        self.position = self.index = 0
        self.best = -INT64  # the largest timestamp delta so far

    def in_runs(self, limit: int) -> None:
        """Go on to record number `limit`, over many records at once where they are laid out alike."""
        longest, pause = _FIRST_RUN, _BETWEEN_TRIES
        while (index := self.index) < limit:
            run = self._run(index, limit, longest)
            if run is None:
                self.one_by_one(min(index + pause, limit))
                if self._has_enough_faults():
                    return
                self.pace(self.index - index)
                longest, pause = _FIRST_RUN, min(pause * 2, _MOST_BETWEEN_TRIES)
                continue
            self.best = max(self.best, run.delta)
            if run.null_keys and self.null_keys is not None:
                self.null_keys += range(index, index + run.records)
            self.index = index + run.records
            self.position += run.size
            longest, pause = min(longest * 8, _LONGEST_RUN), _AFTER_RUN
            if self._has_enough_faults():
                return
            self.pace(1)

    def _run(self, index: int, limit: int, longest: int) -> Run | None:
        data, p, low, high = self.data, self.position, self.low, self.high
        run = None
        if limit - index >= _MANY or not IS_NATIVE:
            run = equal_run(data, p, index, min(index + longest, limit), low=low, high=high)
        return run or native_run(data, p, index, limit, low=low, high=high, alike=self.null_keys is not None)

    def _has_enough_faults(self) -> bool:
        walk = self.walk
        walk.ended_early = len(walk.bad_timestamps) >= MOST_FAULTS or len(walk.null_keys) >= MOST_FAULTS
        if walk.ended_early:
            del walk.bad_timestamps[MOST_FAULTS:], walk.null_keys[MOST_FAULTS:]
        return walk.ended_early

    def one_by_one(self, limit: int) -> None:
        """Walk record by record up to number `limit`."""
        data, p, low, high, null_keys = self.data, self.position, self.low, self.high, self.null_keys
        best = self.best
        one_byte, longer, end = _ONE_BYTE, _LONGER, len(data)
        i = start = self.index
        try:
            for i in range(start, limit):
                # Varints are read in place, not by a call: without runs this is the most expensive loop of a produce
                # request. One byte is looked up; two bytes with a value that is not negative (c << 6: zig-zag halves
                # it) come next.
                n = one_byte[data[p]]
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
                n = one_byte[data[p]]
                if n < longer:
                    p += 1
                else:
                    n, p = varlong(data, p)
                if n > best:
                    best = n
                if (n < low or n > high) and self.base + n != NO_TIMESTAMP:
                    self.walk.bad_timestamps.append((i, as_int64(self.base + n)))
                n = one_byte[data[p]]
                if n < longer:
                    p += 1
                elif (c := data[p + 1]) < 0x80 and not (n := data[p]) & 1:
                    p += 2
                    n = (n & 0x7F) >> 1 | c << 6
                else:
                    n, p = varint(data, p)
                if n != i:
                    if self.consecutive and not self.walk.bad_timestamps and not null_keys:
                        raise OffsetsNotConsecutive(f"record batch v2: record {i}: offset delta {n}")
                    self.walk.consecutive = False
                n = one_byte[data[p]]
                if n < longer:
                    p += 1
                else:
                    n, p = varint(data, p)
                if n >= 0:
                    p += n
                elif null_keys is not None:
                    null_keys.append(i)
                n = one_byte[data[p]]
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
                    p = _skip_headers(data, p, stop, i, self.pace)
                else:
                    p += 1
                if p != stop:
                    raise _wrong_end(i, stop, p)
        except IndexError:
            raise _premature_end(i, self.count) from None
        self.index, self.position, self.best = limit, p, best


def _skip_headers(data: bytes, p: int, stop: int, index: int, pace: Pace) -> int:
    count, p = _header_count(data, p, stop, index)
    while count > _FEW_HEADERS:
        step = min(count, STEP)
        pace(step)
        p = _skip_some_headers(data, p, step, index)
        count -= step
    return _skip_some_headers(data, p, count, index)


def _skip_some_headers(data: bytes, p: int, count: int, index: int) -> int:
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
    if header.magic != MAGIC:
        return [Record(*record) for record in old_records(buf, pos, header, max_bytes)]
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
            timestamp = as_int64(base_timestamp + timestamp) if fixed_timestamp is None else fixed_timestamp
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


def each_delta(data: bytes, header: BatchHeader, pace: Pace = UNHURRIED) -> Iterator[tuple[int, int, int, int]]:
    """(timestamp delta in ms, offset delta, begin, end) of every record in a decompressed payload; begin..end is the
    rest of the record, which is not decoded. Raises InvalidRecords for sizes that do not add up, TakesLong where `pace`
    ends it."""
    count, end = header.record_count, len(data)
    p = i = 0
    try:
        for i in range(count):
            if i % STEP == STEP - 1:
                pace(STEP)
            size, p = varint(data, p)
            stop = p + size
            if size < 0 or stop > end:
                raise _wrong_size(i, size, end - p)
            timestamp, p = varlong(data, p + 1)
            offset, p = varint(data, p)
            if p > stop:
                raise _wrong_end(i, stop, p)
            yield timestamp, offset, p, stop
            p = stop
    except IndexError:
        raise _premature_end(i, count) from None


def longer_than(limit: int, data: bytes, header: BatchHeader, pace: Pace = UNHURRIED) -> tuple[int, int] | None:
    """(index, bytes) of the first record of a decompressed payload whose size field says more than `limit`.

    The payload was walked before. Raises TakesLong where `pace` ends it.
    """
    p = 0
    for i in range(header.record_count):
        if i % STEP == STEP - 1:
            pace(STEP)
        size, p = varint(data, p)
        if size > limit:
            return i, size
        p += size
    return None


def each_timestamp(buf: Buffer, pos: int, header: BatchHeader, pace: Pace = UNHURRIED) -> Iterator[tuple[int, int]]:
    """(offset, timestamp in ms) of every record of the batch at `pos`; nothing else is decoded.

    Raises as `each_delta` and `records_payload` do.
    """
    if header.magic != MAGIC:
        most = pace.most_bytes
        try:
            records = old_records(buf, pos, header, DEFAULT_MAX_BYTES if most is None else most)
        except PayloadTooLarge:
            if most is None:
                raise
            raise TakesLong(f"decompresses to more than {most} bytes") from None
        yield from ((record.offset, record.timestamp) for record in records)
        return
    fixed = header.max_timestamp if header.log_append_time else None
    for timestamp, offset, _, _ in each_delta(records_payload(buf, pos, header, pace=pace), header, pace):
        yield header.base_offset + offset, as_int64(header.base_timestamp + timestamp) if fixed is None else fixed


def renumbered(data: bytes, header: BatchHeader, pace: Pace = UNHURRIED) -> tuple[int, bytearray]:
    """The same records with offset deltas 0, 1, 2, ... and timestamp deltas from the first one's time: (that, bytes).

    For a payload that was walked. Raises as `each_delta` does, and NegativeTimestamp: MemoryRecordsBuilder, which
    writes the records anew in Kafka, takes none but -1.
    """
    out = bytearray()
    first = 0
    base = header.base_timestamp
    for index, (timestamp, _, begin, end) in enumerate(each_delta(data, header, pace)):
        if index == 0:
            first = timestamp
        if as_int64(base + timestamp) < NO_TIMESTAMP:
            raise NegativeTimestamp(f"record {index}: timestamp {as_int64(base + timestamp)} cannot be written anew")
        deltas = encode_varint(as_int64(timestamp - first)) + encode_varint(index)
        out += encode_varint(1 + len(deltas) + end - begin)
        out += b"\0"  # attributes, unused
        out += deltas
        out += data[begin:end]
    return as_int64(base + first), out


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
