"""Any damage to any file of a data directory: opening and `check` end well or with one line that names a file."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from functools import cache

import pytest
from logs import NOW, RULES, TOPIC_ID, append, batch, end_transaction

from minibroker.rules.directory import check_directory
from minibroker_protocol.errors import ApiError
from minibroker_protocol.records import CorruptBatch, iter_batches
from minibroker_storage.config import LogConfig
from minibroker_storage.directory import CLEAN_FILE, DataDirectory, WrongDirectory
from minibroker_storage.disk import join
from minibroker_storage.file_errors import MalformedFile
from minibroker_storage.memory_disk import MemoryDisk

CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=100)
NUMBERS = (b"1" + b"0" * 25, b"%d" % (2**63 - 1), b"-1", b"4" * 5000)
BASES = (2**63 - 1, 10**20 - 1, 2**62, 2**31 + 12)
FLIPS = 2
"""Changes of one to three bytes, of each file."""


def opened(disk: MemoryDisk) -> DataDirectory:
    return DataDirectory.open(disk, node_id=1, make_id=lambda: "A" * 22)


@cache
def files() -> dict[str, bytes]:
    """A directory that was closed: three segments, commits, aborts, an open transaction, gzip, two epochs."""
    disk = MemoryDisk()
    directory = opened(disk)
    log = directory.open_log("t", 0, config=CONFIG, rules=RULES, now_ms=NOW, topic_id=TOPIC_ID)
    for i in range(6):
        append(log, batch(b"p%d" % i * 20, timestamp=NOW + i, pid=1, seq=i), leader_epoch=i // 3)
        append(log, batch(b"t%d" % i * 20, timestamp=NOW - i, pid=2, seq=i, txn=True), leader_epoch=i // 3)
        if i % 2:
            end_transaction(log, 2, commit=i == 3)
    append(log, batch(b"open" * 20, pid=3, txn=True), leader_epoch=1)
    append(log, batch(b"gz" * 20, pid=4, compression=1), leader_epoch=1)
    log.delete_records(1)
    log.close()
    directory.cleaner_offsets["t", 0] = 1
    directory.write_cleaner_offsets(sync=False)
    directory.close([log], broker_epoch=3)
    names = [*disk.list(), *(join("t-0", name) for name in disk.list("t-0"))]
    return {name: disk.read_bytes(name) for name in names if not disk.is_dir(name)}


def damaged(name: str, content: bytes) -> Iterator[bytes]:
    size = len(content)
    yield from (b"", bytes(size), content[: size // 2], content[:-1], content + b"x" * 13, b"\xff" * size)
    if not name.startswith("t-0/0"):  # a text
        for number in re.finditer(rb"\d+", content):
            yield from (content[: number.start()] + other + content[number.end() :] for other in NUMBERS)
    chance = random.Random(name)
    for _ in range(FLIPS if size else 0):
        changed = bytearray(content)
        for _ in range(chance.randint(1, 3)):
            changed[chance.randrange(size)] = chance.choice((0, 1, 127, 128, 255, chance.randrange(256)))
        yield bytes(changed)


def use(disk: MemoryDisk) -> None:
    """Open the directory and its log, and read all of it."""
    directory = opened(disk)
    try:
        directory.lost([("t", 0)])
        log = directory.open_log("t", 0, config=CONFIG, rules=RULES, now_ms=NOW, topic_id=TOPIC_ID)
        try:
            offset = log.log_start_offset
            while offset < log.log_end_offset:
                found = log.read(offset, 1 << 16, bound=log.log_end_offset)
                log.aborted_transactions(found)
                reached = [header.next_offset for _, header in iter_batches(found.records)]
                if not reached or reached[-1] <= offset:
                    break
                offset = reached[-1]
            log.offset_for_timestamp(NOW, log.log_end_offset)
            append(log, batch(b"new"))
            log.close()
        except CorruptBatch:  # of `iter_batches`: a clean log is served as it is, and its reader finds the damage
            log.abandon()
    finally:
        directory.release()


def expect_a_line(contents: dict[str, bytes], what: Callable[[MemoryDisk], object]) -> None:
    disk = MemoryDisk()
    disk.make_dir("t-0")
    for name, content in contents.items():
        disk.write_atomic(name, content)
    line = ""
    try:
        what(disk)
    except (ApiError, MalformedFile, WrongDirectory) as error:
        line = str(error)
    assert not line or any(name in line for name in contents), line
    assert "\n" not in line
    assert len(line) < 400


def both(contents: dict[str, bytes]) -> None:
    expect_a_line(contents, use)
    expect_a_line(contents, check_directory)
    expect_a_line({name: content for name, content in contents.items() if name != CLEAN_FILE}, use)


@pytest.mark.parametrize("name", [name for name in files() if name != ".lock"])
def test_damage(name: str) -> None:
    for content in damaged(name, files()[name]):
        both({**files(), name: content})


@pytest.mark.parametrize("base", BASES)
def test_an_offset_in_a_name_that_no_log_reaches(base: int) -> None:
    for name in [name for name in files() if name.startswith("t-0/0")]:
        other = f"t-0/{base:020d}{name[24:]}"
        both({other if known == name else known: data for known, data in files().items()})
    log = f"t-0/{base:020d}.log"
    disk = MemoryDisk()
    disk.make_dir("t-0")
    disk.write_atomic(log, b"")
    said = [finding.path for finding in check_directory(disk) if finding.severity == "error"]
    assert (log in said) == (base >= 2**62)
