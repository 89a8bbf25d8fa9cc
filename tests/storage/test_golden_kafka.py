"""Directories a real Apache Kafka 4.3.1 wrote, opened and compared with what it served (tests/golden/…/directory)."""

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from logs import batches, tree, values

from minibroker_protocol.records import iter_batches
from minibroker_storage.config import LogConfig
from minibroker_storage.directory import DataDirectory
from minibroker_storage.memory_disk import MemoryDisk
from minibroker_storage.os_disk import OsDisk
from minibroker_storage.producer_rules import ProducerRules
from minibroker_storage.producer_snapshot import decode_snapshot
from minibroker_storage.segment import Segment

GOLDEN = Path(__file__).parent.parent / "golden" / "kafka-4.3.1" / "directory"
MANIFEST: dict[str, Any] = json.loads((GOLDEN / "manifest.json").read_text())
CLEAN: dict[str, Any] = MANIFEST["clean"]
RULES = ProducerRules(producer_id_expiration_ms=1 << 60)
#: Compacted segments were written by the cleaner; the others were closed and opened again while they were written.
INDEXES_NOT_OF_ONE_RUN = {"compacted-0", "compacted-1"}
REOPENED = {"__transaction_state-0": [".index", ".timeindex"], "txn-a-0": [".timeindex"]}


@pytest.fixture(scope="module")
def archives() -> dict[str, dict[str, bytes]]:
    found = {}
    for name in ("clean", "killed"):
        with tarfile.open(fileobj=io.BytesIO((GOLDEN / f"{name}.tar.gz").read_bytes())) as archive:
            files = {}
            for member in archive.getmembers():
                content = archive.extractfile(member) if member.isfile() else None
                if content is not None:
                    files[member.name.removeprefix("./")] = content.read()
            found[name] = files
    return found


def disk_with(files: dict[str, bytes]) -> MemoryDisk:
    disk = MemoryDisk()
    for name, content in files.items():
        disk.make_dir(name.rpartition("/")[0])
        disk.write_atomic(name, content)
    return disk


def open_directory(disk: MemoryDisk | OsDisk) -> DataDirectory:
    return DataDirectory.open(disk, node_id=1, make_id=lambda: "A" * 22)


def record_hash(records: list[tuple[bytes | None, bytes | None]]) -> str:
    return hashlib.sha256(b"\n".join((key or b"") + b"\0" + (value or b"") for key, value in records)).hexdigest()


def served(directory: DataDirectory, topic: str, partition: int) -> tuple[dict[str, Any], list[str]]:
    log = directory.open_log(topic, partition, config=LogConfig(), rules=RULES, now_ms=0)
    log.update_high_watermark(log.log_end_offset)
    uncommitted, committed = values(log), values(log, committed=True)
    found = {
        "log_start_offset": log.log_start_offset,
        "log_end_offset": log.log_end_offset,
        "high_watermark": log.high_watermark,
        "last_stable_offset": log.last_stable_offset,
        "records_read_uncommitted": len(uncommitted),
        "records_read_committed": len(committed),
        "sha256_read_uncommitted": record_hash(uncommitted),
        "sha256_read_committed": record_hash(committed),
        "aborted_index": [
            {
                "producer_id": txn.producer_id,
                "first_offset": txn.first_offset,
                "last_offset": txn.last_offset,
                "last_stable_offset": txn.last_stable_offset,
                "segment": segment.base_offset,
            }
            for segment in log.segments
            for txn in segment.txn_index
        ],
        "producers": {
            str(entry.producer_id): {
                "producerEpoch": entry.producer_epoch,
                "lastSequence": entry.last_sequence,
                "coordinatorEpoch": entry.coordinator_epoch,
                "currentTxnStartOffset": entry.current_txn_start_offset,
            }
            for entry in log.producers.active()
        },
    }
    warnings = log.warnings
    log.abandon()
    return found, warnings


def of_partition(name: str) -> tuple[str, int]:
    topic, _, partition = name.rpartition("-")
    return topic, int(partition)


@pytest.mark.parametrize("mode", ["clean", "mark removed", "all recovered"])
def test_clean_directory_is_served_as_kafka_did(archives: dict[str, dict[str, bytes]], mode: str) -> None:
    files = dict(archives["clean"])
    if mode != "clean":
        del files[".kafka_cleanshutdown"]
    if mode == "all recovered":
        # Nothing to go by but the logs: every segment is scanned and every index and producer state made anew.
        files = {name: data for name, data in files.items() if not name.endswith((".snapshot", "index"))}
        del files["recovery-point-offset-checkpoint"]
    directory = open_directory(disk_with(files))
    assert directory.clean == (mode == "clean")
    assert {f"{topic}-{partition}" for topic, partition in directory.partitions()} == set(CLEAN)
    for name, wanted in CLEAN.items():
        found, warnings = served(directory, *of_partition(name))
        assert {key: found[key] for key in wanted if key != "newest_snapshot"} == {
            key: value for key, value in wanted.items() if key != "newest_snapshot"
        }, name
        if mode != "all recovered":
            assert warnings == [], name


def test_clean_directory_from_the_real_disk(archives: dict[str, dict[str, bytes]], tmp_path: Path) -> None:
    for name, content in archives["clean"].items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    directory = open_directory(OsDisk(str(tmp_path)))
    for name in ("rolled-0", "deleted-0", "open-0", "sized-0"):
        found, _ = served(directory, *of_partition(name))
        assert found["sha256_read_committed"] == CLEAN[name]["sha256_read_committed"]
    directory.release()


