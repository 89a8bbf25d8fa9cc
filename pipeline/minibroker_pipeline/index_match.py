"""Compares the offset and time index of a log file with its batches, a block at a time.

Gives the faults of `minibroker_storage.index_entries.IndexCheck` (a test compares them), also where a file is read in
parts: a part answers for the entries that point into it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from minibroker.rules import rows as r
from minibroker_pipeline.headers import Array, Block
from minibroker_storage.index_entries import EntryFault, IndexClaims, offset_claims, time_claims

_NOTHING = -1


class IndexMatch:
    """The indexes of one file, for its bytes [start, stop); `stop` None: to its end."""

    def __init__(self, offsets: IndexClaims, times: IndexClaims, start: int = 0, stop: int | None = None) -> None:
        self._offsets, self._times = offsets, times
        self._start, self._stop = start, stop
        self._positions, self._time_offsets = _array(offsets.keys), _array(times.keys)
        self._timestamps = _array(times.values)
        self._last_offsets = np.full(len(self._positions), _NOTHING, np.int64)
        self._largest_at = np.full(len(self._time_offsets), _NOTHING, np.int64)
        self._largest = _NOTHING
        self._seen: tuple[int, int] | None = None  # offsets of the part: first, and one past the last

    @classmethod
    def of(
        cls, stem: str, base: int, index: bytes, times: bytes, start: int = 0, stop: int | None = None
    ) -> IndexMatch:
        """From the files' bytes, empty for a missing file."""
        return cls(
            offset_claims(f"{stem}.index", base, index), time_claims(f"{stem}.timeindex", base, times), start, stop
        )

    def add(self, block: Block) -> None:
        """The next batches of the part."""
        ends = block.last_offsets
        first = int(block.headers["base_offset"][0])
        self._seen = (first if self._seen is None else self._seen[0], int(ends[-1]) + 1)
        low, high = np.searchsorted(self._positions, (block.positions[0], block.positions[-1] + 1))
        if high > low:
            at = np.searchsorted(block.positions, self._positions[low:high])
            hit = block.positions[at] == self._positions[low:high]
            self._last_offsets[low:high][hit] = ends[at[hit]]
        stamps = np.maximum.accumulate(block.headers["max_timestamp"].astype(np.int64))
        np.maximum(stamps, self._largest, out=stamps)
        low, high = np.searchsorted(self._time_offsets, (first, int(ends[-1]) + 1))
        if high > low:
            at = np.minimum(np.searchsorted(ends, self._time_offsets[low:high]), len(ends) - 1)
            hit = ends[at] == self._time_offsets[low:high]
            self._largest_at[low:high][hit] = stamps[at[hit]]
        self._largest = int(stamps[-1])

    def faults(self, *, whole: bool) -> Iterator[tuple[IndexClaims, EntryFault]]:
        """`whole`: the part was gone through to its end, so what nothing was found for is of no batch."""
        for claims in (self._offsets, self._times):
            if claims.wrong is not None and not self._start:
                yield claims, claims.wrong
        values = np.array(self._offsets.values, np.int64)
        yield from _differing(self._offsets, values, self._last_offsets, whole, self._own(self._positions))
        yield from _differing(self._times, self._timestamps, self._largest_at, whole, self._own_times())

    def row(self, log: r.Log, path: str) -> r.TimeClaims | None:
        """What the other parts of the file need; None where there are none."""
        if not self._start and self._stop is None:
            return None
        known = np.flatnonzero(self._largest_at != _NOTHING)
        index = self._times.path
        if not known.size:
            return r.TimeClaims(log, path, self._start, self._largest, index, r.NONE, r.NONE, r.NONE)
        number = int(known[0])
        offset, stamp = self._times.keys[number], self._times.values[number]
        return r.TimeClaims(log, path, self._start, self._largest, index, number * 12, stamp, offset)

    def _own(self, positions: Array) -> Array:
        own: Array = positions >= self._start
        return own if self._stop is None else own & (positions < self._stop)

    def _own_times(self) -> Array:
        own = np.ones(len(self._time_offsets), bool)
        if self._seen is None:
            return own if not self._start and self._stop is None else ~own
        if self._start:
            own &= self._time_offsets >= self._seen[0]
        if self._stop is not None:
            own &= self._time_offsets < self._seen[1]
        return own


def _array(values: Sequence[int]) -> Array:
    return np.array(values, np.int64)


def _differing(
    claims: IndexClaims, values: Array, there: Array, whole: bool, own: Array
) -> Iterator[tuple[IndexClaims, EntryFault]]:
    wrong = (there != _NOTHING) & (there != values)
    if whole:
        wrong |= own & (there == _NOTHING)
    for number in np.flatnonzero(wrong).tolist():
        position = int(there[number])
        yield claims, claims.fault(number, None if position == _NOTHING else position)
