"""The header of a record batch: read, checked by CRC and patched in place, without looking at the records.

Layout: Kafka's DefaultRecordBatch (magic 2). The CRC-32C covers attributes..end, so base offset and leader epoch can be
set by the leader without computing it again. Messages of magic 0 and 1, which old segments hold, get a header that says
the same of them (LegacyRecord); their CRC-32 covers magic..end.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.machinery import ExtensionFileLoader, PathFinder
from importlib.util import module_from_spec
from typing import TypeAlias

from minibroker_protocol.errors import Malformed

from .sequences import MAX_SEQUENCE, NO_SEQUENCE

Buffer: TypeAlias = bytes | bytearray | memoryview

HEADER_SIZE = 61
LOG_OVERHEAD = 12
"""Bytes of base offset and batch length, which batch_length does not count."""
MAGIC = 2
NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1

COMPRESSION_MASK = 0x07
TIMESTAMP_TYPE_MASK = 0x08
TRANSACTIONAL_MASK = 0x10
CONTROL_MASK = 0x20
DELETE_HORIZON_MASK = 0x40

ATTRIBUTES_OFFSET = 21
MAGIC_OFFSET = 16
SMALLEST_OLD_MESSAGE = 26
"""Bytes of a message of magic 0 without key and value, offset and length included."""
_CRC_OFFSET = 17

HEADER = struct.Struct(">qiibIhiqqqhii")
_OFFSET = struct.Struct(">q")
_LENGTH = struct.Struct(">i")
_EPOCH = struct.Struct(">i")
_CRC = struct.Struct(">I")
_OLD_HEAD = struct.Struct(">qiIbb")
"""A message's offset, length, CRC-32, magic and attributes; in magic 1 the timestamp follows."""
_OLD_SIZES = (SMALLEST_OLD_MESSAGE, SMALLEST_OLD_MESSAGE + 8)
_TIMESTAMP = struct.Struct(">q")


class CorruptBatch(Malformed):
    """Bytes that cannot be a record batch, or whose checksum is wrong (Kafka: CORRUPT_MESSAGE)."""


def _load_crc32c(data: Buffer) -> int:
    global crc32c
    if crc32c is _load_crc32c:  # else a module that took the name over before the first call
        crc32c = _compiled_crc32c() or _library_crc32c()
    return crc32c(data)


def _library_crc32c() -> Callable[[Buffer], int]:
    from crc32c import crc32c as function

    return function


def _compiled_crc32c() -> Callable[[Buffer], int] | None:
    """The library's extension module by itself; None where it has another name.

    The package around it looks its own version up when it is imported, which takes longer than all else that happens
    for a broker's first record.
    """
    package = PathFinder.find_spec("crc32c")
    places = package.submodule_search_locations if package else None
    spec = PathFinder.find_spec("crc32c._crc32c", list(places)) if places else None
    if spec is None or not isinstance(spec.loader, ExtensionFileLoader):
        return None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    function: Callable[[Buffer], int] | None = getattr(module, "crc32c", None)
    return function


crc32c: Callable[[Buffer], int] = _load_crc32c
"""CRC-32C of a buffer; the library is imported by the first call."""


