"""The files of data directories, on a local disk or any file system that pyarrow or fsspec knows.

Listing happens once, on the driver. Files are read in parts of bounded size.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from minibroker.client.topics import Span
from minibroker.rules.rows import NONE, LogFacts
from minibroker_storage.checkpoints import LEADER_EPOCH
from minibroker_storage.lost import DIRECTORY
from minibroker_storage.memory_disk import MemoryDisk
from minibroker_storage.producer_snapshot import SNAPSHOT_SUFFIX

TXN_INDEX_SUFFIX = ".txnindex"
SMALL_SUFFIXES = (TXN_INDEX_SUFFIX, SNAPSHOT_SUFFIX, LEADER_EPOCH)
"""Files beside the logs that are read for their own rows end so; `.index` and `.timeindex` are read with their log."""
_INDEX_BYTES = 24 * 43_690
"""A megabyte of whole entries of either index."""
TASK_BYTES = 64 << 20
"""Small files are read together by one task, up to so many bytes."""


class NotReadable(Exception):
    """A given path or topic cannot be audited."""


class Part(NamedTuple):
    """Bytes [start, stop) of a file that one task reads; `cuts` are the offsets of snapshots within a log, `indexes`
    the sizes of its offset and time index (-1: none), `last`: the file ends at `stop`. Of a topic a part is offsets,
    with the `span` that they were planned as."""

    facts: LogFacts
    path: str
    start: int
    stop: int
    cuts: tuple[int, ...] = ()
    indexes: tuple[int, int] = (NONE, NONE)
    last: bool = True
    span: Span | None = None

    @property
    def size(self) -> int:
        return self.stop - self.start

    @property
    def is_log(self) -> bool:
        """Whether this is a log file, not one of the small files beside it."""
        return not self.path.endswith(SMALL_SUFFIXES)


class DirectoryEntry(NamedTuple):
    """A name in a directory."""

    name: str
    size: int
    is_dir: bool


class Files:
    """A tree of files under a path or URI. Can be pickled: each process opens its own file system."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.local = "://" not in uri or uri.startswith("file://")
        self._path = os.path.abspath(uri.removeprefix("file://"))  # here: workers have another working directory
        self._opened: tuple[Any, str] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def opened(self) -> tuple[Any, str]:
        """pyarrow's file system, and the path in it. Raises NotReadable for a URI that is of no known kind."""
        if self._opened is None:
            from pyarrow import ArrowInvalid, fs

            try:
                if self.local:
                    self._opened = fs.LocalFileSystem(), self._path
                else:
                    self._opened = fs.FileSystem.from_uri(self.uri)
            except ArrowInvalid:
                self._opened = self._other_file_system()
        return self._opened

    def _other_file_system(self) -> tuple[Any, str]:
        try:
            import fsspec
            from pyarrow.fs import FSSpecHandler, PyFileSystem

            other, path = fsspec.core.url_to_fs(self.uri)
        except ImportError as error:
            raise NotReadable(f"{self.uri}: a place of this kind needs the package {error.name}") from None
        except ValueError as error:
            raise NotReadable(f"{self.uri}: {error}") from None
        except OSError as error:
            raise NotReadable(f"{self.uri}: {error.strerror or error}") from None
        return PyFileSystem(FSSpecHandler(other)), path

    def _full(self, path: str) -> tuple[Any, str]:
        system, root = self.opened()
        return system, f"{root.rstrip('/')}/{path}" if path else root

    def list(self, path: str = "") -> list[DirectoryEntry]:
        """The names in a directory, sorted; NotReadable when there is none."""
        from pyarrow import fs

        system, full = self._full(path)
        try:
            infos = system.get_file_info(fs.FileSelector(full))
        except OSError as error:
            raise NotReadable(f"{self.uri}: {os.strerror(error.errno) if error.errno else error}") from None
        entries = [DirectoryEntry(info.base_name, info.size or 0, info.type == fs.FileType.Directory) for info in infos]
        return sorted(entries)

    def modified_ms(self, path: str) -> int | None:
        """When a file was last written; None where the file system does not say, or there is no such file."""
        system, full = self._full(path)
        mtime_ns: int | None = system.get_file_info(full).mtime_ns
        return None if mtime_ns is None else mtime_ns // 1_000_000

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        system, full = self._full(path)
        with system.open_input_file(full) as file:
            end = file.size() if stop is None else stop
            data: bytes = file.read_at(end - start, start)
            return data

    def read_index(self, path: str, size: int) -> bytes:
        """The used part of an index file of this size (-1: there is none), which may be allocated ahead with zeros."""
        data = bytearray()
        while len(data) < size:
            data += self.read(path, len(data), min(len(data) + _INDEX_BYTES, size))
            if not any(data[-_INDEX_BYTES // 2 :]):
                break
        return bytes(data)

    @contextmanager
    def view(self, part: Part) -> Iterator[tuple[memoryview, int]]:
        """(bytes, where in the file they begin): mapped where the file is local, else read."""
        if not self.local:
            yield memoryview(self.read(part.path, part.start, part.stop)), part.start
            return
        _, full = self._full(part.path)
        with open(full, "rb") as file:
            if not part.size:
                yield memoryview(b""), 0
                return
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            if hasattr(mapped, "madvise") and hasattr(mmap, "MADV_SEQUENTIAL"):
                mapped.madvise(mmap.MADV_SEQUENTIAL)
            whole = memoryview(mapped)
            try:
                yield whole, 0
            finally:
                # An exception in flight, such as an interrupt, holds views; the mapping closes with the last of them.
                with suppress(BufferError):
                    whole.release()
                    mapped.close()


class FilesReader:
    """The files below a data directory, as `minibroker_storage.lost.Reader`. Each directory is listed once."""

    def __init__(self, files: Files, root: str = "") -> None:
        self._files = files
        self._root = f"{root}/" if root else ""
        self._listed: dict[str, dict[str, int]] = {}

    def sizes(self, path: str) -> dict[str, int]:
        if path not in self._listed:
            try:
                self._listed[path] = self._list(path)
            except NotReadable:
                self._listed[path] = {}
        return self._listed[path]

    def present(self, path: str) -> dict[str, int]:
        """`sizes` of a directory that is known to be there. Raises NotReadable where it cannot be seen from here."""
        self._listed[path] = self._list(path)
        return self._listed[path]

    def _list(self, path: str) -> dict[str, int]:
        entries = self._files.list((self._root + path).rstrip("/"))
        return {entry.name: DIRECTORY if entry.is_dir else entry.size for entry in entries}

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        return self._files.read(self._root + path, start, stop)

    def modified_ms(self, path: str) -> int | None:
        return self._files.modified_ms(self._root + path)


class FileDisk(MemoryDisk):
    """A disk with a copy of some small files, for readers that take a `Disk`."""

    def __init__(self, reader: FilesReader, *paths: str) -> None:
        super().__init__()
        for path in paths:
            self.make_dir(path.rpartition("/")[0])
            self.write_atomic(path, reader.read(path))


def bins(parts: Sequence[Part], task_bytes: int = TASK_BYTES) -> list[list[Part]]:
    """Parts put together to tasks of about as many bytes, largest first."""
    groups: list[list[Part]] = []
    room = 0
    for part in sorted(parts, key=lambda file_part: -file_part.size):
        if room < part.size or not groups:
            groups.append([])
            room = task_bytes
        groups[-1].append(part)
        room -= part.size
    return groups
