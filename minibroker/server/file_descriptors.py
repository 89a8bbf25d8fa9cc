"""File handles of the process: the connection limit that follows from them, and what happens when they run out."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from minibroker_storage.os_disk import OsDisk, soft_limit

if TYPE_CHECKING:
    from minibroker.server.edge import Edge
    from minibroker_storage.disk import Disk

# For the program around an embedded broker, for what is opened and closed at once, and for connections that were
# accepted and not yet refused.
_SPARE = 64
_FEWEST_CONNECTIONS = 8
# To start, and for the connections, files and modules of a transaction and of a group; with 17 they fail half-way.
_TO_SERVE = 20
# A closed connection's handle is free only in a later turn of the loop.
_REFILL_SECONDS = 0.1


def connection_limit(configured: int, disks: Iterable[Disk]) -> int:
    """The most connections at one time: `configured`, or as many as leave the disks the files that they count on."""
    limit = soft_limit()
    files = sum(disk.max_handles for disk in disks if isinstance(disk, OsDisk))
    room = limit - files - _in_use() - min(_SPARE, limit // 8)
    return min(configured, max(room, _FEWEST_CONNECTIONS))


def too_few_handles() -> str:
    """Why nobody can be served: the process may open too few files; else an empty text."""
    few = soft_limit() - _in_use() < _TO_SERVE
    return f"{os.strerror(errno.EMFILE)}: see `ulimit -n`" if few else ""


def _in_use() -> int:
    try:
        return len(os.listdir("/dev/fd"))
    except OSError:
        return 32


class Exhaustion:
    """Closes the newest connection when a disk finds the process without handles, which `connection_limit` prevents
    unless the program around the broker took them."""

    def __init__(self, loop: asyncio.AbstractEventLoop, edge: Edge, disks: Iterable[Disk]) -> None:
        self._loop = loop
        self._edge = edge
        self._disks: list[OsDisk] = []
        self._called = False
        for disk in disks:
            self.watch(disk)

    def watch(self, disk: Disk) -> None:
        """Do so for this disk too; one in memory has no handles."""
        if isinstance(disk, OsDisk):
            self._disks.append(disk)
            disk.exhausted = self._exhausted
            disk.keep_spare()

    def _exhausted(self) -> None:
        # On any thread; one connection at a time, as its handle is not back before the loop has turned.
        if not self._called and not self._loop.is_closed():
            self._called = True
            self._loop.call_soon_threadsafe(self._shed)

    def _shed(self) -> None:
        self._edge.shed_newest()
        self._loop.call_later(_REFILL_SECONDS, self._refill)

    def _refill(self) -> None:
        self._called = False
        for disk in self._disks:
            disk.keep_spare()

    def close(self) -> None:
        for disk in self._disks:
            disk.exhausted = None
