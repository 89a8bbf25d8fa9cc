"""The records of many batches walked side by side: the n-th record of every batch in one step of numpy.

For installations without the compiled walk (`minibroker_protocol.records.native`). Nothing is refused here: what is not
walked, or does not add up, is walked in Python, which says what is wrong.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]

FEWEST = 128
"""Below so many batches a step of numpy costs more than the walks one by one."""
_INT32_BYTES, _INT64_BYTES = 5, 10
_MOST_HEADERS = 16


class _Lanes:
    """Batches under way: `at` is the place of the next byte of each, `sound` whether it added up so far."""

    def __init__(self, raw: Array, at: Array) -> None:
        self._raw = raw
        self._last = len(raw) - 1
        self.at = at
        self.sound = np.ones(len(at), bool)

    def number(self, most: int = _INT32_BYTES) -> Array:
        """Zig-zag varints of at most `most` bytes."""
        byte = self._raw[np.minimum(self.at, self._last)]
        self.at += 1
        more = byte >= 0x80
        value = (byte & 0x7F).astype(np.uint64)
        lanes = np.flatnonzero(more)
        for shift in range(7, 7 * most, 7):
            if not lanes.size:
                break
            byte = self._raw[np.minimum(self.at[lanes], self._last)]
            self.at[lanes] += 1
            value[lanes] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
            lanes = lanes[byte >= 0x80]
        self.sound[lanes] = False
        if most == _INT32_BYTES:
            value &= np.uint64(0xFFFFFFFF)
        decoded: Array = (value >> np.uint64(1)).astype(np.int64) ^ -(value & np.uint64(1)).astype(np.int64)
        return decoded

    def skip(self) -> Array:
        """Lengths, and so many bytes after each, none for a negative one."""
        length = self.number()
        self.at += np.maximum(length, 0)
        return length

    def headers(self) -> None:
        remaining = self.number()
        self.sound &= (remaining >= 0) & (remaining <= _MOST_HEADERS)
        while (lanes := np.flatnonzero(self.sound & (remaining > 0))).size:
            some = _Lanes(self._raw, self.at[lanes])
            some.sound = some.skip() >= 0
            some.skip()
            self.at[lanes], self.sound[lanes] = some.at, some.sound
            remaining[lanes] -= 1


def latest_deltas(raw: Array, begins: Array, ends: Array, counts: Array, fewest: int = FEWEST) -> tuple[Array, Array]:
    """(whether all its records add up, the largest timestamp delta) of each batch.

    counts: its records, at least one, in the bytes begins..ends of `raw`. The batches that are still unread when fewer
        than `fewest` have more records count as not sound.
    """
    sound = np.zeros(len(begins), bool)
    latest = np.full(len(begins), np.iinfo(np.int64).min)
    order = np.argsort(counts, kind="stable")
    at, index = begins[order], 0
    while len(order) >= fewest:
        lanes = _Lanes(raw, at)
        size = lanes.number()
        stop = lanes.at + size
        lanes.sound &= (size >= 0) & (stop <= ends[order])
        lanes.at += 1  # attributes, unused
        latest[order] = np.maximum(latest[order], lanes.number(_INT64_BYTES))
        lanes.number()
        lanes.skip()
        lanes.skip()
        lanes.headers()
        index += 1
        keep = lanes.sound & (lanes.at == stop)
        over = counts[order] == index
        sound[order[keep & over & (stop == ends[order])]] = True
        keep &= ~over
        order, at = order[keep], lanes.at[keep]
    return sound, latest
