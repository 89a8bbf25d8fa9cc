"""Batches of a few kilobytes that take long to check."""

from __future__ import annotations

import gzip

from minibroker_protocol.records import Record, assemble, build_batch, encode_varint, parse_header

NOW = 1_700_000_000_000
GZIP = 1


def record_of(body: bytes) -> bytes:
    """A record's bytes with their size."""
    return encode_varint(len(body)) + body


def batch_of(payload: bytes, count: int, *, base_timestamp: int = NOW) -> bytes:
    """A gzip batch of these bytes that says it has `count` records."""
    header = parse_header(build_batch([Record(0, base_timestamp)], compression=0))
    header.record_count, header.last_offset_delta, header.attributes = count, count - 1, GZIP
    return bytes(assemble(header, gzip.compress(payload)))


def equal_deltas(count: int) -> bytes:
    """So many records, each with offset delta 0."""
    return batch_of(record_of(b"\0\0\0\1\1\0") * count, count)


def many_headers(count: int, rest: bytes = b"") -> bytes:
    """One record with so many headers, and `rest` after it."""
    return batch_of(record_of(b"\0\0\0\1\1" + encode_varint(count) + b"\0\1" * count) + rest, 1)


def without_keys(count: int, *, base_timestamp: int = NOW) -> bytes:
    """So many records with neither key nor value."""
    records = b"".join(record_of(b"\0\0" + encode_varint(i) + b"\1\1\0") for i in range(count))
    return batch_of(records, count, base_timestamp=base_timestamp)
