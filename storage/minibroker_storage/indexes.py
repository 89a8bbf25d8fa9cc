"""Kafka's sparse offset index and time index of one segment, kept in memory and written out when the segment is
flushed, rolled or closed. Entry layouts: org.apache.kafka.storage.internals.log.OffsetIndex and TimeIndex."""

from __future__ import annotations

import operator
import struct
import sys
from array import array
from bisect import bisect_right
from collections.abc import Sequence

from minibroker_storage.disk import Disk, NotFound

OFFSET_ENTRY = struct.Struct(">ii")
TIME_ENTRY = struct.Struct(">qi")
NO_TIMESTAMP = -1

_SWAP = sys.byteorder == "little"


class IndexCorrupt(ValueError):
    """An index file breaks a rule of its format; the segment's indexes must be rebuilt from its log."""


class _Index:
    """Entries of two numbers, in an array each; number `offsets` has the offsets, less the base offset."""

    __slots__ = ("_arrays", "base_offset", "cut", "max_entries", "path", "written")
    entry: struct.Struct
    kinds: tuple[str, str]
    offsets: int

    def __init__(self, path: str, base_offset: int, max_bytes: int) -> None:
        self.path = path
        self.base_offset = base_offset
        self.max_entries = max_bytes // self.entry.size
        self._arrays: tuple[array[int], array[int]] = (array(self.kinds[0]), array(self.kinds[1]))
        self.written = -1  # entries in the file; -1: no file yet
        self.cut = False  # the file still has entries that were truncated here

    def __len__(self) -> int:
        return len(self._arrays[0])

    def truncate_to(self, offset: int) -> None:
        """Keeps entries below ``offset``."""
        relative = self._arrays[self.offsets]
        keep = 0
        while keep < len(relative) and relative[keep] < offset - self.base_offset:
            keep += 1
        self._arrays = (self._arrays[0][:keep], self._arrays[1][:keep])
        if self.written > keep:
            self.written, self.cut = keep, True

    def encode(self, start: int = 0) -> bytes:
        return b"".join(map(self.entry.pack, *(part[start:] for part in self._arrays)))


class OffsetIndex(_Index):
    """Entries (offset, position): the batch with last offset ``offset`` starts at byte ``position``. Both only rise."""

    __slots__ = ()
    entry, kinds, offsets = OFFSET_ENTRY, ("i", "i"), 0

    @property
    def full(self) -> bool:
        return len(self._arrays[0]) >= self.max_entries

    @property
    def last_offset(self) -> int:
        relative = self._arrays[0]
        return self.base_offset + relative[-1] if relative else self.base_offset

    def entries(self) -> list[tuple[int, int]]:
        base = self.base_offset
        return [(base + offset, position) for offset, position in zip(*self._arrays, strict=True)]

    def append(self, offset: int, position: int) -> None:
        relative, positions = self._arrays
        positions.append(position)  # the key last: a reader in another thread looks at the keys first
        relative.append(offset - self.base_offset)

    def lookup(self, offset: int) -> tuple[int, int]:
        """The largest entry at or below ``offset``; the segment's start when there is none."""
        relative, positions = self._arrays
        i = bisect_right(relative, offset - self.base_offset)
        return (self.base_offset + relative[i - 1], positions[i - 1]) if i else (self.base_offset, 0)

    def upper_bound(self, position: int) -> int | None:
        """Offset of the first entry at or after a byte position, None when the index ends before it."""
        relative, positions = self._arrays
        lo, hi = 0, len(relative)
        while lo < hi:
            mid = (lo + hi) // 2
            if positions[mid] < position:
                lo = mid + 1
            else:
                hi = mid
        return self.base_offset + relative[lo] if lo < len(relative) else None

    def decode(self, data: bytes, log_size: int) -> None:
        """Reads a file's entries. The file may end in preallocated zeros, as a killed Kafka leaves it."""
        both = array("i", entries_of(self.path, data, OFFSET_ENTRY.size))
        if _SWAP:
            both.byteswap()
        relative, positions = both[0::2], both[1::2]
        if relative and (relative[0] < 0 or positions[0] < 0 or positions[-1] >= log_size):
            raise IndexCorrupt(f"{self.path}: {len(relative)} entries do not fit a log of {log_size} bytes")
        if not (rises(relative) and rises(positions)):
            raise IndexCorrupt(f"{self.path}: offsets or positions do not rise")
        self._arrays = (relative, positions)
        # 0: `save` then cuts the preallocated zeros off and writes all entries again.
        self.written = len(relative) if len(data) == len(relative) * OFFSET_ENTRY.size else 0


