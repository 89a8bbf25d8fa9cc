"""Payloads of a few records with fields of any size, most of them damaged, and what a walk says of them: for tests and
`tools/fuzz_walk.py`, which compare walks of different kinds."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from minibroker_protocol.records import (
    BatchHeader,
    InvalidRecords,
    Record,
    Walk,
    build_batch,
    native,
    parse_header,
    validate_records,
    walk,
)
from minibroker_protocol.records.varints import encode_varint

TIME = 1_600_000_000_000
BOUNDS = ((None, None), (TIME, TIME + 50), (TIME - 61, TIME + 9000), (2**63 - 1, 2**63 - 1))
"""Least and largest timestamp that a topic takes, None for any."""
_LENGTHS = (-1, -1, 0, 0, 1, 2, 7, 20, 63, 64, 70, 130)
_DELTAS = (0, 0, 0, 1, 2, 63, 64, 9000, -1, -64, -65, -TIME - 1, 2**31, 2**62, -(2**63), 2**63 - 1)
_WRONG = (-(2**63), -(2**31), -65, -64, -2, -1, 0, 1, 63, 64, 8191, 8192, 2**31 - 1, 2**31, 2**32, 2**34 - 1, 2**63 - 1)
_NUMBERS = {n: encode_varint(n) for n in {*_LENGTHS, *_DELTAS, *_WRONG, *range(-1, 400)}}
_BYTES = bytes(range(256)) * 2

Verdict = tuple[object, ...]


class Payload(NamedTuple):
    """Records without a batch's header, and how they are walked."""

    data: bytes
    count: int
    bounds: tuple[int | None, int | None]
    want_keys: bool


def broken_payload(rng: random.Random) -> Payload:
    """One to 40 records, mostly few; in three of four payloads something is wrong or unusual."""
    pick, number = rng.random, _NUMBERS
    many = pick()
    count = 1 + int(5 * pick()) if many < 0.9 else 1 + int(40 * pick())
    wrong = 0.04 * pick() if pick() < 0.5 else 0.0  # the share of fields that are wrong
    parts: list[bytes] = []
    headers = 0 if pick() < 0.5 else (1, 1, 2, 15, 16, 17)[int(6 * pick())]

    def field(value: int) -> None:
        if wrong and pick() < wrong:
            parts.append(_wrong_number(rng, value))
        else:
            parts.append(number[value])

    for i in range(count):
        begin = len(parts)
        parts.append(b"\0")
        field(_DELTAS[int(len(_DELTAS) * pick())] if pick() < 0.3 else i)
        field(i)
        for _ in (0, 1):
            length = _LENGTHS[int(len(_LENGTHS) * pick())]
            field(length)
            if length > 0:
                parts.append(_BYTES[length : 2 * length])
        field(headers)
        for _ in range(headers):
            field(1)
            parts.append(b"h")
            length = _LENGTHS[int(8 * pick())]
            field(length)
            if length > 0:
                parts.append(_BYTES[:length])
        size = sum(map(len, parts[begin:]))
        if wrong and pick() < wrong:
            parts.insert(begin, _wrong_number(rng, size))
        else:
            parts.insert(begin, number.get(size) or encode_varint(size))
    data = b"".join(parts)
    if pick() < 0.4:
        data = _damaged(rng, data)
    if pick() < 0.05:
        count += int(5 * pick()) - 2
    return Payload(data, max(count, 0), BOUNDS[int(8 * pick()) % 6 % 4], pick() < 0.5)


def _wrong_number(rng: random.Random, value: int) -> bytes:
    """`value` in more bytes than it needs, or another number, or none."""
    kind = rng.random()
    if kind < 0.4:
        data = bytearray(encode_varint(value))
        data[-1] |= 0x80
        return bytes(data) + b"\x80" * rng.choice((0, 1, 2, 3, 4, 7, 8, 9)) + rng.choice((b"\0", b"\1", b"\x7f"))
    if kind < 0.8:
        return _NUMBERS[rng.choice(_WRONG)]
    return encode_varint(value + rng.choice((-2, -1, 1, 2)))


def _damaged(rng: random.Random, payload: bytes) -> bytes:
    data = bytearray(payload)
    size, pick = len(data), rng.random
    for _ in range(int(4 * pick())):
        at = int(size * pick())
        data[at] = (data[at] ^ 1, data[at] ^ 2, data[at] ^ 0x80, 0, 1, 0x80, 0xFF, int(256 * pick()))[int(8 * pick())]
    how = pick()
    if how < 0.1:
        return bytes(data[: int((size + 1) * pick())])
    if how < 0.15:
        return bytes(data) + _BYTES[: int(12 * pick())]
    return bytes(data)


@cache
def header_of(count: int) -> BatchHeader:
    header = parse_header(build_batch([Record(0, TIME, None, b"")]))
    return replace(header, record_count=count)


def verdict(payload: Payload) -> Verdict:
    """What a walk says of it: the error, or all it found."""
    data, count, (least, largest), want_keys = payload
    try:
        walked = validate_records(
            data, header_of(count), want_keys=want_keys, min_timestamp=least, max_timestamp=largest
        )
    except InvalidRecords as error:
        return ("refused", str(error))
    return tuple([getattr(walked, name) for name in Walk.__slots__])


@contextmanager
def walked_in_python() -> Iterator[None]:
    """Every record is walked one by one in Python."""
    before = walk.IS_NATIVE, walk.native_run, walk.equal_run
    walk.IS_NATIVE, walk.native_run, walk.equal_run = False, _no_run, _no_run  # type: ignore[misc]
    try:
        yield
    finally:
        walk.IS_NATIVE, walk.native_run, walk.equal_run = before  # type: ignore[misc]


@contextmanager
def shortest_runs() -> Iterator[None]:
    """Compiled code takes runs of a single record too, so that each of its verdicts counts."""
    before = native._SHORTEST, walk.IS_NATIVE
    native._SHORTEST, walk.IS_NATIVE = 1, True  # type: ignore[misc]
    try:
        yield
    finally:
        native._SHORTEST, walk.IS_NATIVE = before  # type: ignore[misc]


def _no_run(*args: object, **bounds: object) -> None:
    return None