@dataclass(slots=True)
class BatchHeader:
    """The 13 header fields of a batch, as stored, and what follows from them."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return LOG_OVERHEAD + self.batch_length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record; -1 for a batch without sequences."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & MAX_SEQUENCE

    @property
    def has_producer_id(self) -> bool:
        """Whether it has a producer id; Kafka treats any id below 0 as none."""
        return self.producer_id > NO_PRODUCER_ID

    @property
    def compression(self) -> int:
        """0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd, 5-7 not assigned."""
        return self.attributes & COMPRESSION_MASK

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL_MASK != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL_MASK != 0

    @property
    def log_append_time(self) -> bool:
        """The records' timestamp is the broker's: max_timestamp for all of them."""
        return self.attributes & TIMESTAMP_TYPE_MASK != 0

    @property
    def has_delete_horizon(self) -> bool:
        """base_timestamp is the time from which tombstones and markers may be removed (KIP-534)."""
        return self.attributes & DELETE_HORIZON_MASK != 0


def parse_header(buf: Buffer, pos: int = 0) -> BatchHeader:
    """The header at `pos`. The batch's end need not be in the buffer; its checksum is not checked.

    A message of magic 0 or 1 is one record at its offset. If it is compressed, the offset is that of the last message
    in it; how many there are is known to `whole_header`. Raises CorruptBatch for fewer bytes than a header or an
    impossible length.
    """
    try:
        header = BatchHeader(*HEADER.unpack_from(buf, pos))
    except struct.error:
        if len(buf) - pos > MAGIC_OFFSET and buf[pos + MAGIC_OFFSET] in (0, 1):
            return _old_header(buf, pos)
        available = max(len(buf) - pos, 0)
        raise CorruptBatch(
            f"record batch v2: {available} bytes at position {pos}, a header has {HEADER_SIZE}"
        ) from None
    if header.magic != MAGIC:
        if header.magic in (0, 1):
            return _old_header(buf, pos)
        raise CorruptBatch(f"record batch v2: magic is {header.magic} at position {pos}")
    if header.batch_length < HEADER_SIZE - LOG_OVERHEAD:
        raise CorruptBatch(f"record batch v2: batch_length is {header.batch_length} at position {pos}")
    return header


def _old_header(buf: Buffer, pos: int) -> BatchHeader:
    magic, available = buf[pos + MAGIC_OFFSET], len(buf) - pos
    smallest = _OLD_SIZES[magic]
    if available < smallest:
        raise CorruptBatch(
            f"message of magic {magic}: {available} bytes at position {pos}, the smallest has {smallest}"
        )
    offset, length, crc, _, attributes = _OLD_HEAD.unpack_from(buf, pos)
    if length < smallest - LOG_OVERHEAD:
        raise CorruptBatch(f"message of magic {magic}: its length is {length} at position {pos}")
    timestamp = _TIMESTAMP.unpack_from(buf, pos + _OLD_HEAD.size)[0] if magic else NO_TIMESTAMP
    attributes &= COMPRESSION_MASK | TIMESTAMP_TYPE_MASK if magic else COMPRESSION_MASK
    producer = NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE
    return BatchHeader(offset, length, -1, magic, crc, attributes, 0, timestamp, timestamp, *producer, 1)


def iter_batches(buf: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of every whole batch; a truncated last batch is left out, as a fetch may end in one. Raises
    CorruptBatch where bytes cannot be a batch."""
    pos, end = 0, len(buf)
    while end - pos >= LOG_OVERHEAD:
        (length,) = _LENGTH.unpack_from(buf, pos + 8)
        if length >= 0 and end - pos - LOG_OVERHEAD < length:
            return
        header = parse_header(buf, pos)
        yield pos, header
        pos += header.size


def crc_ok(buf: Buffer, pos: int, header: BatchHeader) -> bool:
    """Whether the batch at `pos` is whole and its bytes have the checksum its header names."""
    end = pos + LOG_OVERHEAD + header.batch_length
    if end > len(buf):
        return False
    if header.magic != MAGIC:
        return zlib.crc32(memoryview(buf)[pos + MAGIC_OFFSET : end]) == header.crc
    return crc32c(memoryview(buf)[pos + ATTRIBUTES_OFFSET : end]) == header.crc


def write_crc(buf: bytearray | memoryview, pos: int, size: int) -> int:
    """Compute and set the checksum of the batch of `size` bytes at `pos`; returns it."""
    crc = crc32c(memoryview(buf)[pos + ATTRIBUTES_OFFSET : pos + size])
    _CRC.pack_into(buf, pos + _CRC_OFFSET, crc)
    return crc


def patch_offsets(buf: bytearray | memoryview, pos: int, base_offset: int, leader_epoch: int) -> None:
    """Set base offset and partition leader epoch in place. The CRC covers neither."""
    _OFFSET.pack_into(buf, pos, base_offset)
    _EPOCH.pack_into(buf, pos + 12, leader_epoch)


def rewrite_header(buf: bytearray | memoryview, pos: int, header: BatchHeader) -> None:
    """Write `header` over the one at `pos` and give it the right CRC (also in `header`)."""
    header.crc = 0
    pack_header(buf, pos, header)
    header.crc = write_crc(buf, pos, header.size)


def pack_header(buf: bytearray | memoryview, pos: int, header: BatchHeader) -> None:
    """Write `header` at `pos` as it is, its CRC included."""
    HEADER.pack_into(
        buf,
        pos,
        header.base_offset,
        header.batch_length,
        header.partition_leader_epoch,
        header.magic,
        header.crc,
        header.attributes,
        header.last_offset_delta,
        header.base_timestamp,
        header.max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.record_count,
    )
