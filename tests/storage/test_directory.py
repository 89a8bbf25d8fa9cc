"""A data directory: who may use it, whose it is, what it remembers from one process to the next."""

import json
from pathlib import Path

import pytest
from logs import NOW, RULES, append, batch, end_transaction, open_log, refused, values

from minibroker_lab.simulation.faulty_disk import FaultyDisk
from minibroker_protocol.errors import ErrorCode
from minibroker_storage.config import LogConfig
from minibroker_storage.directory import CLEANER_OFFSET, HIGH_WATERMARK, DataDirectory, DirectoryLocked, WrongDirectory
from minibroker_storage.disk import Disk, join
from minibroker_storage.file_errors import MalformedFile
from minibroker_storage.log import PartitionLog
from minibroker_storage.memory_disk import MemoryDisk
from minibroker_storage.os_disk import OsDisk
from minibroker_storage.truncation import truncate_fully_and_start_at

CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"


def opened(disk: Disk, *, node_id: int = 1, cluster_id: str | None = CLUSTER, holder: str = "4711") -> DataDirectory:
    return DataDirectory.open(disk, node_id=node_id, cluster_id=cluster_id, make_id=lambda: "A" * 22, holder=holder)


def log_in(directory: DataDirectory, topic: str = "t", partition: int = 0) -> PartitionLog:
    return directory.open_log(topic, partition, config=LogConfig(), rules=RULES, now_ms=NOW)


def test_a_second_process_is_told_the_first_one_s_id(tmp_path: Path) -> None:
    first = opened(OsDisk(str(tmp_path / "data")))
    with pytest.raises(DirectoryLocked, match="4711") as error:
        opened(OsDisk(str(tmp_path / "data")), holder="4712")
    assert error.value.pid == "4711"
    first.release()
    opened(OsDisk(str(tmp_path / "data")), holder="4712").release()


def test_what_is_written_when_there_is_nothing() -> None:
    disk = MemoryDisk()
    directory = opened(disk)
    assert (directory.clean, directory.previous_broker_epoch) == (False, -1)
    text = disk.read_bytes("meta.properties").decode()
    assert text == f"#\nnode.id=1\ndirectory.id={'A' * 22}\nversion=1\ncluster.id={CLUSTER}\n"
    assert directory.written_by == ""
    directory.note_version("1.2.3")
    assert directory.written_by == "1.2.3"
    assert disk.read_bytes("minibroker.version") == b"version=1.2.3\nlayout=1\n"
    directory.release()
    assert opened(disk, cluster_id=None).cluster_id == CLUSTER


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (b"version=9.0.0\nlayout=2\n", "minibroker 9.0.0 wrote this directory in layout 2, this version has layout 1"),
        (b"0.0.9\n", "minibroker of an unknown version wrote this directory in no layout"),
        (b"", "minibroker of an unknown version wrote this directory in no layout"),
    ],
)
def test_a_directory_of_another_layout_is_refused_and_left_as_it_is(written: bytes, said: str) -> None:
    disk = MemoryDisk()
    opened(disk).close()
    disk.write_atomic("minibroker.version", written)
    before = {name: disk.read_bytes(name) for name in disk.list() if name != ".lock"}
    assert ".kafka_cleanshutdown" in before
    with pytest.raises(WrongDirectory, match=said):
        opened(disk)
    assert {name: disk.read_bytes(name) for name in disk.list() if name != ".lock"} == before


def test_a_directory_of_which_nothing_was_opened_keeps_the_version_that_it_names() -> None:
    disk = MemoryDisk()
    opened(disk).close()
    disk.write_atomic("minibroker.version", b"version=0.9.0\nlayout=1\n")
    directory = opened(disk)
    assert (directory.written_before_by, directory.written_by) == ("0.9.0", "0.9.0")
    directory.put_back()
    assert disk.read_bytes("minibroker.version") == b"version=0.9.0\nlayout=1\n"


@pytest.mark.parametrize("clean", [True, False])
def test_a_start_that_opened_nothing_leaves_the_mark_of_a_clean_stop_as_it_was(clean: bool) -> None:
    disk = MemoryDisk()
    opened(disk).close()
    if not clean:
        opened(disk).release()
    directory = opened(disk)
    assert directory.clean is clean
    directory.put_back()
    assert opened(disk).clean is clean


def test_a_directory_from_before_there_were_ids_keeps_the_one_it_gets() -> None:
    """As KafkaRaftServer.initializeLogDirs: brokers before Kafka 3.7 wrote none."""
    disk = MemoryDisk()
    disk.write_atomic("meta.properties", f"version=1\nnode.id=1\ncluster.id={CLUSTER}\n".encode())
    directory = opened(disk)
    assert directory.directory_id == "A" * 22
    directory.release()
    assert f"directory.id={'A' * 22}\n" in disk.read_bytes("meta.properties").decode()