@pytest.mark.parametrize("restart", MANIFEST["restarts"], ids=lambda restart: restart["what"][:20])
def test_killed_directory_is_recovered_as_kafka_did(
    archives: dict[str, dict[str, bytes]], restart: dict[str, Any]
) -> None:
    files = dict(archives["killed"])
    for edit in restart["edits"]:
        data = bytearray(files[edit["file"]])
        if edit["do"] == "delete":
            del files[edit["file"]]
            continue
        if edit["do"] == "truncate":
            del data[edit["size"] :]
        else:
            data[edit["at"]] ^= 0xFF
        files[edit["file"]] = bytes(data)
    directory = open_directory(disk_with(files))
    assert not directory.clean
    for name, wanted in restart["served"].items():
        found, _ = served(directory, *of_partition(name))
        assert {key: found[key] for key in wanted} == wanted, name


@pytest.mark.parametrize("name", sorted(set(CLEAN) - INDEXES_NOT_OF_ONE_RUN))
def test_indexes_are_those_of_kafka_byte_for_byte(archives: dict[str, dict[str, bytes]], name: str) -> None:
    """Kafka's batches put through our segments give Kafka's index files."""
    files = {n.rpartition("/")[2]: data for n, data in archives["clean"].items() if n.startswith(name + "/")}
    different = []
    for log_name, content in files.items():
        if not log_name.endswith(".log"):
            continue
        disk = MemoryDisk()
        segment = Segment.create(disk, "", int(log_name[:20]), LogConfig(), now_ms=0)
        for position, header in iter_batches(content):
            segment.append([content[position : position + header.size]], [header])
        segment.seal()
        ours = tree(disk, "")
        different += [
            suffix
            for suffix in (".log", ".index", ".timeindex")
            if ours[log_name[:20] + suffix] != files[log_name[:20] + suffix]
        ]
    assert different == REOPENED.get(name, [])


@pytest.mark.parametrize("name", sorted(set(CLEAN) - INDEXES_NOT_OF_ONE_RUN))
def test_offsets_and_timestamps_are_found_by_index_and_by_scan_alike(
    archives: dict[str, dict[str, bytes]], name: str
) -> None:
    directory = open_directory(disk_with(archives["clean"]))
    log = directory.open_log(*of_partition(name), config=LogConfig(), rules=RULES, now_ms=0)
    everything = [header for _, header in batches(log)]
    for header in everything:
        for offset in {max(header.base_offset, log.log_start_offset), header.last_offset}:
            result = log.read(offset, 1, bound=log.log_end_offset)
            assert next(iter_batches(result.records))[1].base_offset == header.base_offset
    stamps = sorted({header.max_timestamp for header in everything})
    for stamp in stamps:
        found = log.offset_for_timestamp(stamp, log.log_end_offset)
        first = next(header for header in everything if header.max_timestamp >= stamp)
        assert found is not None
        assert first.base_offset <= found.offset <= first.last_offset
        assert found.timestamp >= stamp
    if stamps:
        assert log.offset_for_timestamp(stamps[-1] + 1, log.log_end_offset) is None
        newest = log.max_timestamp_offset(log.log_end_offset)
        assert newest is not None
        assert newest.timestamp == stamps[-1]


def test_newest_snapshots_hold_what_a_full_replay_gives(archives: dict[str, dict[str, bytes]]) -> None:
    files = {name: data for name, data in archives["clean"].items() if not name.endswith(".snapshot")}
    files.pop(".kafka_cleanshutdown")
    files.pop("recovery-point-offset-checkpoint")
    directory = open_directory(disk_with(files))
    for name in sorted(set(CLEAN) - INDEXES_NOT_OF_ONE_RUN - {"deleted-0"}):  # the log start drops what was before it
        wanted = CLEAN[name]["newest_snapshot"]
        log = directory.open_log(*of_partition(name), config=LogConfig(), rules=RULES, now_ms=0)
        found = {str(entry.producer_id): entry for entry in decode_snapshot(log.producers.snapshot())}
        assert set(found) == set(wanted["producers"] if wanted else ()), name
        for pid, entry in found.items():
            row = wanted["producers"][pid]
            assert (entry.epoch, entry.last_sequence, entry.last_data_offset, entry.last_timestamp) == (
                row["epoch"],
                row["last_sequence"],
                row["last_offset"],
                row["timestamp"],
            ), (name, pid)
            assert entry.coordinator_epoch == row["coordinator_epoch"]
            assert entry.current_txn_first_offset == row["current_txn_first_offset"]


def test_a_second_clean_close_changes_no_file_of_kafka(archives: dict[str, dict[str, bytes]]) -> None:
    """Opening and closing a partition cleanly leaves every byte as Kafka wrote it."""
    disk = disk_with(archives["clean"])
    directory = open_directory(disk)
    for topic, partition in directory.partitions():
        before = tree(disk, f"{topic}-{partition}")
        log = directory.open_log(topic, partition, config=LogConfig(), rules=RULES, now_ms=0)
        log.close()
        after = tree(disk, f"{topic}-{partition}")
        # The epoch that began at the log's end, with no batch yet, goes when a log is loaded (LogLoader).
        before.pop("leader-epoch-checkpoint")
        after.pop("leader-epoch-checkpoint")
        # A snapshot that belongs to no segment and is not the newest goes too (ProducerStateManager).
        newest = max((file for file in before if file.endswith(".snapshot")), default="")
        logs = {file[:20] for file in before if file.endswith(".log")}
        kept = {n: d for n, d in before.items() if not n.endswith(".snapshot") or n == newest or n[:20] in logs}
        assert after == kept, (topic, partition)
