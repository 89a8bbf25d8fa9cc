"""What is gone of a data directory is found from the small files beside it, and nothing else is."""

import os
import threading
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from logs import NOW, RULES, append, batch

from minibroker.controller.journal import JOURNAL, MARK, MetadataJournal, lost_of_journal
from minibroker.rules.directory import check_directory
from minibroker_storage.config import LogConfig
from minibroker_storage.directory import DataDirectory
from minibroker_storage.disk import Buffer, Disk
from minibroker_storage.lost import APART_MS, COPIED, UNSYNCED, DiskReader, lost_of_partition
from minibroker_storage.memory_disk import MemoryDisk
from minibroker_storage.os_disk import OsDisk
from minibroker_storage.truncation import truncate_fully_and_start_at, truncate_to

LOG = "t-0/00000000000000000000.log"
WATERMARK = "replication-offset-checkpoint"


def opened(disk: Disk) -> DataDirectory:
    return DataDirectory.open(disk, node_id=1, make_id=lambda: "A" * 22)


def written(disk: Disk, records: int = 5) -> DataDirectory:
    """A directory whose process was killed: one record a batch in t-0, and checkpoints that say so."""
    directory = opened(disk)
    log = directory.open_log("t", 0, config=LogConfig(), rules=RULES, now_ms=NOW)
    for _ in range(records):
        append(log, batch())
    log.high_watermark = log.log_end_offset
    log.flush()
    directory.note([log])
    directory.write_checkpoints()
    log.abandon()
    directory.release()
    return directory


def lines(disk: Disk, held: list[tuple[str, int]] | None = None, never_compacted: tuple[str, ...] = ()) -> list[str]:
    directory = opened(disk)
    found = [str(lost) for lost in directory.lost(held or [], never_compacted)]
    directory.release()
    return found


def test_a_killed_process_loses_nothing() -> None:
    disk = MemoryDisk()
    written(disk)
    assert lines(disk) == lines(disk, [("t", 0), ("never-written", 3)]) == []
    disk.open(LOG).append([b"\0" * 30])  # torn, or zeros for what was not synced
    assert lines(disk) == []


@pytest.mark.parametrize(("kept", "end"), [(0, 0), (1, 0), (0.5, 2), (0.99, 4)])
def test_a_log_that_was_cut(kept: float, end: int) -> None:
    disk = MemoryDisk()
    written(disk)
    file = disk.open(LOG)
    file.truncate(int(kept) if kept in (0, 1) else int(file.size * kept))
    assert lines(disk) == [
        f"recovery-point-offset-checkpoint says t-0 reached offset 5, its log ends at {end}",
        f"{WATERMARK} says t-0 reached offset 5, its log ends at {end}",
    ]


def test_a_log_that_is_not_there() -> None:
    disk = MemoryDisk()
    written(disk)
    disk.remove("recovery-point-offset-checkpoint")
    disk.remove(LOG)
    for name in disk.list("t-0"):
        if name.startswith("0"):
            disk.remove(f"t-0/{name}")
    disk.write_atomic("t-0/leader-epoch-checkpoint", b"")
    assert lines(disk) == [f"{WATERMARK} says t-0 reached offset 5, it has no log"]
    disk.write_atomic("t-0/00000000000000000000.index", b"")
    disk.write_atomic("t-0/00000000000000000005.snapshot", b"")
    assert lines(disk)[1:] == [
        "t-0/00000000000000000000.index says a log file began at offset 0, there is none",
        "t-0/00000000000000000005.snapshot says the log reached offset 5, it has no log",
    ]
    disk.make_dir(LOG)
    (unusable,) = [lost for lost in opened(disk).lost([]) if not lost.usable]
    assert str(unusable) == f"{LOG} says by its name that it is a log file, it is a directory"


def test_a_directory_that_is_not_there_is_missed_where_its_topic_exists() -> None:
    disk = MemoryDisk()
    written(disk)
    disk.remove("recovery-point-offset-checkpoint")
    disk.remove_tree("t-0")
    assert lines(disk) == []
    assert lines(disk, [("t", 0)]) == [f"{WATERMARK} says t-0 reached offset 5, its directory is missing or empty"]


