"""Copies of the directory that Apache Kafka 4.3.1 wrote, into which a test plants one fault."""

from __future__ import annotations

import os
import struct
import tarfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

from minibroker.rules.rows import Finding, Log
from minibroker.rules.rules import judge_logs
from minibroker.rules.scan import RECORDS, scan_directory
from minibroker_protocol.records import (
    BatchHeader,
    Record,
    build_batch,
    decode_records,
    end_txn_marker,
    iter_batches,
    parse_header,
    rewrite_header,
)
from minibroker_protocol.records.batch import pack_header
from minibroker_storage.checkpoints import LEADER_EPOCH
from minibroker_storage.leader_epochs import LeaderEpochCache
from minibroker_storage.memory_disk import MemoryDisk

GOLDEN = Path(__file__).parents[2] / "golden" / "kafka-4.3.1"
OWN = GOLDEN.parent / "minibroker-0.1.0"


@cache
def golden_files(name: str) -> dict[str, bytes]:
    """The files of `clean`, `killed` or `metadata`, of a directory in `healthy`, of `own-NAME`, by minibroker, or of
    `stopped/NAME`, by Kafka 4.4.0."""
    files = {}
    folder, _, of = name.rpartition("/")
    if folder:
        return stopped_directories()[of]
    archives = (
        GOLDEN / "directory" / f"{name}.tar.gz",
        GOLDEN / "healthy" / f"{name}.tar.xz",
        OWN / f"{name.removeprefix('own-')}.tar.gz",
    )
    with tarfile.open(next(path for path in archives if path.exists())) as archive:
        for member in archive.getmembers():
            content = archive.extractfile(member) if member.isfile() else None
            if content is not None:
                files[member.name.removeprefix("./")] = content.read()
    return files


@cache
def stopped_directories() -> dict[str, dict[str, bytes]]:
    """By name what a Kafka leaves that is stopped between two writes, and nothing of which is wrong."""
    directories: dict[str, dict[str, bytes]] = {}
    with tarfile.open(GOLDEN.parent / "kafka-4.4.0" / "stopped.tar.xz") as archive:
        for member in archive.getmembers():
            folder, _, name = member.name.partition("/")
            content = archive.extractfile(member)
            assert content is not None
            directories.setdefault(folder, {})[name] = content.read()
    return directories


KEPT: dict[bytes, str] = {}
"""By content, a file that no test changes. A link to it costs a third of a new file."""


def write_files(files: dict[str, bytes], target: Path) -> Path:
    for folder in {name.rpartition("/")[0] for name in files}:
        (target / folder).mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = f"{target}/{name}"
        with suppress(FileNotFoundError):
            os.unlink(path)  # it may be a link
        if content in KEPT:
            os.link(KEPT[content], path)
        else:
            with open(path, "wb", buffering=0) as file:
                file.write(content)
    return target


def changed(batch: bytes, *, crc: bool = True, **fields: int) -> bytes:
    """A batch with other header fields and, unless told otherwise, the checksum that belongs to them."""
    data = bytearray(batch)
    header = parse_header(data)
    for name, value in fields.items():
        setattr(header, name, value)
    (rewrite_header if crc else pack_header)(data, 0, header)
    return bytes(data)


