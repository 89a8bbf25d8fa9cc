"""Full garbage collections: none while a long request is in hand.

Its objects are freed by their reference counts. Until then a full collection goes through all of them, 0.1 µs each and
on whichever thread, and no other one can run.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Final

_NEVER: Final = 1 << 30
_lock: Final = Lock()
_held: list[tuple[int, int, int]] = []
"""The thresholds before, once for each that holds them."""


@contextmanager
def without_full_collections() -> Iterator[None]:
    """Young objects are still looked at, so garbage that is made in the meantime is found."""
    with _lock:
        _held.append(gc.get_threshold() if not _held else _held[0])
        gc.set_threshold(*_held[0][:2], _NEVER)
    try:
        yield
    finally:
        with _lock:
            before = _held.pop()
            if not _held:
                gc.set_threshold(*before)
