"""A flush on its own thread, overtaken at each of its disk calls by everything that may happen to the log meanwhile.

What the log says is synced must be there after a power loss, and the files of a deleted log stay away.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from logs import NOW, append, batch, batches, end_transaction, open_log, values

from minibroker_lab.simulation.faulty_disk import FaultyDisk
from minibroker_protocol.errors import ApiError
from minibroker_storage.compaction import compact
from minibroker_storage.config import LogConfig
from minibroker_storage.disk import NotFound
from minibroker_storage.log import PartitionLog
from minibroker_storage.retention import delete_old_segments
from minibroker_storage.truncation import rebuild_producers_from_log, truncate_fully_and_start_at, truncate_to

CONFIG = LogConfig(segment_bytes=420, index_interval_bytes=100, retention_ms=-1, file_delete_delay_ms=0)
COMPACTED = LogConfig(segment_bytes=420, cleanup_policy=frozenset({"compact", "delete"}), file_delete_delay_ms=0)


class OvertakenDisk(FaultyDisk):
    """Before its first sync from call number `at` on, `event` happens, once: a flush writes index entries under a lock,
    for which another thread waits."""

    def __init__(self) -> None:
        super().__init__()
        self.at = 0
        self.event: Callable[[], None] = lambda: None

    def call(self, what: str, path: str) -> None:
        if self.at and self.calls + 1 >= self.at and what.startswith("sync"):
            self.at = 0
            self.event()
        super().call(what, path)


def write(log: PartitionLog, word: str, count: int) -> None:
    for number in range(count):
        append(log, batch(b"%s %04d" % (word.encode(), number) * 5))


def _append(log: PartitionLog) -> None:
    write(log, "more", 1)


def _roll(log: PartitionLog) -> None:
    write(log, "more", 7)


def _epoch(log: PartitionLog) -> None:
    append(log, batch(b"of a new leader"), leader_epoch=1)


def _transaction(log: PartitionLog) -> None:
    append(log, batch(b"in a transaction", pid=2, txn=True))
    end_transaction(log, 2, commit=False)


def _truncate(log: PartitionLog) -> None:
    truncate_to(log, 5, now_ms=NOW)


def _replace(log: PartitionLog) -> None:
    truncate_to(log, 2, now_ms=NOW)
    write(log, "else", 12)


def _empty(log: PartitionLog) -> None:
    truncate_fully_and_start_at(log, 3, now_ms=NOW)
    write(log, "else", 9)


def _retire(log: PartitionLog) -> None:
    log.delete_records(8)
    delete_old_segments(log, NOW)


def _compact(log: PartitionLog) -> None:
    compact(log, None, NOW, force=True)


def _rebuild(log: PartitionLog) -> None:
    rebuild_producers_from_log(log, now_ms=NOW)


def _flush(log: PartitionLog) -> None:
    log.flush()


def _close(log: PartitionLog) -> None:
    log.close()


def _kill(log: PartitionLog) -> None:
    log.abandon()


EVENTS = [
    _append, _roll, _epoch, _transaction, _truncate, _replace, _empty, _retire, _compact, _rebuild, _flush, _close,
    _kill,
]  # fmt: skip


def filled(disk: OvertakenDisk, config: LogConfig) -> PartitionLog:
    """Ten batches in several segments, the first three of which are synced."""
    log = open_log(disk, config=config)
    write(log, "a", 3)
    log.flush()
    write(log, "b", 7)
    assert len(log.segments) >= 3
    return log


def flush_overtaken(config: LogConfig, event: Callable[[PartitionLog], None], call: int) -> tuple[PartitionLog, bool]:
    """The log after its flush, before whose disk call number `call` the event happened, if there was one."""
    disk = OvertakenDisk()
    log = filled(disk, config)
    disk.at, disk.event = disk.calls + call, lambda: event(log)
    try:
        log.flush()
    except ApiError as error:
        if not isinstance(error.__cause__, NotFound):  # a file that was moved: the broker flushes again
            raise
    happened, disk.at = disk.at == 0, 0
    return log, happened


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.__name__.strip("_"))
@pytest.mark.parametrize("config", [CONFIG, COMPACTED], ids=["delete", "compact"])
def test_what_is_said_to_be_synced_is_there_after_a_power_loss(
    config: LogConfig, event: Callable[[PartitionLog], None]
) -> None:
    if event is _compact and not config.compacts:
        return
    for call in range(1, 100):
        log, happened = flush_overtaken(config, event, call)
        if not happened:
            break
        assert isinstance(log.disk, OvertakenDisk)
        synced = log.recovery_point
        expected = [data for data, header in batches(log) if header.last_offset < synced]
        after = open_log(
            log.disk.after_power_loss(),
            config=config,
            clean=False,
            recovery_point=synced,
            log_start_offset=log.log_start_offset,
            high_watermark=log.high_watermark,
        )
        place = f"before call {call}, {log.disk.history[-1]}"
        assert [data for data, _ in batches(after)][: len(expected)] == expected, place
        assert after.log_end_offset >= synced, place
        if event not in (_close, _kill):
            log.flush()
            assert log.recovery_point == log.log_end_offset, place
    assert 5 < call < 100


@pytest.mark.parametrize("event", [_kill, _close], ids=["kill", "close"])
def test_after_the_end_of_a_log_its_flush_ends_with_the_file_it_is_at(event: Callable[[PartitionLog], None]) -> None:
    for call in range(1, 100):
        disk = OvertakenDisk()
        log = filled(disk, CONFIG)
        ends: list[int] = []

        def end(log: PartitionLog = log, disk: OvertakenDisk = disk, ends: list[int] = ends) -> None:
            event(log)
            ends.append(disk.calls)

        disk.at, disk.event = disk.calls + call, end
        log.flush()
        if not ends:
            break
        late = {line.split()[2].partition(".")[0] for line in disk.history[ends[0] :]}
        assert len(late) == 1, disk.history[ends[0] :]
    assert 5 < call < 100


@pytest.mark.parametrize("config", [CONFIG, COMPACTED], ids=["delete", "compact"])
def test_a_deleted_log_is_not_made_again(config: LogConfig) -> None:
    def delete(log: PartitionLog) -> None:
        log.rename("t-0.5-delete")
        log.delete()

    for call in range(1, 100):
        log, happened = flush_overtaken(config, delete, call)
        if not happened:
            break
        assert [name for name in log.disk.list() if name.startswith("t-0")] == []
    assert 5 < call < 100


def test_the_segment_that_replaces_others_has_its_name_for_good_before_they_lose_theirs() -> None:
    """Not every file system keeps the order of renames that were not synced, as `FaultyDisk` does."""
    disk = FaultyDisk()
    log = open_log(disk, config=COMPACTED)
    write(log, "value", 12)
    before = len(disk.history)
    _compact(log)
    steps = [line.partition(" ")[2] for line in disk.history[before:]]
    gone = next(at for at, step in enumerate(steps) if step.startswith("rename") and step.endswith(".deleted"))
    swapped = max(at for at, step in enumerate(steps[:gone]) if step.endswith(".swap"))
    assert "sync_dir t-0" in steps[swapped:gone]


@pytest.mark.parametrize("seed", range(12))
def test_what_was_cut_off_does_not_stand_behind_what_was_written_since(seed: int) -> None:
    """Of what is not synced, a power loss leaves anything; a removed segment is synced away before others follow."""
    disk = FaultyDisk()
    log = open_log(disk, config=CONFIG)
    write(log, "old", 12)
    log.flush()
    truncate_to(log, 2, now_ms=NOW)
    write(log, "new", 3)
    again = open_log(disk.after_power_loss(Random(seed)), config=CONFIG, clean=False, recovery_point=2)
    again.update_high_watermark(again.log_end_offset)
    words = [(value or b"")[:3] for _, value in values(again)]
    assert words in [[b"old"] * count for count in range(13)] + [[b"old"] * 2 + [b"new"] * count for count in range(4)]


class CutOnTheWay(PartitionLog):
    """Between what a flush reads of it, another thread cuts it and writes something else."""

    __slots__ = ()
    due = False

    @property
    def log_end_offset(self) -> int:
        end: int = _END.__get__(self)
        if CutOnTheWay.due:
            CutOnTheWay.due = False
            _replace(self)
        return end

    @log_end_offset.setter
    def log_end_offset(self, end: int) -> None:
        _END.__set__(self, end)


_END = PartitionLog.__dict__["log_end_offset"]


def test_a_cut_while_a_flush_reads_the_end_leaves_nothing_marked_as_synced() -> None:
    """Which threads interleave so is up to the machine; here it happens in the attribute that is read."""
    disk = FaultyDisk()
    log = open_log(disk, config=CONFIG)
    write(log, "first", 8)
    log.__class__ = CutOnTheWay
    CutOnTheWay.due = True
    log.flush()
    assert not CutOnTheWay.due
    assert log.recovery_point <= 2
