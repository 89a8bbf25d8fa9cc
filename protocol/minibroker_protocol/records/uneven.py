"""Runs of records whose sizes differ, checked by one regular expression.

Where a record begins depends on the size of the one before, so such records have to be walked, which in Python takes
half a microsecond each. A regular expression walks in C: with an alternative for every size that a record may say,
followed by a value of just the length that is then left for it, one match is one record that adds up. What remains to
be looked at, timestamp and offset deltas, is captured, and compared for all records at once as in `runs`.

Nothing is refused here either: where a run ends, the record-by-record walk continues. An expression takes milliseconds
to compile, so it is made when so many records were walked without it that they have cost more.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache
from typing import NamedTuple

from .runs import PERIOD, Run, counts_up, largest_delta, offset_width
from .varints import InvalidRecords, encode_varint, varint, varlong

FEWEST = 512
"""Fewer records than this are walked."""
AT_ONCE = 4096
"""Records in one run at most, so that a run which ends soon has not copied much in vain."""
WALKED_PER_BRANCH = 24
"""How many records are walked for each branch of an expression before it is compiled."""
_BANDS = (256, 512, 1024)
"""Sizes below these are in one expression. Of larger records there are fewer, and walking them costs less."""
_MOST_BRANCHES = 1024
"""Of an expression: some 30 µs each to compile."""
_LONGEST_KEY = 63
_SAMPLE = 24
_WALKED_AT_ONCE = 1024
_LAYOUTS = 256
_LEADS = 24
"""Branches are tried one after the other: they are grouped by the first bytes of their sizes."""


class _Layout(NamedTuple):
    """What records of a run have in common: bytes of their deltas, the key lengths there are (-1: null), and a number
    that their sizes stay below."""

    timestamp_width: int
    offset_width: int
    keys: tuple[int, ...]
    band: int

    @property
    def branches(self) -> int:
        return self.band * len(self.keys)


_walked: Counter[_Layout] = Counter()


def uneven_run(data: bytes, p: int, index: int, limit: int, *, low: int, high: int) -> Run | None:
    """The records from number `index`, at `p`, below number `limit` that have no headers, a value, one of a few key
    lengths and deltas of one width; None for few records, or for a layout that was not seen often enough yet.

    A run's timestamp deltas are all within low..high.
    """
    limit = min(limit, index - index % PERIOD + PERIOD)
    if index < PERIOD and limit > 64 > index:
        return None  # their offset deltas have another width
    if limit - index < FEWEST:
        return None
    try:
        layout = _layout(data, p, index)
    except (IndexError, InvalidRecords):
        return None
    if layout is None or not _is_worth_it(layout, limit - index):
        return None
    # There is no gap between two matches: the last branch matches everything else, and captures nothing.
    # Not more is copied than so many records of the layout can have, nor for more records than AT_ONCE.
    limit = min(limit, index + AT_ONCE)
    block = data[p : p + (limit - index) * (layout.band + 2)]
    parts = _expression(layout).split(block, limit - index)
    captured = parts[1::2]
    if captured and captured[-1] is None:
        captured.pop()
        size = _size_of(data, p, len(captured))
    else:
        size = len(block) - len(parts[-1])
    records = len(captured)
    if records < _SAMPLE:
        return None
    deltas = b"".join(captured)
    width = layout.timestamp_width + layout.offset_width
    if not counts_up(deltas, layout.timestamp_width, layout.offset_width, width, index, records):
        return None
    largest = largest_delta(deltas, 0, layout.timestamp_width, width, records, low)
    if largest is None or largest[0] > high:
        return None
    return Run(records, size, *largest, layout.keys == (-1,))


def _layout(data: bytes, p: int, index: int) -> _Layout | None:
    """The layout of the records at `p`, from the first ones. Raises IndexError and InvalidRecords for broken bytes."""
    width = offset_width(index)
    keys: set[int] = set()
    largest = timestamp_width = 0
    for i in range(index, index + _SAMPLE):
        size, p = varint(data, p)
        stop = p + size
        _, at = varlong(data, p + 1)
        if i == index:
            timestamp_width = at - p - 1
        offset, end = varint(data, at)
        key, value_at = varint(data, end)
        if at - p - 1 != timestamp_width or offset != i or end - at != width or key > _LONGEST_KEY or size < 0:
            return None
        value, p = varint(data, value_at + max(key, 0))
        if value < 0 or p + value + 1 != stop or data[stop - 1] != 0:
            return None
        keys.add(key)
        largest = max(largest, size)
        p = stop
    band = next((band for band in _BANDS if largest < band), 0)
    if not band or (-1 in keys and len(keys) > 1):  # which keys are null would be lost
        return None
    layout = _Layout(timestamp_width, width, tuple(sorted(keys)), band)
    return layout if layout.branches <= _MOST_BRANCHES else None


def _is_worth_it(layout: _Layout, records: int) -> bool:
    walked = _walked[layout]
    if walked >= WALKED_PER_BRANCH * layout.branches:
        return True
    if len(_walked) > _LAYOUTS:
        _walked.clear()
    _walked[layout] = walked + min(records, _WALKED_AT_ONCE)
    return False


def _size_of(data: bytes, p: int, records: int) -> int:
    """Bytes of so many records from `p` on, each of which is known to add up."""
    start = p
    for _ in range(records):
        size, p = varint(data, p)
        p += size
    return p - start


@lru_cache(maxsize=32)
def _expression(layout: _Layout) -> re.Pattern[bytes]:
    """Matches one record of the layout and captures its deltas, or else all that is left."""
    by_lead: dict[bytes, list[bytes]] = {}
    for size in range(layout.band):
        rest = b"|".join(found for key in layout.keys if (found := _record_of(layout, size, key)))
        if rest:
            number = encode_varint(size)
            tail = _literal(number[1:]) + (b"(?:%b)" % rest if len(layout.keys) > 1 else rest)
            by_lead.setdefault(_literal(number[:1]), []).append(tail)
    leads = sorted(by_lead)
    groups = []
    for start in range(0, len(leads), _LEADS):
        some = leads[start : start + _LEADS]
        branches = b"|".join(lead + b"(?:" + b"|".join(by_lead[lead]) + b")" for lead in some)
        groups.append(b"(?=[%b])(?:%b)" % (b"".join(some), branches))
    size_bytes = rb"(?:[\x00-\x7f]|[\x80-\xff][\x00-\x7f])"
    deltas = b"(?=%b.(.{%d}))" % (size_bytes, layout.timestamp_width + layout.offset_width)
    return re.compile(b"(?s)%b(?:%b)|.+" % (deltas, b"|".join(groups)))


def _record_of(layout: _Layout, size: int, key: int) -> bytes:
    """What follows a size, up to the number of headers, which is 0; empty where the size leaves no room for a value."""
    head = 1 + layout.timestamp_width + layout.offset_width
    key_length = encode_varint(key)
    left = size - head - len(key_length) - max(key, 0) - 1
    value = left - 1 if left <= 64 else left - 2
    value_length = encode_varint(value) if value >= 0 else b""
    if not value_length or len(value_length) + value != left:
        return b""
    return b".{%d}%b.{%d}%b.{%d}\\x00" % (head, _literal(key_length), max(key, 0), _literal(value_length), value)


def _literal(data: bytes) -> bytes:
    return b"".join(b"\\x%02x" % byte for byte in data)
