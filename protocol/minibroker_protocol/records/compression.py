"""The four codecs of record batches, in the framing Kafka's clients write and read.

gzip; snappy in xerial framing (and bare raw blocks, which some clients send); LZ4 frames of independent blocks, the
only ones Kafka's reader accepts; zstd. cramjam is imported by the first call that needs it.
"""

from __future__ import annotations

import struct
import zlib
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from minibroker_protocol.errors import Malformed

from .pace import UNHURRIED, Pace

if TYPE_CHECKING:
    from collections.abc import Callable

    from .batch import Buffer


class Compression(IntEnum):
    """Attribute bits 0-2 of a batch; the names are those of the config compression.type."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class UndecodablePayload(Malformed):
    """The codec is not known or cannot read the payload. Kafka has no error of its own for it: UNKNOWN_SERVER_ERROR."""


class PayloadTooLarge(UndecodablePayload):
    """The payload decompresses to more than the caller allows."""


_GZIP_MAGIC = b"\x1f\x8b\x08"  # with the one method that there is
_GZIP_HEADER_CRC, _GZIP_EXTRA, _GZIP_NAME, _GZIP_COMMENT = 2, 4, 8, 16
_IGNORED_AFTER_GZIP = 18  # fewer bytes than a member has; Java does not look at them
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK = 32 * 1024
_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_HEADER = _LZ4_MAGIC + b"\x60\x40\x82"  # version 1, independent blocks of up to 64 KiB; descriptor checksum
_LZ4_BLOCK = 64 * 1024
_LZ4_STORED = 0x80000000
_LZ4_BLOCK_CHECKSUM, _LZ4_CONTENT_SIZE, _LZ4_CONTENT_CHECKSUM = 0x10, 0x08, 0x04
_BE32 = struct.Struct(">i")
_LE32 = struct.Struct("<I")
_FIRST_GUESS = 64 * 1024
_PIECE = 2 * 1024 * 1024
"""Bytes of gzip that are packed or unpacked at once. The loop has no time for so many: what it does is one piece."""
_BYTES_PER_STEP = 128
"""Bytes that are decompressed in the time in which a record is walked."""
_BYTES_PER_STEP_OF_GZIP = 16
"""Bytes that gzip compresses in that time."""
_OUTPUT_FULL = "failed to write whole buffer"  # cramjam's text when decompress_into has more than fits


def compress(codec: int, data: Buffer, level: int | None = None, pace: Pace = UNHURRIED) -> bytes:
    """`data` as the payload of a batch with this codec; `level` is for gzip (-1..9) and zstd, None their default.

    Raises TakesLong where `pace` ends it.
    """
    if codec == Compression.NONE:
        return bytes(data)
    if codec == Compression.GZIP:
        return _gzip_compress(data, -1 if level is None else level, pace)
    if codec == Compression.SNAPPY:
        return _snappy_compress(data)
    if codec == Compression.LZ4:
        return _lz4_compress(data)
    if codec == Compression.ZSTD:
        return bytes(_cramjam().zstd.compress(data, level))
    raise ValueError(f"compression codec {codec} is not assigned")


def decompress(codec: int, data: Buffer, max_bytes: int, pace: Pace = UNHURRIED) -> bytes:
    """The records bytes of a batch's payload, at most `max_bytes` of them; never allocates more than twice that.

    Raises UndecodablePayload, its PayloadTooLarge when there would be more, and TakesLong where `pace` ends it.
    """
    if codec == Compression.NONE:
        return bytes(data)
    if codec == Compression.GZIP:
        return _gzip_decompress(data, max_bytes, pace)
    if codec == Compression.SNAPPY:
        return _snappy_decompress(data, max_bytes)
    if codec == Compression.LZ4:
        return _lz4_decompress(data, max_bytes, pace)
    if codec == Compression.ZSTD:
        return _decompress_growing("zstd", _cramjam().zstd.decompress_into, data, max_bytes, pace)
    raise UndecodablePayload(f"record batch v2: compression codec {codec} is not assigned")


def _cramjam() -> Any:
    import cramjam

    return cramjam


def _too_large(name: str, max_bytes: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"record batch v2: {name} payload decompresses to more than {max_bytes} bytes")


def _undecodable(name: str, why: object) -> UndecodablePayload:
    return UndecodablePayload(f"record batch v2: {name} payload: {why}")


def _decompress_growing(
    name: str, into: Callable[[Buffer, bytearray], int], data: Buffer, max_bytes: int, pace: Pace
) -> bytes:
    size = min(max_bytes, max(_FIRST_GUESS, 4 * len(data)))
    while True:
        out = bytearray(max(size, 1))
        try:
            n = into(data, out)
        except Exception as exc:  # DecompressionError; the class cannot be named without importing the library
            if _OUTPUT_FULL not in str(exc):
                raise _undecodable(name, exc) from None
        else:
            if n > max_bytes:
                break
            return bytes(memoryview(out)[:n])
        if size >= max_bytes:
            break
        pace(size // _BYTES_PER_STEP)
        size = min(max_bytes, size * 4)
    raise _too_large(name, max_bytes)


def _gzip_compress(data: Buffer, level: int, pace: Pace) -> bytes:
    engine = zlib.compressobj(level, wbits=31)
    if len(data) <= _PIECE:
        return engine.compress(data) + engine.flush()
    view, out = memoryview(data), []
    for start in range(0, len(view), _PIECE):
        out.append(engine.compress(view[start : start + _PIECE]))
        pace(_PIECE // _BYTES_PER_STEP_OF_GZIP)
    return b"".join([*out, engine.flush()])


def _gzip_decompress(data: Buffer, max_bytes: int, pace: Pace) -> bytes:
    """Bytes after the end are ignored unless they begin another member, as Java's GZIPInputStream does."""
    out: list[bytes] = []
    allowed = max_bytes
    rest: Buffer = data
    while not out or (len(rest) > _IGNORED_AFTER_GZIP and _begins_member(rest)):
        engine = zlib.decompressobj(wbits=31)
        while not engine.eof:
            try:
                chunk = engine.decompress(rest, min(allowed + 1, _PIECE))
            except zlib.error as exc:
                raise _undecodable("gzip", exc) from None
            allowed -= len(chunk)
            if allowed < 0:
                raise _too_large("gzip", max_bytes)
            out.append(chunk)
            rest = engine.unconsumed_tail
            if not chunk and not rest and not engine.eof:
                raise _undecodable("gzip", "truncated")
            if len(chunk) == _PIECE:
                pace(_PIECE // _BYTES_PER_STEP)
        rest = engine.unused_data
    return out[0] if len(out) == 1 else b"".join(out)


def _begins_member(data: Buffer) -> bool:
    """Whether `data` begins with the whole header of a gzip member (RFC 1952)."""
    head = bytes(data[:10])
    if len(head) < 10 or head[:3] != _GZIP_MAGIC:
        return False
    flags, end = head[3], 10
    if flags & _GZIP_EXTRA:
        end += 2 + int.from_bytes(data[end : end + 2], "little")
    for part in (_GZIP_NAME, _GZIP_COMMENT):
        if flags & part:
            end = bytes(data).find(0, end) + 1
            if end == 0:
                return False
    if flags & _GZIP_HEADER_CRC:
        checksum = zlib.crc32(data[:end]) & 0xFFFF
        if int.from_bytes(data[end : end + 2], "little") != checksum:
            return False
        end += 2
    return end <= len(data)


def _snappy_compress(data: Buffer) -> bytes:
    compress_raw = _cramjam().snappy.compress_raw
    view = memoryview(data)
    out = bytearray(_XERIAL_HEADER)
    for start in range(0, len(view), _XERIAL_BLOCK):
        block = compress_raw(view[start : start + _XERIAL_BLOCK])
        out += _BE32.pack(len(block))
        out += block
    return bytes(out)


def _snappy_decompress(data: Buffer, max_bytes: int) -> bytes:
    view = memoryview(data)
    if view[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return _snappy_block(view, max_bytes, max_bytes)
    if len(view) < len(_XERIAL_HEADER):
        raise _undecodable("snappy", "xerial header is cut off")
    out: list[bytes] = []
    allowed, pos = max_bytes, len(_XERIAL_HEADER)
    while pos < len(view):
        if view[pos : pos + len(_XERIAL_MAGIC)] == _XERIAL_MAGIC:  # concatenated streams
            pos += len(_XERIAL_HEADER)
            continue
        if len(view) - pos < 4:
            raise _undecodable("snappy", "block length is cut off")
        (n,) = _BE32.unpack_from(view, pos)
        pos += 4
        if not 0 <= n <= len(view) - pos:
            raise _undecodable("snappy", f"block of {n} bytes with {len(view) - pos} left")
        block = _snappy_block(view[pos : pos + n], allowed, max_bytes)
        out.append(block)
        allowed -= len(block)
        pos += n
    return b"".join(out)


def _snappy_block(block: memoryview, allowed: int, max_bytes: int) -> bytes:
    snappy = _cramjam().snappy
    try:
        size = snappy.decompress_raw_len(block)
        if size > allowed:
            raise _too_large("snappy", max_bytes)
        out = bytearray(size)
        n = snappy.decompress_raw_into(block, out) if size or len(block) != 1 else 0
    except PayloadTooLarge:
        raise
    except Exception as exc:  # DecompressionError
        raise _undecodable("snappy", exc) from None
    return bytes(memoryview(out)[:n])


def _lz4_compress(data: Buffer) -> bytes:
    compress_block = _cramjam().lz4.compress_block
    view = memoryview(data)
    out = bytearray(_LZ4_HEADER)
    for start in range(0, len(view), _LZ4_BLOCK):
        raw = view[start : start + _LZ4_BLOCK]
        block = bytes(compress_block(raw, store_size=False))
        if len(block) < len(raw):
            out += _LE32.pack(len(block))
            out += block
        else:
            out += _LE32.pack(len(raw) | _LZ4_STORED)
            out += raw
    out += _LE32.pack(0)
    return bytes(out)


def _lz4_decompress(data: Buffer, max_bytes: int, pace: Pace) -> bytes:
    if len(data) < 7 or memoryview(data)[:4] != _LZ4_MAGIC:
        raise _undecodable("lz4", "not an LZ4 frame")
    if data[4] >> 6 != 1:
        raise _undecodable("lz4", f"frame version {data[4] >> 6}")
    if not data[4] & 0x20:
        raise _undecodable("lz4", "blocks that refer to earlier blocks are not supported")
    frame = memoryview(data)[: _lz4_frame_end(data)]
    return _decompress_growing("lz4", _cramjam().lz4.decompress_into, frame, max_bytes, pace)


def _lz4_frame_end(data: Buffer) -> int:
    """Where the frame ends, or the data if that is cut off. Bytes after it are ignored, another frame too, as Kafka's
    Lz4BlockInputStream does."""
    flags = data[4]
    position = 7 + (8 if flags & _LZ4_CONTENT_SIZE else 0)
    while position + 4 <= len(data):
        (size,) = _LE32.unpack_from(data, position)
        position += 4
        if size == 0:
            return min(position + (4 if flags & _LZ4_CONTENT_CHECKSUM else 0), len(data))
        position += (size & ~_LZ4_STORED) + (4 if flags & _LZ4_BLOCK_CHECKSUM else 0)
    return len(data)
