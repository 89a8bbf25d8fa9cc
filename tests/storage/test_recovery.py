"""Opening after a crash: what is cut, what is rebuilt, what interrupted work leaves behind."""

import errno
from collections.abc import Callable

import pytest
from logs import NOW, RULES, append, batch, batches, end_transaction, open_log, refused, tree, values
from old_messages import message

from minibroker_lab.simulation.faulty_disk import FaultyDisk
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.records import BatchHeader, Record, build_batch, iter_batches, patch_offsets
from minibroker_storage import recovery
from minibroker_storage.config import LogConfig
from minibroker_storage.disk import NotFound, StorageError
from minibroker_storage.log import PartitionLog
from minibroker_storage.memory_disk import MemoryDisk
from minibroker_storage.producer_state import ProducerRules, ProducerStateManager
from minibroker_storage.recovery import rebuild_producers
from minibroker_storage.retention import delete_old_segments
from minibroker_storage.segment import Segment

SMALL = LogConfig(segment_bytes=600, index_interval_bytes=100)
LOG = "t-0/00000000000000000000.log"


def copy(disk: MemoryDisk, path: str = "t-0") -> MemoryDisk:
    twin = MemoryDisk()
    twin.make_dir(path)
    for name, data in tree(disk, path).items():
        twin.write_atomic(f"{path}/{name}", data)
    return twin


