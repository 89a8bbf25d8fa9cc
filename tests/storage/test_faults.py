"""The log's core stories with a disk that fails at its n-th call, and with power lost at its n-th call.

A failed call: the process goes on, and what it acknowledged before and after is there when the log is opened again.
Lost power: what was synced is there, whatever became of the rest, and nothing is there that was not written.
"""

from __future__ import annotations

import contextlib
import errno
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from logs import NOW, RULES, batch, batches, open_log
from sampling import thinned

from minibroker_lab.simulation.faulty_disk import FaultyDisk, PowerLost
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.records import end_txn_marker
from minibroker_storage.checkpoints import decode_offsets
from minibroker_storage.compaction import compact
from minibroker_storage.config import LogConfig
from minibroker_storage.directory import DataDirectory
from minibroker_storage.disk import DiskFull, StorageError
from minibroker_storage.log import PartitionLog
from minibroker_storage.memory_disk import MemoryDisk
from minibroker_storage.origin import Origin
from minibroker_storage.producer_state import ProducerStateManager
from minibroker_storage.recovery import rebuild_producers
from minibroker_storage.retention import delete_old_segments
from minibroker_storage.segments import Segments
from minibroker_storage.snapshots import SnapshotFiles
from minibroker_storage.truncation import truncate_to

CONFIG = LogConfig(segment_bytes=420, index_interval_bytes=100, retention_ms=-1, file_delete_delay_ms=0)
COMPACTED = LogConfig(segment_bytes=420, cleanup_policy=frozenset({"compact"}), file_delete_delay_ms=0)


@dataclass
class Ledger:
    """What a story was told by the log, to be held against what is there afterwards."""

    disk: FaultyDisk
    config: LogConfig = CONFIG
    log: PartitionLog | None = None
    written: list[bytes] = field(default_factory=list)  # acknowledged batches that are still to be there
    refused: set[bytes] = field(default_factory=set)  # values of batches that were not taken
    unsure: list[bytes] = field(default_factory=list)  # under way when power was lost
    synced: int = 0  # how many of `written` a flush covered
    recovery_point: int = 0
    start: int = 0
    deleted: bool = False
    compacted: bool = False
    unpromised: bool = False  # opened again in the same life of the machine after a sync had failed
    many_unsynced: bool = False  # more than one segment held batches that no flush covered
    _count: int = 0
    _seq: int = 0

    def open(self, *, clean: bool = False) -> PartitionLog:
        if self.log is not None and self.log.offline is not None:
            # What the system dropped is still read from its memory, here and in Kafka, and is taken for written.
            self.unpromised |= " sync " in self.disk.history[self.disk.fail_at - 1]
        self.log = open_log(
            self.disk,
            config=self.config,
            clean=clean,
            recovery_point=self.recovery_point,
            log_start_offset=self.start,
            high_watermark=1 << 40,
        )
        entry = self.log.producers.entry(1)
        self._seq = entry.last_sequence + 1 if entry is not None else 0
        return self.log

    def append(self, *, txn: bool = False, marker: bool | None = None) -> None:
        assert self.log is not None
        self._count += 1
        value = b"value %04d" % self._count
        origin = Origin.CLIENT
        if marker is not None:
            data = end_txn_marker(
                producer_id=2, producer_epoch=0, commit=marker, coordinator_epoch=self._count, timestamp_ms=NOW
            )
            origin = Origin.COORDINATOR
        elif txn:
            entry = self.log.producers.entry(2)
            seq = entry.last_sequence + 1 if entry is not None else 0
            data = batch(value * 5, pid=2, seq=seq, txn=True)
        else:
            data = batch(value * 5, pid=1, seq=self._seq)
        try:
            self.log.append_as_leader(data, origin=origin, leader_epoch=0, now_ms=NOW, api_version=12)
        except ApiError as error:
            if error.code is not ErrorCode.KAFKA_STORAGE_ERROR:
                raise
            self.refused.add(value)
            return
        except PowerLost:
            self.unsure.append(bytes(data))
            raise
        self._seq += txn is False and marker is None
        self.written.append(next(d for d, h in batches(self.log) if h.last_offset == self.log.log_end_offset - 1))
        self.log.update_high_watermark(self.log.log_end_offset)

    def flush(self) -> None:
        assert self.log is not None
        try:
            self.log.flush()
        except ApiError:
            return
        self.synced = len(self.written)
        self.recovery_point = self.log.recovery_point


