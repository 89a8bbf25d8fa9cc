"""The entries of an offset or time index, and the faults they can have (Kafka's OffsetIndex and TimeIndex).

The caller reads the log and provides the actual value for each entry: `check` batch by batch, the audit a block of
batches at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from minibroker_storage.check_finding import OFFSET_INDEX, TIME_INDEX
from minibroker_storage.indexes import OFFSET_ENTRY, TIME_ENTRY, IndexCorrupt, entries_of, rises

INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"


class EntryFault(NamedTuple):
    """position: the byte of the entry.
    offset: the one in the entry, None if it cannot be read.
    """

    message: str
    position: int
    offset: int | None = None


class IndexClaims(NamedTuple):
    """The entries of a file. `.index`: at byte `keys[n]` of the log a batch begins whose last offset is `values[n]`.
    `.timeindex`: the batch whose last offset is `keys[n]` has the largest timestamp up to there, `values[n]`.

    `wrong`: the reason if the file itself is malformed; there are no entries then.
    """

    rule: str
    path: str
    keys: Sequence[int]
    values: Sequence[int]
    wrong: EntryFault | None = None

    def fault(self, number: int, there: int | None) -> EntryFault:
        """The fault of an entry for which the log has the value `there` (None: no such batch)."""
        key, value = self.keys[number], self.values[number]
        if self.rule == OFFSET_INDEX:
            reason = (
                f"no batch begins at byte {key}"
                if there is None
                else f"entry for offset {value}, the batch at byte {key} ends at {there}"
            )
            return EntryFault(reason, number * OFFSET_ENTRY.size, value)
        reason = (
            f"no batch ends at this offset (timestamp {value})"
            if there is None
            else f"entry says {value} is the largest timestamp up to here, it is {there}"
        )
        return EntryFault(reason, number * TIME_ENTRY.size, key)


def offset_claims(path: str, base_offset: int, data: bytes) -> IndexClaims:
    """The entries of an `.index` file's bytes, which may have preallocated zeros at the end."""
    try:
        pairs = list(OFFSET_ENTRY.iter_unpack(entries_of(path, data, OFFSET_ENTRY.size)))
    except IndexCorrupt as error:
        return IndexClaims(OFFSET_INDEX, path, (), (), EntryFault(_bare(error, path), len(data)))
    offsets = [base_offset + relative for relative, _ in pairs]
    positions = [position for _, position in pairs]
    before = (base_offset - 1, -1)
    if not (rises(offsets) and rises(positions)) or (pairs and (offsets[0] < base_offset or positions[0] < 0)):
        # One by one only now, to name the entry that breaks the rule.
        for number, entry in enumerate(zip(offsets, positions, strict=True)):
            if entry[0] <= before[0] or entry[1] <= before[1]:
                fault = EntryFault(
                    f"entry {entry} after {before}: entries must rise", number * OFFSET_ENTRY.size, entry[0]
                )
                return IndexClaims(OFFSET_INDEX, path, (), (), fault)
            before = entry
    return IndexClaims(OFFSET_INDEX, path, positions, offsets)


def time_claims(path: str, base_offset: int, data: bytes) -> IndexClaims:
    """Likewise of a `.timeindex` file's bytes."""
    try:
        pairs = list(TIME_ENTRY.iter_unpack(entries_of(path, data, TIME_ENTRY.size)))
    except IndexCorrupt as error:
        return IndexClaims(TIME_INDEX, path, (), (), EntryFault(_bare(error, path), len(data)))
    timestamps = [timestamp for timestamp, _ in pairs]
    offsets = [base_offset + relative for _, relative in pairs]
    before = (-1, base_offset - 1)
    for number, entry in enumerate(zip(timestamps, offsets, strict=True)):
        if entry[0] <= before[0] or entry[1] < before[1]:
            fault = EntryFault(
                f"entry {entry} after {before}: timestamps must rise", number * TIME_ENTRY.size, entry[1]
            )
            return IndexClaims(TIME_INDEX, path, (), (), fault)
        before = entry
    return IndexClaims(TIME_INDEX, path, offsets, timestamps)


def _bare(error: IndexCorrupt, path: str) -> str:
    return str(error).removeprefix(f"{path}: ")


class IndexCheck:
    """Compares the entries of a segment's two indexes with its log, a batch at a time."""

    def __init__(self, offsets: IndexClaims, times: IndexClaims) -> None:
        self._offsets, self._times = offsets, times
        self._by_position = dict(zip(offsets.keys, range(len(offsets.keys)), strict=True))
        self._by_offset: dict[int, list[int]] = {}
        for number, offset in enumerate(times.keys):
            self._by_offset.setdefault(offset, []).append(number)
        self._largest = -1
        self._faults = [(claims, claims.wrong) for claims in (offsets, times) if claims.wrong is not None]

    def batch(self, position: int, last_offset: int, max_timestamp: int) -> None:
        number = self._by_position.pop(position, None)
        if number is not None and self._offsets.values[number] != last_offset:
            self._faults.append((self._offsets, self._offsets.fault(number, last_offset)))
        self._largest = max(self._largest, max_timestamp)
        for number in self._by_offset.pop(last_offset, ()):
            if self._times.values[number] != self._largest:
                self._faults.append((self._times, self._times.fault(number, self._largest)))

    def faults(self, *, whole: bool) -> list[tuple[IndexClaims, EntryFault]]:
        """The faults found.

        whole: the log was read to its end, so entries that are left have no batch.
        """
        if whole:
            self._faults += [(self._offsets, self._offsets.fault(n, None)) for n in self._by_position.values()]
            unread = sorted(number for numbers in self._by_offset.values() for number in numbers)
            self._faults += [(self._times, self._times.fault(number, None)) for number in unread]
        return self._faults
