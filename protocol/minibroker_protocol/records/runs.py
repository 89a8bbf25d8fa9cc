"""Runs of records that are laid out alike, checked many at once.

What decides whether a record adds up are a few bytes: its varints. In records of one size they lie at one distance
from each other, so a strided slice takes the same byte of all of them, and comparing that costs nanoseconds a record.
Nothing is refused here: where a run ends, or none begins, the record-by-record walk continues and finds the error.
"""

from __future__ import annotations

from itertools import compress
from typing import NamedTuple

from .varints import InvalidRecords, varint, varlong

_SHORTEST = 24
_MOST_HEADERS = 16
_PER_LOW_BYTE = 64
PERIOD = 8192
"""Offset deltas with which the two low bytes of their varints come round again."""
_LOW = bytes(range(0x80, 0x100, 2)) * (PERIOD // _PER_LOW_BYTE)
_HIGH = b"".join(bytes((high,)) * _PER_LOW_BYTE for high in range(PERIOD // _PER_LOW_BYTE))
_MIDDLE = bytes(high | 0x80 for high in _HIGH)
_ONE = bytes(range(0, 0x80, 2))
"""Bytes of the varints of offset deltas 0, 1, 2, ...: the only one (64 of them); first of several; last of two; second
of three."""
_ZIG_ZAG = bytes(range(0x7F, 0, -2)) + bytes(range(0, 0x80, 2))
"""Varints of one byte, from the least value to the largest."""
_PLAIN = bytes(range(0x80))
_EVEN = bytes(range(0x80, 0x100, 2))
"""Last and first bytes of varints of two bytes with values that are not negative, from the least to the largest."""


class Run(NamedTuple):
    """`records` records, of `size` bytes together, that add up and whose offset deltas go on by one.

    delta: their largest timestamp delta.
    """

    records: int
    size: int
    delta: int
    null_keys: bool


class _Shape(NamedTuple):
    """A record's size, where its varints are, counted from its first byte, and which of them must be the same."""

    size: int
    fixed: tuple[int, ...]
    timestamp_at: int
    offset_at: int
    offset_end: int
    null_key: bool


def equal_run(data: bytes, p: int, index: int, limit: int, *, low: int, high: int) -> Run | None:
    """The run of records laid out like number `index`, which begins at byte `p`, up to number `limit`; None for a short
    run.

    A run's timestamp deltas are all within low..high.
    """
    try:
        shape = _shape(data, p, index)
    except (IndexError, InvalidRecords):
        return None
    if shape is None:
        return None
    size = shape.size
    width = shape.offset_end - shape.offset_at
    if width == 1:
        limit = min(limit, _PER_LOW_BYTE)
    else:
        limit = min(limit, index - index % PERIOD + PERIOD)
    count = min(limit - index, (len(data) - p) // size)
    if count < _SHORTEST:
        return None
    for at in shape.fixed:
        at += p
        column = data[at : at + count * size : size]
        same = column[:1]
        if column != same * count:
            count -= len(column.lstrip(same))
            if count < _SHORTEST:
                return None
    if not counts_up(data, p + shape.offset_at, width, size, index, count):
        return None
    largest = largest_delta(data, p + shape.timestamp_at, shape.offset_at - shape.timestamp_at, size, count, low)
    if largest is None or largest > high:
        return None
    return Run(count, count * size, largest, shape.null_key)


def _shape(data: bytes, start: int, index: int) -> _Shape | None:
    """The layout of one record; None when its lengths are inconsistent or runs of it are not worth looking for.

    Raises IndexError and InvalidRecords for broken bytes.
    """
    size, p = varint(data, start)
    fixed = list(range(p - start))
    stop = p + size
    timestamp_at = p + 1  # after the attributes, which are unused
    _, offset_at = varlong(data, timestamp_at)
    offset, offset_end = varint(data, offset_at)
    if size < 0 or offset != index or offset_end - offset_at != offset_width(index):
        return None
    key, p = varint(data, offset_end)
    fixed += range(offset_end - start, p - start)
    at = p = p + max(key, 0)
    value, p = varint(data, p)
    fixed += range(at - start, p - start)
    at = p = p + max(value, 0)
    headers, p = varint(data, p)
    fixed += range(at - start, p - start)
    if not 0 <= headers <= _MOST_HEADERS:
        return None
    for _ in range(headers):
        at = p
        name, p = varint(data, p)
        fixed += range(at - start, p - start)
        if name < 0:
            return None
        at = p = p + name
        value, p = varint(data, p)
        fixed += range(at - start, p - start)
        p += max(value, 0)
    if p != stop or p > len(data):
        return None
    return _Shape(stop - start, tuple(fixed), timestamp_at - start, offset_at - start, offset_end - start, key < 0)


def offset_width(index: int) -> int:
    """Bytes of the varint of `index`, below 1,048,576."""
    return 1 + (index >= _PER_LOW_BYTE) + (index >= PERIOD)


def counts_up(data: bytes, at: int, width: int, size: int, index: int, count: int) -> bool:
    """Whether the varints of `width` bytes at `at` are those of index, index + 1, ...: none crosses a PERIOD."""
    span = count * size
    first = data[at : at + span : size]
    i = index % PERIOD
    if width == 1:
        return first == _ONE[i : i + count]
    if first != _LOW[i : i + count]:
        return False
    second = data[at + 1 : at + 1 + span : size]
    if width == 2:
        return second == _HIGH[i : i + count]
    # Up to 1,048,575 records the third byte is the last one, and the same throughout a period.
    third = data[at + 2 : at + 2 + span : size]
    return width == 3 and second == _MIDDLE[i : i + count] and third == third[:1] * count


def largest_delta(data: bytes, at: int, width: int, size: int, count: int, low: int) -> int | None:
    """The largest of the timestamp deltas of `width` bytes at `at`.

    None when they are not all of that width, one may be below `low`, or they are longer and differ.
    """
    span = count * size
    columns = [data[k : k + span : size] for k in range(at, at + width)]
    if all(column == column[:1] * count for column in columns):
        delta, _ = varlong(data, at)
        return delta if delta >= low else None
    first = columns[0]
    if width == 1:
        if low > -64 or not first.isascii():
            return None
        byte = _last_of(first, _ZIG_ZAG)
        return (byte >> 1) ^ -(byte & 1)
    if width == 2:
        second = columns[1]
        if low > 0 or first.translate(None, _EVEN) or not second.isascii():
            return None
        byte = _last_of(second, _PLAIN)
        begin, end = second.index(byte), second.rindex(byte) + 1
        with_it = first[begin:end]
        if second.count(byte) < end - begin:
            wanted = bytes(byte) + b"\1" + bytes(0xFF - byte)
            with_it = bytes(compress(with_it, second[begin:end].translate(wanted)))
        low_byte = _last_of(with_it, _EVEN)
        return (low_byte & 0x7F) >> 1 | byte << 6
    return None


def _last_of(column: bytes, order: bytes) -> int:
    """The byte of `column` that comes last in `order`, which has them all."""
    at = order.index(column[-1])  # times mostly grow
    above = column.translate(None, order[: at + 1])
    if not above:
        return column[-1]
    low, high = at + 1, len(order) - 1
    while low < high:
        middle = (low + high) // 2
        rest = above.translate(None, order[: middle + 1])
        if rest:
            low, above = middle + 1, rest
        else:
            high = middle
    return order[low]