Story = Callable[[Ledger], None]


def guarded(call: Callable[[], object]) -> bool:
    """Does what a broker does: a storage error is answered, and life goes on."""
    try:
        call()
    except ApiError as error:
        if error.code is not ErrorCode.KAFKA_STORAGE_ERROR:
            raise
        return False
    return True


def story_append(ledger: Ledger) -> None:
    ledger.open()
    for i in range(3):
        ledger.append()
        if i == 1:
            ledger.flush()


def story_roll(ledger: Ledger) -> None:
    ledger.many_unsynced = True
    ledger.open()
    for i in range(9):
        ledger.append()
        if i == 5:
            ledger.flush()


def story_transactions(ledger: Ledger) -> None:
    ledger.open()
    for commit in (False, True, False):
        ledger.append(txn=True)
        ledger.append()
        ledger.append(marker=commit)
        ledger.flush()
    ledger.append(txn=True)


def story_recover(ledger: Ledger) -> None:
    story_roll(ledger)
    assert ledger.log is not None
    ledger.log.abandon()
    ledger.open()
    ledger.append()
    ledger.flush()


def story_snapshot(ledger: Ledger) -> None:
    ledger.many_unsynced = True
    ledger.open()
    ledger.append()
    log = ledger.log
    assert log is not None
    guarded(lambda: log.roll(NOW))
    ledger.append()
    if guarded(log.close):
        ledger.synced, ledger.recovery_point = len(ledger.written), log.recovery_point
    ledger.open(clean=log.closed)
    ledger.append()


def story_truncate(ledger: Ledger) -> None:
    ledger.open()
    for _ in range(6):
        ledger.append()
        ledger.flush()
    log = ledger.log
    assert log is not None
    target = min(2, len(ledger.written))
    ledger.synced, ledger.recovery_point = min(ledger.synced, target), min(ledger.recovery_point, target)
    ledger.unsure += ledger.written[target:]  # until it is synced a truncation may be undone
    if not guarded(lambda: truncate_to(log, target, now_ms=NOW)):
        # Half-done, the log is unusable until it was opened again; then the rest is done.
        log.abandon()
        log = ledger.open()
        truncate_to(log, target, now_ms=NOW)
    del ledger.written[target:]
    ledger._seq = target
    ledger.append()
    ledger.flush()


def story_retention(ledger: Ledger) -> None:
    ledger.many_unsynced = True
    ledger.open()
    for _ in range(8):
        ledger.append()
    ledger.flush()
    log = ledger.log
    assert log is not None
    if guarded(lambda: log.delete_records(5)):
        ledger.start = 5
    ledger.deleted = True
    for _ in range(3):
        guarded(lambda: delete_old_segments(log, NOW + 1))
    ledger.append()


def story_compaction(ledger: Ledger) -> None:
    ledger.config = COMPACTED
    ledger.compacted = True
    ledger.open()
    for _ in range(8):
        ledger.append()
    ledger.flush()
    log = ledger.log
    assert log is not None
    try:
        compact(log, None, NOW, force=True)
    except (ApiError, StorageError):
        log.abandon()
        ledger.open()
    ledger.append()
    ledger.flush()


def story_delete(ledger: Ledger) -> None:
    ledger.open()
    ledger.append()
    log = ledger.log
    assert log is not None
    if guarded(lambda: log.rename("t-0.0-delete")):
        ledger.unsure += ledger.written  # until it is synced the deletion may be undone
        ledger.written.clear()
        ledger.synced = ledger.recovery_point = 0
        guarded(log.delete)
        ledger.open()
    ledger.append()


