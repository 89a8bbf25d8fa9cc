"""The life of a data directory on a disk that fails at its n-th call and works again, or loses power there.

Afterwards the directory is opened again: what was synced is there, and a clean-shutdown file stands only beside a log
that was closed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random

import pytest
from logs import NOW, RULES, append, batch, batches

from minibroker_lab.simulation.faulty_disk import FaultyDisk, PowerLost
from minibroker_protocol.errors import ApiError
from minibroker_storage.config import LogConfig
from minibroker_storage.directory import DataDirectory
from minibroker_storage.disk import StorageError
from minibroker_storage.log import PartitionLog
from minibroker_storage.retention import delete_old_segments
from minibroker_storage.truncation import truncate_to

CONFIG = LogConfig(segment_bytes=420, index_interval_bytes=100, retention_ms=-1, file_delete_delay_ms=0)
BROKER_EPOCH = 9


@dataclass
class Life:
    """What was written, and what the log and the checkpoints said of it."""

    disk: FaultyDisk
    written: list[bytes] = field(default_factory=list)
    synced: int = 0
    start: int = 0
    checkpointed_start: int = 0
    #: `close` of the directory returned after that of its log.
    closed: bool = False

    def tried(self, call: Callable[[], object]) -> bool:
        try:
            call()
        except (ApiError, StorageError):
            return False
        return True

    def write(self, log: PartitionLog, count: int) -> None:
        for _ in range(count):
            if self.tried(lambda: append(log, batch(b"%05d" % len(self.written) * 5))):
                self.written.append(next(data for data, h in batches(log) if h.last_offset == log.log_end_offset - 1))

    def sync(self, log: PartitionLog) -> None:
        if self.tried(log.flush):
            self.synced = len(self.written)


def directory_on(disk: FaultyDisk) -> DataDirectory:
    return DataDirectory.open(disk, node_id=1, make_id=lambda: "A" * 22)


def log_in(directory: DataDirectory) -> PartitionLog:
    return directory.open_log("t", 0, config=CONFIG, rules=RULES, now_ms=NOW)


def live(life: Life) -> None:
    """Two starts, unless the first does not end cleanly."""
    start_and_stop(life)
    if life.closed:
        start_and_stop(life)


def start_and_stop(life: Life) -> None:
    life.closed = False
    directory = directory_on(life.disk)
    log = log_in(directory)
    life.write(log, 4)
    life.sync(log)
    directory.note([log])
    life.tried(directory.write_checkpoints)
    life.write(log, 3)
    if life.tried(lambda: log.delete_records(log.log_start_offset + 2)):
        life.start = log.log_start_offset
    directory.note([log])
    if life.tried(directory.write_checkpoints):
        life.checkpointed_start = life.start
    life.tried(lambda: delete_old_segments(log, NOW))
    cut = log.log_end_offset - 1
    if cut > life.start and life.tried(lambda: truncate_to(log, cut, now_ms=NOW)):
        del life.written[cut:]
        life.synced = min(life.synced, cut)
    life.write(log, 2)
    directory.note([log])
    life.tried(directory.write_high_watermarks)
    if life.tried(log.close):
        life.synced = len(life.written)
    life.closed = life.tried(lambda: directory.close([log], broker_epoch=BROKER_EPOCH)) and log.closed


WAYS = [(fault, then) for fault in ("fail_at", "lose_power_at") for then in ("power loss", "torn power loss", "kill")]


@pytest.mark.parametrize("way", WAYS, ids="-".join)
def test_what_a_directory_said_is_so(way: tuple[str, str]) -> None:
    """Every second call, each in one of the ways."""
    check_calls(way, range(1 + 2 * WAYS.index(way), 1000, 2 * len(WAYS)))


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS, ids="-".join)
def test_what_a_directory_said_is_so_at_every_call(way: tuple[str, str]) -> None:
    check_calls(way, range(1, 1000))


def check_calls(way: tuple[str, str], calls: Iterable[int]) -> None:
    fault, then = way
    for call in calls:
        life = Life(FaultyDisk())
        setattr(life.disk, fault, call)
        try:
            live(life)
        except (PowerLost, StorageError, ApiError):
            life.closed = False
        if life.disk.calls < call:
            break
        choices = Random(call) if then == "torn power loss" else None
        disk = life.disk.after_kill() if then == "kill" else life.disk.after_power_loss(choices)
        check(life, disk, killed=then == "kill", place=life.disk.history[call - 1])
    assert 100 < call < 1000


def check(life: Life, disk: FaultyDisk, *, killed: bool, place: str) -> None:
    directory = directory_on(disk)
    clean = directory.clean
    if life.closed:
        assert (clean, directory.previous_broker_epoch) == (True, BROKER_EPOCH), place
    if clean or killed:
        assert directory.lost([("t", 0)] if life.written else []) == [], place
    log = log_in(directory)
    found = [data for data, _ in batches(log)]
    safe = [data for offset, data in enumerate(life.written) if log.log_start_offset <= offset < life.synced]
    assert found[: len(safe)] == safe, place
    if clean or killed:  # a power loss may bring back files that retention renamed, in Kafka too
        assert life.checkpointed_start <= log.log_start_offset, place
    if clean:
        assert found == life.written[log.log_start_offset :], place
    log.close()
    directory.close([log])
    again = directory_on(disk)
    assert again.clean, place
    assert [data for data, _ in batches(log_in(again))] == found, place


@pytest.mark.parametrize("how", ["lose_power_at", "fail_at"])
def test_a_clean_end_has_its_checkpoints(how: str) -> None:
    """A directory that says so is not looked through again, so that what they say of its end must be there before."""
    marked, at = [], 1
    while not marked or not marked[-1]:
        disk = FaultyDisk()
        directory = directory_on(disk)
        log = directory.open_log("t", 0, config=CONFIG, rules=RULES, now_ms=NOW)
        append(log, batch(b"value"))
        log.flush()
        directory.note([log])
        directory.write_checkpoints()
        append(log, batch(b"another"))
        log.high_watermark = log.log_end_offset
        log.delete_records(1)
        log.close()
        setattr(disk, how, disk.calls + at)
        with contextlib.suppress(PowerLost, StorageError):
            directory.close([log], broker_epoch=BROKER_EPOCH)
        after = disk.after_power_loss() if how == "lose_power_at" else disk
        setattr(disk, how, 0)
        again = directory_on(after)
        marked.append(again.clean)
        if again.clean:
            key = ("t", 0)
            assert (again.recovery_points[key], again.high_watermarks[key], again.log_starts[key]) == (2, 2, 1), at
        at += 1
    assert len(marked) > 10
