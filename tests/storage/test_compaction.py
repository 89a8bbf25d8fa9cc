"""Compaction: what goes, what stays and why, and that a crash leaves one of the two."""

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from logs import NOW, append, batches, end_transaction, open_log, values
from sampling import search

from minibroker_protocol.errors import ApiError
from minibroker_protocol.records import BatchHeader, CorruptBatch, Record, build_batch, control_record, decode_records
from minibroker_storage.compaction import CHUNK_BYTES, Stopped, Work, compact, find_work, install, plan
from minibroker_storage.config import LogConfig
from minibroker_storage.disk import Disk, StorageError
from minibroker_storage.log import PartitionLog
from minibroker_storage.memory_disk import MemoryDisk
from minibroker_storage.producer_state import ProducerRules, ProducerStateManager
from minibroker_storage.retention import delete_old_segments
from minibroker_storage.truncation import truncate_fully_and_start_at, truncate_to
from minibroker_storage.txn_index import AbortedTxn

GOLDEN = Path(__file__).parents[1] / "golden" / "kafka-4.3.1" / "directory" / "clean.tar.gz"
RETENTION = 1000
COMPACT = LogConfig(cleanup_policy=frozenset({"compact"}), delete_retention_ms=RETENTION)
FOREVER = ProducerRules(producer_id_expiration_ms=1 << 60, verification_enabled=False)
Pair = tuple[str, str | None]


def records(*pairs: Pair) -> list[Record]:
    return [
        Record(i, NOW, key.encode(), None if value is None else value.encode()) for i, (key, value) in enumerate(pairs)
    ]


class Compacted:
    """A compacted log and what was written to it."""

    def __init__(self, disk: Disk | None = None, config: LogConfig = COMPACT, chunk_bytes: int = CHUNK_BYTES) -> None:
        self.disk = disk or MemoryDisk()
        self.config = config
        self.chunk_bytes = chunk_bytes
        self.log = open_log(self.disk, config=config)
        self.sequences: dict[int, int] = {}
        self.checkpoint: int | None = None

    def put(self, *pairs: Pair, pid: int = -1, txn: bool = False, codec: int = 0) -> int:
        sequence = self.sequences.get(pid, 0)
        producer: dict[str, Any] = {}
        if pid >= 0:
            producer = {"producer_id": pid, "producer_epoch": 0, "base_sequence": sequence}
        data = build_batch(records(*pairs), transactional=txn, compression=codec, **producer)
        self.sequences[pid] = sequence + len(pairs)
        return append(self.log, data).base_offset

    def end(self, pid: int, *, commit: bool) -> None:
        end_transaction(self.log, pid, commit=commit)

    def roll(self) -> None:
        if self.log.segments[-1].size:
            self.log.roll(NOW)

    def compact(self, now_ms: int = NOW) -> bool:
        """Everything up to here becomes a sealed segment and is cleaned."""
        self.roll()
        done = compact(self.log, self.checkpoint, now_ms, force=True, chunk_bytes=self.chunk_bytes)
        self.checkpoint = self.checkpoint if done is None else done
        return done is not None

    def reopen(self, disk: Disk | None = None, *, clean: bool = True) -> None:
        if clean:
            self.log.close()
        self.disk = disk or self.disk
        self.log = open_log(self.disk, config=self.config, clean=clean, high_watermark=1 << 60)

    def held(self) -> list[tuple[int, str | None, str | None]]:
        """(offset, key, value) of every record that is still there."""
        return [
            (r.offset, text(r.key), text(r.value))
            for data, header in batches(self.log)
            if not header.is_control
            for r in decode_records(data, 0, header)
        ]

    def shape(self) -> list[tuple[int, int, str]]:
        """(base offset, size, what it is) of every batch."""
        found = []
        for _, header in batches(self.log):
            kind = "control" if header.is_control else "data"
            horizon = " horizon" if header.has_delete_horizon else ""
            found.append((header.base_offset, header.size, kind + horizon + ("" if header.record_count else " empty")))
        return found


