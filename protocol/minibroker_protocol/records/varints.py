"""Zig-zag varints as records have them, and the error for records that do not add up."""

from __future__ import annotations

from minibroker_protocol.errors import Malformed

INT64 = 1 << 64


class InvalidRecords(Malformed):
    """The records of a batch do not add up: sizes, counts, varints (Kafka: INVALID_RECORD)."""


def varint(data: bytes, p: int) -> tuple[int, int]:
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


def varlong(data: bytes, p: int) -> tuple[int, int]:
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
    n &= INT64 - 1
    return (n >> 1) ^ -(n & 1), p


def _encode_varint(n: int) -> bytes:
    n = (n << 1) ^ (n >> 63)
    if n < 0x80:
        return bytes((n,))
    if n < 0x4000:
        return bytes((n & 0x7F | 0x80, n >> 7))
    out = bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


SMALL_VARINTS = [_encode_varint(n) for n in range(1024)]
"""The varints of the numbers below 1024, which are the lengths of most keys and values."""


def encode_varint(n: int) -> bytes:
    """`n` (up to 64 bits, signed) as a zig-zag varint, as records have their numbers."""
    return SMALL_VARINTS[n] if 0 <= n < 1024 else _encode_varint(n)
