"""The disk of the operating system: files opened on first use, and a bounded number of handles kept open."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import IO, Any

from minibroker_storage.disk import Buffer, Locked, StorageError, SyncFailed
from minibroker_storage.private_files import open_without_links

#: A quarter of the process's handles, and at most this many, may be files; the rest is for connections.
MAX_HANDLES = 2000
#: Buffers a single gathering write may take everywhere (POSIX asks for at least 16; Linux and macOS give 1024).
MAX_GATHER = 512

_READ_FLAGS = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOINHERIT", 0)
_OPEN_FLAGS = _READ_FLAGS | os.O_RDWR
_NO_LIMIT = 1 << 62


def soft_limit() -> int:
    """The number of handles that this process may have."""
    try:
        import resource
    except ImportError:  # Windows has no such limit, but the C runtime's _open gives at most 8192 handles
        return _NO_LIMIT
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _NO_LIMIT if soft == resource.RLIM_INFINITY else soft


def default_max_handles() -> int:
    """A quarter of the soft limit on open files, at most :data:`MAX_HANDLES`."""
    return max(16, min(MAX_HANDLES, soft_limit() // 4))


class _Errors:
    """Turns OSError into StorageError with the path relative to the disk's root."""

    __slots__ = ("_path",)

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, OSError) and not isinstance(error, StorageError):
            raise StorageError.of(error, self._path) from error


