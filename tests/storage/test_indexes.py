"""The sparse indexes: lookups, files allocated ahead, broken files."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker_storage.indexes import IndexCorrupt, OffsetIndex, TimeIndex, save
from minibroker_storage.memory_disk import MemoryDisk

BASE = 100


def offset_index(*entries: tuple[int, int]) -> OffsetIndex:
    index = OffsetIndex("i", BASE, 10 * 1024)
    for offset, position in entries:
        index.append(offset, position)
    return index


def time_index(*entries: tuple[int, int]) -> TimeIndex:
    index = TimeIndex("t", BASE, 10 * 1024)
    for timestamp, offset in entries:
        index.maybe_append(timestamp, offset)
    return index


def test_offset_lookup_is_the_largest_entry_at_or_below() -> None:
    index = offset_index((103, 50), (110, 400))
    assert index.lookup(100) == (100, 0)
    assert index.lookup(102) == (100, 0)
    assert index.lookup(103) == (103, 50)
    assert index.lookup(109) == (103, 50)
    assert index.lookup(5000) == (110, 400)
    assert offset_index().lookup(5000) == (100, 0)
    assert (index.last_offset, offset_index().last_offset) == (110, 100)


def test_upper_bound_is_the_first_entry_at_or_after_a_position() -> None:
    index = offset_index((103, 50), (110, 400))
    assert index.upper_bound(0) == 103
    assert index.upper_bound(50) == 103
    assert index.upper_bound(51) == 110
    assert index.upper_bound(401) is None


def test_timestamps_only_rise() -> None:
    index = time_index((-1, 100), (5, 101), (5, 102), (4, 103), (9, 104))
    assert index.entries() == [(5, 101), (9, 104)]
    assert index.last == (9, 104)
    assert index.lookup(4) == (-1, 100)
    assert index.lookup(5) == (5, 101)
    assert index.lookup(100) == (9, 104)
    assert time_index().last == (-1, 100)


def test_limits() -> None:
    offsets = OffsetIndex("i", 0, 16)
    times = TimeIndex("t", 0, 36)
    offsets.append(1, 10)
    times.maybe_append(1, 1)
    assert not offsets.full
    assert not times.full
    offsets.append(2, 20)
    times.maybe_append(2, 2)
    assert offsets.full
    assert times.full  # the last slot is kept for the roll


def test_truncation_keeps_entries_below() -> None:
    offsets, times = offset_index((103, 50), (110, 400)), time_index((5, 103), (9, 110))
    for index in (offsets, times):
        index.truncate_to(110)
        assert len(index) == 1
        index.truncate_to(103)
        assert len(index) == 0


def test_entries_as_kafka_lays_them_out() -> None:
    assert offset_index((103, 50)).encode() == struct.pack(">ii", 3, 50)
    assert time_index((5, 103)).encode() == struct.pack(">qi", 5, 3)


@given(st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 10_000)), max_size=30), st.integers(0, 40))
def test_files_come_back_also_when_allocated_ahead(steps: list[tuple[int, int]], ahead: int) -> None:
    offset, position, timestamp = BASE, 0, -1
    offsets, times = offset_index(), time_index()
    for step, size in steps:
        offset, position, timestamp = offset + step, position + size, timestamp + step
        offsets.append(offset, position)
        times.maybe_append(timestamp, offset)
    for index, entry in ((offsets, 8), (times, 12)):
        data = index.encode()
        again = type(index)("x", BASE, 10 * 1024)
        again.decode(data + bytes(entry * ahead), position + 1)
        if ahead and not any(data):
            continue  # one entry of zeros cannot be told from the space ahead
        assert again.entries() == index.entries()


def test_a_single_entry_of_zeros_is_an_entry() -> None:
    index = TimeIndex("t", BASE, 1024)
    index.decode(bytes(12), 100)
    assert index.entries() == [(0, BASE)]
    index.decode(bytes(24), 100)
    assert index.entries() == []


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\1" * 7, id="torn entry"),
        pytest.param(struct.pack(">iiii", 5, 10, 4, 20), id="offsets fall"),
        pytest.param(struct.pack(">iiii", 4, 20, 5, 10), id="positions fall"),
        pytest.param(struct.pack(">ii", 5, 1000), id="past the log's end"),
        pytest.param(struct.pack(">ii", -5, 10), id="below the base"),
    ],
)
def test_broken_offset_index_files_are_refused(data: bytes) -> None:
    with pytest.raises(IndexCorrupt, match="some/path"):
        OffsetIndex("some/path", BASE, 1024).decode(data, 1000)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\1" * 13, id="torn entry"),
        pytest.param(struct.pack(">qiqi", 5, 1, 4, 2), id="timestamps fall"),
        pytest.param(struct.pack(">qiqi", 5, 2, 6, 1), id="offsets fall"),
        pytest.param(struct.pack(">qi", 5, -1), id="below the base"),
        pytest.param(struct.pack(">qi", -5, 1), id="before time"),
    ],
)
def test_broken_time_index_files_are_refused(data: bytes) -> None:
    with pytest.raises(IndexCorrupt, match="some/path"):
        TimeIndex("some/path", BASE, 1024).decode(data, 1000)


def test_saving_writes_only_what_the_file_lacks() -> None:
    disk = MemoryDisk()
    index = offset_index((103, 50))
    save(disk, index)
    assert disk.read_bytes("i") == index.encode()
    index.append(110, 400)
    save(disk, index)
    assert disk.read_bytes("i") == index.encode()
    index.truncate_to(110)
    save(disk, index)
    assert disk.read_bytes("i") == index.encode()
    index.append(120, 500)
    save(disk, index)
    assert disk.read_bytes("i") == index.encode()
    assert len(index) == 2


def test_a_file_allocated_ahead_is_trimmed_when_saved() -> None:
    disk = MemoryDisk()
    disk.write_atomic("i", struct.pack(">ii", 3, 50) + bytes(800))
    index = OffsetIndex("i", BASE, 1024)
    index.decode(disk.read_bytes("i"), 100)
    save(disk, index)
    assert disk.read_bytes("i") == struct.pack(">ii", 3, 50)
