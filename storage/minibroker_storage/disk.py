"""The interface between the log and its storage.

Paths are relative to the disk's root and use ``/`` on every platform. Every failure is a :class:`StorageError`; a call
that failed may have had any part of its effect, as after a power loss.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Protocol, TypeAlias, runtime_checkable

Buffer: TypeAlias = bytes | bytearray | memoryview


class StorageError(OSError):
    """A disk call failed; ``filename`` is the path relative to the disk's root."""

    @classmethod
    def of(cls, error: OSError, path: str) -> StorageError:
        if error.errno in (errno.ENOSPC, errno.EDQUOT if hasattr(errno, "EDQUOT") else errno.ENOSPC):
            return DiskFull(error.errno, error.strerror or "no space left", path)
        if isinstance(error, FileNotFoundError):
            return NotFound(error.errno, error.strerror or "no such file", path)
        return cls(error.errno or 0, error.strerror or str(error), path)


class DiskFull(StorageError):
    """No room is left for a write. What was written before stands, and the write may be tried again."""


class SyncFailed(StorageError):
    """A sync failed, for whatever reason, ENOSPC among them.

    Linux reports a failed write-back once and may drop the data, so that the next sync of the file succeeds (fsync(2)):
    what was written before must not count as synced any more. Kafka halts the log directory on any error of a flush
    (LogDirFailureChannel).
    """

    @classmethod
    def of(cls, error: OSError, path: str) -> SyncFailed:
        return cls(error.errno or 0, error.strerror or str(error), path)


class NotFound(StorageError):
    """The file or directory does not exist."""


class DiskFile(Protocol):
    """One file, opened on first use. ``size`` counts the bytes of completed writes, so that readers of this object
    never see the bytes of a write that failed half-way."""

    path: str

    @property
    def size(self) -> int: ...

    def pread(self, n: int, offset: int) -> bytes:
        """At most ``n`` bytes from ``offset``; shorter only at the end of the file."""

    def append(self, buffers: Sequence[Buffer]) -> int:
        """Writes the buffers after the last byte and returns the position of the first."""

    def pwrite(self, data: Buffer, offset: int) -> None: ...

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Returns when every byte written so far survives a power loss. Raises SyncFailed."""

    def close(self) -> None:
        """Closes the handle. A later call opens the file again."""


class Disk(Protocol):
    """A directory tree. Parents of a created file must exist.

    ``durable``: whether data is kept after the process ends, so that syncing has a purpose."""

    @property
    def durable(self) -> bool: ...

    @property
    def root(self) -> str:
        """The directory's path, for log lines; empty for one in memory."""

    def open(self, path: str, *, create: bool = False) -> DiskFile:
        """The file is opened on first use; with ``create`` a missing one is created empty now."""

    def exists(self, path: str) -> bool: ...

    def list(self, path: str = "") -> list[str]:
        """Names in a directory, sorted. ``NotFound`` when there is none."""

    def is_dir(self, path: str) -> bool: ...

    def make_dir(self, path: str) -> None:
        """Creates the directory and its parents unless it exists."""

    def rename(self, old: str, new: str) -> None:
        """Moves a file or a directory; a file at ``new`` is replaced."""

    def remove(self, path: str) -> None: ...

    def remove_tree(self, path: str) -> None: ...

    def size(self, path: str) -> int: ...

    def modified_ms(self, path: str) -> int:
        """When the file's content last changed, ms since the epoch."""

    def read_bytes(self, path: str) -> bytes: ...

    def sync_dir(self, path: str) -> None:
        """Makes creations, renames and removals in a directory survive a power loss. Raises SyncFailed."""

    def write_atomic(self, path: str, data: Buffer, *, sync: bool = True) -> None:
        """Replaces a file's content whole, through ``<path>.tmp``; after a crash it has the old or the new content."""

    def lock(self, path: str, holder: str) -> DirLock:
        """Takes an exclusive lock file and writes ``holder`` into it; :class:`Locked` when another process has it."""

    def close(self) -> None:
        """Closes every handle."""


@runtime_checkable
class RefusingDisk(Protocol):
    """A disk that can simulate being full or broken."""

    @property
    def refused(self) -> int | None:
        """The errno every write fails with, None when they do not."""

    def refuse_writes(self, code: int | None) -> None:
        """Make every write fail with this errno, such as ENOSPC or EIO, until None is given. Existing data is kept and
        can still be read, renamed and removed."""


class DirLock(Protocol):
    def release(self) -> None: ...


class Locked(Exception):
    """The lock file is held; ``holder`` is what its owner wrote into it."""

    def __init__(self, path: str, holder: str) -> None:
        super().__init__(f"{path} is locked by {holder or 'another process'}")
        self.path = path
        self.holder = holder


def join(*parts: str) -> str:
    return "/".join(part for part in parts if part)


def sync_file(disk: Disk, path: str) -> None:
    """Makes a file's content survive a power loss; its name needs ``sync_dir``."""
    file = disk.open(path)
    file.sync()
    file.close()
