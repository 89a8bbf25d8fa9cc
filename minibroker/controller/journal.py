"""What the controller must remember across restarts: one JSON object a line, replayed at start.

The part that KRaft's metadata log plays for Kafka. A torn last line (power lost while it was written) is dropped; the
change it held was never acknowledged.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from minibroker.outside_json import parse_json
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_storage.disk import Disk, DiskFile, StorageError

JOURNAL = "metadata.journal"
FORMAT = 1

Entry = dict[str, Any]


class MetadataJournal:
    """Append-only file of entries; each has a ``type``."""

    def __init__(self, disk: Disk, path: str = JOURNAL) -> None:
        self._disk = disk
        self._path = path
        self._file: DiskFile | None = None
        self._made = False
        #: Whether entries were written that a power cut could take; never on a disk that keeps nothing anyway.
        self.unsynced = False

    def replay(self) -> Iterator[Entry]:
        """Every whole entry in order; cuts off what a crash left: half a line at the end, or zeros in the place of a
        write that did not reach the disk, and what was written after it. Neither was synced, so neither was answered.
        Raises ApiError naming the line of a damaged one."""
        if not self._disk.exists(self._path):
            return
        file = self._open()
        data = file.pread(file.size, 0)
        whole = data.rfind(b"\n", 0, data.find(b"\0") if b"\0" in data else len(data)) + 1
        if whole < len(data):
            file.truncate(whole)
        for number, line in enumerate(data[:whole].splitlines(), start=1):
            try:
                entry = parse_json(line)
            except ValueError as error:
                raise ApiError(
                    ErrorCode.KAFKA_STORAGE_ERROR, f"{self._path} line {number}: expected a JSON object, {error}"
                ) from None
            if not isinstance(entry, dict) or "type" not in entry:
                raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self._path} line {number}: no entry type")
            yield entry

    def append(self, entry: Mapping[str, Any]) -> None:
        """Write one entry; raises ApiError(KAFKA_STORAGE_ERROR) and leaves no part of it when the disk refuses."""
        file = self._open()
        before = file.size
        try:
            file.append([json.dumps(entry, separators=(",", ":")).encode() + b"\n"])
        except StorageError as error:
            file.truncate(before)
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        self.unsynced = self._disk.durable

    def sync(self) -> None:
        """Return once every entry written before survives a power cut; fit for another thread. Raises
        ApiError(KAFKA_STORAGE_ERROR)."""
        if not self.unsynced or self._file is None:
            return
        self.unsynced = False
        try:
            self._file.sync()
            if self._made:
                self._disk.sync_dir(self._path.rpartition("/")[0])
                self._made = False
        except StorageError as error:
            self.unsynced = True
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error

    def close(self) -> None:
        if self._file is not None:
            self.sync()
            self._file.close()
            self._file = None

    def _open(self) -> DiskFile:
        if self._file is None:
            self._made = not self._disk.exists(self._path)
            self._file = self._disk.open(self._path, create=True)
        return self._file