def story_checkpoint(ledger: Ledger) -> None:
    directory = DataDirectory.open(ledger.disk, node_id=1, make_id=lambda: "A" * 22)
    log = ledger.open()
    for _ in range(2):
        ledger.append()
        ledger.flush()
        directory.note([log])
        directory.write_checkpoints()
    if guarded(log.close):
        ledger.synced, ledger.recovery_point = len(ledger.written), log.recovery_point
    directory.close([log])


STORIES: list[Story] = [
    story_append,
    story_roll,
    story_transactions,
    story_recover,
    story_snapshot,
    story_truncate,
    story_retention,
    story_compaction,
    story_delete,
    story_checkpoint,
]


def full_replay(log: PartitionLog) -> ProducerStateManager:
    disk = MemoryDisk()
    producers = ProducerStateManager(RULES)
    rebuild_producers(
        producers,
        Segments(log.segments),
        SnapshotFiles(disk, ""),
        0,
        log.log_end_offset,
        now_ms=NOW,
        clean=False,
        warn=lambda text: None,
        take=False,
    )
    return producers


def rows(producers: ProducerStateManager) -> list[object]:
    return sorted(producers.active(), key=lambda entry: entry.producer_id)


def aborted(log: PartitionLog) -> list[object]:
    return [txn for segment in log.segments for txn in segment.txn_index]


def check_usable(ledger: Ledger) -> None:
    """The log takes batches, closes cleanly and is the same when it is opened again."""
    ledger.append()
    log = ledger.log
    assert log is not None
    before = [data for data, _ in batches(log)], rows(log.producers), aborted(log)
    log.close()
    again = open_log(ledger.disk, config=ledger.config, log_start_offset=ledger.start)
    assert (not again.warnings) or ledger.deleted
    assert ([data for data, _ in batches(again)], rows(again.producers), aborted(again)) == before


def fail(story: Story, n: int) -> bool:
    """Plays the story with the n-th call failing; False when it has fewer calls."""
    ledger = Ledger(FaultyDisk(fail_at=n))
    with contextlib.suppress(ApiError, StorageError):  # opening failed; then nothing else was tried
        story(ledger)
    reached = ledger.disk.calls >= n
    ledger.disk.fail_at = 0
    if ledger.log is not None:
        ledger.log.abandon()
    log = ledger.open()
    found = [data for data, _ in batches(log)]
    if ledger.compacted:
        assert set(found) <= set(ledger.written)
        assert found[-1:] == ledger.written[-1:]
    elif ledger.deleted:
        assert found == ledger.written[len(ledger.written) - len(found) :]
        assert log.log_start_offset >= ledger.start
    else:
        assert found == ledger.written
        assert rows(full_replay(log)) == rows(log.producers)
    assert not any(value in data for data in found for value in ledger.refused)
    check_usable(ledger)
    return reached


def lose_power(story: Story, n: int, choices: random.Random | None) -> bool:
    """Plays the story until power is lost at the n-th call; False when it has fewer calls."""
    ledger = Ledger(FaultyDisk(lose_power_at=n))
    try:
        story(ledger)
        return False
    except PowerLost:
        pass
    check_after_power_loss(ledger, choices)
    return True


def fail_and_lose_power(story: Story, n: int, choices: random.Random | None) -> bool:
    """Plays the story with the n-th call failing and all others succeeding, and loses power at its end."""
    ledger = Ledger(FaultyDisk(fail_at=n))
    with contextlib.suppress(ApiError, StorageError):  # opening failed; then nothing else was tried
        story(ledger)
    reached = ledger.disk.calls >= n
    check_after_power_loss(ledger, choices)
    return reached


