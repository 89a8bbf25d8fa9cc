"""Postpones full garbage collections while a long request is processed.

Its objects are freed by their reference counts. Until then a full collection goes through all of them, 0.1 µs each and
on whichever thread, and no other one can run.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_NEVER: Final = 1 << 30
_usual: Final = [gc.get_threshold()]
_holders: Final[list[object]] = []


@contextmanager
def without_full_collections() -> Iterator[None]:
    """Young objects are still collected, so new garbage is found.

    Where brokers on two threads begin and end at the same time, one of them may see a full collection.
    """
    holder = object()
    _holders.append(holder)
    if gc.get_threshold()[2] != _NEVER:
        _usual[0] = gc.get_threshold()
        gc.set_threshold(*_usual[0][:2], _NEVER)
    try:
        yield
    finally:
        _holders.remove(holder)
        if not _holders:
            gc.set_threshold(*_usual[0])
