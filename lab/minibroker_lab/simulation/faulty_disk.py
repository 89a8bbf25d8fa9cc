"""A disk in memory that fails on demand and simulates power loss: unsynced writes may be lost, torn or out of order.

The n-th changing call raises StorageError after half its effect (``fail_at``), or :class:`PowerLost`
(``lose_power_at``); while ``full``, every write to a file raises, and a call for which ``refuses(what, path)`` has an
error raises that. Then :meth:`FaultyDisk.after_power_loss` returns the disk that a restarted machine finds. Names
survive only once their directory was synced, which is stricter than what most file systems promise.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from minibroker_storage.disk import Buffer, DirLock, NotFound, StorageError, SyncFailed


class PowerLost(Exception):
    """The simulated machine lost power during this call."""


class Choices(Protocol):
    """The source of seeded choices, such as a ``random.Random``."""

    def randrange(self, stop: int, /) -> int: ...


class _Inode:
    """A file's bytes, the synced ones, and the writes since then (offset and bytes, or a new length). A sync that fails
    drops those writes, which stay readable until power is lost, and the next sync says that all is well, as Linux does.
    """

    __slots__ = ("data", "pending", "safe")

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)
        self.safe = bytes(data)
        self.pending: list[tuple[int, bytes | None]] = []

    def write(self, offset: int, data: bytes) -> None:
        _write(self.data, offset, data)
        self.pending.append((offset, data))

    def truncate(self, size: int) -> None:
        _resize(self.data, size)
        self.pending.append((size, None))

    def sync(self) -> None:
        self.safe = bytes(self._synced())
        self.pending.clear()

    def forgets(self) -> bool:
        """Whether a sync would not bring the disk all that can be read."""
        return self._synced() != self.data

    def _synced(self) -> bytearray:
        """The bytes on the disk after a sync."""
        safe = bytearray(self.safe)
        for offset, written in self.pending:
            if written is None:
                _resize(safe, offset)
            else:
                _write(safe, offset, written)
        return safe

    def survivor(self, choices: Choices | None) -> bytes:
        """The bytes after a power loss: the synced ones and, with `choices`, some of the later writes."""
        data = bytearray(self.safe)
        if choices is None or not self.pending:
            return bytes(data)
        in_order = choices.randrange(2) == 0
        count = choices.randrange(len(self.pending) + 1)
        for i, (offset, written) in enumerate(self.pending):
            if i >= count if in_order else choices.randrange(2):
                if in_order and written and i == count:  # torn in the middle
                    _write(data, offset, written[: choices.randrange(len(written))])
                continue
            if written is None:
                _resize(data, offset)
            else:
                _write(data, offset, written)
        return bytes(data)


def _write(data: bytearray, offset: int, new: bytes) -> None:
    if len(data) < offset:
        data.extend(bytes(offset - len(data)))  # a hole reads as zeros
    data[offset : offset + len(new)] = new


def _resize(data: bytearray, size: int) -> None:
    del data[size:]
    data.extend(bytes(size - len(data)))


#: A path's file, or None for a directory.
Names = dict[str, _Inode | None]
#: ("link", path, file), ("unlink", path, None) or ("rename", path, new path).
NameChange = tuple[str, str, "_Inode | str | None"]


class FaultyFile:
    __slots__ = ("_disk", "_size", "path")

    def __init__(self, disk: FaultyDisk, path: str) -> None:
        self._disk = disk
        self._size = -1
        self.path = path

    @property
    def size(self) -> int:
        if self._size < 0:
            self._size = len(self._disk.inode(self.path).data)
        return self._size

    def pread(self, n: int, offset: int) -> bytes:
        return bytes(self._disk.inode(self.path).data[offset : min(offset + n, self.size)])

    def append(self, buffers: Sequence[Buffer]) -> int:
        position = self.size
        inode = self._disk.inode(self.path)
        data = b"".join(buffers)
        try:
            self._disk.call("append", self.path)
        except (StorageError, PowerLost):
            inode.write(position, data[: (len(data) + 1) // 2])
            raise
        inode.write(position, data)
        self._size = position + len(data)
        return position

    def pwrite(self, data: Buffer, offset: int) -> None:
        size = self.size
        inode = self._disk.inode(self.path)
        try:
            self._disk.call("pwrite", self.path)
        except (StorageError, PowerLost):
            inode.write(offset, bytes(data[: len(data) // 2]))
            raise
        inode.write(offset, bytes(data))
        self._size = max(size, offset + len(data))

    def truncate(self, size: int) -> None:
        inode = self._disk.inode(self.path)
        self._disk.call("truncate", self.path)
        inode.truncate(size)
        self._size = size

    def sync(self) -> None:
        inode = self._disk.inode(self.path)
        try:
            self._disk.call("sync", self.path)
        except NotFound:  # it could not be opened
            raise
        except StorageError as error:
            inode.pending.clear()
            raise SyncFailed.of(error, self.path) from error
        inode.sync()

    def close(self) -> None:
        pass


class _Lock:
    def release(self) -> None:
        pass


class FaultyDisk:
    """See the module. ``calls`` counts changing calls; ``history`` names them, for the message of a failed test."""

    durable = True
    root = ""

    def __init__(self, *, fail_at: int = 0, lose_power_at: int = 0) -> None:
        self.fail_at = fail_at
        self.lose_power_at = lose_power_at
        self.full = False
        #: The error of a call, None for one that is carried out.
        self.refuses: Callable[[str, str], StorageError | None] = lambda what, path: None
        self.calls = 0
        self.history: list[str] = []
        self._names: Names = {"": None}
        self._safe_names: Names = {"": None}
        self._changes: list[NameChange] = []

    @classmethod
    def of(cls, directory: Path, *, fail_at: int = 0, lose_power_at: int = 0) -> FaultyDisk:
        """A disk with the files of a directory, all synced."""
        made = cls(fail_at=fail_at, lose_power_at=lose_power_at)
        for path in sorted(directory.rglob("*")):
            name = path.relative_to(directory).as_posix()
            made._names[name] = None if path.is_dir() else _Inode(path.read_bytes())
        made._safe_names = dict(made._names)
        return made

    # -- faults --------------------------------------------------------------------------------------------------

    def call(self, what: str, path: str) -> None:
        """Count a call that changes the disk, and make it fail if it is the chosen one."""
        self.calls += 1
        self.history.append(f"{self.calls} {what} {path}")
        refusal = self.refuses(what, path)
        if refusal is not None:
            raise refusal
        if self.full and what in ("append", "pwrite"):
            raise StorageError(errno.ENOSPC, "no space left", path)
        if self.calls == self.fail_at:
            raise StorageError(errno.EIO, f"{what} failed as told", path)
        if self.lose_power_at and self.calls >= self.lose_power_at:
            raise PowerLost(f"call {self.calls}, {what} {path}")

    def after_power_loss(self, choices: Choices | None = None) -> FaultyDisk:
        """The disk after a restart. Without ``choices`` exactly what was synced; with them some of the rest as well."""
        names = dict(self._safe_names)
        count = choices.randrange(len(self._changes) + 1) if choices is not None else 0
        for change in self._changes[:count]:
            _apply(names, change)
        disk = FaultyDisk()
        survivors: dict[int, _Inode] = {}
        for path, inode in names.items():
            if any(parent not in names for parent in _parents(path)):
                continue  # a name is lost with its directory
            if inode is None:
                disk._names[path] = None
            else:
                disk._names[path] = survivors.setdefault(id(inode), _Inode(inode.survivor(choices)))
        disk._safe_names = dict(disk._names)
        return disk

    def after_kill(self) -> FaultyDisk:
        """The disk after a kill of the process, which takes nothing that was written."""
        disk = FaultyDisk()
        disk._names = {path: inode and _Inode(bytes(inode.data)) for path, inode in self._names.items()}
        disk._safe_names = dict(disk._names)
        return disk

    def unsynced_cuts(self) -> list[str]:
        """Files that were truncated since their last sync."""
        inodes = ((path, inode) for path, inode in self._names.items() if inode is not None)
        return [path for path, inode in inodes if any(data is None for _, data in inode.pending)]

    def forgotten_writes(self) -> list[str]:
        """Files that lack on the disk what a failed sync dropped, and that nobody wrote again."""
        return [path for path, inode in self._names.items() if inode is not None and inode.forgets()]

    # -- names ---------------------------------------------------------------------------------------------------

    def inode(self, path: str) -> _Inode:
        inode = self._names.get(path)
        if inode is None:
            raise NotFound(errno.ENOENT, "no such file", path)
        return inode

    def _change(self, change: NameChange) -> None:
        _apply(self._names, change)
        self._changes.append(change)

    def _need_dir(self, path: str) -> None:
        if self._names.get(path, path) is not None:
            raise NotFound(errno.ENOENT, "no such directory", path)

    def open(self, path: str, *, create: bool = False) -> FaultyFile:
        if create and path not in self._names:
            self._need_dir(path.rpartition("/")[0])
            try:
                self.call("create", path)
            except StorageError:
                self._change(("link", path, _Inode()))
                raise
            self._change(("link", path, _Inode()))
        return FaultyFile(self, path)

    def exists(self, path: str) -> bool:
        return path in self._names

    def list(self, path: str = "") -> list[str]:
        self._need_dir(path)
        return sorted(name.rpartition("/")[2] for name in self._names if name and name.rpartition("/")[0] == path)

    def is_dir(self, path: str) -> bool:
        return self._names.get(path, path) is None

    def make_dir(self, path: str) -> None:
        if path in self._names:
            return
        self.make_dir(path.rpartition("/")[0])
        self.call("make_dir", path)
        self._change(("link", path, None))

    def rename(self, old: str, new: str) -> None:
        if old not in self._names:
            raise NotFound(errno.ENOENT, "no such file", old)
        self.call("rename", f"{old} to {new}")
        self._change(("rename", old, new))

    def remove(self, path: str) -> None:
        self.inode(path)
        self.call("remove", path)
        self._change(("unlink", path, None))

    def remove_tree(self, path: str) -> None:
        for name in self.list(path):
            child = f"{path}/{name}"
            if self.is_dir(child):
                self.remove_tree(child)
            else:
                self.remove(child)
        self.call("remove_tree", path)
        self._change(("unlink", path, None))

    def size(self, path: str) -> int:
        return len(self.inode(path).data)

    def modified_ms(self, path: str) -> int:
        self.inode(path)
        return 0

    def read_bytes(self, path: str) -> bytes:
        return bytes(self.inode(path).data)

    def sync_dir(self, path: str) -> None:
        self._need_dir(path)
        try:
            self.call("sync_dir", path)
        except StorageError as error:
            raise SyncFailed.of(error, path) from error
        later: list[NameChange] = []
        for change in self._changes:
            if change[1].rpartition("/")[0] == path:
                _apply(self._safe_names, change)
            else:
                later.append(change)
        self._changes = later

    def write_atomic(self, path: str, data: Buffer, *, sync: bool = True) -> None:
        temporary = self.open(path + ".tmp", create=True)
        temporary.truncate(0)
        temporary.append([data])
        if sync:
            temporary.sync()
        self.rename(path + ".tmp", path)
        if sync:
            self.sync_dir(path.rpartition("/")[0])

    def lock(self, path: str, holder: str) -> DirLock:
        self.open(path, create=True)
        return _Lock()

    def close(self) -> None:
        pass


def _apply(names: Names, change: NameChange) -> None:
    what, path, target = change
    if what == "unlink":
        for name in [name for name in names if name == path or name.startswith(path + "/")]:
            del names[name]
    elif what == "rename":
        assert isinstance(target, str)
        for name in [name for name in names if name == path or name.startswith(path + "/")]:
            names[target + name[len(path) :]] = names.pop(name)
    else:
        assert not isinstance(target, str)
        names[path] = target


def _parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:i]) for i in range(1, len(parts))]