class Planted:
    """A copy of a golden directory; every change stays in memory."""

    def __init__(self, name: str = "clean") -> None:
        self.name = name
        self.files = dict(golden_files(name))

    def path(self, partition: str, suffix: str = ".log", number: int = -1) -> str:
        """The partition's newest file of a kind, or an older one by its number."""
        return sorted(name for name in self.files if name.startswith(partition + "/") and name.endswith(suffix))[number]

    def batches(self, partition: str, number: int = -1) -> list[bytes]:
        data = self.files[self.path(partition, number=number)]
        return [data[at : at + header.size] for at, header in iter_batches(data)]

    def write(self, partition: str, batches: list[bytes], number: int = -1) -> None:
        self.files[self.path(partition, number=number)] = b"".join(batches)

    def end(self, partition: str) -> int:
        return parse_header(self.batches(partition)[-1]).next_offset

    def find(self, partition: str, offset: int) -> bytes:
        return next(batch for batch in self.batches(partition) if parse_header(batch).base_offset == offset)

    def append(self, partition: str, batch: bytes, **fields: int) -> None:
        """A batch after the last one, with the offset that comes next and other header fields."""
        fields.setdefault("base_offset", self.end(partition))
        fields.setdefault("partition_leader_epoch", self.leader_epoch(partition))
        self.write(partition, [*self.batches(partition), changed(batch, crc=True, **fields)])

    def leader_epoch(self, partition: str) -> int:
        """The newest that its checkpoint has, as a leader that writes now would give a batch."""
        content = self.files.get(f"{partition}/{LEADER_EPOCH}", b"")
        return LeaderEpochCache.decode(content).latest_epoch or 0

    def without_small_files(self, partition: str) -> None:
        """As after a copy that left indexes and leader epochs out: a log that is cut breaks their promises too."""
        for name in [name for name in self.files if name.startswith(partition + "/")]:
            if name.endswith((".index", ".timeindex", LEADER_EPOCH)):
                del self.files[name]

    def change(self, partition: str, offset: int, change: Callable[[bytes], bytes], number: int = -1) -> None:
        """Replaces the batch that begins at `offset`."""
        batches = self.batches(partition, number)
        at = next(i for i, batch in enumerate(batches) if parse_header(batch).base_offset == offset)
        batches[at] = change(batches[at])
        self.write(partition, batches, number)

    def disk(self) -> MemoryDisk:
        disk = MemoryDisk()
        for name, content in self.files.items():
            disk.make_dir(name.rpartition("/")[0])
            disk.write_atomic(name, content)
        return disk

    def findings(self, *, depth: str = RECORDS, as_of_ms: int | None = None) -> list[Finding]:
        scanned = scan_directory(self.disk(), depth=depth)
        return judge_logs(scanned.logs, scanned.states, scanned.commits, scanned.members, as_of_ms=as_of_ms)


OFFSETS = "__consumer_offsets-0"
_NOBODY = {"producer_id": -1, "producer_epoch": -1, "base_sequence": -1}


def committed(planted: Planted, group: bytes, offset: int) -> bytes:
    """A batch in which the group commits another offset of codec-zstd."""
    for batch in planted.batches(OFFSETS):
        for record in decode_records(batch, 0, parse_header(batch)):
            if record.key is not None and record.key[:2] == b"\0\1" and group in record.key and b"zstd" in record.key:
                key, value = record.key, bytearray(record.value or b"")
    struct.pack_into(">q", value, 2, offset)
    return bytes(build_batch([Record(0, 1, key, bytes(value))], **_NOBODY))


def rewound(*offsets: int) -> tuple[Planted, int]:
    """A member of g-classic, which had committed 120, is back and commits these, one after the other; and the offset of
    the first of them."""
    planted = Planted()
    (joined,) = decode_records(planted.find(OFFSETS, 1), 0, parse_header(planted.find(OFFSETS, 1)))
    again = Record(0, 1, bytes(joined.key or b""), bytes(joined.value or b""))
    planted.append(OFFSETS, bytes(build_batch([again], **_NOBODY)))
    first = planted.end(OFFSETS)
    for offset in offsets:
        planted.append(OFFSETS, committed(planted, b"g-classic", offset))
    return planted, first


def flipped_marker(batch: bytes) -> bytes:
    """COMMIT as ABORT and the other way round."""
    data = bytearray(batch)
    kind = data.index(b"\x00\x00\x00", 61 + 5) + 3
    data[kind] ^= 1
    return changed(bytes(data))


def marker(**fields: int | bool) -> bytes:
    """A transaction marker of our own: COMMIT of coordinator epoch 0 unless told otherwise."""
    values: dict[str, int | bool] = {"commit": True, "coordinator_epoch": 0, "timestamp_ms": 0, **fields}
    return bytes(end_txn_marker(**values))  # type: ignore[arg-type]


def header_of(batch: bytes) -> BatchHeader:
    return parse_header(batch)


def at(finding: Finding) -> tuple[str, str, int, int]:
    return finding.rule, str(finding.log), finding.first_offset, finding.last_offset


def log(name: str) -> Log:
    topic, _, partition = name.rpartition("-")
    return Log("", topic, int(partition))
