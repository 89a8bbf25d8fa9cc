"""Scans a whole `.log` file batch by batch."""

from __future__ import annotations

from collections.abc import Iterator

from minibroker_protocol.records import BatchHeader, CorruptBatch, complete_header, crc_ok, iter_batches
from minibroker_storage.disk import DiskFile

CHUNK = 1 << 20


def scan(file: DiskFile, size: int) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """(position, header, bytes) of every batch in the first `size` bytes; checksums are not verified.

    Raises CorruptBatch naming file and byte where there is no whole batch.
    """
    position, want = 0, CHUNK
    while position < size:
        chunk = file.pread(min(want, size - position), position)
        start = position
        try:
            for at, header in iter_batches(chunk):
                yield start + at, complete_header(chunk, at, header), memoryview(chunk)[at : at + header.size]
                position = start + at + header.size
        except CorruptBatch as error:
            raise CorruptBatch(f"{file.path}: at byte {position} of {size}: {error}") from None
        if position > start:
            want = CHUNK
        elif len(chunk) < want:
            raise CorruptBatch(f"{file.path}: at byte {position} of {size}: the file ends within a batch")
        else:
            want *= 4


def checked(file: DiskFile, size: int) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """As `scan`, and raises CorruptBatch at a wrong checksum."""
    for position, header, data in scan(file, size):
        if not crc_ok(data, 0, header):
            raise CorruptBatch(
                f"{file.path}: batch at byte {position} (offset {header.base_offset}) has a wrong checksum"
            )
        yield position, header, data
