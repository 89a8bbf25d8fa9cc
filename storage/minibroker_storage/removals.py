"""Files that are removed after ``file.delete.delay.ms`` (Kafka renames them to ``.deleted`` at once)."""

from __future__ import annotations

from collections.abc import Sequence

from minibroker_storage import indexes
from minibroker_storage.disk import Disk
from minibroker_storage.recovery import DELETED_SUFFIX


class Removals:
    """Files renamed to ``.deleted``, waiting for their time."""

    __slots__ = ("_disk", "_waiting")

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._waiting: list[tuple[int, str]] = []

    def later(self, paths: Sequence[str], at_ms: int) -> None:
        """Renames the files that are there and removes them once ``due`` is called at or after ``at_ms``."""
        for path in paths:
            if self._disk.exists(path):
                self._disk.rename(path, path + DELETED_SUFFIX)
                self._waiting.append((at_ms, path + DELETED_SUFFIX))

    def due(self, now_ms: int) -> None:
        for at_ms, path in self._waiting:
            if at_ms <= now_ms:
                indexes.remove(self._disk, path)
        self._waiting = [(at_ms, path) for at_ms, path in self._waiting if at_ms > now_ms]

    def finish(self) -> None:
        """Removes them all now."""
        for _, path in self._waiting:
            indexes.remove(self._disk, path)
        self._waiting = []
