"""Groups whose coordinator a client has asked for, and which do not exist: its client may wait without an error.

A share consumer of librdkafka (2.16) does that where share groups are not served: it sends the same three lookups as a
consumer that is about to join, then nothing, and reports no error. The Java client (4.4) raises
UnsupportedVersionException.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

_KEPT: Final = 100


class UnusedLookups:
    """The last client ids and groups of such lookups. most: how many are kept."""

    def __init__(self, most: int = _KEPT) -> None:
        self._most = most
        self._last: dict[tuple[str | None, str], None] = {}

    def add(self, client_id: str | None, group: str) -> None:
        """A client looked up the coordinator of a group that does not exist."""
        self._last.pop((client_id, group), None)
        self._last[client_id, group] = None
        if len(self._last) > self._most:
            del self._last[next(iter(self._last))]

    def __iter__(self) -> Iterator[tuple[str | None, str]]:
        return iter(tuple(self._last))