def filled(disk: MemoryDisk, *, config: LogConfig = SMALL) -> PartitionLog:
    """Two producers, one of them transactional, over several segments and two leader epochs."""
    log = open_log(disk, config=config)
    for i in range(6):
        append(log, batch(b"p%d" % i * 20, timestamp=NOW + i, pid=1, seq=i), leader_epoch=i // 3)
        append(log, batch(b"t%d" % i * 20, timestamp=NOW - i, pid=2, seq=i, txn=True), leader_epoch=i // 3)
        if i % 2:
            log.append_as_leader(batch_marker(2, commit=i == 3), origin=_coordinator(), leader_epoch=i // 3, now_ms=NOW)
            log.update_high_watermark(log.log_end_offset)
    return log


def batch_marker(pid: int, *, commit: bool) -> bytearray:
    from minibroker_protocol.records import end_txn_marker

    return end_txn_marker(producer_id=pid, producer_epoch=0, commit=commit, coordinator_epoch=0, timestamp_ms=NOW)


def _coordinator() -> "object":
    from minibroker_storage.origin import Origin

    return Origin.COORDINATOR


def state(log: PartitionLog) -> dict[str, object]:
    """All that a log knows and a crash must not change."""
    log.update_high_watermark(log.log_end_offset)
    return {
        "end": log.log_end_offset,
        "stable": log.last_stable_offset,
        "batches": [data for data, _ in batches(log)],
        "committed": values(log, committed=True),
        "producers": sorted(log.producers.active(), key=lambda entry: entry.producer_id),
        "aborted": [list(segment.txn_index) for segment in log.segments],
        "offset indexes": [segment.offset_index.entries() for segment in log.segments],
        "epochs": log.leader_epochs.entries,
    }


def full_replay(log: PartitionLog) -> ProducerStateManager:
    """Producer state from nothing but the log."""
    disk = MemoryDisk()
    disk.make_dir("x")
    from logs import RULES

    from minibroker_storage.segments import Segments
    from minibroker_storage.snapshots import SnapshotFiles

    producers = ProducerStateManager(RULES)
    rebuild_producers(
        producers,
        Segments(log.segments),
        SnapshotFiles(disk, "x"),
        0,
        log.log_end_offset,
        now_ms=NOW,
        clean=False,
        warn=lambda text: None,
    )
    return producers


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("recovery_point", [0, 5, 15])
def test_a_log_comes_back_as_it_was(clean: bool, recovery_point: int) -> None:
    disk = MemoryDisk()
    log = filled(disk)
    before = state(log)
    assert len(log.segments) > 2
    if clean:
        log.close()
    else:
        log.abandon()
    again = open_log(disk, config=SMALL, clean=clean, recovery_point=recovery_point)
    assert state(again) == before
    assert again.warnings == [] or not clean


KEEPING = ProducerRules(rebuild_from="first_segment", snapshot_all_batches=True, expire_by="arrival")


@pytest.mark.parametrize(
    ("rules", "stop", "gone", "last_sequences"),
    [
        # Kafka's LogLoader: no snapshot at or below the log start, no batch below it
        (ProducerRules(), "clean", "DeleteRecords", {}),
        (ProducerRules(), "crash", "DeleteRecords", {}),
        (ProducerRules(), "clean", "retention", {}),
        (KEEPING, "clean", "DeleteRecords", {1: 2, 2: 0}),
        (KEEPING, "crash", "DeleteRecords", {1: 2, 2: 0}),
        (KEEPING, "clean", "retention", {1: 2, 2: 0}),
        (KEEPING, "crash", "retention", {1: 2, 2: 0}),
        # forgotten while it runs, and so after a start
        (ProducerRules(rebuild_from="first_segment", forget_with_records=True), "clean", "DeleteRecords", {}),
        (ProducerRules(rebuild_from="first_segment", forget_with_records=True), "crash", "DeleteRecords", {}),
    ],
)
def test_what_a_start_knows_of_producers_whose_records_are_gone(
    rules: ProducerRules, stop: str, gone: str, last_sequences: dict[int, int]
) -> None:
    disk = MemoryDisk()
    log = open_log(disk, rules=rules)
    append(log, batch(pid=2, seq=0))
    for sequence in range(3):
        append(log, batch(pid=1, seq=sequence))
    log.update_high_watermark(log.log_end_offset)
    log.delete_records(-1)
    if gone == "retention":
        log.roll(NOW)
        assert delete_old_segments(log, NOW) == 1
    if stop == "clean":
        log.close()
    else:
        log.abandon()
    again = open_log(disk, rules=rules, clean=stop == "clean", log_start_offset=4, high_watermark=4)
    assert again.log_start_offset == again.log_end_offset == 4
    assert {p.producer_id: p.last_sequence for p in again.producers.active()} == last_sequences


def test_a_snapshot_that_lacks_batches_which_are_gone_is_not_used() -> None:
    """It would have a last sequence that is too low, and take what goes on for a gap."""
    disk = MemoryDisk()
    log = open_log(disk, rules=KEEPING)
    append(log, batch(pid=1, seq=0))
    log.close()  # a snapshot at 1
    stale = {name: data for name, data in tree(disk, "t-0").items() if name.startswith("00000000000000000001.")}
    log = open_log(disk, rules=KEEPING)
    append(log, batch(pid=1, seq=1))
    append(log, batch(pid=3, seq=0))
    log.update_high_watermark(3)
    log.delete_records(-1)
    log.roll(NOW)
    delete_old_segments(log, NOW)
    log.abandon()
    for name in [name for name in disk.list("t-0") if name.endswith((".snapshot", ".remembered"))]:
        disk.remove(f"t-0/{name}")
    for name, data in stale.items():
        disk.write_atomic(f"t-0/{name}", data)
    assert stale
    again = open_log(disk, rules=KEEPING, clean=False, log_start_offset=3, high_watermark=3)
    assert again.producers.active() == []


def test_the_duplicate_window_is_what_snapshot_and_log_give() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    for i in range(3):
        append(log, batch(pid=1, seq=i))
    log.close()
    again = open_log(disk)
    entry = again.producers.entry(1)
    assert entry is not None
    assert len(entry.batches) == 1  # a snapshot holds the newest batch only
    assert append(again, batch(pid=1, seq=2)).duplicate


@pytest.mark.parametrize("with_indexes", [True, False])
def test_cut_at_every_byte(with_indexes: bool) -> None:
    """A log file that ends anywhere gives every batch that is whole, and producer state to match."""
    disk = MemoryDisk()
    log = open_log(disk)
    append(log, batch(b"a", b"b", pid=1))
    append(log, batch(b"c", pid=2, txn=True))
    append(log, batch(b"d", pid=1, seq=2))
    end_transaction(log, 2, commit=False)
    append(log, batch(b"e"))
    if with_indexes:
        log.flush()
    log.abandon()
    data = disk.read_bytes(LOG)
    ends = [(position + header.size, header.next_offset) for position, header in iter_batches(data)]
    for cut in range(len(data) + 1):
        torn = copy(disk)
        torn.open(LOG).truncate(cut)
        found = open_log(torn, clean=False)
        whole = [(0, 0), *[pair for pair in ends if pair[0] <= cut]][-1]
        assert (torn.size(LOG), found.log_end_offset) == whole
        assert full_replay(found).active() == found.producers.active()
        assert (len(found.segments[0].txn_index) == 1) == (found.log_end_offset >= 5)
        assert bool(found.warnings) == (cut != whole[0])
        append(found, batch(b"next"))
        assert values(found)[-1][1] == b"next"
        # The same after the crash was survived: nothing is left to find.
        assert open_log(torn, clean=False).warnings == []


def test_segments_after_the_first_bad_batch_are_told_of() -> None:
    disk = MemoryDisk()
    filled(disk).abandon()
    first, *later = sorted(name for name in disk.list("t-0") if name.endswith(".log"))
    data = bytearray(disk.read_bytes(f"t-0/{first}"))
    data[-1] ^= 1
    disk.write_atomic(f"t-0/{first}", bytes(data))
    cut, *removed = open_log(disk, config=SMALL, clean=False, recovery_point=0).warnings
    assert first in cut
    assert sorted(removed) == [f"t-0/{name}: removed, as the log now ends before it" for name in later]


def test_a_flipped_bit_anywhere_cuts_there() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    for value in (b"a", b"b", b"c"):
        append(log, batch(value, pid=1, seq=ord(value) - ord("a")))
    log.abandon()
    data = disk.read_bytes(LOG)
    starts = [position for position, _ in iter_batches(data)]
    for at in range(starts[1], starts[2]):
        if starts[1] + 12 <= at < starts[1] + 16:
            continue  # the leader epoch is covered by no checksum
        if at < starts[1] + 8:
            continue  # nor is the base offset; a wrong one is found only when offsets fall
        torn = copy(disk)
        torn.open(LOG).pwrite(bytes([data[at] ^ 0x40]), at)
        found = open_log(torn, clean=False)
        assert (found.log_end_offset, torn.size(LOG)) == (1, starts[1]), at
        assert found.warnings


def test_offsets_that_fall_end_the_log() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    append(log, batch(b"a"))
    append(log, batch(b"b"))
    log.abandon()
    second = disk.size(LOG) // 2
    disk.open(LOG).pwrite(bytes(8), second)
    found = open_log(disk, clean=False)
    assert found.log_end_offset == 1
    assert "offset 0, expected 1" in found.warnings[0]


def test_segments_after_a_bad_one_go() -> None:
    disk = MemoryDisk()
    log = filled(disk)
    bases = [segment.base_offset for segment in log.segments]
    log.abandon()
    path = f"t-0/{bases[1]:020d}.log"
    disk.open(path).pwrite(b"\xff", disk.size(path) - 1)
    found = open_log(disk, config=SMALL, clean=False)
    assert [segment.base_offset for segment in found.segments] == bases[:2]
    assert found.log_end_offset < bases[2]
    assert not any(name.startswith(f"{bases[2]:020d}.log") for name in disk.list("t-0"))
    assert full_replay(found).active() == found.producers.active()


def test_a_gap_between_segments_that_were_not_synced_is_told_and_left_as_kafka_leaves_it() -> None:
    disk = MemoryDisk()
    log = filled(disk)
    second = log.segments[1]
    log.abandon()
    first = disk.open(LOG)
    *_, (position, header) = log.segments[0].headers()
    first.truncate(position)  # the last batch of the first segment did not reach the disk, the second segment did
    found = open_log(copy(disk), config=SMALL, clean=False)
    assert found.log_end_offset == log.log_end_offset
    (told,) = [text for text in found.warnings if "missing" in text]
    assert told == f"{LOG}: offsets {header.base_offset} to {second.base_offset - 1} are missing, lost before a sync"
    again = open_log(copy(disk), config=SMALL, clean=False, recovery_point=second.base_offset)
    assert again.warnings == []
    compacted = LogConfig(segment_bytes=600, index_interval_bytes=100, cleanup_policy=frozenset({"compact"}))
    assert open_log(copy(disk), config=compacted, clean=False).warnings == []


def test_segments_below_the_recovery_point_are_trusted() -> None:
    disk = MemoryDisk()
    log = filled(disk)
    log.flush()
    base = log.segments[1].base_offset
    log.abandon()
    disk.open(LOG).pwrite(b"\xff", disk.size(LOG) - 1)  # the first segment's last byte
    assert open_log(copy(disk), config=SMALL, clean=False, recovery_point=base).warnings == []
    assert open_log(copy(disk), config=SMALL, clean=True).warnings == []
    assert open_log(copy(disk), config=SMALL, clean=False, recovery_point=base - 1).warnings != []


def test_a_directory_called_clean_that_is_not_is_checked_after_all() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    append(log, batch(b"a"))
    append(log, batch(b"b"))
    log.close()
    disk.open(LOG).truncate(disk.size(LOG) - 3)
    found = open_log(disk, clean=True)
    assert found.log_end_offset == 1
    assert found.warnings


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", ["gone", "torn", "nonsense"])
def test_lost_or_broken_indexes_are_made_again(suffix: str, damage: str) -> None:
    disk = MemoryDisk()
    log = filled(disk)
    before = state(log)
    names = [name for name in disk.list("t-0") if name.endswith(suffix)]
    log.close()
    for name in names:
        path = f"t-0/{name}"
        if damage == "gone":
            disk.remove(path)
        elif damage == "torn":
            disk.open(path).append([b"\1\2\3"])
        else:
            disk.open(path).pwrite(b"\xff" * disk.size(path), 0)
    again = open_log(disk, config=SMALL)
    assert state(again) == before
    for offset in range(again.log_end_offset):
        again.read(offset, 1, bound=again.log_end_offset)
    assert again.offset_for_timestamp(NOW + 3, 1 << 40) is not None


def test_a_broken_transaction_index_is_made_again() -> None:
    disk = MemoryDisk()
    log = filled(disk)
    before = state(log)
    log.close()
    for name in [name for name in disk.list("t-0") if name.endswith(".txnindex")]:
        disk.open(f"t-0/{name}").append([b"half an entry"])
    again = open_log(disk, config=SMALL)
    assert state(again) == before
    assert any("txnindex" in warning for warning in again.warnings)


def test_broken_snapshots_are_passed_over() -> None:
    disk = MemoryDisk()
    log = filled(disk)
    before = state(log)
    log.close()
    for name in [name for name in disk.list("t-0") if name.endswith(".snapshot")]:
        disk.open(f"t-0/{name}").pwrite(b"\xff", 4)
    again = open_log(disk, config=SMALL)
    assert state(again) == before
    assert len([warning for warning in again.warnings if "snapshot" in warning]) > 1
    again.close()
    assert open_log(disk, config=SMALL).warnings == []


def test_leftovers_of_deletion_and_compaction_go() -> None:
    disk = MemoryDisk()
    filled(disk).close()
    before = set(disk.list("t-0"))
    for name in (
        "00000000000000000000.log.deleted",
        "00000000000000000000.index.deleted",
        "00000000000000000000.log.cleaned",
        "00000000000000000000.index.cleaned",
        "00000000000000000007.log.swap",
        "00000000000000000099.index",
        "leader-epoch-checkpoint.tmp",
    ):
        disk.write_atomic(f"t-0/{name}", b"")
    log = open_log(disk, config=SMALL)
    assert set(disk.list("t-0")) == before
    assert log.warnings == ["t-0/00000000000000000099.index: index of no log, removed"]


def compacted(disk: MemoryDisk, log: PartitionLog, old: list[Segment]) -> Segment:
    """A segment that holds the first batch of each old one, as compaction might leave it."""
    made = Segment.create(disk, "t-0", old[0].base_offset, SMALL, now_ms=NOW, suffix=".cleaned")
    for segment in old:
        position, header = next(segment.headers())
        made.append([segment.read_batch(position, header)], [header])
    made.finish_time_index()
    made.flush()
    return made


def test_compacted_segments_take_the_place_of_the_old() -> None:
    disk = MemoryDisk()
    log = filled(disk)
    old = log.segments[:2]
    rest = log.segments[2:]
    kept = [next(segment.headers())[1].base_offset for segment in old]
    log.files.replace(compacted(disk, log, old), old, NOW)
    assert [header.base_offset for _, header in batches(log)][:2] == kept
    assert [segment.base_offset for segment in log.segments] == [0, *[segment.base_offset for segment in rest]]
    log.close()
    again = open_log(disk, config=SMALL)
    assert [header.base_offset for _, header in batches(again)][:2] == kept
    assert not any(name.endswith((".swap", ".cleaned", ".deleted")) for name in disk.list("t-0"))


def test_a_swap_that_was_interrupted_is_finished() -> None:
    disk = MemoryDisk()
    log = filled(disk)
    old = log.segments[:2]
    made = compacted(disk, log, old)
    log.abandon()
    untouched = state(open_log(copy(disk), config=SMALL, clean=False))
    made.rename_files(".swap")
    at_swap = copy(disk)
    found = open_log(at_swap, config=SMALL, clean=False)
    assert [segment.base_offset for segment in found.segments] == [0, *[s.base_offset for s in log.segments[2:]]]
    assert found.log_end_offset == untouched["end"]
    assert [header.base_offset for _, header in batches(found)][:2] == [0, old[1].base_offset]


def test_a_swap_that_was_interrupted_leaves_nothing_of_a_segment_of_which_no_batch_is_left() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    append(log, batch(pid=1, txn=True))
    end_transaction(log, 1, commit=False)
    log.roll(NOW)
    append(log, batch())
    log.close()
    assert disk.exists("t-0/00000000000000000000.txnindex")
    disk.write_atomic("t-0/00000000000000000000.log.swap", b"")
    found = open_log(disk)
    assert [header.base_offset for _, header in batches(found)] == [2]
    assert found.segments[0].txn_index.collect(0, 3) == ([], False)


def test_a_roll_that_was_interrupted_is_forgotten() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    append(log, batch(b"a"))
    Segment.create(disk, "t-0", 1, SMALL, now_ms=NOW)  # made, and then the rest failed
    append(log, batch(b"b"))
    log.close()
    again = open_log(disk)
    assert again.log_end_offset == 2
    assert len(again.segments) == 1
    append(again, batch(b"c"))
    assert [value for _, value in values(again)] == [b"a", b"b", b"c"]


@pytest.mark.parametrize("rules", [RULES, KEEPING])
def test_a_log_that_ends_before_its_start_begins_anew(rules: ProducerRules) -> None:
    disk = MemoryDisk()
    filled(disk).close()
    snapshot = next(name for name in disk.list("t-0") if name.endswith(".snapshot"))
    disk.write_atomic(f"t-0/{1000:020d}.snapshot", disk.read_bytes(f"t-0/{snapshot}"))  # it is of what is gone
    found = open_log(disk, config=SMALL, log_start_offset=1000, rules=rules)
    assert (found.log_start_offset, found.log_end_offset) == (1000, 1000)
    assert {name[:20] for name in disk.list("t-0") if name[:20].isdecimal()} == {f"{1000:020d}"}
    assert found.producers.active() == []
    assert append(found, batch()).base_offset == 1000


def test_the_high_watermark_is_clamped() -> None:
    disk = MemoryDisk()
    log = filled(disk)
    end = log.log_end_offset
    log.close()
    assert open_log(disk, config=SMALL, high_watermark=10_000).high_watermark == end
    assert open_log(disk, config=SMALL, high_watermark=3, log_start_offset=5).high_watermark == 5


def test_a_lost_or_torn_epoch_file_is_made_again_from_the_batches() -> None:
    disk = MemoryDisk()
    log = filled(disk)
    epochs = log.leader_epochs.entries
    assert len(epochs) == 2
    log.flush()
    recovery_point = log.recovery_point
    log.abandon()
    cut_in_a_number = b"0\n2\n0 0\n1 1"  # of 1 and more digits
    for content in (None, b"", b"0\n2\n0 ", cut_in_a_number):
        crashed = copy(disk)
        if content is None:
            crashed.remove("t-0/leader-epoch-checkpoint")
        else:
            crashed.write_atomic("t-0/leader-epoch-checkpoint", content)
        found = open_log(crashed, config=SMALL, clean=False, recovery_point=recovery_point)
        assert found.leader_epochs.entries == epochs
        assert crashed.read_bytes("t-0/leader-epoch-checkpoint") == disk.read_bytes("t-0/leader-epoch-checkpoint")
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        torn = copy(disk)
        torn.write_atomic("t-0/leader-epoch-checkpoint", b"0\n2\n0 ")
        open_log(torn, config=SMALL, clean=True)


@pytest.mark.parametrize(
    ("written", "start", "wanted"),
    [
        ([(0, 0)], 0, [(0, 0), (1, 7)]),  # the file is older than the log
        ([(0, 0), (1, 7), (2, 15)], 0, [(0, 0), (1, 7)]),  # an epoch whose batches were lost
        ([(0, 0), (1, 7), (2, 15), (3, 19)], 0, [(0, 0), (1, 7)]),
        ([(0, 0), (1, 7)], 3, [(0, 3), (1, 7)]),  # records were deleted, and the file does not know
        ([(0, 0), (1, 7)], 9, [(1, 9)]),
    ],
)
def test_epochs_after_a_crash_are_those_of_the_log(
    written: list[tuple[int, int]], start: int, wanted: list[tuple[int, int]]
) -> None:
    disk = MemoryDisk()
    log = filled(disk)
    assert (log.log_end_offset, log.leader_epochs.entries) == (15, [(0, 0), (1, 7)])
    log.abandon()
    lines = [f"{epoch} {first}" for epoch, first in written]
    disk.write_atomic("t-0/leader-epoch-checkpoint", "\n".join(["0", str(len(lines)), *lines, ""]).encode())
    found = open_log(disk, config=SMALL, clean=False, log_start_offset=start)
    assert found.leader_epochs.entries == wanted


def test_snapshots_of_no_use_go() -> None:
    """Those at segments' bases stay, and the newest; none is below the first segment."""

    def snapshots() -> list[int]:
        return sorted(int(name[:20]) for name in disk.list("t-0") if name.endswith(".snapshot"))

    disk = MemoryDisk()
    for sequence in range(3):
        log = open_log(disk)
        append(log, batch(pid=1, seq=sequence))
        assert snapshots() == ([sequence] if sequence else [])
        log.close()
    log = open_log(disk)
    append(log, batch(pid=1, seq=3))
    log.roll(NOW)
    append(log, batch(pid=1, seq=4, timestamp=NOW + 4500))
    assert snapshots() == [3, 4]
    log.update_config(LogConfig(retention_ms=1000))
    assert delete_old_segments(log, NOW + 5000) == 1
    assert snapshots() == [4]


@pytest.mark.parametrize("gone", ["newest", "all"])
def test_producers_are_rebuilt_where_snapshots_are_missing_after_a_clean_end(gone: str) -> None:
    """Kafka trusts a directory without any to have no producers, and serves the open transaction here."""
    disk = MemoryDisk()
    log = filled(disk)
    append(log, batch(b"open", pid=5, txn=True))
    before, bases = state(log), [segment.base_offset for segment in log.segments][-2:]
    log.close()
    names = [name for name in disk.list("t-0") if name.endswith(".snapshot")]
    for name in names[-1:] if gone == "newest" else names:
        disk.remove(f"t-0/{name}")
    again = open_log(disk, config=SMALL)
    assert state(again) == before
    assert again.last_stable_offset < again.log_end_offset
    taken = sorted(int(name[:20]) for name in disk.list("t-0") if name.endswith(".snapshot"))
    assert {*bases, again.log_end_offset} - {0} <= {*taken}


def test_a_log_from_before_there_were_producers_is_not_read_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "_replay", lambda *_: pytest.fail("read"))
    disk = MemoryDisk()
    disk.make_dir("t-0")
    disk.write_atomic(LOG, b"".join(message(1, n, b"k", b"v" * 100, NOW) for n in range(100)))
    disk.write_atomic(LOG.replace(".log", ".index"), b"")
    log = open_log(disk)
    assert (log.log_end_offset, log.producers.active()) == (100, [])
    assert disk.exists(f"t-0/{100:020d}.snapshot")


def test_a_torn_topic_id_is_written_anew_after_a_crash_only() -> None:
    disk = MemoryDisk()
    filled(disk).abandon()
    whole = disk.read_bytes("t-0/partition.metadata")
    disk.write_atomic("t-0/partition.metadata", whole[:20])
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        open_log(copy(disk), config=SMALL, clean=True)
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        open_log(copy(disk), config=SMALL, clean=False, topic_id=bytes(16))
    found = open_log(disk, config=SMALL, clean=False)
    assert "partition.metadata" in found.warnings[0]
    assert disk.read_bytes("t-0/partition.metadata") == whole


@pytest.mark.parametrize("flushed_before", [False, True])
def test_indexes_below_the_recovery_point_survive_a_power_cut(flushed_before: bool) -> None:
    """Those of a rolled segment too, whose last time entry rolling writes, also where all was flushed before."""
    disk = FaultyDisk()
    config = LogConfig()  # one time entry, which rolling writes
    log = open_log(disk, config=config)
    for number in range(3):
        append(log, batch(b"v" * 60, timestamp=NOW + number))
    if flushed_before:
        log.flush()
    log.roll(NOW)
    paths = [f"t-0/{0:020d}{ending}" for ending in (".index", ".timeindex")]
    wanted = [disk.read_bytes(path) for path in paths]
    append(log, batch(b"v" * 60, timestamp=NOW + 3))
    log.flush()
    assert log.recovery_point == 4
    after = disk.after_power_loss()
    assert [after.read_bytes(path) for path in paths] == wanted


def test_indexes_of_a_segment_that_ends_at_the_recovery_point_are_made_anew() -> None:
    """Power was lost between the roll, which writes the last time entry, and the flush that syncs it."""
    disk = FaultyDisk()
    config = LogConfig()  # one time entry, which rolling writes
    log = open_log(disk, config=config)
    for number in range(3):
        append(log, batch(b"v" * 60, timestamp=NOW + number))
    log.flush()
    log.roll(NOW)
    wanted = disk.read_bytes("t-0/00000000000000000000.timeindex")
    disk.open("t-0/00000000000000000000.timeindex").pwrite(b"\0" * 6, len(wanted) - 6)
    log.abandon()
    open_log(disk, config=config, clean=False, recovery_point=3).abandon()
    assert disk.read_bytes("t-0/00000000000000000000.timeindex") == wanted


def with_last_batch(disk: MemoryDisk, change: Callable[[bytearray, int, BatchHeader], bytes]) -> None:
    """Replaces the newest batch of the log."""
    data = bytearray(disk.read_bytes(LOG))
    position, header = [*iter_batches(data)][-1]
    disk.write_atomic(LOG, bytes(data[:position]) + change(data, position, header))


def test_an_offset_beyond_what_a_segment_can_hold_ends_the_log() -> None:
    """A batch's checksum does not cover its offset."""
    disk = MemoryDisk()
    log = open_log(disk)
    for number in range(3):
        append(log, batch(b"v" * 50, pid=1, seq=number))
    log.close()

    def far(data: bytearray, position: int, header: BatchHeader) -> bytes:
        patch_offsets(data, position, 1 << 40, 0)
        return bytes(data[position:])

    with_last_batch(disk, far)
    for clean in (True, False):
        again = open_log(copy(disk), clean=clean, config=LogConfig(index_interval_bytes=1))
        assert again.log_end_offset == 2
        assert again.warnings[0].startswith(f"{LOG}: batch at byte ")


@pytest.mark.parametrize("clean", [True, False])
def test_a_marker_that_is_none_is_named_by_file_and_byte(clean: bool) -> None:
    """Kafka's recovery after a kill cuts the log there (InvalidRecordException in LogSegment.recover)."""
    disk = MemoryDisk()
    log = open_log(disk)
    append(log, batch(b"v", pid=2, txn=True))
    end_transaction(log, 2, commit=True)
    log.close()
    marker = build_batch(
        [Record(0, NOW, b"\0", b"x")], base_offset=1, producer_id=2, producer_epoch=0, control=True, transactional=True
    )
    with_last_batch(disk, lambda *_: bytes(marker))
    for name in [name for name in disk.list("t-0") if name.endswith(".snapshot")]:
        disk.remove(f"t-0/{name}")
    if clean:
        with pytest.raises(ApiError, match=f"{LOG}: batch at byte .*key of 1 bytes"):
            open_log(disk)
    else:
        again = open_log(disk, clean=False)
        assert again.log_end_offset == 1
        assert f"{LOG}: batch at byte " in again.warnings[0]


def test_an_epoch_file_that_could_not_be_synced_is_synced_by_the_next_flush() -> None:
    disk = FaultyDisk()
    log = open_log(disk)
    append(log, batch(b"v"))
    refusals = [NotFound(errno.ENOENT, "not opened", "leader-epoch-checkpoint")]

    def refuse_once(what: str, path: str) -> StorageError | None:
        return refusals.pop() if what == "sync" and path.endswith("leader-epoch-checkpoint") and refusals else None

    disk.refuses = refuse_once
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        log.flush()
    log.flush()
    assert disk.after_power_loss().read_bytes("t-0/leader-epoch-checkpoint") == b"0\n1\n0 0\n"
