"""Which segments go, when, and when their files do."""

from logs import NOW, append, batch, end_transaction, open_log, values

from minibroker_lab.simulation.faulty_disk import FaultyDisk
from minibroker_protocol.errors import ApiError
from minibroker_storage.config import LogConfig
from minibroker_storage.disk import Disk
from minibroker_storage.log import PartitionLog
from minibroker_storage.memory_disk import MemoryDisk
from minibroker_storage.retention import delete_old_segments

HOUR = 3_600_000
SIZE = len(batch(b"x" * 100))


def log_of(disk: Disk, *, stamps: list[int], **config: object) -> PartitionLog:
    """One segment a batch."""
    settings = {"segment_bytes": SIZE, "retention_ms": -1, "file_delete_delay_ms": 60_000} | config
    log = open_log(disk, config=LogConfig(**settings))  # type: ignore[arg-type]
    for stamp in stamps:
        append(log, batch(b"x" * 100, timestamp=stamp))
    return log


def bases(log: PartitionLog) -> list[int]:
    return [segment.base_offset for segment in log.segments]


def test_by_time_from_the_oldest_without_a_break() -> None:
    disk = MemoryDisk()
    log = log_of(disk, stamps=[NOW, NOW + 10, NOW + HOUR, NOW + 5], retention_ms=HOUR)
    assert delete_old_segments(log, NOW + HOUR) == 0
    assert delete_old_segments(log, NOW + HOUR + 11) == 2
    assert bases(log) == [2, 3]  # the young one shields the old one after it
    assert log.log_start_offset == 2
    assert len(values(log)) == 2


def test_the_active_segment_may_go_once_a_new_one_is_there() -> None:
    disk = MemoryDisk()
    log = log_of(disk, stamps=[NOW, NOW], retention_ms=HOUR)
    assert delete_old_segments(log, NOW + 2 * HOUR) == 2
    assert (bases(log), log.log_start_offset, log.log_end_offset) == ([2], 2, 2)
    assert delete_old_segments(log, NOW + 9 * HOUR) == 0  # an empty last segment stays
    assert append(log, batch()).base_offset == 2


def test_by_size_only_what_is_wholly_too_much() -> None:
    disk = MemoryDisk()
    log = log_of(disk, stamps=[NOW] * 5, retention_bytes=SIZE * 3 - 1)
    assert delete_old_segments(log, NOW) == 2
    assert bases(log) == [2, 3, 4]
    log.update_config(LogConfig(segment_bytes=SIZE, retention_ms=-1, retention_bytes=SIZE * 2 + 1))
    assert delete_old_segments(log, NOW) == 0


def test_by_log_start_under_any_policy() -> None:
    disk = MemoryDisk()
    log = log_of(disk, stamps=[NOW] * 4)
    log.delete_records(2)
    log.update_config(LogConfig(cleanup_policy=frozenset({"compact"}), retention_ms=0))
    assert delete_old_segments(log, NOW + HOUR) == 2
    assert bases(log) == [2, 3]


def test_nothing_past_the_high_watermark_goes() -> None:
    disk = MemoryDisk()
    log = log_of(disk, stamps=[NOW] * 4, retention_ms=0)
    log.high_watermark = 2
    assert delete_old_segments(log, NOW + HOUR) == 2
    assert log.log_start_offset == 2


def test_batches_without_time_age_by_their_file() -> None:
    disk = MemoryDisk(now_ms=lambda: NOW)
    log = log_of(disk, stamps=[-1, -1], retention_ms=HOUR)
    assert delete_old_segments(log, NOW + HOUR) == 0
    assert delete_old_segments(log, NOW + HOUR + 1) == 2


def test_files_are_renamed_at_once_and_removed_later() -> None:
    disk = MemoryDisk()
    log = log_of(disk, stamps=[NOW, NOW + HOUR], retention_ms=HOUR)
    delete_old_segments(log, NOW + HOUR + 1)
    gone = [name for name in disk.list("t-0") if name.startswith("0" * 20)]
    assert gone
    assert all(name.endswith(".deleted") for name in gone)
    delete_old_segments(log, NOW + HOUR + 60_000)
    assert [name for name in disk.list("t-0") if name.endswith(".deleted")] == gone
    delete_old_segments(log, NOW + HOUR + 60_001)
    assert not [name for name in disk.list("t-0") if name.endswith(".deleted")]


def test_snapshots_go_with_their_segments_and_producers_stay() -> None:
    disk = MemoryDisk()
    log = open_log(disk, config=LogConfig(segment_bytes=SIZE, retention_ms=HOUR))
    for i in range(4):
        append(log, batch(b"x" * 60, timestamp=NOW + i * HOUR, pid=1, seq=i), now_ms=NOW + i * HOUR)
    delete_old_segments(log, NOW + 3 * HOUR)
    assert log.log_start_offset == 2
    taken = [int(name[:20]) for name in disk.list("t-0") if name.endswith(".snapshot")]
    assert taken == [2, 3]
    entry = log.producers.entry(1)
    assert entry is not None
    assert len(entry.batches) == 4  # KIP-360: what was deleted is still remembered
    assert append(log, batch(b"x" * 60, pid=1, seq=0)).duplicate


def test_after_a_failed_deletion_the_log_begins_with_what_is_whole() -> None:
    """Whichever call of it fails; the next one finishes it."""
    failed, at = True, 0
    while failed:
        at += 1
        disk = FaultyDisk()
        log = log_of(disk, stamps=[NOW, NOW + 1, NOW + HOUR], retention_ms=HOUR)
        disk.fail_at = disk.calls + at
        try:
            delete_old_segments(log, NOW + HOUR + 2)
        except ApiError:
            disk.fail_at = 0
        else:
            failed = False
        kept = log.read(log.log_start_offset, 1 << 20, bound=log.log_end_offset, min_one_message=True).records
        assert len(bytes(kept)) == SIZE, at
        delete_old_segments(log, NOW + HOUR + 2)
        assert (bases(log), log.log_start_offset) == ([2], 2)
    assert at > 3


def test_the_start_never_goes_back() -> None:
    disk = MemoryDisk()
    log = log_of(disk, stamps=[NOW] * 4, retention_bytes=0)
    log.delete_records(3)
    delete_old_segments(log, NOW)
    starts = [log.log_start_offset]
    log.close()
    again = open_log(disk, config=log.config, log_start_offset=3)
    starts.append(again.log_start_offset)
    assert again.log_end_offset == 4
    assert starts == sorted(starts)
    assert starts[0] >= 3


def test_an_open_transaction_whose_data_is_deleted_can_end() -> None:
    disk = MemoryDisk()
    log = open_log(disk, config=LogConfig(segment_bytes=SIZE, retention_ms=-1, retention_bytes=0))
    append(log, batch(b"x" * 60, pid=1, txn=True))
    append(log, batch(b"x" * 60))
    delete_old_segments(log, NOW)
    assert log.log_start_offset == 2
    assert log.last_stable_offset == 2
    end_transaction(log, 1, commit=False)
    assert log.last_stable_offset == 3
    assert values(log, committed=True) == []
