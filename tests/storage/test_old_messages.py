"""Segments from before Kafka 0.11 are opened, served, searched, compacted and deleted as Kafka 4.4.0 does it: the
numbers and bytes here were recorded from one on the same files."""

import pytest
from logs import NOW, RULES, append, batch, batches, open_log
from old_messages import GZIP, LZ4, SNAPPY, Row, message, wrapper

from minibroker.rules.directory import check_directory
from minibroker_protocol.records import Record, build_batch, iter_batches
from minibroker_storage.check_finding import ERROR
from minibroker_storage.compaction import compact
from minibroker_storage.config import LogConfig
from minibroker_storage.dump import dump
from minibroker_storage.log import PartitionLog
from minibroker_storage.memory_disk import MemoryDisk
from minibroker_storage.retention import delete_old_segments
from minibroker_storage.truncation import truncate_to

T = 1_500_000_000_000
LOG = "t-0/00000000000000000000.log"


def rows(first: int, end: int) -> list[Row]:
    return [(n, T + n, b"k%d" % (n % 3), b"v%d" % n) for n in range(first, end)]


MIXED = (
    message(0, 0, b"k0", b"v0")
    + wrapper(1, GZIP, rows(1, 4))
    + message(1, 4, None, b"x", T + 50)
    + wrapper(0, LZ4, rows(5, 9))
    + bytes(build_batch([Record(9, T + 9, b"a", b"b")], base_offset=9, leader_epoch=0))
)
APPEND_TIME = wrapper(1, GZIP, rows(0, 5), append_time=T + 77) + message(1, 5, b"a", b"b", T + 70, 8)
NO_TIME = wrapper(0, GZIP, rows(0, 5)) + wrapper(0, SNAPPY, rows(5, 8))


def opened(*files: bytes, config: LogConfig | None = None, **more: object) -> PartitionLog:
    """A log of these segments after a kill: no checkpoint, no index, no snapshot."""
    disk = MemoryDisk()
    disk.make_dir("t-0")
    offset = 0
    for data in files:
        disk.write_atomic(f"t-0/{offset:020d}.log", data)
        offset = max(header.next_offset for _, header in iter_batches(data))
    log = open_log(disk, clean=False, config=config, **more)
    log.update_high_watermark(log.log_end_offset)
    return log


@pytest.mark.parametrize(
    ("data", "end", "sizes"),
    [
        (MIXED, 10, {0: 393, 1: 363, 3: 363, 6: 213}),
        (NO_TIME, 8, {0: 239, 3: 239, 6: 123}),
        (message(1, 0, b"k", b"v", T) + message(1, 1, b"k", b"v", T), 2, {0: 72, 1: 36}),
        (message(0, 0, b"k", b"v"), 1, {0: 28}),
    ],
)
def test_a_kill_takes_nothing_and_everything_is_served(data: bytes, end: int, sizes: dict[int, int]) -> None:
    log = opened(data)
    assert not log.warnings
    assert (log.log_end_offset, log.disk.read_bytes(LOG)) == (end, data)
    assert {offset: len(log.read(offset, 1 << 20, bound=end)) for offset in sizes} == sizes
    append(log, batch(b"new"))
    assert [header.magic for _, header in batches(log, end)] == [2]
    log.close()
    again = open_log(log.disk, clean=True)
    assert (again.log_end_offset, again.warnings) == (end + 1, [])


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (MIXED, {0: (1, T + 1), 2: (2, T + 2), 6: (4, T + 50), 60: None}),
        (APPEND_TIME, {0: (0, T + 77), 70: (0, T + 77), 200: None}),
        (NO_TIME, {0: None}),
    ],
)
def test_offsets_by_timestamp(data: bytes, wanted: dict[int, tuple[int, int] | None]) -> None:
    log = opened(data)
    answers = {at: log.offset_for_timestamp(T + at, log.log_end_offset) for at in wanted}
    assert {at: found and (found.offset, found.timestamp) for at, found in answers.items()} == wanted


@pytest.mark.parametrize(("data", "wanted"), [(MIXED, (4, T + 50)), (APPEND_TIME, (0, T + 77)), (NO_TIME, None)])
def test_offset_of_the_largest_timestamp(data: bytes, wanted: tuple[int, int] | None) -> None:
    log = opened(data)
    found = log.max_timestamp_offset(log.log_end_offset)
    assert (found and (found.offset, found.timestamp)) == wanted


def test_a_wrong_checksum_or_a_cut_end_ends_the_log_there() -> None:
    good = message(1, 0, b"k", b"v", T)
    for bad in (good[:-1] + b"x", good[:-3]):
        log = opened(good + message(1, 1, b"k", b"v", T) + bad)
        assert (log.log_end_offset, len(log.disk.read_bytes(LOG))) == (2, 72)
        assert len(log.warnings) == 1