def text(data: object) -> str | None:
    return None if data is None else bytes(data).decode()  # type: ignore[call-overload]


# Records


def test_the_latest_value_of_each_key_stays_where_it_was() -> None:
    log = Compacted()
    log.put(("a", "1"), ("b", "1"))
    log.put(("a", "2"), ("c", "1"))
    log.put(("b", "2"))
    assert log.compact()
    assert log.held() == [(2, "a", "2"), (3, "c", "1"), (4, "b", "2")]
    assert log.checkpoint == 5
    log.reopen()
    assert log.held() == [(2, "a", "2"), (3, "c", "1"), (4, "b", "2")]
    assert log.log.log_end_offset == 5


def test_the_active_segment_is_not_touched() -> None:
    log = Compacted()
    log.put(("a", "1"))
    log.roll()
    log.put(("a", "2"))
    log.put(("a", "3"))
    compact(log.log, None, NOW, force=True)
    assert [value for _, _, value in log.held()] == ["1", "2", "3"], "what is newer than the map keeps its history"


@pytest.mark.parametrize("codec", range(5))
def test_a_partly_superseded_batch_keeps_offsets_sequence_and_codec(codec: int) -> None:
    log = Compacted()
    log.put(("a", "1"), ("b", "1"), ("a", "2"), ("c", "1"), ("c", "2"), pid=7, codec=codec)
    log.put(("z", "1"), pid=7)
    before = next(batches(log.log))[1]
    log.compact()
    after = next(batches(log.log))[1]
    assert log.held()[:3] == [(1, "b", "1"), (2, "a", "2"), (4, "c", "2")]
    assert (after.last_offset, after.last_sequence, after.compression) == (
        before.last_offset,
        before.last_sequence,
        codec,
    )
    assert after.record_count == 3


def test_untouched_batches_are_the_same_bytes() -> None:
    log = Compacted()
    log.put(("a", "1"), ("b", "1"), codec=4)
    log.put(("c", "1"))
    before = [bytes(data) for data, _ in batches(log.log)]
    log.compact()
    assert [bytes(data) for data, _ in batches(log.log)] == before


def test_a_batch_of_some_megabytes_is_compacted() -> None:
    story = Compacted()
    story.put(("a", "1"), ("b", "x" * (3 << 20)), codec=1)
    story.put(("a", "2"))
    assert story.compact()
    assert [key for key, _ in values(story.log)] == [b"b", b"a"]


def test_records_without_a_key_go() -> None:
    log = Compacted()
    log.config = LogConfig()
    log.log.update_config(log.config)
    append(log.log, build_batch([Record(0, NOW, None, b"x"), Record(1, NOW, b"k", b"y")]))
    log.log.update_config(COMPACT)
    log.put(("z", "1"))
    log.compact()
    assert log.held() == [(1, "k", "y"), (2, "z", "1")]


def test_a_tombstone_stays_for_its_retention() -> None:
    log = Compacted()
    log.put(("a", "1"))
    log.put(("a", None))
    log.put(("b", "1"))
    log.compact(NOW)
    assert log.shape()[0][2] == "data horizon"
    assert next(batches(log.log))[1].base_timestamp == NOW + RETENTION
    assert log.held() == [(1, "a", None), (2, "b", "1")]
    log.put(("c", "1"))
    log.compact(NOW + RETENTION - 1)
    assert (1, "a", None) in log.held()
    assert next(batches(log.log))[1].base_timestamp == NOW + RETENTION, "the horizon is set once"
    assert next(r.timestamp for r in decode_records(*first(log.log))) == NOW, "records keep their own timestamps"
    log.put(("d", "1"))
    log.compact(NOW + RETENTION)
    assert log.held() == [(2, "b", "1"), (3, "c", "1"), (4, "d", "1")]


def first(log: PartitionLog) -> tuple[bytes, int, BatchHeader]:
    data, header = next(batches(log))
    return data, 0, header


