"""Leader epochs: what a leader answers about its past, and how the cache follows the log's two ends."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker_storage.file_errors import MalformedFile
from minibroker_storage.leader_epochs import LeaderEpochCache

GOLDEN = Path(__file__).parents[1] / "golden" / "kafka-4.3.1" / "snapshots"
MANIFEST: dict[str, dict[str, Any]] = json.loads((GOLDEN / "manifest.json").read_text())


def cache_of(*entries: tuple[int, int]) -> LeaderEpochCache:
    cache = LeaderEpochCache()
    for epoch, start in entries:
        assert cache.assign(epoch, start)
    return cache


@pytest.mark.parametrize("partition", sorted(MANIFEST))
def test_kafka_checkpoint(partition: str) -> None:
    data = (GOLDEN / partition / "leader-epoch-checkpoint").read_bytes()
    cache = LeaderEpochCache.decode(data)
    assert [f"{epoch} {start}" for epoch, start in cache.entries] == MANIFEST[partition]["leader_epochs"]
    assert cache.encode() == data


def test_assign_once_per_epoch() -> None:
    cache = cache_of((0, 0), (2, 10))
    assert not cache.assign(2, 15)
    assert cache.entries == [(0, 0), (2, 10)]
    assert (cache.latest_epoch, cache.entries[0], cache.previous_epoch(2)) == (2, (0, 0), 0)
    assert cache.previous_epoch(0) is None


@pytest.mark.parametrize(
    ("epoch", "start", "entries"),
    [
        (3, 10, [(0, 0), (3, 10)]),
        (3, 5, [(0, 0), (3, 5)]),
        (1, 20, [(0, 0), (1, 20)]),
        (2, 8, [(0, 0), (2, 8)]),
        (0, 0, [(0, 0)]),
    ],
)
def test_contradicting_entries_are_dropped(epoch: int, start: int, entries: list[tuple[int, int]]) -> None:
    cache = cache_of((0, 0), (2, 10))
    assert cache.assign(epoch, start)
    assert cache.entries == entries


@pytest.mark.parametrize("pair", [(-1, 0), (0, -1)])
def test_negative_numbers_are_refused(pair: tuple[int, int]) -> None:
    with pytest.raises(ValueError):
        LeaderEpochCache().assign(*pair)


@pytest.mark.parametrize(
    ("epoch", "answer"),
    [
        (-1, (-1, -1)),
        (0, (0, 3)),
        (1, (1, 10)),
        (2, (1, 10)),
        (3, (1, 10)),
        (4, (4, 12)),
        (5, (5, 40)),
        (6, (-1, -1)),
    ],
)
def test_end_offset_for(epoch: int, answer: tuple[int, int]) -> None:
    """`(0, 3)`: older than everything known, so it ends where the first known epoch starts."""
    assert cache_of((1, 3), (4, 10), (5, 12)).end_offset_for(epoch, 40) == answer


def test_epochs_part_at_the_log_start_once_it_has_passed_where_they_did() -> None:
    """As Kafka 4.3.1's LeaderEpochFileCache was seen to answer, so that a record of its own at 36 stays with a follower
    that ends at 37."""
    cache = LeaderEpochCache()
    cache.assign(0, 0)
    cache.assign(2, 36)
    assert cache.end_offset_for(0, 60) == (0, 36)
    cache.truncate_from_start(37)
    assert (cache.entries, cache.end_offset_for(0, 60)) == ([(2, 37)], (0, 37))


def test_end_offset_of_an_empty_cache() -> None:
    assert LeaderEpochCache().end_offset_for(0, 40) == (-1, -1)


def test_epoch_for_offset() -> None:
    cache = cache_of((1, 3), (4, 10))
    assert [cache.epoch_for_offset(n) for n in (0, 3, 9, 10, 99)] == [-1, 1, 1, 4, 4]


@pytest.mark.parametrize(
    ("end", "left", "changed"),
    [(11, [(0, 0), (2, 10)], False), (10, [(0, 0)], True), (1, [(0, 0)], True), (0, [], True)],
)
def test_truncate_from_end(end: int, left: list[tuple[int, int]], changed: bool) -> None:
    cache = cache_of((0, 0), (2, 10))
    assert cache.truncate_from_end(end) is changed
    assert cache.entries == left


@pytest.mark.parametrize(
    ("start", "left", "changed"),
    [
        (0, [(0, 0), (2, 10)], False),
        (4, [(0, 4), (2, 10)], True),
        (10, [(2, 10)], True),
        (99, [(2, 99)], True),
    ],
)
def test_truncate_from_start(start: int, left: list[tuple[int, int]], changed: bool) -> None:
    cache = cache_of((0, 0), (2, 10))
    assert cache.truncate_from_start(start) is changed
    assert cache.entries == left


def test_truncate_from_start_below_the_first_entry() -> None:
    cache = cache_of((2, 10))
    assert not cache.truncate_from_start(5)
    assert cache.entries == [(2, 10)]


def test_clear() -> None:
    cache = cache_of((2, 10))
    assert cache.clear()
    assert not cache.clear()
    assert cache.latest_epoch is None
    assert cache.encode() == b"0\n0\n"


@pytest.mark.parametrize(
    ("data", "line"),
    [(b"1\n0\n", 1), (b"0\n", 2), (b"0\n2\n0 0\n", 2), (b"0\n1\n0\n", 3), (b"0\n1\n0 x\n", 3), (b"0\n1\n-1 0\n", 3)],
)
def test_broken_files_name_the_line(data: bytes, line: int) -> None:
    with pytest.raises(MalformedFile, match=f"^le, line {line}: expected") as refused:
        LeaderEpochCache.decode(data, "le")
    assert refused.value.position == line


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 50)), max_size=15))
def test_entries_always_rise(assignments: list[tuple[int, int]]) -> None:
    cache = LeaderEpochCache()
    for epoch, start in assignments:
        cache.assign(epoch, start)
        entries = cache.entries
        assert entries == sorted(set(entries))
        assert len({e for e, _ in entries}) == len({s for _, s in entries}) == len(entries)
        assert entries[-1][0] == epoch
    assert LeaderEpochCache.decode(cache.encode()).entries == cache.entries
