"""A disk that keeps everything in memory, up to a limit."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable, Sequence

from minibroker_storage.disk import Buffer, DirLock, DiskFull, Locked, NotFound, StorageError

Entry = bytearray


_COPIED_TWICE = 8192
"""Fewer bytes are sooner copied twice than by an unpacker that is looked up by their number."""


class MemoryFile:
    __slots__ = ("_disk", "path")

    def __init__(self, disk: MemoryDisk, path: str) -> None:
        self._disk = disk
        self.path = path

    @property
    def size(self) -> int:
        return len(self._disk.content(self.path))

    def pread(self, n: int, offset: int) -> bytes:
        content = self._disk.content(self.path)
        size = min(n, len(content) - offset)
        if size < _COPIED_TWICE:  # or there is nothing
            return bytes(content[offset : offset + size]) if size > 0 else b""
        # One copy by one call: a memoryview, which takes several calls, would keep another thread from appending.
        try:
            return bytes(struct.unpack_from(f"{size}s", content, offset)[0])
        except struct.error:  # truncated by another thread since
            return bytes(content[offset : offset + n])

    def append(self, buffers: Sequence[Buffer]) -> int:
        content = self._disk.content(self.path)
        position = len(content)
        self._disk.grow(sum(map(len, buffers)), self.path)
        for buffer in buffers:
            content += buffer
        self._disk.touch(self.path)
        return position

    def pwrite(self, data: Buffer, offset: int) -> None:
        content = self._disk.content(self.path)
        missing = offset + len(data) - len(content)
        self._disk.grow(max(0, missing), self.path)
        if missing > 0:
            content.extend(bytes(missing))
        content[offset : offset + len(data)] = data
        self._disk.touch(self.path)

    def truncate(self, size: int) -> None:
        content = self._disk.content(self.path)
        if size < len(content):
            self._disk.grow(size - len(content), self.path)
            del content[size:]
        elif size > len(content):
            self.pwrite(b"\0", size - 1)
        self._disk.touch(self.path)

    def sync(self) -> None:
        self._disk.content(self.path)

    def close(self) -> None:
        pass


class _MemoryLock:
    def __init__(self, disk: MemoryDisk, path: str) -> None:
        self._disk = disk
        self._path = path

    def release(self) -> None:
        self._disk.locks.pop(self._path, None)


class MemoryDisk:
    """Files in memory. ``max_bytes`` bounds the content of all files together; past it writes raise :class:`DiskFull`
    and leave the file as it was. ``now_ms`` stamps modification times."""

    durable = False
    root = ""

    def __init__(self, max_bytes: int = 1 << 40, now_ms: Callable[[], int] = lambda: 0) -> None:
        self.max_bytes = max_bytes
        self.used_bytes = 0
        self.locks: dict[str, str] = {}
        self.refused: int | None = None
        self._now_ms = now_ms
        self._files: dict[str, Entry] = {}
        self._modified: dict[str, int] = {}
        self._dirs: dict[str, set[str]] = {"": set()}

    def content(self, path: str) -> Entry:
        try:
            return self._files[path]
        except KeyError:
            raise NotFound(errno.ENOENT, "no such file", path) from None

    def refuse_writes(self, code: int | None) -> None:
        self.refused = code

    def grow(self, n: int, path: str) -> None:
        if self.refused is not None and n >= 0:
            raise StorageError.of(OSError(self.refused, os.strerror(self.refused)), path)
        if n > 0 and self.used_bytes + n > self.max_bytes:
            raise DiskFull(errno.ENOSPC, f"memory limit of {self.max_bytes} bytes reached", path)
        self.used_bytes += n

    def touch(self, path: str) -> None:
        self._modified[path] = self._now_ms()

    def open(self, path: str, *, create: bool = False) -> MemoryFile:
        if create and path not in self._files:
            self._put(path, Entry())
        return MemoryFile(self, path)

    def exists(self, path: str) -> bool:
        return path in self._files or path in self._dirs

    def list(self, path: str = "") -> list[str]:
        try:
            return sorted(self._dirs[path])
        except KeyError:
            raise NotFound(errno.ENOENT, "no such directory", path) from None

    def is_dir(self, path: str) -> bool:
        return path in self._dirs

    def make_dir(self, path: str) -> None:
        if path in self._dirs:
            return
        parent, _, name = path.rpartition("/")
        self.make_dir(parent)
        self._dirs[parent].add(name)
        self._dirs[path] = set()

    def rename(self, old: str, new: str) -> None:
        if old in self._files:
            content, modified = self._files[old], self._modified[old]
            self._forget(old)
            if new in self._files:
                self.remove(new)
            self._put(new, content)
            self._modified[new] = modified
        elif old in self._dirs:
            # As the system's rename, which replaces a file but no directory with content.
            if self.exists(new):
                raise StorageError(errno.ENOTEMPTY, "already there", new)
            self.make_dir(new)
            for name in self.list(old):
                self.rename(f"{old}/{name}", f"{new}/{name}")
            self.remove_tree(old)
        else:
            raise NotFound(errno.ENOENT, "no such file", old)

    def remove(self, path: str) -> None:
        self.used_bytes -= len(self.content(path))
        self._forget(path)

    def remove_tree(self, path: str) -> None:
        for name in self.list(path):
            child = f"{path}/{name}"
            if child in self._dirs:
                self.remove_tree(child)
            else:
                self.remove(child)
        del self._dirs[path]
        parent, _, name = path.rpartition("/")
        self._dirs[parent].discard(name)

    def size(self, path: str) -> int:
        return len(self.content(path))

    def modified_ms(self, path: str) -> int:
        self.content(path)
        return self._modified[path]

    def read_bytes(self, path: str) -> bytes:
        return bytes(self.content(path))

    def sync_dir(self, path: str) -> None:
        self.list(path)

    def write_atomic(self, path: str, data: Buffer, *, sync: bool = True) -> None:
        old = len(self._files.get(path, b""))
        self.grow(len(data) - old, path)
        self._put(path, Entry(data))

    def lock(self, path: str, holder: str) -> DirLock:
        if path in self.locks:
            raise Locked(path, self.locks[path])
        self.locks[path] = holder
        return _MemoryLock(self, path)

    def close(self) -> None:
        pass

    def _put(self, path: str, content: Entry) -> None:
        parent, _, name = path.rpartition("/")
        try:
            self._dirs[parent].add(name)
        except KeyError:
            raise NotFound(errno.ENOENT, "no such directory", parent) from None
        self._files[path] = content
        self.touch(path)

    def _forget(self, path: str) -> None:
        del self._files[path]
        del self._modified[path]
        parent, _, name = path.rpartition("/")
        self._dirs[parent].discard(name)