def test_a_superseded_tombstone_goes_at_once() -> None:
    log = Compacted()
    log.put(("a", None))
    log.put(("a", "1"))
    log.compact()
    assert log.held() == [(1, "a", "1")]


def test_the_end_of_the_round_is_kept_as_an_empty_batch() -> None:
    """Nobody needs the last batch here, but its offsets must not look free."""
    log = Compacted()
    log.put(("a", "1"))
    log.put(("b", "x"), pid=7, txn=True)
    log.roll()
    log.end(7, commit=False)
    log.log.producers.expire(1 << 62)
    assert compact(log.log, None, NOW, force=True) == 2
    assert log.shape() == [(0, 70, "data"), (1, 61, "data empty"), (2, 78, "control")]


# Producers


def test_the_last_batch_of_a_live_producer_stays_empty() -> None:
    log = Compacted()
    log.put(("a", "1"), ("b", "1"), pid=7)
    log.put(("a", "2"))
    log.put(("b", "2"))
    log.compact()
    assert log.shape()[0] == (0, 61, "data empty")
    header = next(batches(log.log))[1]
    assert (header.producer_id, header.base_sequence, header.last_sequence, header.base_timestamp) == (7, 0, 1, -1)
    assert header.max_timestamp == NOW
    assert replayed(log.log)[7] == (0, 1)
    log.log.producers.expire(1 << 62)
    log.put(("c", "1"))
    log.compact()
    assert log.shape()[0][0] == 2, "nobody needs it once the producer is forgotten"


def replayed(log: PartitionLog) -> dict[int, tuple[int, int]]:
    """pid -> (epoch, last sequence), from the batches alone."""
    producers = ProducerStateManager(FOREVER)
    for data, header in batches(log):
        producers.replay(header, control_record(data, 0, header) if header.is_control else None, NOW)
    return {row.producer_id: (row.producer_epoch, row.last_sequence) for row in producers.active()}


# Transactions


def test_aborted_records_go_at_once_and_supersede_nothing() -> None:
    log = Compacted()
    log.put(("a", "1"))
    log.put(("a", "aborted"), pid=7, txn=True)
    log.end(7, commit=False)
    log.put(("b", "1"))
    log.compact()
    assert log.held() == [(0, "a", "1"), (3, "b", "1")]


def test_an_undecided_transaction_stops_cleaning_at_its_segment() -> None:
    log = Compacted()
    log.put(("a", "1"))
    log.put(("a", "2"))
    log.roll()
    log.put(("a", "3"), pid=7, txn=True)
    log.roll()
    log.put(("a", "4"))
    assert find_work(log.log, None, NOW).upper_bound == 2
    log.compact()
    assert [value for _, _, value in log.held()] == ["2", "3", "4"]
    log.end(7, commit=True)
    log.put(("b", "1"))
    log.compact()
    assert [value for _, _, value in log.held()] == ["4", "1"]


def test_abort_marker_and_its_index_entry_stay_while_an_emptied_batch_does() -> None:
    log = Compacted()
    log.put(("a", "x"), pid=7, txn=True)
    log.end(7, commit=False)
    log.put(("b", "1"))
    log.compact()
    assert log.shape() == [(0, 61, "data empty"), (1, 78, "control"), (2, 70, "data")]
    assert list(log.log.segments[0].txn_index) == [AbortedTxn(7, 0, 1, 2)]
    log.reopen()
    assert list(log.log.segments[0].txn_index) == [AbortedTxn(7, 0, 1, 2)]
    assert values(log.log, committed=True) == [(b"b", b"1")]


