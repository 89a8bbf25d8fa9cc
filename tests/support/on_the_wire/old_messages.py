"""Messages of magic 0 and 1 as brokers before Kafka 0.11 wrote them, laid out here byte by byte."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Sequence

from minibroker_protocol.records import Compression, compress

GZIP, SNAPPY, LZ4 = Compression.GZIP, Compression.SNAPPY, Compression.LZ4
LOG_APPEND_TIME = 0x08
_BROKEN_LZ4_CHECKSUM = 0x1A
"""Of the descriptor 60 40 after the frame's magic, as clients of magic 0 computed it (KAFKA-3160)."""
_LZ4_CHECKSUM_AT = 6

Row = tuple[int, int, bytes | None, bytes | None]
"""Offset, timestamp (ms), key, value."""


def message(
    magic: int, offset: int, key: bytes | None, value: bytes | None, timestamp: int = -1, attributes: int = 0
) -> bytes:
    body = struct.pack(">bb", magic, attributes) + (struct.pack(">q", timestamp) if magic else b"")
    for field in (key, value):
        body += struct.pack(">i", -1) if field is None else struct.pack(">i", len(field)) + field
    return struct.pack(">qiI", offset, 4 + len(body), zlib.crc32(body)) + body


def wrapper(magic: int, codec: Compression, rows: Sequence[Row], append_time: int | None = None) -> bytes:
    """Compressed messages: relative offsets in magic 1, absolute ones in magic 0."""
    first, last = rows[0][0], rows[-1][0]
    kind = 0 if append_time is None else LOG_APPEND_TIME
    inner = b"".join(
        message(magic, offset - (first if magic else 0), key, value, timestamp, kind)
        for offset, timestamp, key, value in rows
    )
    payload = gzip.compress(inner, mtime=0) if codec == GZIP else compress(codec, inner)
    if codec == LZ4 and magic == 0:
        payload = payload[:_LZ4_CHECKSUM_AT] + bytes((_BROKEN_LZ4_CHECKSUM,)) + payload[_LZ4_CHECKSUM_AT + 1 :]
    timestamp = max(row[1] for row in rows) if append_time is None else append_time
    return message(magic, last, None, payload, timestamp, codec | kind)