class _Handle:
    """An open file descriptor, closed after its last user: a call under way in another thread keeps its handle even if
    the cache has dropped it."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self) -> None:
        os.close(self.fd)


class OsFile:
    """A file of an :class:`OsDisk`, whose cache its handle comes from."""

    __slots__ = ("_disk", "_size", "handle", "path", "recent")

    def __init__(self, disk: OsDisk, path: str) -> None:
        self._disk = disk
        self._size = -1
        self.path = path
        self.handle: _Handle | None = None
        self.recent = False

    @property
    def size(self) -> int:
        if self._size < 0:
            self._size = self._disk.size(self.path)
        return self._size

    def pread(self, n: int, offset: int) -> bytes:
        handle = self.handle or self._disk.acquire(self)
        self.recent = True
        try:
            return self._disk.read_at(handle.fd, n, offset)
        except OSError as error:
            raise StorageError.of(error, self.path) from error

    def append(self, buffers: Sequence[Buffer]) -> int:
        position = self._size
        if position < 0:
            position = self.size
        handle = self.handle or self._disk.acquire(self)
        self.recent = True
        try:
            if len(buffers) == 1:
                end = position + self._disk.write_at(handle.fd, buffers[0], position)
            else:
                end = self._disk.gather_at(handle.fd, buffers, position)
        except OSError as error:
            # The bytes past _size are not part of the file for any reader; truncate them now if the disk allows it.
            with contextlib.suppress(OSError):
                os.ftruncate(handle.fd, position)
            raise StorageError.of(error, self.path) from error
        self._size = end
        return position

    def pwrite(self, data: Buffer, offset: int) -> None:
        size = self.size
        handle = self.handle or self._disk.acquire(self)
        with _Errors(self.path):
            self._size = max(size, offset + self._disk.write_at(handle.fd, data, offset))

    def truncate(self, size: int) -> None:
        handle = self.handle or self._disk.acquire(self)
        with _Errors(self.path):
            os.ftruncate(handle.fd, size)
        self._size = size

    def sync(self) -> None:
        if self._disk.durable:
            handle = self.handle or self._disk.acquire(self)
            _sync(handle.fd, self.path)

    def close(self) -> None:
        self._disk.release(self)


class OsDisk:
    """The tree below ``root``. With ``durable=False`` nothing is synced: the data will not outlive the process. With
    ``read_only`` files are opened for reading only, which also works without the permission to write.

    It keeps at most ``max_handles`` files open. When the process has no handle left, it closes files of its own, then a
    spare handle, and calls ``exhausted``, on any thread, so that others are released.

    ``positional`` says whether the platform's pread and pwrite are used; without them (Windows) a lock makes seek and
    read one step.
    """

    def __init__(
        self,
        root: str,
        *,
        durable: bool = True,
        read_only: bool = False,
        max_handles: int | None = None,
        positional: bool = hasattr(os, "pread"),
    ) -> None:
        self.root = os.path.abspath(root)
        self.durable = durable
        self.max_handles = max_handles if max_handles is not None else default_max_handles()
        self._flags = _READ_FLAGS if read_only else _OPEN_FLAGS
        #: Called when the process is out of handles; may be None.
        self.exhausted: Callable[[], None] | None = None
        self._refused: int | None = None
        self._spare: int | None = None
        self._lock = threading.RLock()
        self._seek_lock = threading.Lock()
        self._open: dict[str, OsFile] = {}
        self._gather = positional and hasattr(os, "pwritev")
        if positional:
            self.read_at = os.pread  # type: ignore[method-assign]
            self._write_some = os.pwrite  # type: ignore[method-assign]

    @property
    def refused(self) -> int | None:
        return self._refused

    def refuse_writes(self, code: int | None) -> None:
        self._refused = code
        if code is None:
            for name in ("write_at", "gather_at"):
                self.__dict__.pop(name, None)
            return

        def refuse(*_: Any, **__: Any) -> int:
            raise OSError(code, os.strerror(code))

        # Replaces the methods, so that a disk without a simulated failure has no check.
        self.write_at = refuse  # type: ignore[method-assign]
        self.gather_at = refuse  # type: ignore[method-assign]

    # -- bytes at a position -------------------------------------------------------------------------------------

    def read_at(self, fd: int, n: int, offset: int, /) -> bytes:
        with self._seek_lock:
            os.lseek(fd, offset, os.SEEK_SET)
            return os.read(fd, n)

    def write_at(self, fd: int, data: Buffer, offset: int) -> int:
        """Writes all of ``data`` and returns its length."""
        written = self._write_some(fd, data, offset)
        total = len(data)
        # The system may write less than was asked, and says so.
        if written == total:
            return total
        view = memoryview(data)
        while written < total:
            written += self._write_some(fd, view[written:], offset + written)
        return total

    def _write_some(self, fd: int, data: Buffer, offset: int, /) -> int:
        with self._seek_lock:
            os.lseek(fd, offset, os.SEEK_SET)
            return os.write(fd, data)

    def gather_at(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        """Writes the buffers in order and returns the position after the last."""
        if self._gather and 1 < len(buffers) <= MAX_GATHER:
            written = os.pwritev(fd, buffers, offset)
            for buffer in buffers:
                if written < len(buffer):
                    self.write_at(fd, memoryview(buffer)[written:], offset + written)
                    written = 0
                else:
                    written -= len(buffer)
                offset += len(buffer)
            return offset
        for buffer in buffers:
            offset += self.write_at(fd, buffer, offset)
        return offset

    # -- handles -------------------------------------------------------------------------------------------------

    @property
    def open_handles(self) -> int:
        return len(self._open)

    def acquire(self, file: OsFile) -> _Handle:
        """The file's handle; opens the file if it has none."""
        with self._lock:
            if file.handle is None:
                file.handle = _Handle(self._open_fd(file.path))
                self._open[file.path] = file
            return file.handle

    def _open_fd(self, path: str) -> int:
        while len(self._open) >= self.max_handles and self._shed():
            pass
        return self._os_open(path, self._flags)

    def _os_open(self, path: str, flags: int) -> int:
        """A file descriptor for ``path``. Connections may use handles that the cache counted on, so it closes one file
        after the other until the system has a descriptor."""
        full = self._full(path)
        while True:
            try:
                return os.open(full, flags, 0o644)
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE):
                    raise StorageError.of(error, path) from error
                with self._lock:
                    freed = self._shed() or self._give_spare()
                # Also where one was freed: the next connection would take it.
                if self.exhausted is not None:
                    self.exhausted()
                if not freed:
                    raise StorageError.of(error, path) from error

    def keep_spare(self) -> None:
        """Keep one spare handle for when the process runs out of them; does nothing if there is one."""
        with self._lock, contextlib.suppress(OSError):
            if self._spare is None:
                self._spare = os.open(self.root, os.O_RDONLY) if sys.platform != "win32" else None

    def _give_spare(self) -> bool:
        if self._spare is None:
            return False
        os.close(self._spare)
        self._spare = None
        return True

    def _shed(self) -> bool:
        """Closes one handle that was not used since the last round (second chance); False if there is none."""
        # The first round takes the mark off all that were used; the second finds one.
        for _ in range(2):
            for path, file in self._open.items():
                if not file.recent:
                    del self._open[path]
                    file.handle = None
                    return True
                file.recent = False
        return False

    def release(self, file: OsFile) -> None:
        with self._lock:
            if file.handle is not None:
                if self._open.get(file.path) is file:
                    del self._open[file.path]
                file.handle = None

    # Windows neither renames nor removes what is open.

    def _release_file(self, path: str) -> None:
        file = self._open.get(path)
        if file is not None:
            self.release(file)

    def _release_below(self, path: str) -> None:
        prefix = path + "/"
        with self._lock:
            below = [file for name, file in self._open.items() if name == path or name.startswith(prefix)]
        for file in below:
            self.release(file)

    # -- the tree ------------------------------------------------------------------------------------------------

    def _full(self, path: str) -> str:
        return os.path.join(self.root, *path.split("/")) if path else self.root

    def open(self, path: str, *, create: bool = False) -> OsFile:
        if create:
            os.close(self._os_open(path, _OPEN_FLAGS | os.O_CREAT))
        return OsFile(self, path)

    def exists(self, path: str) -> bool:
        return os.path.exists(self._full(path))

    def list(self, path: str = "") -> list[str]:
        with _Errors(path):
            return sorted(os.listdir(self._full(path)))

    def is_dir(self, path: str) -> bool:
        return os.path.isdir(self._full(path))

    def make_dir(self, path: str) -> None:
        with _Errors(path):
            os.makedirs(self._full(path), exist_ok=True)

    def rename(self, old: str, new: str) -> None:
        # Thousands of files may be open, and most of what is renamed is one file.
        release = self._release_below if self.is_dir(old) else self._release_file
        release(old)
        release(new)
        with _Errors(old):
            os.replace(self._full(old), self._full(new))

    def remove(self, path: str) -> None:
        self._release_file(path)
        with _Errors(path):
            os.remove(self._full(path))

    def remove_tree(self, path: str) -> None:
        self._release_below(path)
        with _Errors(path):
            shutil.rmtree(self._full(path))

    def size(self, path: str) -> int:
        with _Errors(path):
            return os.path.getsize(self._full(path))

    def modified_ms(self, path: str) -> int:
        with _Errors(path):
            return os.stat(self._full(path)).st_mtime_ns // 1_000_000

    def read_bytes(self, path: str) -> bytes:
        with _Errors(path), os.fdopen(self._os_open(path, _READ_FLAGS), "rb") as file:
            return file.read()

    def sync_dir(self, path: str) -> None:
        if not self.durable or sys.platform == "win32":  # Windows journals directories and cannot open them
            return
        fd = self._os_open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        except OSError as error:
            raise SyncFailed.of(error, path) from error
        finally:
            os.close(fd)

    def write_atomic(self, path: str, data: Buffer, *, sync: bool = True) -> None:
        temporary = path + ".tmp"
        fd = self._os_open(temporary, _OPEN_FLAGS | os.O_CREAT | os.O_TRUNC)
        with _Errors(path):
            try:
                self.write_at(fd, data, 0)
                if sync and self.durable:
                    _sync(fd, path)
            finally:
                os.close(fd)
            self.rename(temporary, path)
        if sync:
            self.sync_dir(path.rpartition("/")[0])

    def lock(self, path: str, holder: str) -> OsLock:
        return OsLock(self._full(path), path, holder)

    def close(self) -> None:
        with self._lock:
            for file in self._open.values():
                file.handle = None
            self._open.clear()
            self._give_spare()


