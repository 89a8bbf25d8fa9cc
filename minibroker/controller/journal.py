"""The controller's journal: one JSON object a line, replayed at start.

The part that KRaft's metadata log plays for Kafka. A torn last line (power lost while it was written) is dropped; the
change it held was never acknowledged.

Beside it stands how much of it was synced, with a checksum: the mark. It is written after each sync and before what was
synced is acknowledged, and not synced itself: a killed process leaves it exact, a power loss at worst older than the
journal. A journal that is shorter than its mark, or begins with other bytes, was cut or replaced.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from minibroker.kernel.outside_json import parse_json
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_storage.check_finding import ERROR, NOTICE
from minibroker_storage.disk import Disk, DiskFile, StorageError
from minibroker_storage.lost import COPIED, Lost

JOURNAL = "metadata.journal"
MARK = "metadata.journal.synced"

Entry = dict[str, Any]


def lost_of_journal(
    journal: bytes | None, mark: bytes | None, path: str = JOURNAL, *, copied: bool = False
) -> Lost | None:
    """What the journal lacks compared with its mark (None: no such file). An unreadable mark is ignored, as a power
    loss during its write may leave one.

    copied: it may be a copy of a running broker's, whose journal was copied before the mark: lines are then missing at
        its end, and none is torn.
    """
    said = None if mark is None else _read_mark(mark)
    if said is None:
        return None
    length, checksum = said
    there = None
    if journal is None:
        there = "there is no such file"
    elif len(journal) < length:
        there = f"it has {len(journal)}"
    elif zlib.crc32(journal[:length]) != checksum:
        there = "it begins with others"
    if there is None:
        return None
    lawful = copied and journal is not None and len(journal) < length and journal[-1:] in (b"", b"\n")
    lost = Lost(path + MARK.removeprefix(JOURNAL), f"{path} had {length} bytes that were acknowledged", there)
    return lost._replace(cause=COPIED, lawful=True) if lawful else lost


def _read_mark(data: bytes) -> tuple[int, int] | None:
    """(bytes, CRC-32 of them)."""
    length, _, checksum = data.decode("latin-1").strip().partition(" ")
    try:
        return int(length), int(checksum, 16)
    except ValueError:
        return None


def read_entry(line: bytes) -> Entry | None:
    """One line of the journal; None when it is no entry."""
    try:
        entry = parse_json(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) and "type" in entry else None


def topics_in(journal: bytes) -> set[str]:
    """The topics that exist as far as the journal can be read."""
    topics: set[str] = set()
    for entry in filter(None, map(read_entry, journal.splitlines())):
        if entry["type"] == "topic":
            topics.add(str(entry.get("name")))
        elif entry["type"] == "remove-topic":
            topics.discard(str(entry.get("name")))
    return topics


def configs_in(journal: bytes) -> tuple[dict[str, dict[str, str]], list[dict[str, str]]]:
    """(the configurations of each topic, those of the brokers), as far as the journal can be read."""
    topics: dict[str, dict[str, str]] = {}
    brokers: dict[str, dict[str, str]] = {}
    for entry in filter(None, map(read_entry, journal.splitlines())):
        if entry["type"] in ("topic", "topic-configs"):
            topics[str(entry.get("name"))] = entry.get("configs") or {}
        elif entry["type"] == "remove-topic":
            topics.pop(str(entry.get("name")), None)
        elif entry["type"] == "broker-configs":
            brokers[str(entry.get("node"))] = entry.get("configs") or {}
    return topics, [*brokers.values()]


def next_producer_id(journal: bytes) -> int:
    """Below it are all producer ids that were handed out, as far as the journal can be read."""
    entries = filter(None, map(read_entry, journal.splitlines()))
    return max((int(entry["next"]) for entry in entries if entry["type"] == "producer-ids"), default=0)


def wrong_in_journal(journal: bytes) -> Iterator[tuple[int, str, str]]:
    """(byte, problem, severity) of invalid lines; a torn last line is a notice."""
    position = 0
    for line in journal.splitlines(keepends=True):
        if not line.endswith(b"\n"):
            yield position, "the last line is torn; opening the directory drops it", NOTICE
            return
        if read_entry(line) is None:
            yield position, "expected a JSON object with a type", ERROR
        position += len(line)


def _refusal(error: StorageError) -> ApiError:
    return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{error.filename or JOURNAL}: {error.strerror}")


class MetadataJournal:
    """Append-only file of entries; each has a ``type``."""

    def __init__(self, disk: Disk, path: str = JOURNAL) -> None:
        self._disk = disk
        self._path = path
        self._file: DiskFile | None = None
        # An earlier process may have ended between creating the file and syncing its name.
        self._name_unsynced = True
        self._mark: DiskFile | None = None
        self._written = (0, 0)  # bytes, and the CRC-32 of them
        #: Whether entries were written that a power cut could take; never on a disk that keeps nothing anyway.
        self.unsynced = False
        #: Why the journal takes no more entries. What the system could not write it may drop, and the next sync then
        #: says that all is well; so entries after a failed sync may stand on nothing.
        self.failed: ApiError | None = None

    def lost(self, *, copied: bool = False) -> Lost | None:
        """Acknowledged entries that are lost; call it before `replay`.

        copied: as for `lost_of_journal`.
        """
        journal, mark = (
            self._disk.read_bytes(path) if self._disk.exists(path) else None for path in (self._path, self._mark_path)
        )
        return lost_of_journal(journal, mark, self._path, copied=copied)

    @property
    def path(self) -> str:
        """The file's path on its disk."""
        return self._path

    @property
    def _mark_path(self) -> str:
        return self._path + MARK.removeprefix(JOURNAL)

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
        self._written = whole, zlib.crc32(data[:whole])
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
        """Write one entry; raises ApiError(KAFKA_STORAGE_ERROR) and leaves no part of it when the disk refuses, or the
        journal has failed."""
        if self.failed is not None:
            raise self.failed
        line = json.dumps(entry, separators=(",", ":")).encode() + b"\n"
        try:
            file = self._open()
            before = file.size
        except StorageError as error:
            raise _refusal(error) from error
        try:
            file.append([line])
        except StorageError as error:
            refusal = _refusal(error)
            try:
                file.truncate(before)
            except StorageError:  # the next entry would follow half a line
                self.failed = refusal
            raise refusal from error
        length, checksum = self._written
        self._written = length + len(line), zlib.crc32(line, checksum)
        self.unsynced = self._disk.durable

    def sync(self) -> None:
        """Return once every entry written before survives a power cut; fit for another thread. Raises
        ApiError(KAFKA_STORAGE_ERROR), and then always: the journal has failed."""
        if self.failed is not None:
            raise self.failed
        if not self.unsynced or self._file is None:
            return
        self.unsynced = False
        synced = self._written
        try:
            self._file.sync()
            if self._name_unsynced:
                self._disk.sync_dir(self._path.rpartition("/")[0])
                self._name_unsynced = False
        except StorageError as error:
            self.unsynced = True
            self.failed = _refusal(error)
            raise self.failed from error
        with suppress(StorageError):  # then the mark is older than the journal, as after a power loss
            self._note(*synced)

    def _note(self, length: int, checksum: int) -> None:
        """Write the mark over the one before it, which is as long."""
        if self._mark is None:
            self._mark = self._disk.open(self._mark_path, create=True)
        text = f"{length:019d} {checksum:08x}\n".encode()
        if self._mark.size == len(text):
            self._mark.pwrite(text, 0)
        else:
            self._mark.truncate(0)
            self._mark.append([text])

    def close(self, *, keep: bool = True) -> None:
        """Without `keep` nothing more is written, because the directory is removed."""
        if self._file is not None:
            if keep and self.failed is None:
                self.sync()
            self._file.close()
            self._file = None
        if self._mark is not None:
            self._mark.close()
            self._mark = None

    def _open(self) -> DiskFile:
        if self._file is None:
            self._file = self._disk.open(self._path, create=True)
        return self._file