def test_the_directory_of_another_is_refused() -> None:
    disk = MemoryDisk()
    opened(disk).release()
    with pytest.raises(WrongDirectory, match="node 1, this is node 2"):
        opened(disk, node_id=2)
    with pytest.raises(WrongDirectory, match="cluster"):
        opened(disk, cluster_id="B" * 22)
    opened(disk).release()  # a refusal gives the lock back


@pytest.mark.parametrize(
    "text", ["", "node.id=1\n", "version=7\nnode.id=1\ncluster.id=x\n", "version=1\nnode.id=x\ncluster.id=x"]
)
def test_a_broken_identity_names_its_file(text: str) -> None:
    disk = MemoryDisk()
    disk.write_atomic("meta.properties", text.encode())
    with pytest.raises(MalformedFile, match=r"meta\.properties, line"):
        opened(disk)


def test_offsets_come_back_after_a_clean_end() -> None:
    disk = MemoryDisk()
    directory = opened(disk)
    log = log_in(directory)
    append(log, batch(b"a", b"b"))
    append(log, batch(b"c"))
    log.delete_records(1)
    log.close()
    directory.close([log], broker_epoch=17)
    assert json.loads(disk.read_bytes(".kafka_cleanshutdown")) == {"version": 0, "brokerEpoch": 17}
    assert disk.read_bytes("log-start-offset-checkpoint") == b"0\n1\nt 0 1\n"
    assert disk.read_bytes("recovery-point-offset-checkpoint") == b"0\n1\nt 0 3\n"
    assert disk.read_bytes("replication-offset-checkpoint") == b"0\n1\nt 0 3\n"

    again = opened(disk)
    assert (again.clean, again.previous_broker_epoch) == (True, 17)
    assert not disk.exists(".kafka_cleanshutdown")
    assert again.partitions() == [("t", 0)]
    log = log_in(again)
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (1, 3, 3)
    assert [value for _, value in values(log)] == [b"b", b"c"]
    again.release()  # no close: the next one is not clean
    assert not opened(disk).clean


def test_a_log_that_starts_at_its_first_segment_again_has_no_log_start_in_the_checkpoint() -> None:
    """A replica that starts over lower: the old log start would be above the log's end at the next start."""
    disk = MemoryDisk()
    directory = opened(disk)
    log = log_in(directory)
    for _ in range(6):
        append(log, batch())
    log.delete_records(5)
    directory.note([log])
    assert directory.log_starts == {("t", 0): 5}
    truncate_fully_and_start_at(log, 3, now_ms=NOW)
    log.close()
    directory.close([log])
    assert disk.read_bytes("log-start-offset-checkpoint") == b"0\n0\n"
    log = log_in(opened(disk))
    assert (log.log_start_offset, log.log_end_offset) == (3, 3)


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"brokerEpoch": "x"}'])
def test_an_older_kafka_s_clean_mark_has_no_broker_epoch(content: bytes) -> None:
    disk = MemoryDisk()
    opened(disk).release()
    disk.write_atomic(".kafka_cleanshutdown", content)
    again = opened(disk)
    assert (again.clean, again.previous_broker_epoch) == (True, -1)


def test_a_log_that_could_not_be_closed_leaves_no_clean_mark() -> None:
    disk = MemoryDisk()
    directory = opened(disk)
    log = log_in(directory)
    append(log, batch(b"a", pid=1))
    disk.max_bytes = disk.used_bytes + 8
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        log.close()
    disk.max_bytes = 1 << 30
    directory.close([log])
    assert not disk.exists(".kafka_cleanshutdown")
    again = opened(disk)
    assert not again.clean
    assert log_in(again).log_end_offset == 1


def test_logs_that_stay_closed_keep_their_offsets() -> None:
    disk = MemoryDisk()
    directory = opened(disk)
    logs = [log_in(directory, "a"), log_in(directory, "b")]
    for log in logs:
        append(log, batch())
        log.close()
    directory.close(logs)
    again = opened(disk)
    log = log_in(again, "a")
    append(log, batch())
    log.close()
    again.close([log])
    assert opened(disk).recovery_points == {("a", 0): 2, ("b", 0): 1}


