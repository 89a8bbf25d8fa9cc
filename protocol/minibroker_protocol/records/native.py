"""Runs of records of any layout, walked by compiled code where it is installed (`minibroker_protocol/_native.c`).

Where a record begins depends on the size of the one before. In Python walking one takes half a microsecond, in C some
fifteen nanoseconds. A wheel for a platform has the module; without it every record is walked in Python, with the same
result.
"""

from __future__ import annotations

from typing import Final

from .runs import Run

try:
    from minibroker_protocol import _native
except ImportError:
    _native = None  # type: ignore[assignment]

IS_NATIVE: Final = _native is not None
_AT_ONCE = 8192
"""Records of one run at most, which take about 0.2 ms."""
_SHORTEST = 24
"""A run of fewer records that ends before the limit is not worth the tries."""
_MOST = (1 << 63) - 1


def native_run(data: bytes, p: int, index: int, limit: int, *, low: int, high: int, alike: bool = True) -> Run | None:
    """The records from number `index`, at `p`, below number `limit` that add up; None for only a few.

    A run's timestamp deltas are all within low..high.

    alike: all or none of its records have null keys; otherwise `null_keys` says it of the first one only.
    """
    if _native is None or low > _MOST or high < -_MOST - 1:
        return None
    limit = min(limit, index + _AT_ONCE)
    fields = _native.run(data, p, index, limit, max(low, -_MOST - 1), min(high, _MOST), alike)
    records = fields[0]
    return Run(*fields) if records and (records >= _SHORTEST or records == limit - index) else None