def test_markers_go_in_the_order_a_live_broker_showed() -> None:
    """First the data, then the marker is given a time, then it goes; the last one of a live producer is emptied."""
    log = Compacted()
    log.put(("a", "1"), pid=7, txn=True)
    log.end(7, commit=True)
    log.put(("a", "x"), pid=8, txn=True)
    log.end(8, commit=False)
    log.put(("a", "2"))
    # The producers are known by their markers only, as after a bump of the epoch by transaction.version 2.
    for pid in (7, 8):
        end_transaction(log.log, pid, 1, commit=pid == 7)
    log.compact(NOW)
    assert log.shape() == [
        (1, 78, "control"),
        (3, 78, "control"),
        (4, 70, "data"),
        (5, 79, "control horizon"),
        (6, 79, "control horizon"),
    ], "markers that ended nothing are stamped at once; re-encoding a negative delta takes a byte"
    log.put(("b", "1"))
    log.compact(NOW + 1)
    assert [kind for _, _, kind in log.shape()][:2] == ["control horizon", "control horizon"]
    log.put(("c", "1"))
    log.compact(NOW + RETENTION + 1)
    assert log.shape() == [
        (4, 70, "data"),
        (5, 61, "control empty"),
        (6, 61, "control empty"),
        (7, 70, "data"),
        (8, 70, "data"),
    ]
    log.put(("d", "1"))
    log.log.producers.expire(1 << 62)
    log.compact(NOW + RETENTION + 1)
    assert [base for base, _, _ in log.shape()] == [4, 7, 8, 9]


# Which part, and when


@pytest.mark.parametrize(
    ("checkpoint", "first_dirty"), [(None, 0), (0, 0), (2, 2), (99, 0)], ids=["none", "zero", "two", "past the end"]
)
def test_where_the_dirty_part_begins(checkpoint: int | None, first_dirty: int) -> None:
    log = Compacted()
    for n in range(3):
        log.put((f"k{n}", "1"))
        log.roll()
    work = find_work(log.log, checkpoint, NOW)
    assert (work.first_dirty, work.upper_bound) == (first_dirty, 3)
    size = log.log.segments[0].size
    assert (work.clean_bytes, work.cleanable_bytes) == (first_dirty * size, (3 - first_dirty) * size)
    assert work.ratio == pytest.approx((3 - first_dirty) / 3)


def test_ratio_decides_and_the_longest_lag_overrules_it() -> None:
    config = LogConfig(cleanup_policy=frozenset({"compact"}), max_compaction_lag_ms=5000)
    assert Work(0, 1, 50, 51, False).due(config)
    assert not Work(0, 1, 50, 50, False).due(config)
    assert Work(0, 1, 99, 1, True).due(config)
    assert not Work(0, 0, 0, 0, True).due(config)
    log = Compacted(config=config)
    log.put(("a", "1"))
    log.roll()
    assert not find_work(log.log, None, NOW + 5000).overdue
    assert find_work(log.log, None, NOW + 5001).overdue


def test_young_segments_wait() -> None:
    log = Compacted(config=LogConfig(cleanup_policy=frozenset({"compact"}), min_compaction_lag_ms=5000))
    log.put(("a", "1"))
    log.roll()
    log.put(("a", "2"))
    log.roll()
    assert find_work(log.log, None, NOW + 4999).upper_bound == 0
    assert find_work(log.log, None, NOW + 5000).upper_bound == 2


def test_small_segments_become_one_up_to_the_size_of_a_segment() -> None:
    log = Compacted()
    for n in range(6):
        log.put((f"k{n}", "1"))
        log.roll()
    size = log.log.segments[0].size
    log.log.update_config(LogConfig(cleanup_policy=frozenset({"compact"}), segment_bytes=2 * size))
    log.compact()
    assert [segment.base_offset for segment in log.log.segments] == [0, 2, 4, 6]
    assert [base for base, _, _ in log.shape()] == list(range(6))


