"""`<base>.txnindex`: the aborted transactions of a segment (Kafka's TransactionIndex, AbortedTxn).

The index is kept in memory by its segment; the log appends `AbortedTxn.encode()` to the file.
"""

import struct
from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

from minibroker_storage.file_errors import MalformedFile
from minibroker_storage.producer_entry import CompletedTxn

ENTRY_SIZE = 34
VERSION = 0
_ENTRY = struct.Struct(">hqqqq")


class AbortedTxn(NamedTuple):
    """An aborted transaction: offsets inclusive, `last_offset` is the marker's.

    `last_stable_offset` is the last stable offset right after the marker: no transaction that ends later in the log can
    begin below it.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int

    @classmethod
    def of(cls, completed: CompletedTxn) -> "AbortedTxn":
        return cls(completed.producer_id, completed.first_offset, completed.last_offset, completed.last_stable_offset)

    def encode(self) -> bytes:
        return _ENTRY.pack(VERSION, self.producer_id, self.first_offset, self.last_offset, self.last_stable_offset)


class TxnIndex:
    """The aborted transactions whose markers lie in one segment, in marker order."""

    __slots__ = ("_entries", "_last_offsets", "base_offset")

    def __init__(self, base_offset: int = 0) -> None:
        self.base_offset = base_offset
        self._entries: list[AbortedTxn] = []
        self._last_offsets: list[int] = []

    @classmethod
    def decode(cls, data: bytes, base_offset: int, path: str = "txnindex") -> "TxnIndex":
        """Raises MalformedFile on a wrong version, a torn entry, an entry below the segment or one out of order."""
        index = cls(base_offset)
        whole = len(data) - len(data) % ENTRY_SIZE
        if whole != len(data):
            raise MalformedFile(path, whole, f"expected an entry of {ENTRY_SIZE} bytes, {len(data) - whole} are left")
        for position, row in zip(range(0, whole, ENTRY_SIZE), _ENTRY.iter_unpack(data), strict=True):
            version, producer_id, first, last, stable = row
            if version != VERSION:
                raise MalformedFile(path, position, f"expected entry version {VERSION}, got {version}")
            if last < base_offset or first > last:
                raise MalformedFile(
                    path, position, f"expected a transaction that ends at or after {base_offset}, got {first}-{last}"
                )
            if index._last_offsets and last <= index._last_offsets[-1]:
                raise MalformedFile(path, position, f"expected a marker after {index._last_offsets[-1]}, got {last}")
            index.append(AbortedTxn(producer_id, first, last, stable))
        return index

    def encode(self) -> bytes:
        return b"".join(entry.encode() for entry in self._entries)

    def append(self, entry: AbortedTxn) -> None:
        """Raises ValueError when the marker is not after the last one."""
        if self._last_offsets and entry.last_offset <= self._last_offsets[-1]:
            raise ValueError(f"marker {entry.last_offset} after {self._last_offsets[-1]} in the transaction index")
        self._entries.append(entry)
        self._last_offsets.append(entry.last_offset)

    def truncate_to(self, offset: int) -> bool:
        """Drop the entries whose marker is at or after `offset`; True when there were any."""
        keep = bisect_left(self._last_offsets, offset)
        if keep == len(self._entries):
            return False
        del self._entries[keep:], self._last_offsets[keep:]
        return True

    def collect(self, fetch_offset: int, upper_bound: int) -> tuple[list[AbortedTxn], bool]:
        """Aborted transactions that overlap [fetch_offset, upper_bound), and whether later segments need no search.

        Complete once an entry's last stable offset reaches the bound: nothing that ends later began below it.
        """
        entries = []
        for entry in self._entries[bisect_left(self._last_offsets, fetch_offset) :]:
            if entry.first_offset < upper_bound:
                entries.append(entry)
            if entry.last_stable_offset >= upper_bound:
                return entries, True
        return entries, False

    def __iter__(self) -> Iterator[AbortedTxn]:
        return iter(self._entries)

    def __reversed__(self) -> Iterator[AbortedTxn]:
        return reversed(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
