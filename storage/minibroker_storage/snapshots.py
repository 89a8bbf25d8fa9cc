"""The ``<offset>.snapshot`` files of one partition directory (Kafka's ProducerStateManager, its file half)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from minibroker_storage import indexes
from minibroker_storage.disk import Disk, StorageError, join, sync_file
from minibroker_storage.file_errors import MalformedFile
from minibroker_storage.producer_snapshot import REMEMBERED_SUFFIX, SNAPSHOT_SUFFIX
from minibroker_storage.producer_state import ProducerStateManager

Warn = Callable[[str], None]


class SnapshotFiles:
    """Snapshots by the offset they were taken at (exclusive end of what they reflect)."""

    __slots__ = ("_disk", "_unsynced", "dir", "offsets")

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self.dir = directory
        self._unsynced: set[int] = set()
        names = disk.list(directory)
        self.offsets = sorted(
            int(name[:20]) for name in names if name.endswith(SNAPSHOT_SUFFIX) and name[:20].isdecimal()
        )

    @property
    def latest(self) -> int:
        """Offset of the newest snapshot, -1 without one."""
        return self.offsets[-1] if self.offsets else -1

    def _path(self, offset: int, suffix: str = SNAPSHOT_SUFFIX) -> str:
        return join(self.dir, f"{offset:020d}{suffix}")

    def take(self, producers: ProducerStateManager, *, sync: bool = False) -> None:
        """Writes a snapshot, unless the newest one already has the state. With ``sync`` the content survives a power
        loss; the name does once the directory is synced."""
        offset = producers.map_end_offset
        paths = self._path(offset, REMEMBERED_SUFFIX), self._path(offset)
        # At offset 0 there is nothing to remember (ProducerStateManager.takeSnapshot).
        if offset > max(self.latest, 0):
            data = producers.snapshot()
            # The side file first: the snapshot is used without it, it never without the snapshot.
            for path, content in zip(paths, (producers.remembered(data), data), strict=True):
                if content is not None:
                    self._disk.write_atomic(path, content, sync=False)
            self.offsets.append(offset)
            self._unsynced.add(offset)
        if sync:
            for unsynced in self.unsynced(offset):
                self.sync(unsynced)

    def unsynced(self, end: int) -> list[int]:
        """Offsets, up to `end`, of those whose content a power loss may still take."""
        return [offset for offset in sorted(self._unsynced) if offset <= end]

    def sync(self, offset: int) -> None:
        """Makes the content of one survive a power loss. Another thread may remove it meanwhile, and take it again.
        Raises StorageError."""
        self._unsynced.discard(offset)
        try:
            for path in filter(self._disk.exists, (self._path(offset, REMEMBERED_SUFFIX), self._path(offset))):
                sync_file(self._disk, path)
        except StorageError:
            if offset in self.offsets:
                self._unsynced.add(offset)
                raise

    def load_latest(self, producers: ProducerStateManager, beginning: int, now_ms: int, warn: Warn) -> None:
        """Loads the newest readable snapshot into the manager; malformed ones are removed with a warning. Without any
        the manager is empty at ``beginning``."""
        for offset in reversed(tuple(self.offsets)):
            path = self._path(offset)
            try:
                side = self._path(offset, REMEMBERED_SUFFIX)
                remembered = self._disk.read_bytes(side) if self._disk.exists(side) else None
                producers.load_snapshot(self._disk.read_bytes(path), offset, now_ms, remembered=remembered, path=path)
                return
            except MalformedFile as error:
                warn(f"{error}; taking an older snapshot")
                self.remove(offset)
        producers.clear(beginning)

    def remove(self, offset: int) -> None:
        for suffix in (SNAPSHOT_SUFFIX, REMEMBERED_SUFFIX):
            indexes.remove(self._disk, self._path(offset, suffix))
        self._unsynced.discard(offset)
        self.offsets.remove(offset)

    def remove_where(self, doomed: Callable[[int], bool]) -> None:
        for offset in [known for known in self.offsets if doomed(known)]:
            self.remove(offset)

    def remove_strays(self, segment_bases: Iterable[int]) -> None:
        """Keeps the snapshots at segment bases, and the newest one when it is past the last base."""
        bases = set(segment_bases)
        last_base = max(bases, default=-1)
        newest = self.latest
        self.remove_where(lambda offset: offset not in bases and not (offset == newest and newest > last_base))