def test_an_index_below_the_log_is_of_a_segment_whose_removal_was_cut_short() -> None:
    disk = MemoryDisk()
    written(disk)
    disk.rename(LOG, "t-0/00000000000000000007.log")
    disk.write_atomic("t-0/00000000000000000000.index", b"")
    assert lost_of_partition(DiskReader(disk), "t-0", {}) == []


def test_an_index_that_was_allocated_ahead() -> None:
    disk = MemoryDisk()
    written(disk, 3)
    size = disk.size(LOG) // 3
    index = (1).to_bytes(4) + size.to_bytes(4) + (2).to_bytes(4) + (2 * size).to_bytes(4)
    disk.write_atomic("t-0/00000000000000000000.index", index + bytes(800))
    assert lines(disk) == []
    disk.write_atomic("t-0/00000000000000000000.index", index + (3).to_bytes(4) + (size + 7).to_bytes(4))
    assert lines(disk) == []
    disk.write_atomic("t-0/00000000000000000000.index", index + b"cut")
    assert lines(disk) == []


@pytest.mark.parametrize(
    ("recovery_point", "older_ms", "gone", "severity", "cause"),
    [
        (2, -1, False, "notice", UNSYNCED),
        (0, -1, True, "notice", UNSYNCED),
        (3, 0, False, "notice", COPIED),
        (3, APART_MS, False, "notice", COPIED),
        (3, APART_MS + 1, False, "error", ""),
        (3, -1, False, "error", ""),
        (3, 0, True, "error", ""),
        (2, 0, False, "clean", ""),
    ],
    ids=["unsynced", "unsynced log", "copy", "slow copy", "too slow", "newer", "no log", "closed"],
)
def test_what_may_be_missing(
    recovery_point: int, older_ms: int, gone: bool, severity: str, cause: str, tmp_path: Path
) -> None:
    """`older_ms`: how much older than the recovery points the log's file is. What was synced may be missing in a copy
    whose log is not newer, and after a clean stop nothing may."""
    disk = OsDisk(str(tmp_path), durable=True)
    written(disk)
    file = disk.open(LOG)
    file.truncate(file.size * 2 // 5)
    file.close()
    if gone:
        disk.remove(LOG)
    else:
        os.utime(tmp_path / LOG, ns=(0, 10_000_000_000_000))
    disk.write_atomic("recovery-point-offset-checkpoint", f"0\n1\nt 0 {recovery_point}\n".encode())
    os.utime(tmp_path / "recovery-point-offset-checkpoint", ns=(0, (10_000_000 + older_ms) * 1_000_000))
    if severity == "clean":
        disk.write_atomic(".kafka_cleanshutdown", b"")
        severity = "error"
    found = [one for one in check_directory(disk, topics=["t"]) if one.rule == "lost-data"]
    assert found[-1].path == "replication-offset-checkpoint" or gone
    assert {one.severity for one in found} == {severity}
    assert {one.message.partition(" (")[2].rstrip(")") for one in found} == {cause}
    disk.close()


# -- checkpoints do not outlive what they speak of -----------------------------------------------------------


@pytest.mark.parametrize("truncate", [truncate_to, truncate_fully_and_start_at])
def test_no_checkpoint_says_that_a_truncated_log_reached_further(truncate: Callable[..., object]) -> None:
    disk = MemoryDisk()
    written(disk)
    directory = opened(disk)
    log = directory.open_log("t", 0, config=LogConfig(), rules=RULES, now_ms=NOW)
    truncate(log, 2, now_ms=NOW)
    directory.release()  # killed: no checkpoint was due
    assert lines(disk) == []
    assert disk.read_bytes(WATERMARK) == b"0\n1\nt 0 2\n"


def test_a_new_partition_is_not_taken_for_the_one_that_had_its_name() -> None:
    disk = MemoryDisk()
    written(disk)
    directory = opened(disk)
    directory.delete_log(directory.open_log("t", 0, config=LogConfig(), rules=RULES, now_ms=NOW), "0" * 32)
    directory.begin("t", 0)
    directory.release()
    assert lines(disk, [("t", 0)]) == []


class SlowDisk(MemoryDisk):
    """Notes when two atomic writes of one file overlap."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = threading.Semaphore(1)
        self.overlapped = False
        self.entered, self.go_on = threading.Event(), threading.Event()

    def write_atomic(self, path: str, data: Buffer, *, sync: bool = True) -> None:
        if path == WATERMARK:
            self.overlapped |= not self.inside.acquire(blocking=False)
            self.entered.set()
            self.go_on.wait(60)
            self.inside.release()
        super().write_atomic(path, data, sync=sync)


def test_one_write_of_a_checkpoint_at_a_time_and_the_last_has_the_last_word() -> None:
    disk = SlowDisk()
    directory = opened(disk)
    directory.high_watermarks["t", 0] = 1
    writers = [
        threading.Thread(target=directory.write_high_watermarks),
        threading.Thread(target=directory.write_checkpoints),
    ]
    writers[0].start()
    assert disk.entered.wait(60)
    directory.high_watermarks["t", 0] = 2
    writers[1].start()
    writers[1].join(0.05)  # it comes to the watermarks, and waits there
    disk.go_on.set()
    for writer in writers:
        writer.join()
    assert not disk.overlapped
    assert disk.read_bytes(WATERMARK) == b"0\n1\nt 0 2\n"


# -- the metadata journal ------------------------------------------------------------------------------------


def journal_of(path: Path, entries: int = 4) -> tuple[bytes, bytes]:
    """(journal, mark) of a journal that was acknowledged whole and killed."""
    journal = MetadataJournal(OsDisk(str(path), durable=True))
    for number in range(entries):
        journal.append({"type": "acl", "number": number})
        journal.sync()
    return (path / JOURNAL).read_bytes(), (path / MARK).read_bytes()


def test_a_journal_that_was_cut_anywhere_is_noticed(tmp_path: Path) -> None:
    journal, mark = journal_of(tmp_path)
    assert mark == f"{len(journal):019d} {zlib.crc32(journal):08x}\n".encode()
    assert lost_of_journal(journal, mark) is None
    for length in range(0, len(journal), 7):
        said = f"{MARK} says {JOURNAL} had {len(journal)} bytes that were acknowledged, it has {length}"
        assert str(lost_of_journal(journal[:length], mark)) == said
    assert str(lost_of_journal(None, mark)).endswith("there is no such file")
    assert str(lost_of_journal(journal.replace(b"2", b"7"), mark)).endswith("it begins with others")


def test_what_was_never_acknowledged_is_not_missed(tmp_path: Path) -> None:
    journal, mark = journal_of(tmp_path)
    for length, lawful in ((len(journal) - 1, False), (journal[:-1].rfind(b"\n") + 1, True), (0, True)):
        copy = lost_of_journal(journal[:length], mark, copied=True)
        assert copy is not None
        assert copy.lawful is lawful
    other = lost_of_journal(journal.replace(b"2", b"7"), mark, copied=True)
    assert other is not None
    assert not other.lawful
    assert lost_of_journal(journal + b'{"type": "ac', mark) is None
    assert lost_of_journal(journal, None) is None  # written by 0.1.0
    for torn in (b"", mark[:5], b"\0" * 29):  # a power loss while the mark was written
        assert lost_of_journal(journal, torn) is None


def test_the_mark_goes_on_after_a_start(tmp_path: Path) -> None:
    journal_of(tmp_path)
    before = (tmp_path / JOURNAL).read_bytes()
    (tmp_path / JOURNAL).write_bytes(before + b'{"type": "torn')
    journal = MetadataJournal(OsDisk(str(tmp_path), durable=True))
    assert journal.lost() is None
    assert len(list(journal.replay())) == 4
    journal.append({"type": "acl", "number": 4})
    journal.close()
    data = (tmp_path / JOURNAL).read_bytes()
    assert (tmp_path / MARK).read_bytes() == f"{len(data):019d} {zlib.crc32(data):08x}\n".encode()


def closed(disk: Disk) -> None:
    """t-0 after a clean shutdown: three segments, the first two with indexes, and an open transaction."""
    directory = opened(disk)
    config = LogConfig(segment_bytes=400, index_interval_bytes=100)
    log = directory.open_log("t", 0, config=config, rules=RULES, now_ms=NOW)
    for number in range(12):
        append(log, batch(b"v" * 20, timestamp=NOW + number, pid=7, seq=number, txn=True))
    assert len(log.segments) >= 3
    log.close()
    directory.close([log])


@pytest.mark.parametrize(("size", "said"), [(0, "that file is empty"), (100, "that file has 100 bytes")])
def test_a_segment_in_the_middle_that_was_emptied_or_cut(size: int, said: str) -> None:
    disk = MemoryDisk()
    closed(disk)
    assert lines(disk) == []
    disk = MemoryDisk()
    closed(disk)
    middle = sorted(name for name in disk.list("t-0") if name.endswith(".log"))[1]
    disk.open(f"t-0/{middle}").truncate(size)
    errors = [finding for finding in check_directory(disk) if finding.rule == "lost-data"]
    (line,) = lines(disk)
    index = f"t-0/{middle.removesuffix('.log')}.index"
    assert line.startswith(f"{index} says a batch is at byte ")
    assert line.endswith(f" of t-0/{middle}, {said}")
    assert [f"{finding.path} {finding.message}" for finding in errors] == [line]


def without_middle(*, indexes: bool = True) -> tuple[MemoryDisk, int, int]:
    """t-0 without the files of its second segment, where that began, and where the third begins."""
    disk = MemoryDisk()
    closed(disk)
    first, middle, last = sorted(name for name in disk.list("t-0") if name.endswith(".log"))[:3]
    for name in disk.list("t-0"):
        if name.startswith(middle[:20]):
            disk.remove(f"t-0/{name}")
    if not indexes:
        disk.remove(f"t-0/{first[:20]}.index")
    return disk, int(middle[:20]), int(last[:20])


@pytest.mark.parametrize("indexes", [True, False])
def test_a_segment_in_the_middle_of_which_no_file_is_left(indexes: bool) -> None:
    disk, missing, following = without_middle(indexes=indexes)
    (line,) = lines(disk, never_compacted=("t",))
    assert line == (
        f"t-0/{following:020d}.log says by its name that the log reached offset {following}, the segment before it ends"
        f" at {missing}: segments between them are missing"
    )


def test_what_compaction_may_have_taken_is_not_missing() -> None:
    disk, _, _ = without_middle()
    assert lines(disk) == []
    disk, _, _ = without_middle()  # `lines` left it unclean
    disk.write_atomic("cleaner-offset-checkpoint", b"0\n1\nt 0 3\n")  # the policy was another one
    assert lines(disk, never_compacted=("t",)) == []


def test_a_whole_log_has_no_segment_missing() -> None:
    disk = MemoryDisk()
    closed(disk)
    assert lines(disk, never_compacted=("t",)) == []


def test_an_emptied_segment_without_offset_index_is_known_by_its_time_index() -> None:
    disk = MemoryDisk()
    closed(disk)
    middle = sorted(name for name in disk.list("t-0") if name.endswith(".log"))[1]
    disk.open(f"t-0/{middle}").truncate(0)
    disk.open(f"t-0/{middle.removesuffix('.log')}.index").truncate(0)
    stem = middle.removesuffix(".log")
    assert lines(disk) == [f"t-0/{stem}.timeindex says a batch is at byte 0 of t-0/{middle}, that file is empty"]


def test_a_segment_that_compaction_emptied_lacks_nothing() -> None:
    disk = MemoryDisk()
    closed(disk)
    middle = sorted(name for name in disk.list("t-0") if name.endswith(".log"))[1]
    for suffix in (".log", ".index", ".timeindex"):
        disk.open(f"t-0/{middle.removesuffix('.log')}{suffix}").truncate(0)
    assert lines(disk) == []


@pytest.mark.parametrize("gone", ["newest", "all"])
def test_a_missing_snapshot_is_said_after_a_clean_shutdown_only(gone: str) -> None:
    disk = MemoryDisk()
    closed(disk)
    names = [name for name in disk.list("t-0") if name.endswith(".snapshot")]
    for name in names if gone == "all" else names[-1:]:
        disk.remove(f"t-0/{name}")
    said = f"t-0 was closed at offset 12, t-0/{12:020d}.snapshot is missing and rebuilt from the log"
    notices = [finding for finding in check_directory(disk) if finding.rule == "producer-snapshot"]
    assert [finding.message for finding in notices] == [f"says {said}"]
    directory = opened(disk)
    (lost,) = directory.lost([])
    assert str(lost) == f".kafka_cleanshutdown says {said}"
    assert lost.rebuilt
    assert directory.open_log("t", 0, config=LogConfig(), rules=RULES, now_ms=NOW).last_stable_offset == 0
    directory.release()
    disk.remove(f"t-0/{12:020d}.snapshot")
    assert lines(disk) == []  # as after a kill, where opening checks the log in any case
