"""The lowest and highest epoch of each producer, of millions of them: 18 bytes each once merged."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

PENDING = 65_536
"""Producers noted one by one before they are put together."""
_ROW = np.dtype([("producer_id", "i8"), ("low", "i2"), ("high", "i2")])
_Rows: TypeAlias = npt.NDArray[Any]


class Epochs:
    """Ranges of epochs by data directory and producer id. Can be pickled, and added up in any order."""

    def __init__(self, most_pending: int = PENDING) -> None:
        self._most_pending = most_pending
        self._settled: dict[str, _Rows] = {}
        self._pending: dict[tuple[str, int], tuple[int, int]] = {}

    def add(self, root: str, producer_id: int, epoch: int) -> None:
        low, high = self._pending.get((root, producer_id), (epoch, epoch))
        self._pending[root, producer_id] = min(low, epoch), max(high, epoch)
        if len(self._pending) > self._most_pending:
            self._settle()

    def merge(self, other: Epochs) -> None:
        self._settle()
        other._settle()
        for root, rows in other._settled.items():
            self._settled[root] = _together(self._settled.get(root), rows)

    def __len__(self) -> int:
        self._settle()
        return sum(len(rows) for rows in self._settled.values())

    def bumps(self) -> Counter[int]:
        """Number of epoch bumps -> producers that had as many."""
        self._settle()
        bumps: Counter[int] = Counter()
        for rows in self._settled.values():
            steps, counts = np.unique(rows["high"].astype(np.int32) - rows["low"], return_counts=True)
            bumps.update(dict(zip(steps.tolist(), counts.tolist(), strict=True)))
        return bumps

    def _settle(self) -> None:
        by_root: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
        for (root, producer_id), (low, high) in self._pending.items():
            by_root[root].append((producer_id, low, high))
        self._pending = {}
        for root, rows in by_root.items():
            self._settled[root] = _together(self._settled.get(root), np.array(rows, _ROW))

    def __getstate__(self) -> dict[str, Any]:
        self._settle()
        return self.__dict__


def _together(known: _Rows | None, more: _Rows) -> _Rows:
    """Merge rows to one for each producer, ordered by id."""
    rows = more if known is None else np.concatenate([known, more])
    rows = rows[np.argsort(rows["producer_id"], kind="stable")]
    if not len(rows):
        return rows
    firsts = np.flatnonzero(np.r_[True, np.diff(rows["producer_id"]) != 0])
    out = rows[firsts].copy()
    out["low"] = np.minimum.reduceat(rows["low"], firsts)
    out["high"] = np.maximum.reduceat(rows["high"], firsts)
    return out
