"""Appending to, reading from and truncating one partition's log."""

import struct
from pathlib import Path

import pytest
from logs import NOW, RULES, TOPIC_ID, append, batch, batches, end_transaction, open_log, refused, tree, values

from minibroker_lab.simulation.faulty_disk import FaultyDisk
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.records import CorruptBatch, Record, build_batch, iter_batches, parse_header
from minibroker_storage import log_scan
from minibroker_storage.config import LogConfig
from minibroker_storage.log import PartitionLog
from minibroker_storage.memory_disk import MemoryDisk
from minibroker_storage.origin import Origin
from minibroker_storage.os_disk import OsDisk
from minibroker_storage.reading import TimestampOffset
from minibroker_storage.truncation import truncate_fully_and_start_at, truncate_to

SMALL = LogConfig(segment_bytes=400, index_interval_bytes=100, segment_index_bytes=1024)


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk()


# -- append and read


def test_offsets_are_given_in_order_and_read_back(disk: MemoryDisk) -> None:
    log = open_log(disk)
    first = append(log, batch(b"a", b"b"))
    second = append(log, batch(b"c"))
    assert (first.base_offset, first.last_offset, second.base_offset) == (0, 1, 2)
    assert (first.log_append_time_ms, first.max_timestamp, first.duplicate) == (-1, NOW, False)
    assert [value for _, value in values(log)] == [b"a", b"b", b"c"]
    assert (log.log_end_offset, log.high_watermark, log.last_stable_offset) == (3, 3, 3)