def test_indexes_name_the_last_offsets() -> None:
    data = b"".join(message(n % 2, n, b"k", b"v" * 100, T + n) for n in range(300))
    log = opened(data)
    entries = log.segments[0].offset_index.entries()
    assert len(entries) == 9
    assert all(log.segments[0].find(offset).position == position for offset, position in entries)  # type: ignore[union-attr]
    assert log.read(250, 1, bound=300).records[:8] == (250).to_bytes(8, "big")


@pytest.mark.parametrize(("retention_ms", "segments"), [(NOW - T - 1, 2), (NOW - T + 1, 1)])
def test_retention_goes_by_the_timestamp_or_else_by_the_file(retention_ms: int, segments: int) -> None:
    log = opened(NO_TIME, message(1, 8, b"k", b"v", T), config=LogConfig(retention_ms=retention_ms))
    assert log.disk.modified_ms(LOG) == 0
    append(log, batch(b"new"))
    assert delete_old_segments(log, NOW) == segments


def test_truncation_drops_the_wrapper_that_reaches_the_offset() -> None:
    log = opened(MIXED)
    truncate_to(log, 6, now_ms=NOW)
    assert log.disk.read_bytes(LOG) == MIXED[:180]
    assert (log.log_end_offset, open_log(log.disk, clean=True).log_end_offset) == (6, 5)


def test_check_and_dump_read_them() -> None:
    log = opened(MIXED)
    log.close()
    assert not [finding for finding in check_directory(log.disk) if finding.severity == ERROR]
    shown = [*dump(log.disk, LOG, records=True)]
    told = [(row["base_offset"], row["count"], row["timestamp_type"], row["valid"]) for row in shown if "magic" in row]
    plain, stamped = "NoTimestampType", "CreateTime"
    assert told == [
        (0, 1, plain, True),
        (1, 3, stamped, True),
        (4, 1, stamped, True),
        (5, 4, plain, True),
        (9, 1, stamped, True),
    ]
    assert [row["offset"] for row in shown if row["kind"] == "record"] == [*range(10)]


COMPACTED = {
    "tombstone": (
        message(1, 0, b"k", b"v", T)
        + message(1, 1, b"k", None, T)
        + message(1, 2, b"z", b"v", T)
        + message(1, 3, b"k2", b"v", T),
        (
            "00000000000000010000003effffffff026e6f2307004000000000000001a22036de940000015d3ef79800ffffffffffffff"
            "ffffffffffffff000000011800a79afa939c1100026b010000000000000000020000003affffffff02e9d0458f0000000000"
            "000000015d3ef798000000015d3ef79800ffffffffffffffffffffffffffff0000000110000000027a027600000000000000"
            "00030000003bffffffff02e3f11e660000000000000000015d3ef798000000015d3ef79800ffffffffffffffffffffffffff"
            "ff0000000112000000046b32027600"
        ),
    ),
    "wrappers": (
        wrapper(0, GZIP, rows(0, 4))
        + wrapper(0, LZ4, rows(4, 9))
        + wrapper(0, SNAPPY, rows(9, 14))
        + message(0, 14, b"q", b"1"),
        (
            "000000000000000b0000006bffffffff02c9781a24000200000002ffffffffffffffffffffffffffffffffffffffffffffff"
            "ffffffffffffff0000000382534e4150505900000000010000000100000026248c16000000046b3206763131001600000204"
            "6b30067631320016000004046b310676313300000000000000000e0000003affffffff02632bc7f0000000000000ffffffff"
            "ffffffffffffffffffffffffffffffffffffffffffffffffffff00000001100000000271023100"
        ),
    ),
}


@pytest.mark.parametrize("name", COMPACTED)
def test_compaction_writes_batches_of_what_is_left(name: str) -> None:
    data, wanted = COMPACTED[name]
    horizon = 0x1A22036DE94  # in the recorded bytes
    config = LogConfig(cleanup_policy=frozenset({"compact"}))
    log = opened(data, message(1, 15, b"nn", b"v", T), config=config)
    compact(log, None, horizon - config.delete_retention_ms, force=True)
    assert log.disk.read_bytes(LOG).hex() == wanted


def test_a_follower_takes_them_as_they_are() -> None:
    log = open_log(MemoryDisk(), rules=RULES)
    log.append_as_follower(MIXED, 5, now_ms=NOW)
    assert (log.log_end_offset, log.disk.read_bytes(LOG)) == (10, MIXED)