def test_broken_checkpoints() -> None:
    disk = MemoryDisk()
    directory = opened(disk)
    log = log_in(directory)
    append(log, batch())
    log.close()
    directory.close([log])
    for name in ("recovery-point-offset-checkpoint", "log-start-offset-checkpoint"):
        disk.write_atomic(name, b"nonsense")
    again = opened(disk)
    assert len(again.warnings) == 2
    assert log_in(again).log_end_offset == 1
    again.release()
    disk.write_atomic("replication-offset-checkpoint", b"nonsense")
    with pytest.raises(MalformedFile, match="replication-offset-checkpoint, line 1"):
        opened(disk)


def test_partition_directories_are_told_from_others() -> None:
    disk = MemoryDisk()
    directory = opened(disk)
    for name in ("a.b_c-d-12", "__consumer_offsets-0", "__cluster_metadata-0", "x-1.0f-delete", "y-2-future", "notes"):
        disk.make_dir(name)
    disk.write_atomic("file-3", b"")
    assert directory.partitions() == [("__consumer_offsets", 0), ("a.b_c-d", 12)]


def test_deleted_partitions_go_at_the_next_start() -> None:
    disk = MemoryDisk()
    directory = opened(disk)
    log = log_in(directory, "t" * 249)
    append(log, batch())
    directory.note([log])
    path = directory.delete_log(log, "0" * 32)
    assert len(path) == 255
    assert path.endswith(f"-0.{'0' * 32}-delete")
    assert directory.partitions() == []
    assert directory.recovery_points == directory.high_watermarks == {}
    directory.release()
    opened(disk)
    assert not disk.exists(path)


def test_the_lock_of_the_memory_disk() -> None:
    disk = MemoryDisk()
    opened(disk)
    with pytest.raises(DirectoryLocked):
        opened(disk)


def test_a_log_is_opened_where_its_directory_is() -> None:
    disk = MemoryDisk()
    directory = opened(disk)
    append(log_in(directory), batch(b"x"))
    assert open_log(disk, DataDirectory.partition_path("t", 0)).log_end_offset == 1


def everything(disk: Disk, path: str = "") -> dict[str, bytes | None]:
    """Every file with its content, and every directory."""
    found: dict[str, bytes | None] = {}
    for name in disk.list(path):
        at = join(path, name)
        if disk.is_dir(at):
            found |= {at: None, **everything(disk, at)}
        else:
            found[at] = disk.read_bytes(at)
    return found


def test_a_clean_end_outlives_a_power_cut() -> None:
    disk = FaultyDisk()
    directory = opened(disk)
    log = log_in(directory)
    for seq, commit in enumerate((True, False, True)):
        append(log, batch(pid=7, seq=seq, txn=True))
        end_transaction(log, 7, commit=commit)
        log.roll(NOW)
    directory.note([log])
    directory.write_cleaner_offsets()
    directory.write_high_watermarks()
    written = {name: disk.read_bytes(name) for name in (CLEANER_OFFSET, HIGH_WATERMARK)}
    assert written == {name: disk.after_power_loss().read_bytes(name) for name in written}
    log.close()
    directory.close([log])
    left, there = everything(disk.after_power_loss()), everything(disk)
    # An earlier snapshot that is torn is passed over when a truncation asks for it.
    earlier = {path for path in there if path.endswith(".snapshot") and f"{log.log_end_offset:020d}" not in path}
    assert len(earlier) == 2
    assert {path: left[path] for path in there.keys() - earlier} == {
        path: there[path] for path in there.keys() - earlier
    }


def test_a_partition_that_is_set_aside_has_its_new_name_before_another_gets_the_old_one() -> None:
    """Not every file system keeps the order of renames and new names that were not synced, as `FaultyDisk` does."""
    disk = FaultyDisk()
    directory = opened(disk)
    log = log_in(directory)
    log.close()
    path = directory.set_aside("t", 0, "f" * 32)
    log_in(directory)
    steps = [line.partition(" ")[2] for line in disk.history]
    renamed = steps.index(f"rename t-0 to {path}")
    assert "sync_dir " in steps[renamed : steps.index("make_dir t-0", renamed)]


def test_only_what_was_renamed_for_its_deletion_is_removed() -> None:
    disk = MemoryDisk()
    directory = DataDirectory.open(disk, node_id=1, make_id=lambda: "A" * 22)
    kept = {"t-0", "a.b-0", "x.-delete-0", "x-delete", "t-0.abc-future"}
    for name in {*kept, "t-0.abc-delete", "a.b-1.abc-delete"}:
        disk.make_dir(name)
    disk.write_atomic("file.abc-delete", b"")
    before = set(disk.list())
    directory.remove_deleted()
    assert before - set(disk.list()) == {"t-0.abc-delete", "a.b-1.abc-delete"}
    directory.release()