class OsLock:
    """An exclusive lock on a file that the system gives up when its process ends, however it ends.

    The holder's text begins at the second byte; only the first is locked, because Windows cannot read a locked byte.
    `open_file` returns the file's descriptor; without it a file that may be there is opened, but no link is followed.
    """

    def __init__(self, full_path: str, path: str, holder: str, open_file: Callable[[str], int] | None = None) -> None:
        self._file: IO[bytes] | None = None
        with _Errors(path):
            file = os.fdopen((open_file or open_without_links)(full_path), "r+b", buffering=0)
        try:
            _lock_first_byte(file)
        except OSError:
            file.seek(1)
            locked_by = file.read(200).decode(errors="replace")
            file.close()
            raise Locked(path, locked_by) from None
        try:
            with _Errors(path):
                file.seek(0)
                file.truncate()
                file.write(b"\n" + holder.encode())
        except StorageError:  # no room
            file.close()
            raise
        self._file = file

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


if sys.platform == "win32":
    import msvcrt

    def _lock_first_byte(file: IO[bytes]) -> None:
        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
else:

    def _lock_first_byte(file: IO[bytes]) -> None:
        import fcntl

        # flock, not lockf: lockf locks per process and would allow one process to open the directory twice.
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)


def _sync(fd: int, path: str) -> None:
    try:
        # Data and length are what recovery needs; modification times are not.
        getattr(os, "fdatasync", os.fsync)(fd)
    except OSError as error:
        raise SyncFailed.of(error, path) from error