@pytest.mark.parametrize(("index_bytes", "bases"), [(48, [0, 8]), (40, [0, 4, 8])])
def test_segments_become_one_up_to_the_size_of_an_index(index_bytes: int, bases: list[int]) -> None:
    """Four batches of one time: three entries by offset, one by time."""
    policy = frozenset({"compact"})
    log = Compacted(config=LogConfig(cleanup_policy=policy, index_interval_bytes=0))
    for n in range(8):
        log.put((f"k{n}", "1"))
        if n in (3, 7):
            log.roll()
    log.log.update_config(LogConfig(cleanup_policy=policy, index_interval_bytes=0, segment_index_bytes=index_bytes))
    log.compact()
    assert [segment.base_offset for segment in log.log.segments] == bases


def test_the_time_index_of_a_compacted_segment_ends_with_its_largest_timestamp() -> None:
    """As a roll leaves it, in the file."""
    log = Compacted()
    for number in range(3):
        log.put((f"k{number}", "1"))
        log.roll()
    log.compact()
    assert [segment.base_offset for segment in log.log.segments] == [0, 3]
    assert log.disk.read_bytes(f"t-0/{0:020d}.timeindex") == NOW.to_bytes(8) + (0).to_bytes(4)


def test_abort_index_entries_go_with_their_group() -> None:
    log = Compacted()
    for pid in (7, 8):
        log.put((f"k{pid}", "x"), pid=pid, txn=True)
        log.end(pid, commit=False)
        log.roll()
    size = log.log.segments[0].size
    log.log.update_config(LogConfig(cleanup_policy=frozenset({"compact"}), segment_bytes=size))
    log.compact()
    assert [[txn.producer_id for txn in segment.txn_index] for segment in log.log.segments] == [[7], [8], []]


def test_a_full_map_leaves_the_rest_for_the_next_round() -> None:
    log = Compacted()
    for n in range(4):
        log.put((f"k{n}", "old"))
    log.roll()
    for n in range(4):
        log.put((f"k{n}", "new"))
    log.roll()
    log.put(("z", "1"))
    log.roll()
    expected = [(4, "k0"), (5, "k1"), (6, "k2"), (7, "k3"), (8, "z")]
    rounds = 0
    while True:
        work = find_work(log.log, log.checkpoint, NOW)
        if not work.cleanable_bytes or log.checkpoint == work.upper_bound:
            break
        cleaned = plan(log.log, work, NOW).rewrite(map_bytes=150)
        assert all(old.base_offset < cleaned.next_dirty for group in cleaned.groups for old in group.old)
        assert install(log.log, cleaned, NOW)
        assert cleaned.next_dirty > (log.checkpoint or 0)
        log.checkpoint = cleaned.next_dirty
        rounds += 1
    assert rounds > 2
    assert [(offset, key) for offset, key, _ in log.held()] == expected


def test_nothing_due() -> None:
    log = Compacted()
    assert compact(log.log, None, NOW) is None
    log.put(("a", "1"))
    log.compact()
    assert compact(log.log, log.checkpoint, NOW, force=True) is None
    for value in "2345":
        log.put(("a", value))
    log.compact()
    log.put(("a", "6"))
    log.roll()
    log.log.update_config(LogConfig(cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.9))
    assert compact(log.log, log.checkpoint, NOW) is None, "less is dirty than is worth a round"
    assert compact(log.log, log.checkpoint, NOW, force=True) is not None


# Interruptions


@pytest.mark.parametrize("left", ["nothing", "the newest", "the oldest"])
def test_a_loss_of_segments_meanwhile_voids_the_rewrite(left: str) -> None:
    """By truncation or retention, of all segments that became one or of some."""
    log = Compacted()
    for value in "123":
        log.put((value, value))
        log.roll()
    cleaned = plan(log.log, find_work(log.log, None, NOW), NOW).rewrite()
    assert [len(group.old) for group in cleaned.groups] == [3]
    if left == "the newest":
        log.log.advance_log_start(2)
        assert delete_old_segments(log.log, NOW)
    else:
        truncate = truncate_fully_and_start_at if left == "nothing" else truncate_to
        truncate(log.log, 0 if left == "nothing" else 1, now_ms=NOW)
    before = [*log.held()]
    assert not install(log.log, cleaned, NOW)
    assert [*log.held()] == before
    assert len(before) == (0 if left == "nothing" else 1)
    assert not [name for name in log.disk.list("t-0") if name.endswith(".cleaned")]