def check_after_power_loss(ledger: Ledger, choices: random.Random | None) -> None:
    unpromised = ledger.unpromised
    ledger.disk = ledger.disk.after_power_loss(choices)
    ledger.log = None
    log = ledger.open()
    found = [data for data, _ in batches(log)]
    known = ledger.written + ledger.unsure
    stripped = {data[16:] for data in known}  # offset and epoch are given by the log
    assert {data[16:] for data in found} <= stripped
    if not (ledger.deleted or ledger.compacted):
        assert unpromised or found[: ledger.synced] == ledger.written[: ledger.synced]
        assert rows(full_replay(log)) == rows(log.producers)
        offsets = [header.base_offset for _, header in batches(log)]
        if ledger.many_unsynced or unpromised:
            # Of two segments that were not synced the older one may be lost; Kafka keeps the younger one then, too.
            assert offsets == sorted(set(offsets))
        else:
            assert offsets == list(range(len(offsets)))
    elif ledger.deleted:
        assert not ledger.synced or ledger.written[ledger.synced - 1] in found
    check_usable(ledger)


def play_all(play: Callable[[int], bool], calls: range = range(1, 1000)) -> int:
    return next((n for n in calls if not play(n)), calls.stop)


ODD, EVEN = range(1, 1000, 2), range(2, 1000, 2)


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_one_call_fails(story: Story) -> None:
    calls = play_all(lambda n: fail(story, n))
    assert 5 < calls < 1000  # the story was played to its end


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_power_is_lost_and_only_what_was_synced_is_left(story: Story) -> None:
    calls = play_all(lambda n: lose_power(story, n, None))
    assert 5 < calls < 1000


@pytest.mark.parametrize(("seed", "at"), thinned([(0, ODD), (1, EVEN), (2, ODD)], 3, several=True))
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_power_is_lost_and_unsynced_writes_are_torn_or_out_of_order(story: Story, seed: int, at: range) -> None:
    calls = play_all(lambda n: lose_power(story, n, random.Random(f"{seed} {n}")), at)
    assert 5 < calls < 1000


@pytest.mark.parametrize(("seed", "at"), thinned([(None, ODD), (0, EVEN), (None, EVEN), (1, ODD)], 4, several=True))
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_a_call_fails_once_and_power_is_lost_later(story: Story, seed: int | None, at: range) -> None:
    """What a failed sync dropped is not covered by the next one, which succeeds."""

    def play(n: int) -> bool:
        return fail_and_lose_power(story, n, None if seed is None else random.Random(f"once {seed} {n}"))

    assert 5 < play_all(play, at) < 1000


@pytest.mark.slow
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_power_is_lost_in_many_ways(story: Story) -> None:
    for seed in range(100):
        play_all(lambda n, seed=seed: lose_power(story, n, random.Random(f"many {seed} {n}")))


def test_a_flush_that_a_truncation_overtakes_marks_nothing_as_synced() -> None:
    """On another thread, the end is read before the truncation and the rest comes after it."""
    disk = FaultyDisk()
    log = open_log(disk)
    for number in range(4):
        log.append_as_leader(batch(b"old", pid=1, seq=number), origin=Origin.CLIENT, leader_epoch=0, now_ms=NOW)

    def overtake(what: str, path: str) -> None:
        disk.refuses = lambda what, path: None
        truncate_to(log, 1, now_ms=NOW)
        for number in range(1, 4):
            log.append_as_leader(batch(b"new", pid=1, seq=number), origin=Origin.CLIENT, leader_epoch=0, now_ms=NOW)

    disk.refuses = overtake
    log.flush()
    assert log.recovery_point <= 1
    log.flush()
    assert log.recovery_point == 4
    after = open_log(disk.after_power_loss(), clean=False, recovery_point=log.recovery_point)
    assert [data for data, _ in batches(after)] == [data for data, _ in batches(log)]