class TimeIndex(_Index):
    """Entries (timestamp, offset): no batch up to the one with last offset ``offset`` is younger than ``timestamp``.
    Timestamps rise strictly, offsets do not fall; -1 is never entered."""

    __slots__ = ()
    entry, kinds, offsets = TIME_ENTRY, ("q", "i"), 1

    @property
    def full(self) -> bool:
        return len(self._arrays[0]) >= self.max_entries - 1  # the last slot is for the roll

    @property
    def last(self) -> tuple[int, int]:
        timestamps, relative = self._arrays
        return (timestamps[-1], self.base_offset + relative[-1]) if timestamps else (NO_TIMESTAMP, self.base_offset)

    def entries(self) -> list[tuple[int, int]]:
        base = self.base_offset
        return [(timestamp, base + offset) for timestamp, offset in zip(*self._arrays, strict=True)]

    def maybe_append(self, timestamp: int, offset: int) -> None:
        """Enters the pair unless the timestamp is not above the last one."""
        timestamps, relative = self._arrays
        if timestamp > (timestamps[-1] if timestamps else NO_TIMESTAMP):
            relative.append(offset - self.base_offset)
            timestamps.append(timestamp)

    def lookup(self, timestamp: int) -> tuple[int, int]:
        """The largest entry with a timestamp at or below the given one, else (-1, base offset)."""
        timestamps, relative = self._arrays
        i = bisect_right(timestamps, timestamp)
        return (timestamps[i - 1], self.base_offset + relative[i - 1]) if i else (NO_TIMESTAMP, self.base_offset)

    def decode(self, data: bytes, log_size: int) -> None:
        """Reads a file's entries, like :meth:`OffsetIndex.decode`."""
        content = entries_of(self.path, data, TIME_ENTRY.size)
        count = len(content) // TIME_ENTRY.size
        values = struct.unpack(">" + "qi" * count, content)
        timestamps, relative = array("q", values[0::2]), array("i", values[1::2])
        if count and (not log_size or timestamps[0] < 0 or relative[0] < 0):
            raise IndexCorrupt(f"{self.path}: {count} entries do not fit a log of {log_size} bytes")
        if not (rises(timestamps) and all(map(operator.le, relative, relative[1:]))):
            raise IndexCorrupt(f"{self.path}: timestamps or offsets fall")
        self._arrays = (timestamps, relative)
        # 0: as in OffsetIndex.decode.
        self.written = count if len(data) == len(content) else 0


def rises(values: Sequence[int]) -> bool:
    return all(map(operator.lt, values, values[1:]))


def entries_of(path: str, data: bytes, size: int) -> bytes:
    """The entries of an index file without preallocated zeros."""
    if len(data) % size:
        raise IndexCorrupt(f"{path}: {len(data)} bytes is not a number of {size}-byte entries")
    used = len(data.rstrip(b"\0"))
    # One entry may itself be all zeros: timestamp 0 at the base offset. Preallocated files have more than one entry.
    return data if len(data) == size else data[: -(-used // size) * size]


def save(disk: Disk, index: OffsetIndex | TimeIndex) -> None:
    """Makes the file contain exactly the index's entries."""
    entry = index.entry
    count = len(index)
    if index.written == count and not index.cut:
        return
    file = disk.open(index.path, create=index.written < 0)
    kept = max(index.written, 0)
    if file.size > kept * entry.size:
        file.truncate(kept * entry.size)  # bytes past our entries were preallocated, or truncated here
    if count > kept:
        file.pwrite(index.encode(kept)[: (count - kept) * entry.size], kept * entry.size)
    file.close()
    index.written, index.cut = count, False


def remove(disk: Disk, path: str) -> None:
    """Removes a file, if it exists."""
    try:
        disk.remove(path)
    except NotFound:
        return