def test_a_read_only_buffer_is_appended_and_left_alone(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append(log, batch(b"x"))
    data = bytes(batch(b"a"))
    kept = bytes(data)
    append(log, data, leader_epoch=7)
    stored = parse_header(next(batches(log, 1))[0])
    assert (stored.base_offset, stored.partition_leader_epoch) == (1, 7)
    assert data == kept


def test_reads_are_slices_that_may_end_within_a_batch(disk: MemoryDisk) -> None:
    log = open_log(disk)
    sizes = [len(batch(b"v" * 10)), len(batch(b"w" * 10))]
    append(log, batch(b"v" * 10))
    append(log, batch(b"w" * 10))
    assert len(log.read(0, 1, bound=2)) == sizes[0]
    assert len(log.read(0, 1, bound=2, min_one_message=False)) == 0
    assert len(log.read(0, sizes[0] + 30, bound=2, min_one_message=False)) == sizes[0] + 30
    assert len(log.read(0, 10**6, bound=1)) == sizes[0]
    assert len(log.read(0, 10**6, bound=2)) == sum(sizes)
    assert len(log.read(0, 10**6, bound=0)) == 0
    assert len(log.read(2, 10**6, bound=2)) == 0


def test_reading_inside_a_batch_gives_the_whole_batch(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append(log, batch(b"a", b"b", b"c"))
    assert parse_header(log.read(2, 100, bound=3).records).base_offset == 0


@pytest.mark.parametrize("offset", [-1, 4])
def test_reading_outside_the_log_is_refused(disk: MemoryDisk, offset: int) -> None:
    log = open_log(disk)
    append(log, batch(b"a", b"b", b"c"))
    with refused(ErrorCode.OFFSET_OUT_OF_RANGE):
        log.read(offset, 100, bound=3)


def test_bytes_between_counts_what_a_reader_could_have(disk: MemoryDisk) -> None:
    log = open_log(disk, config=SMALL)
    sizes = [len(batch(b"x" * (i * 20))) for i in range(12)]
    for i in range(12):
        append(log, batch(b"x" * (i * 20)))
    assert len(log.segments) > 3
    for start in range(13):
        for end in range(13):
            assert log.bytes_between(start, end) == sum(sizes[start:end])


def test_log_append_time_is_the_broker_s(disk: MemoryDisk) -> None:
    log = open_log(disk, config=LogConfig(message_timestamp_type="LogAppendTime"))
    info = append(log, batch(b"a", timestamp=5), now_ms=NOW + 9)
    assert info.log_append_time_ms == NOW + 9
    assert log.offset_for_timestamp(NOW, 10) is not None
    found = log.max_timestamp_offset(10)
    assert found is not None
    assert (found.offset, found.timestamp) == (0, NOW + 9)


def test_a_refused_batch_leaves_no_trace(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append(log, batch(b"a", pid=1))
    before = tree(disk, "t-0"), log.log_end_offset, log.producers.active()
    with refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
        append(log, batch(b"b", pid=1, seq=7))
    with refused(ErrorCode.CORRUPT_MESSAGE):
        append(log, batch(b"b")[:-1] + b"\xff")
    assert before == (tree(disk, "t-0"), log.log_end_offset, log.producers.active())


def test_a_refused_batch_of_a_new_leader_epoch_rolls_and_leaves_the_epoch(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append(log, batch(b"a", pid=1), leader_epoch=3)
    before = log.log_end_offset, log.producers.active()
    with refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
        append(log, batch(b"b", pid=1, seq=7), leader_epoch=4)
    assert (log.log_end_offset, log.producers.active()) == before
    assert log.leader_epochs.latest_epoch == 4


def test_a_duplicate_is_answered_with_its_old_offsets(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append(log, batch(b"x"))
    append(log, batch(b"a", b"b", pid=1))
    append(log, batch(b"c", pid=1, seq=2))
    again = append(log, batch(b"a", b"b", pid=1))
    assert (again.base_offset, again.last_offset, again.duplicate) == (1, 2, True)
    assert again.log_append_time_ms == NOW  # the original's largest timestamp, also on a CreateTime topic
    assert log.log_end_offset == 4


# -- transactions


def test_an_open_transaction_holds_the_last_stable_offset(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append(log, batch(b"plain"))
    append(log, batch(b"a", pid=1, txn=True))
    append(log, batch(b"b", pid=2, txn=True))
    append(log, batch(b"plain"))
    assert (log.high_watermark, log.last_stable_offset) == (4, 1)
    end_transaction(log, 1, commit=False)
    assert log.last_stable_offset == 2
    end_transaction(log, 2, commit=True, replicated=False)
    assert log.last_stable_offset == 2  # the marker is not below the high watermark yet
    assert log.update_high_watermark(log.log_end_offset)
    assert log.last_stable_offset == log.log_end_offset == 6
    assert [value for _, value in values(log, committed=True)] == [b"plain", b"b", b"plain"]
    assert len(values(log)) == 4


def test_high_watermark_says_whether_anything_moved(disk: MemoryDisk) -> None:
    log = open_log(disk)
    log.append_as_leader(batch(b"a"), origin=Origin.CLIENT, leader_epoch=0, now_ms=NOW, api_version=9)
    assert log.high_watermark == 0
    assert log.update_high_watermark(1)
    assert not log.update_high_watermark(1)
    assert not log.update_high_watermark(500)
    assert log.high_watermark == 1
    log.append_as_leader(batch(b"b"), origin=Origin.CLIENT, leader_epoch=0, now_ms=NOW, api_version=9)
    log.delete_records(1)
    assert log.update_high_watermark(2)
    assert log.update_high_watermark(0)  # what lies below the log's start cannot be its end
    assert log.high_watermark == 1


def test_aborted_transactions_of_a_read(disk: MemoryDisk) -> None:
    log = open_log(disk, config=SMALL)
    for pid in range(1, 7):
        append(log, batch(b"x" * 50, pid=pid, txn=True))  # 2n
        end_transaction(log, pid, commit=pid % 2 == 0)  # 2n + 1
    assert len(log.segments) > 2
    result = log.read(0, 1 << 20, bound=log.last_stable_offset)
    listed = log.aborted_transactions(result)
    # A read stays in one segment, and so do the aborted transactions it is told of, by the next index entry or base.
    assert [txn.producer_id for txn in listed] == [1]
    later = log.read(3, 1 << 20, bound=log.last_stable_offset)
    assert 1 not in {txn.producer_id for txn in log.aborted_transactions(later)}
    at_marker = log.read(1, 1 << 20, bound=log.last_stable_offset)
    assert [txn.producer_id for txn in log.aborted_transactions(at_marker)][:1] == [1]
    assert len(values(log, committed=True)) == 3


def test_a_transaction_over_segments_is_found_at_its_end(disk: MemoryDisk) -> None:
    log = open_log(disk, config=SMALL)
    append(log, batch(b"x" * 200, pid=1, txn=True))
    append(log, batch(b"x" * 200, pid=1, seq=1, txn=True))
    append(log, batch(b"x" * 200, pid=1, seq=2, txn=True))
    end_transaction(log, 1, commit=False)
    assert len(log.segments) > 1
    result = log.read(0, 10, bound=log.last_stable_offset)
    assert [txn.first_offset for txn in log.aborted_transactions(result)] == [0]


# -- rolling


def test_segments_roll_by_size(disk: MemoryDisk) -> None:
    log = open_log(disk, config=SMALL)
    for _ in range(10):
        append(log, batch(b"x" * 100))
    assert all(segment.size <= 400 for segment in log.segments)
    assert len(log.segments) == 5
    assert [value for _, value in values(log)] == [b"x" * 100] * 10
    # Each roll leaves a producer snapshot at the new base.
    bases = {segment.base_offset for segment in log.segments[1:]}
    assert {int(name[:20]) for name in disk.list("t-0") if name.endswith(".snapshot")} == bases


@pytest.mark.parametrize(("room", "sizes"), [(-1, [1, 1, 1, 1]), (0, [2, 2]), (1, [2, 2])])
def test_a_segment_may_be_full_to_the_last_byte(disk: MemoryDisk, room: int, sizes: list[int]) -> None:
    size = len(batch(b"x" * 100))
    log = open_log(disk, config=LogConfig(segment_bytes=2 * size + room))
    for _ in range(4):
        append(log, batch(b"x" * 100))
    assert [segment.size for segment in log.segments] == [size * count for count in sizes]


@pytest.mark.parametrize("end", range(1, 9))
def test_what_is_written_over_a_truncated_end_is_found(disk: MemoryDisk, end: int) -> None:
    """At every offset, with batches of other sizes: neither index nor what is remembered of the end is of the old."""
    log = open_log(disk, config=LogConfig(index_interval_bytes=1))
    for number in range(9):
        append(log, batch(b"old %d" % number * 20, timestamp=NOW + 100 - number))
    truncate_to(log, end, now_ms=NOW)
    for number in range(end, 12):
        append(log, batch(b"new", timestamp=NOW + number))
    for offset in range(12):
        first = next(iter(batches(log, offset)))[1]
        assert first.base_offset == offset
    assert [value for _, value in values(log)] == [b"old %d" % n * 20 for n in range(end)] + [b"new"] * (12 - end)
    found = log.max_timestamp_offset(12)
    assert found is not None
    assert (found.offset, found.timestamp) == (0, NOW + 100)


def test_what_a_failed_write_left_is_not_the_end_of_the_log() -> None:
    disk = FaultyDisk()
    log = open_log(disk, config=SMALL)
    append(log, batch(b"x" * 100))
    disk.full = True
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        append(log, batch(b"y" * 100))
    disk.full = False
    append(log, batch(b"z" * 200))
    assert len(log.segments) == 2, "rolled, with no write in between that could cover the leftovers"
    again = open_log(disk, config=SMALL, clean=False)
    assert again.log_end_offset == 2


def test_segments_roll_by_the_time_of_the_messages(disk: MemoryDisk) -> None:
    log = open_log(disk, config=LogConfig(segment_ms=1000))
    append(log, batch(timestamp=NOW))
    append(log, batch(timestamp=NOW + 1000), now_ms=NOW + 5000)
    assert len(log.segments) == 1
    append(log, batch(timestamp=NOW + 1001))
    assert len(log.segments) == 2


def test_segments_of_batches_without_time_roll_by_age(disk: MemoryDisk) -> None:
    log = open_log(disk, config=LogConfig(segment_ms=1000))
    append(log, batch(timestamp=-1), now_ms=NOW)
    append(log, batch(timestamp=-1), now_ms=NOW + 1000)
    assert len(log.segments) == 1
    append(log, batch(timestamp=-1), now_ms=NOW + 1001)
    assert len(log.segments) == 2


def test_segments_roll_when_an_index_is_full(disk: MemoryDisk) -> None:
    log = open_log(disk, config=LogConfig(index_interval_bytes=0, segment_index_bytes=24))
    for i in range(5):
        append(log, batch(timestamp=NOW + i))
    assert len(log.segments) > 1
    assert all(len(segment.offset_index) <= 3 for segment in log.segments)
    assert len(values(log)) == 5


@pytest.mark.parametrize(("distance", "rolls"), [((1 << 31) - 1, False), (1 << 31, True), (1 << 32, True)])
@pytest.mark.parametrize("base", [0, 1 << 40])
def test_segments_roll_when_offsets_get_too_far_from_the_base(
    disk: MemoryDisk, base: int, distance: int, rolls: bool
) -> None:
    log = open_log(disk, log_start_offset=base)
    for offset in (base, base + distance):
        data = build_batch([Record(0, NOW, b"k", b"v")], base_offset=offset, leader_epoch=0)
        log.append_as_follower(data, 0, now_ms=NOW)
    assert [segment.base_offset for segment in log.segments] == [base, *([base + distance] if rolls else [])]
    read = log.read(base + 1, 100, bound=log.log_end_offset).records
    assert next(iter_batches(read))[1].base_offset == base + distance


def test_an_index_entry_needs_more_bytes_than_the_interval(disk: MemoryDisk) -> None:
    size = len(batch())
    log = open_log(disk, config=LogConfig(index_interval_bytes=2 * size))
    for i in range(8):
        append(log, batch(timestamp=NOW + i))
    (segment,) = log.segments
    assert segment.offset_index.entries() == [(3, 3 * size), (6, 6 * size)]
    assert segment.time_index.entries() == [(NOW + 3, 3), (NOW + 6, 6)]


def test_rolling_an_empty_segment_is_no_new_segment(disk: MemoryDisk) -> None:
    log = open_log(disk)
    log.roll(NOW)
    assert len(log.segments) == 1
    append(log, batch())
    log.roll(NOW)
    log.roll(NOW)
    assert [segment.base_offset for segment in log.segments] == [0, 1]


# -- time


def test_offsets_by_timestamp_are_exact(disk: MemoryDisk) -> None:
    log = open_log(disk, config=SMALL)
    stamps = [5, 3, 9, 9, 4, 20, 1, 15, 30, 2]
    for i in range(0, 10, 2):
        records = [Record(0, NOW + stamps[i], b"k", b"v" * 60), Record(1, NOW + stamps[i + 1], b"k", b"v" * 60)]
        append(log, build_batch(records, compression=1))
    assert len(log.segments) > 1
    for wanted in range(33):
        expected = next((i for i, stamp in enumerate(stamps) if stamp >= wanted), None)
        found = log.offset_for_timestamp(NOW + wanted, 10)
        assert (found.offset if found else None) == expected
        if found is not None:
            assert (found.timestamp, found.leader_epoch) == (NOW + stamps[found.offset], 0)
    newest = log.max_timestamp_offset(10)
    assert newest is not None
    assert (newest.offset, newest.timestamp) == (8, NOW + 30)
    assert log.max_timestamp_offset(8) is None
    assert log.offset_for_timestamp(NOW + 30, 8) is None


@pytest.mark.parametrize("interval", [1, 150, 10_000])
@pytest.mark.parametrize("then", ["read on", "clean stop", "crash"])
def test_offsets_by_timestamp_after_a_truncation(disk: MemoryDisk, interval: int, then: str) -> None:
    """Every cut, against a walk over what is left: the largest timestamp may be before, at or after it."""
    stamps = [5, 3, 30, 9, 4, 20, 30, 15, 2, 31, 7]
    config = LogConfig(segment_bytes=600, index_interval_bytes=interval)
    for end in range(len(stamps), 0, -1):
        disk = MemoryDisk()
        log = open_log(disk, config=config)
        for stamp in stamps:
            append(log, batch(b"v" * 60, timestamp=NOW + stamp))
        truncate_to(log, end, now_ms=NOW)
        if then != "read on":
            log.close() if then == "clean stop" else log.abandon()
            log = open_log(disk, config=config, clean=then == "clean stop")
        left = stamps[:end]
        newest = log.max_timestamp_offset(end)
        assert newest is not None
        assert (newest.offset, newest.timestamp - NOW) == (left.index(max(left)), max(left)), end
        for wanted in range(33):
            found = log.offset_for_timestamp(NOW + wanted, end)
            expected = next((offset for offset, stamp in enumerate(left) if stamp >= wanted), None)
            assert (None if found is None else found.offset) == expected, (end, wanted)


def test_no_timestamps_no_offsets(disk: MemoryDisk) -> None:
    log = open_log(disk)
    assert log.max_timestamp_offset(100) is None
    append(log, batch(timestamp=-1))
    assert log.max_timestamp_offset(100) == TimestampOffset(0, -1, 0)  # as Kafka: the first record
    assert log.offset_for_timestamp(0, 100) is None


# -- truncation


def test_delete_records_moves_the_start_into_a_batch(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append(log, batch(b"a", b"b", b"c"))
    append(log, batch(b"d"))
    assert log.delete_records(2) == 2
    assert log.delete_records(1) == 2  # never back
    with refused(ErrorCode.OFFSET_OUT_OF_RANGE):
        log.read(1, 100, bound=4)
    assert parse_header(log.read(2, 100, bound=4).records).base_offset == 0
    assert [value for _, value in values(log)] == [b"c", b"d"]
    assert log.delete_records(-1) == 4
    for bad in (5, -2):
        with refused(ErrorCode.OFFSET_OUT_OF_RANGE):
            log.delete_records(bad)


def test_delete_records_keeps_producers_and_lets_a_transaction_go_on(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append(log, batch(b"a", pid=1))
    append(log, batch(b"b", pid=2, txn=True))
    append(log, batch(b"c"))
    log.delete_records(3)
    assert log.last_stable_offset == 3  # clamped to the start
    assert append(log, batch(b"a", pid=1)).duplicate
    assert append(log, batch(b"d", pid=1, seq=1)).base_offset == 3
    end_transaction(log, 2, commit=True)
    assert log.last_stable_offset == log.log_end_offset


@pytest.mark.parametrize(
    ("before", "after", "start", "stable"),
    [(0, 0, 1, 0), (0, 3, 2, 2), (0, 3, 3, 2), (0, 3, 4, 2), (3, 0, 1, 3), (2, 0, 3, 2), (0, 0, 2, 2)],
)
def test_where_an_open_transaction_lost_records_the_last_stable_offset_is_a_batch_start(
    disk: MemoryDisk, before: int, after: int, start: int, stable: int
) -> None:
    """Measured on a live Kafka 4.4.0: records before the transaction's two, records after them, the log start."""
    log = open_log(disk)
    if before:
        append(log, batch(*[b"a"] * before))
    append(log, batch(b"b", b"b", pid=2, txn=True))
    if after:
        append(log, batch(*[b"c"] * after))
    log.delete_records(start)
    assert log.last_stable_offset == stable
    assert (len(log.read(start, 100, bound=log.last_stable_offset)) > 0) == (start < stable)
    append(log, batch(b"d"))
    assert log.last_stable_offset == stable
    end_transaction(log, 2, commit=False)
    assert log.last_stable_offset == log.log_end_offset


@pytest.mark.parametrize(("deleted", "known"), [(3, {1: 2, 2: 0}), (4, {})])
def test_producers_outlive_their_records_until_a_start_finds_none(
    disk: MemoryDisk, deleted: int, known: dict[int, int]
) -> None:
    """What DescribeProducers of Kafka 4.3.1 shows after DeleteRecords, an orderly stop and a start: all of them while
    one record is left, none of them without (ProducerStateManager.truncateAndReload)."""
    log = open_log(disk)
    append(log, batch(b"a", b"b", b"c", pid=1))
    append(log, batch(b"d", pid=2))
    log.delete_records(deleted)
    assert {p.producer_id: p.last_sequence for p in log.producers.active()} == {1: 2, 2: 0}
    log.close()
    again = open_log(disk, log_start_offset=deleted, high_watermark=4)
    assert {p.producer_id: p.last_sequence for p in again.producers.active()} == known


def test_producers_without_records_outlive_a_truncation(disk: MemoryDisk) -> None:
    """Snapshots between the log's start and its new end stay (ProducerStateManager.truncateAndReload)."""
    log = open_log(disk, config=SMALL)
    append(log, batch(b"x" * 100, pid=1))
    for i in range(8):
        append(log, batch(b"x" * 100, pid=2, seq=i))
    log.delete_records(4)
    assert truncate_to(log, 8, now_ms=NOW)
    assert {p.producer_id: p.last_sequence for p in log.producers.active()} == {1: 0, 2: 6}


def test_records_of_a_compacted_topic_are_not_deleted(disk: MemoryDisk) -> None:
    log = open_log(disk, config=LogConfig(cleanup_policy=frozenset({"compact"})))
    with refused(ErrorCode.POLICY_VIOLATION):
        log.delete_records(0)


def test_truncation_drops_batches_state_and_epochs(disk: MemoryDisk) -> None:
    log = open_log(disk, config=SMALL)
    for i in range(8):
        append(log, batch(b"x" * 100, pid=1, seq=i), leader_epoch=i // 4)
    assert not truncate_to(log, 8, now_ms=NOW)
    assert truncate_to(log, 5, now_ms=NOW)
    assert (log.log_end_offset, log.high_watermark) == (5, 5)
    assert max(int(name.removesuffix(".snapshot")) for name in disk.list(log.files.path) if ".snapshot" in name) <= 5
    entry = log.producers.entry(1)
    assert entry is not None
    assert entry.last_sequence == 4
    assert log.leader_epochs.entries == [(0, 0), (1, 4)]
    assert append(log, batch(b"new", pid=1, seq=5), leader_epoch=1).base_offset == 5
    assert truncate_to(log, 3, now_ms=NOW)
    assert log.leader_epochs.entries == [(0, 0)]
    assert len(values(log)) == 3
    log.close()
    again = open_log(disk, config=SMALL)
    assert (again.log_end_offset, again.warnings) == (3, [])


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("interval", [1, 4096])
def test_a_clean_stop_saves_the_indexes(disk: MemoryDisk, interval: int, flushed: bool) -> None:
    log = open_log(disk, config=LogConfig(index_interval_bytes=interval))
    for number in range(4):
        append(log, batch(b"v" * 60, timestamp=NOW + number))
    if flushed:
        log.flush()
    log.close()
    path, size = log.segments[-1].path, len(batch(b"v" * 60))
    indexed = (1, 2, 3) if interval == 1 else ()
    assert disk.read_bytes(path(".index")) == b"".join(struct.pack(">ii", n, n * size) for n in indexed)
    assert disk.read_bytes(path(".timeindex")) == b"".join(struct.pack(">qi", NOW + n, n) for n in indexed or (3,))


def test_a_truncation_reaches_the_index_files_at_once(disk: MemoryDisk) -> None:
    """Or a process that is killed then leaves a time entry of a batch that is gone, which lookups would believe."""
    log = open_log(disk, config=LogConfig(index_interval_bytes=1))
    for number in range(4):
        append(log, batch(b"v" * 60, timestamp=NOW + number))
    log.close()
    log = open_log(disk, config=LogConfig(index_interval_bytes=1))
    entries = len(log.segments[-1].time_index)
    truncate_to(log, 2, now_ms=NOW)
    log.abandon()
    path = log.segments[-1].path(".timeindex")
    assert entries == 3
    assert len(disk.read_bytes(path)) == 12 * len(log.segments[-1].time_index) < 12 * entries


def test_truncation_below_the_log_start_takes_it_along(disk: MemoryDisk) -> None:
    """A leader that lost more than was deleted here; else the high watermark would stay above the log's end
    (UnifiedLog.truncateTo)."""
    log = open_log(disk)
    for i in range(8):
        append(log, batch(b"x", pid=1, seq=i))
    log.delete_records(5)
    assert truncate_to(log, 3, now_ms=NOW)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (3, 3, 3)
    assert not log.producers.knows(1)
    append(log, batch(b"new", pid=2))
    assert (log.log_start_offset, log.high_watermark, log.last_stable_offset) == (3, 4, 4)
    assert [value for _, value in values(log)] == [b"new"]
    log.close()
    again = open_log(disk, log_start_offset=3, high_watermark=4)
    assert (again.log_start_offset, again.log_end_offset, again.warnings) == (3, 4, [])
    assert again.producers.knows(2)


def test_truncation_below_an_abort_takes_its_index_entry(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append(log, batch(b"a", pid=1, txn=True))
    end_transaction(log, 1, commit=False)
    assert len(log.segments[0].txn_index) == 1
    truncate_to(log, 1, now_ms=NOW)
    assert len(log.segments[0].txn_index) == 0
    assert disk.size("t-0/00000000000000000000.txnindex") == 0
    assert log.last_stable_offset == 0  # open again
    end_transaction(log, 1, commit=False)
    assert disk.size("t-0/00000000000000000000.txnindex") == 34


def test_starting_over_elsewhere(disk: MemoryDisk) -> None:
    log = open_log(disk, config=SMALL)
    for i in range(6):
        append(log, batch(b"x" * 100, pid=1, seq=i))
    truncate_fully_and_start_at(log, 1000, now_ms=NOW)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (1000, 1000, 1000)
    assert log.producers.active() == []
    assert log.leader_epochs.entries == []
    assert append(log, batch(b"a")).base_offset == 1000
    log.close()
    assert open_log(disk, config=SMALL).log_start_offset == 1000


# -- followers


def test_a_follower_takes_batches_as_they_are(disk: MemoryDisk) -> None:
    leader, follower = open_log(disk), open_log(disk, "f-0", topic="f", topic_id=bytes(16))
    append(leader, batch(b"a", pid=1, txn=True))
    append(leader, batch(b"b", compression=2))
    end_transaction(leader, 1, commit=False)
    data = leader.read(0, 1 << 20, bound=3).records
    info = follower.append_as_follower(data + data[:40], 3, now_ms=NOW)
    assert (info.base_offset, info.last_offset) == (0, 2)
    follower.update_high_watermark(3)
    assert disk.read_bytes("t-0/00000000000000000000.log") == disk.read_bytes("f-0/00000000000000000000.log")
    assert follower.producers.active() == leader.producers.active()
    assert list(follower.segments[0].txn_index) == list(leader.segments[0].txn_index)
    assert follower.leader_epochs.entries == leader.leader_epochs.entries
    with refused(ErrorCode.INVALID_RECORD):
        follower.append_as_follower(data, 3, now_ms=NOW)


def test_a_follower_whose_log_begins_past_its_high_watermark_gives_out_nothing_below_its_start(
    disk: MemoryDisk,
) -> None:
    log = open_log(disk)
    log.append_as_follower(batch(b"a") + batch(b"b", base_offset=1), 0, now_ms=NOW)
    assert (log.high_watermark, log.advance_log_start(1)) == (0, True)
    assert (log.log_start_offset, log.high_watermark, log.last_stable_offset) == (1, 1, 1)


@pytest.mark.parametrize("start", range(1, 6))
def test_a_follower_whose_log_begins_past_an_ended_transaction_is_not_held_back_by_it(
    disk: MemoryDisk, start: int
) -> None:
    leader, log = open_log(disk, "f-0"), open_log(disk)
    append(leader, batch(b"a", pid=1, txn=True))
    end_transaction(leader, 1, commit=True)
    append(leader, batch(b"b", b"c", b"d"))
    log.append_as_follower(leader.read(0, 1 << 20, bound=5).records, 0, now_ms=NOW)
    log.advance_log_start(start)
    assert (log.high_watermark, log.last_stable_offset) == (start, start)


@pytest.mark.parametrize(("later", "segments"), [([100, 0], 1), ([101, 0], 2), ([0, 101], 2)])
def test_a_follower_begins_a_segment_by_the_newest_of_the_batches_to_come(
    disk: MemoryDisk, later: list[int], segments: int
) -> None:
    log = open_log(disk, config=LogConfig(segment_ms=100))
    log.append_as_follower(batch(), 0, now_ms=NOW)
    data = [batch(timestamp=NOW + ms, base_offset=1 + number) for number, ms in enumerate(later)]
    log.append_as_follower(b"".join(data), 0, now_ms=NOW)
    assert len(log.segments) == segments


def test_a_follower_leaves_out_what_a_newer_leader_wrote(disk: MemoryDisk) -> None:
    log = open_log(disk)
    data = batch(b"a", leader_epoch=1) + batch(b"b", base_offset=1, leader_epoch=2)
    assert log.append_as_follower(data, 1, now_ms=NOW).last_offset == 0
    assert log.append_as_follower(b"", 1, now_ms=NOW).last_offset == 0
    data = batch(b"b", base_offset=1, leader_epoch=1)
    data[-1] ^= 1
    with refused(ErrorCode.CORRUPT_MESSAGE):
        log.append_as_follower(data, 1, now_ms=NOW)
    assert log.log_end_offset == 1


# -- the directory


def test_files_are_named_and_laid_out_as_kafka_s(disk: MemoryDisk) -> None:
    log = open_log(disk)
    assert disk.list("t-0") == ["00000000000000000000.log", "partition.metadata"]
    append(log, batch(pid=1))
    log.close()
    names = ["index", "log", "timeindex"]
    assert disk.list("t-0") == [
        *[f"00000000000000000000.{name}" for name in names],
        "00000000000000000001.snapshot",
        "leader-epoch-checkpoint",
        "partition.metadata",
    ]
    assert disk.read_bytes("t-0/00000000000000000000.timeindex") == struct.pack(">qi", NOW, 0)
    assert disk.read_bytes("t-0/leader-epoch-checkpoint") == b"0\n1\n0 0\n"


def test_a_directory_of_another_topic_is_refused(disk: MemoryDisk) -> None:
    open_log(disk).close()
    with refused(ErrorCode.INCONSISTENT_TOPIC_ID):
        open_log(disk, topic_id=b"x" * 16)
    assert open_log(disk, topic_id=bytes(16)).topic_id == TOPIC_ID


def test_renaming_and_deleting(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append(log, batch(b"a", pid=1, txn=True))
    log.rename("t-0.gone-delete")
    assert disk.list() == ["t-0.gone-delete"]
    assert len(values(log)) == 1
    end_transaction(log, 1, commit=False)
    log.close()
    log.delete()
    assert disk.list() == []


def test_a_broken_epoch_file_names_itself(disk: MemoryDisk) -> None:
    open_log(disk).close()
    disk.write_atomic("t-0/leader-epoch-checkpoint", b"0\n1\nnonsense\n")
    with pytest.raises(ApiError, match="t-0/leader-epoch-checkpoint, line 3"):
        open_log(disk)


@pytest.mark.parametrize("records", [0, 1])
def test_a_torn_epoch_file_is_mended_by_the_start_after_the_crash(disk: MemoryDisk, records: int) -> None:
    """Also where no batch says what was in it: the next start comes after a clean end, and would refuse the file."""
    log = open_log(disk)
    for _ in range(records):
        append(log, batch(b"a"))
    log.close()
    disk.write_atomic("t-0/leader-epoch-checkpoint", b"0\n1\n0")
    open_log(disk, clean=False).close()
    assert disk.read_bytes("t-0/leader-epoch-checkpoint") == (b"0\n1\n0 0\n" if records else b"0\n0\n")
    assert open_log(disk).log_end_offset == records


# -- a disk that refuses


def test_a_full_disk_refuses_writes_and_serves_reads(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append(log, batch(b"a", pid=1))
    disk.max_bytes = disk.used_bytes + 50
    for _ in range(3):
        with refused(ErrorCode.KAFKA_STORAGE_ERROR):
            append(log, batch(b"b", pid=1, seq=1))
        assert [value for _, value in values(log)] == [b"a"]
    disk.max_bytes = 1 << 30
    assert append(log, batch(b"b", pid=1, seq=1)).base_offset == 1
    log.close()
    again = open_log(disk)
    assert [value for _, value in batched_values(again)] == [b"a", b"b"]


def batched_values(log: PartitionLog) -> list[tuple[bytes | None, bytes | None]]:
    log.update_high_watermark(log.log_end_offset)
    return values(log)


def test_a_marker_that_fits_without_its_index_entry_counts(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append(log, batch(b"a", pid=1, txn=True))
    disk.max_bytes = disk.used_bytes + 78
    end_transaction(log, 1, commit=False)
    assert values(log, committed=True) == []
    disk.max_bytes = 1 << 30
    log.flush()
    assert disk.size("t-0/00000000000000000000.txnindex") == 34


def test_flushing_moves_the_recovery_point(disk: MemoryDisk) -> None:
    log = open_log(disk, config=SMALL)
    for _ in range(6):
        append(log, batch(b"x" * 100))
    assert (log.recovery_point, log.log_end_offset) == (0, 6)
    log.flush()
    assert (log.recovery_point, log.log_end_offset) == (6, 6)
    assert disk.exists("t-0/00000000000000000000.index")


def test_a_roll_waits_for_no_sync() -> None:
    disk = FaultyDisk()
    log = open_log(disk)
    append(log, batch(b"x", pid=1))
    log.roll(NOW)
    assert disk.exists(f"t-0/{1:020d}.snapshot")
    assert not [line for line in disk.history if " sync " in line]


def test_snapshots_below_the_recovery_point_outlast_a_power_loss() -> None:
    """Of two rolls before one flush too: `check` calls a broken one a fault there."""
    disk = FaultyDisk()
    log = open_log(disk)
    for sequence in range(3):
        append(log, batch(b"x", pid=1, seq=sequence))
        log.roll(NOW)
    names = [f"t-0/{offset:020d}.snapshot" for offset in (1, 2, 3)]
    log.flush(2)
    after = disk.after_power_loss()
    assert [after.read_bytes(name) == disk.read_bytes(name) for name in names if after.exists(name)] == [
        True,
        True,
        False,
    ]
    assert log.recovery_point == 2


def test_sealed_segments_are_flushed_without_the_active_one(disk: MemoryDisk) -> None:
    log = open_log(disk, config=SMALL)
    for _ in range(6):
        append(log, batch(b"x" * 100))
    active = log.segments[-1]
    assert log.recovery_point < active.base_offset
    log.flush(active.base_offset)
    assert log.recovery_point == active.base_offset
    assert not disk.exists(active.path(".index"))


def test_configuration_changes_count_at_once(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append(log, batch(b"x" * 100))
    log.update_config(SMALL)
    append(log, batch(b"x" * 300))
    assert len(log.segments) == 2


def test_rules_are_those_of_the_producers() -> None:
    assert not RULES.verification_enabled


def test_iteration_helpers_see_every_batch(disk: MemoryDisk) -> None:
    log = open_log(disk, config=SMALL)
    for i in range(9):
        append(log, batch(b"%d" % i * 40))
    assert [header.base_offset for _, header in batches(log)] == list(range(9))
    assert len(list(iter_batches(b"".join(data for data, _ in batches(log))))) == 9


def test_only_the_segment_that_is_written_keeps_handles(tmp_path: Path) -> None:
    disk = OsDisk(str(tmp_path))
    log = open_log(disk)
    open_ones = []
    for seq in range(3):
        append(log, batch(pid=7, seq=seq, txn=True))
        end_transaction(log, 7, commit=False)
        open_ones.append(disk.open_handles)
        log.roll(NOW)
    assert open_ones == [open_ones[0]] * 3
    log.close()
    assert disk.open_handles == 0


def test_a_roll_writes_over_what_an_earlier_one_left(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append(log, batch(b"a"))
    disk.write_atomic(f"t-0/{1:020d}.log", b"left")
    log.roll(NOW)
    append(log, batch(b"b"))
    assert [value for _, value in values(log)] == [b"a", b"b"]
    assert [value for _, value in values(open_log(disk, high_watermark=2))] == [b"a", b"b"]


def test_what_is_written_after_a_truncation_is_synced_by_a_flush_again() -> None:
    disk = FaultyDisk()
    log = open_log(disk)
    for value in (b"a", b"b", b"c"):
        append(log, batch(value))
    log.flush()
    truncate_to(log, 1, now_ms=NOW)
    append(log, batch(b"d"))
    log.flush()
    again = open_log(disk.after_power_loss(), high_watermark=2)
    assert [value for _, value in values(again)] == [b"a", b"d"]


def test_a_file_that_is_gone_is_a_storage_error(disk: MemoryDisk) -> None:
    """Which clients try again, and not an error of the server that they do not."""
    log = open_log(disk, config=SMALL)
    append(log, batch(b"x" * 300))
    append(log, batch(b"y" * 300))
    assert len(log.segments) == 2
    disk.remove(f"t-0/{0:020d}.log")
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        log.read(0, 1 << 20, bound=2)


def test_a_scan_ends_where_it_was_told_to(disk: MemoryDisk) -> None:
    """Also where what it reads at once ends with a batch."""
    log = open_log(disk)
    size = log_scan.CHUNK
    around = len(batch(bytes(size - 200))) - (size - 200)
    for _ in range(4):
        append(log, batch(bytes(size - around)))
    file = log.segments[0].log
    assert file.size == 4 * size
    assert [position for position, _, _ in log_scan.scan(file, 3 * size)] == [0, size, 2 * size]
    with pytest.raises(CorruptBatch, match=f"at byte {2 * size} of {3 * size - 1}: "):
        list(log_scan.scan(file, 3 * size - 1))