def test_what_a_full_disk_kept_from_being_synced_is_synced_by_the_next_flush() -> None:
    """Whichever of a flush's calls it was, but for a sync: what that did not write may be gone."""
    again = 0
    for n in range(1, 20):
        disk = FaultyDisk()
        log = open_log(disk)
        log.append_as_leader(batch(b"v"), origin=Origin.CLIENT, leader_epoch=3, now_ms=NOW)
        at = disk.calls + n
        disk.refuses = lambda what, path, disk=disk, at=at: DiskFull(errno.ENOSPC, what) if disk.calls == at else None  # type: ignore[misc]
        try:
            log.flush()
            break  # it makes fewer calls than that
        except ApiError:
            assert log.recovery_point == 0
        if log.offline is not None:
            continue
        again += 1
        log.flush()
        assert log.recovery_point == 1
        after = open_log(disk.after_power_loss(), clean=False, recovery_point=1)
        assert [data for data, _ in batches(after)] == [data for data, _ in batches(log)], n
        assert (after.topic_id, after.leader_epochs.entries) == (log.topic_id, [(3, 0)]), n
    assert 0 < again < n


def test_a_failed_sync_takes_the_log_offline_whoever_asked_for_it() -> None:
    disk = FaultyDisk()
    log = open_log(disk)
    log.append_as_leader(batch(b"v"), origin=Origin.CLIENT, leader_epoch=0, now_ms=NOW)
    disk.fail_at = disk.calls + 1
    for _ in range(2):
        with pytest.raises(ApiError, match="KAFKA_STORAGE_ERROR"):
            log.flush()
    assert log.recovery_point == 0
    with pytest.raises(ApiError, match="KAFKA_STORAGE_ERROR"):
        log.close()
    assert not log.closed


@pytest.mark.parametrize("nth", [1, 2])
def test_the_mark_of_a_clean_stop_does_not_come_back_with_a_power_loss(nth: int) -> None:
    """A start that ended between removing it and syncing that leaves the sync to the next one."""
    disk = FaultyDisk()
    DataDirectory.open(disk, node_id=1, make_id=lambda: "A" * 22).close()
    disk.fail_at = disk.calls + nth
    with pytest.raises(StorageError):
        DataDirectory.open(disk, node_id=1, make_id=lambda: "A" * 22)
    disk.fail_at = 0
    DataDirectory.open(disk, node_id=1, make_id=lambda: "A" * 22)
    assert not DataDirectory.open(disk.after_power_loss(), node_id=1, make_id=lambda: "A" * 22).clean


@pytest.mark.parametrize("fails", ["the write before", "the first try to lower it"])
def test_a_checkpoint_whose_write_failed_is_lowered_before_a_truncation(fails: str) -> None:
    """The new file may stand although its directory could not be synced, and the old one though memory is lower."""
    disk = FaultyDisk()
    directory = DataDirectory.open(disk, node_id=1, make_id=lambda: "A" * 22)
    log = directory.open_log("t", 0, config=CONFIG, rules=RULES, now_ms=NOW)
    for number in range(3):
        log.append_as_leader(batch(b"v", pid=1, seq=number), origin=Origin.CLIENT, leader_epoch=0, now_ms=NOW)
    log.flush()
    directory.note([log])
    start = disk.calls
    directory.write_checkpoints()
    calls = disk.calls - start
    for n in range(1, calls + 1):
        disk.write_atomic("recovery-point-offset-checkpoint", b"0\n0\n")
        directory = DataDirectory.open(disk, node_id=1, make_id=lambda: "A" * 22)
        log = directory.open_log("t", 0, config=CONFIG, rules=RULES, now_ms=NOW)
        directory.recovery_points["t", 0] = log.log_end_offset
        if fails == "the write before":
            disk.fail_at = disk.calls + n
        with contextlib.suppress(StorageError):
            directory.write_checkpoints()
        if fails != "the write before":
            disk.fail_at = disk.calls + n
            with contextlib.suppress(StorageError):
                log.before_truncation(1)
        disk.fail_at = 0
        log.before_truncation(1)
        log.abandon()
        for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
            assert max(decode_offsets(disk.read_bytes(name), name).values(), default=0) <= 1, (n, name)