def test_a_stopped_rewrite_leaves_no_file() -> None:
    log = Compacted()
    log.put(("a", "1"))
    log.put(("a", "2"))
    log.roll()
    before = log.disk.list("t-0")
    calls = iter([False, False, False, True])
    with pytest.raises(Stopped):
        plan(log.log, find_work(log.log, None, NOW), NOW).rewrite(lambda: next(calls))
    assert log.disk.list("t-0") == before
    assert [value for _, _, value in log.held()] == ["1", "2"]


def test_a_broken_batch_is_named_and_nothing_is_cleaned() -> None:
    log = Compacted()
    log.put(("a", "1"))
    log.put(("a", "2"))
    log.roll()
    name = log.log.segments[0].path(".log")
    log.disk.open(name).pwrite(b"?", 139)
    before = log.disk.list("t-0")
    with pytest.raises(CorruptBatch, match=rf"{name}: batch at byte 70 \(offset 1\) has a wrong checksum"):
        compact(log.log, None, NOW, force=True)
    assert log.disk.list("t-0") == before


def story(disk: Disk) -> Compacted:
    """Three segments that compaction makes one of, with a transaction of each outcome."""
    log = Compacted(disk)
    log.put(("a", "1"), ("b", "1"))
    log.put(("a", "x"), pid=7, txn=True)
    log.roll()
    log.end(7, commit=False)
    log.put(("b", "2"), pid=8, txn=True)
    log.roll()
    log.end(8, commit=True)
    log.put(("c", "1"))
    log.roll()
    log.put(("d", "1"))
    return log


class Interrupted(MemoryDisk):
    """Fails the n-th renaming, removing, creating or writing call from `arm` on, and every later one."""

    left: int | None = None

    def _count(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise StorageError(5, "interrupted", "disk")

    def rename(self, old: str, new: str) -> None:
        self._count()
        super().rename(old, new)

    def remove(self, path: str) -> None:
        self._count()
        super().remove(path)

    def write_atomic(self, path: str, data: object, *, sync: bool = True) -> None:
        self._count()
        super().write_atomic(path, data, sync=sync)  # type: ignore[arg-type]

    def sync_dir(self, path: str) -> None:
        self._count()
        super().sync_dir(path)


def latest(pairs: list[tuple[bytes | None, bytes | None]]) -> dict[bytes | None, bytes | None]:
    return dict(pairs)


def interruptions() -> Iterator[int]:
    """Until a round comes through."""
    for n in range(100):
        disk = Interrupted()
        log = story(disk)
        disk.left = n
        try:
            log.compact()
        except (StorageError, ApiError):
            yield n
            continue
        return
    raise AssertionError("never came through")


def test_a_crash_at_every_step_leaves_the_old_or_the_new() -> None:
    steps = list(interruptions())
    assert len(steps) > 8
    for n in steps:
        disk = Interrupted()
        log = story(disk)
        wanted = latest(values(log.log, committed=True))
        end = log.log.log_end_offset
        known = {row.producer_id: (row.producer_epoch, row.last_sequence) for row in log.log.producers.active()}
        disk.left = n
        with pytest.raises(Exception, match="interrupted"):
            log.compact()
        disk.left = None
        for clean in (False, True):
            log.log.abandon()
            log.log = open_log(disk, config=COMPACT, clean=clean, high_watermark=1 << 60)
            assert latest(values(log.log, committed=True)) == wanted, n
            assert log.log.log_end_offset == end, n
            assert [s.base_offset for s in log.log.segments] == sorted({s.base_offset for s in log.log.segments})
            assert {r.producer_id: (r.producer_epoch, r.last_sequence) for r in log.log.producers.active()} == known
            leftovers = [name for name in disk.list("t-0") if name.endswith((".cleaned", ".swap", ".deleted"))]
            assert not leftovers, n
        log.checkpoint = None
        assert log.compact()
        assert latest(values(log.log, committed=True)) == wanted


# Any log

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "put", "txn", "txn", "commit", "abort", "roll", "compact"]),
        st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["1", "2", None])), min_size=1, max_size=3),
        st.integers(7, 8),
    ),
    max_size=25,
)


@search(150)
@given(STEPS, st.sampled_from([1, 200, 1 << 20]))
def test_any_log_reads_the_same_after_compaction(steps: list[tuple[str, list[Pair], int]], chunk: int) -> None:
    """chunk: bytes that are written at once."""
    play(steps, chunk)


def play(steps: list[tuple[str, list[Pair], int]], chunk: int = CHUNK_BYTES) -> None:
    log = Compacted(chunk_bytes=chunk)
    open_: set[int] = set()
    now = NOW
    for what, pairs, pid in steps:
        if what == "put":
            log.put(*pairs)
        elif what == "txn":
            log.put(*pairs, pid=pid, txn=True)
            open_.add(pid)
        elif what in ("commit", "abort") and pid in open_:
            log.end(pid, commit=what == "commit")
            open_.discard(pid)
        elif what == "roll":
            log.roll()
        elif what == "compact":
            now += RETENTION // 2
            check_compaction(log, now)
    for pid in sorted(open_):
        log.end(pid, commit=False)
    log.put(("z", "1"))
    check_compaction(log, now + RETENTION)
    log.reopen(clean=False)
    check_compaction(log, now + 3 * RETENTION)


def check_compaction(log: Compacted, now: int) -> None:
    """Committed state, offsets, producers and the log's end are what they were."""
    before = {key: value for key, value in latest(values(log.log, committed=True)).items() if value is not None}
    offsets = {row[0]: row for row in log.held()}
    producers = replayed(log.log)
    end, stable = log.log.log_end_offset, log.log.last_stable_offset
    log.compact(now)
    after = {key: value for key, value in latest(values(log.log, committed=True)).items() if value is not None}
    assert after == before
    assert all(offsets[row[0]] == row for row in log.held()), "a record moved or changed"
    assert replayed(log.log) == producers
    assert (log.log.log_end_offset, log.log.last_stable_offset) == (end, stable)
    found = [(base, size) for base, size, _ in log.shape()]
    assert found == sorted(set(found))


# Kafka's own


@pytest.mark.parametrize("partition", ["compacted-0", "compacted-1"])
def test_what_kafka_compacted_stays_byte_for_byte(partition: str) -> None:
    """A round over a segment Kafka has cleaned, before any horizon passed, changes nothing."""
    disk = MemoryDisk()
    disk.make_dir(partition)
    with tarfile.open(fileobj=io.BytesIO(GOLDEN.read_bytes())) as archive:
        for member in archive.getmembers():
            name = member.name.removeprefix("./")
            content = archive.extractfile(member) if name.startswith(partition + "/") and member.isfile() else None
            if content is not None:
                disk.write_atomic(name, content.read())
    log = PartitionLog.open(
        disk, partition, topic="compacted", partition=int(partition[-1]), config=COMPACT, rules=FOREVER, now_ms=0,
        high_watermark=1 << 60,
    )  # fmt: skip
    name = f"{partition}/{0:020d}.log"
    before = disk.read_bytes(name)
    horizons = [h.base_timestamp for _, h in log.segments[0].headers() if h.has_delete_horizon]
    now = min(horizons, default=1) - 1
    work = find_work(log, None, now)
    assert work.upper_bound == 58
    cleaned = plan(log, work, now).rewrite()
    assert cleaned.bytes_read == cleaned.bytes_written == len(before)
    assert install(log, cleaned, now)
    assert disk.read_bytes(name) == before
    assert any(not h.record_count for _, h in log.segments[0].headers())
