"""The tools that print and verify files, on what a real Kafka wrote and on what was broken in it."""

import io
import json
import re
import tarfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from logs import NOW, RULES, append, batch, end_transaction, open_log
from sampling import thinned

from minibroker.rules.directory import check_directory
from minibroker_protocol.records import (
    Record,
    build_batch,
    end_txn_marker,
    iter_batches,
    parse_header,
    patch_offsets,
    rewrite_header,
    write_crc,
)
from minibroker_storage.check_finding import ERROR, NOTICE, Finding
from minibroker_storage.compaction import compact
from minibroker_storage.config import LogConfig
from minibroker_storage.directory import DataDirectory
from minibroker_storage.disk import Disk
from minibroker_storage.dump import as_text, dump, shown
from minibroker_storage.dump_decoders import decode_coordinator_record
from minibroker_storage.file_errors import MalformedFile
from minibroker_storage.lost import COPIED, DiskReader
from minibroker_storage.memory_disk import MemoryDisk
from minibroker_storage.os_disk import OsDisk
from minibroker_storage.producer_rules import ProducerRules
from minibroker_storage.small_files import RootFiles

GOLDEN = Path(__file__).parents[1] / "golden" / "kafka-4.3.1" / "directory"
MANIFEST: dict[str, Any] = json.loads((GOLDEN / "manifest.json").read_text())


@cache
def files(archive: str = "clean") -> dict[str, bytes]:
    found = {}
    with tarfile.open(fileobj=io.BytesIO((GOLDEN / f"{archive}.tar.gz").read_bytes())) as tar:
        for member in tar.getmembers():
            content = tar.extractfile(member) if member.isfile() else None
            if content is not None:
                found[member.name.removeprefix("./")] = content.read()
    return found


def kafka(*partitions: str, archive: str = "clean") -> MemoryDisk:
    """What Kafka wrote: everything, or some partitions and the files beside them."""
    disk = MemoryDisk()
    for name, content in files(archive).items():
        folder = name.rpartition("/")[0]
        if not partitions or not folder or folder in partitions:
            disk.make_dir(folder)
            disk.write_atomic(name, content)
    return disk


def rows(disk: Disk, path: str, **more: Any) -> list[dict[str, Any]]:
    return list(dump(disk, path, **more))


LOG = f"{0:020d}.log"


# Dump


def test_every_file_of_kafka_is_printed_without_an_error() -> None:
    disk = kafka()
    printed = 0
    for name in files():
        for row in dump(disk, name, records=True):
            assert row["kind"] != "error", (name, row)
            assert json.loads(json.dumps(row)) == row
            assert "\n" not in as_text(row)
            printed += 1
    assert printed > 3000


@pytest.mark.parametrize("partition", sorted(MANIFEST["clean"]))
def test_records_of_a_partition_are_counted_as_kafka_did(partition: str) -> None:
    disk = kafka(partition)
    expected = MANIFEST["clean"][partition]
    names = [name for name in files() if name.startswith(partition + "/") and name.endswith(".log")]
    found = [row for name in sorted(names) for row in dump(disk, name, records=True)]
    counted = [r for r in found if r["kind"] == "record" and r["offset"] >= expected["log_start_offset"]]
    assert len(counted) == expected["records_read_uncommitted"]
    assert all(row["valid"] for row in found if row["kind"] == "batch")


def test_a_batch_and_its_records_in_full() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    append(log, batch(b"x", b"\xff", pid=7, seq=3, txn=True))
    end_transaction(log, 7, commit=False, coordinator_epoch=4)
    data, first, second, marker, control = rows(disk, f"t-0/{LOG}", records=True)
    assert (data["base_offset"], data["last_offset"], data["count"], data["position"]) == (0, 1, 2, 0)
    assert (data["producer_id"], data["producer_epoch"], data["base_sequence"], data["last_sequence"]) == (7, 0, 3, 4)
    assert (data["is_transactional"], data["is_control"], data["compression"]) == (True, False, "none")
    assert (first["offset"], first["sequence"], first["key"], first["value"]) == (0, 3, "k0", "x")
    assert second["value"] == {"hex": "ff"}
    assert marker["is_control"]
    assert marker["position"] == data["size"]
    assert (control["type"], control["coordinator_epoch"]) == ("ABORT", 4)
    append(log, batch(b"y", b"z", pid=7, seq=5))
    later = [row["sequence"] for row in rows(disk, f"t-0/{LOG}", records=True) if row.get("offset", -1) > 2]
    assert later == [5, 6]


def test_coordinators_records_are_readable() -> None:
    disk = kafka("__transaction_state-0", "__consumer_offsets-1")
    states = [r for r in dump(disk, f"__transaction_state-0/{LOG}", records=True) if r["kind"] == "record"]
    assert states[0]["type"] == "TransactionLog"
    assert states[0]["key"] == {"transactional_id": "roll-2"}
    assert states[0]["value"]["producer_id"] == 15
    offsets = [r for r in dump(disk, f"__consumer_offsets-1/{LOG}", records=True) if r["kind"] == "record"]
    assert offsets[0]["key"] == {"group": "g-java-txn", "topic": "codec-none", "partition": 0}
    assert offsets[0]["value"]["offset"] == 10
    raw = [r for r in dump(disk, f"__transaction_state-0/{LOG}", records=True, topic="other") if r["kind"] == "record"]
    assert raw[0]["key"] == "\0\0\0\6roll-2"


def metadata_files() -> dict[str, bytes]:
    """The first log directory of a controller of Kafka 4.4.0, by name in `__cluster_metadata-0`."""
    found = {}
    with tarfile.open(GOLDEN.parents[1] / "kafka-4.4.0" / "two-brokers.tar.xz") as tar:
        for member in tar.getmembers():
            content = tar.extractfile(member) if member.isfile() and "1a/__cluster_metadata-0/" in member.name else None
            if content is not None:
                found[member.name.rpartition("/")[2]] = content.read()
    return found


def test_a_metadata_snapshot_and_log() -> None:
    """As kafka-dump-log.sh --cluster-metadata-decoder: the records by type, without what a password is guessed from."""
    disk = MemoryDisk()
    disk.make_dir("__cluster_metadata-0")
    names = [name for name in metadata_files() if name.endswith((".log", ".checkpoint"))]
    for name in names:
        disk.write_atomic(f"__cluster_metadata-0/{name}", metadata_files()[name])
    found = [row for name in names for row in rows(disk, f"__cluster_metadata-0/{name}", records=True)]
    types = [row.get("type") for row in found]
    assert {"TopicRecord", "PartitionRecord", "ConfigRecord", "SNAPSHOT_HEADER", "SNAPSHOT_FOOTER"} <= {*types}
    topics = {row["value"]["name"]: row["value"]["topic_id"] for row in found if row.get("type") == "TopicRecord"}
    assert {"open", "secret", "placed", "copied"} <= topics.keys()
    assert {len(topic_id) for topic_id in topics.values()} == {22}
    users = [row["value"] for row in found if row.get("type") == "UserScramCredentialRecord"]
    assert {(user["name"], user["salt"], user["stored_key"], user["server_key"]) for user in users} >= {
        ("alice", "hidden", "hidden", "hidden")
    }
    assert not [row for row in found if row["kind"] == "error" or row.get("valid") is False]
    (snapshot, *_) = [name for name in names if name.endswith(".checkpoint")]
    assert {row["kind"] for row in rows(disk, f"__cluster_metadata-0/{snapshot}")} == {"batch"}
    copied = MemoryDisk()  # wherever it lies
    copied.make_dir("aside")
    copied.write_atomic("aside/bootstrap.checkpoint", metadata_files()[snapshot])
    assert "FeatureLevelRecord" in {row.get("type") for row in rows(copied, "aside/bootstrap.checkpoint", records=True)}


@pytest.mark.parametrize("suffix", ["future", "delete", "stray"])
def test_records_of_a_directory_that_moves_or_goes(suffix: str) -> None:
    disk = MemoryDisk()
    folder = f"__consumer_offsets-1.0c4f8b6f5d2e4c5cb0a8f00d0c4f8b6f-{suffix}"
    disk.make_dir(folder)
    disk.write_atomic(f"{folder}/{LOG}", files()[f"__consumer_offsets-1/{LOG}"])
    read = [row for row in rows(disk, f"{folder}/{LOG}", records=True) if row["kind"] == "record"]
    assert read[0]["key"] == {"group": "g-java-txn", "topic": "codec-none", "partition": 0}


def test_small_files() -> None:
    disk = kafka("rolled-0", "open-0")
    assert rows(disk, "rolled-0/leader-epoch-checkpoint")[0] == {"kind": "leader_epoch", "epoch": 0, "start_offset": 0}
    metadata = rows(disk, "rolled-0/partition.metadata")
    assert len(metadata[0]["topic_id"]) == 22
    names = {row["name"] for row in rows(disk, "meta.properties")}
    assert {"version", "node.id", "cluster.id", "directory.id"} <= names
    assert rows(disk, ".kafka_cleanshutdown")[0]["content"]["version"] == 0
    open_producer = [r for r in rows(disk, f"open-0/{5:020d}.snapshot") if r["current_txn_first_offset"] >= 0]
    assert open_producer[0]["current_txn_first_offset"] == 2
    aborted = MANIFEST["clean"]["rolled-0"]["aborted_index"]
    first = {key: value for key, value in aborted[0].items() if key != "segment"}
    assert rows(disk, f"rolled-0/{0:020d}.txnindex") == [{"kind": "aborted_txn", **first}]


def test_indexes_without_the_room_allocated_ahead() -> None:
    disk = MemoryDisk()
    disk.make_dir("t-0")
    entry = (5).to_bytes(4) + (900).to_bytes(4)
    disk.write_atomic(f"t-0/{100:020d}.index", entry + bytes(80))
    disk.write_atomic(f"t-0/{100:020d}.timeindex", (7).to_bytes(8) + (5).to_bytes(4) + bytes(120))
    assert rows(disk, f"t-0/{100:020d}.index") == [{"kind": "offset_index", "offset": 105, "position": 900}]
    assert rows(disk, f"t-0/{100:020d}.timeindex") == [{"kind": "time_index", "timestamp": 7, "offset": 105}]


@pytest.mark.parametrize(("suffix", "entry"), [(".index", 8), (".timeindex", 12)])
def test_an_index_that_ends_within_an_entry(suffix: str, entry: int) -> None:
    disk = MemoryDisk()
    disk.make_dir("t-0")
    disk.write_atomic(f"t-0/{0:020d}{suffix}", b"\1" * (entry + 3))
    whole, error = rows(disk, f"t-0/{0:020d}{suffix}")
    assert whole["kind"].endswith("_index")
    assert (error["kind"], f"byte {entry}: expected an entry of {entry} bytes" in error["message"]) == ("error", True)


def test_the_side_file_of_a_snapshot() -> None:
    disk = MemoryDisk()
    rules = ProducerRules(snapshot_all_batches=True)
    log = open_log(disk, rules=rules)
    append(log, batch(b"x", pid=7, seq=0))
    append(log, batch(b"x", b"y", pid=7, seq=1))
    log.close()
    (row,) = rows(disk, f"t-0/{3:020d}.remembered")
    assert row["batches"] == [[0, 0, 0, 0], [1, 2, 1, 2]]
    (snapshot,) = rows(disk, f"t-0/{3:020d}.snapshot")
    assert (snapshot["first_sequence"], snapshot["last_sequence"]) == (1, 2)
    disk.write_atomic(f"t-0/{3:020d}.remembered", b"?")
    assert rows(disk, f"t-0/{3:020d}.remembered")[0]["kind"] == "error"


def test_a_broken_log_is_printed_up_to_the_break() -> None:
    disk = kafka("txn-a-0")
    name = f"txn-a-0/{LOG}"
    whole = rows(disk, name)
    disk.write_atomic(name, disk.read_bytes(name)[:-1])
    cut = rows(disk, name)
    assert cut[:-1] == whole[:-1]
    assert cut[-1]["kind"] == "error"
    assert f"at byte {whole[-1]['position']}" in cut[-1]["message"]
    data = bytearray(files()[name])
    data[whole[1]["position"] + 40] ^= 1
    disk.write_atomic(name, bytes(data))
    assert [row["valid"] for row in rows(disk, name)] == [n != 1 for n in range(len(whole))]


def test_a_clean_mark_that_is_no_json_is_named_with_its_first_byte() -> None:
    disk = kafka()
    disk.write_atomic(".kafka_cleanshutdown", b"no")
    (wrong,) = [found for found in check_directory(disk) if found.path == ".kafka_cleanshutdown"]
    assert (wrong.position, wrong.message) == (0, "expected JSON")


def test_names_that_say_nothing() -> None:
    with pytest.raises(MalformedFile, match="expected a name ending in"):
        rows(MemoryDisk(), "t-0/readme.txt")
    disk = MemoryDisk()
    disk.make_dir("t-0")
    disk.write_atomic("t-0/x.index", b"")
    (row,) = rows(disk, "t-0/x.index")
    assert row["kind"] == "error"
    assert "20 digits" in row["message"]
    disk.write_atomic(".kafka_cleanshutdown", b'{"version"')
    assert [(row["kind"], "expected JSON" in row["message"]) for row in rows(disk, ".kafka_cleanshutdown")] == [
        ("error", True)
    ]


def test_a_name_of_a_compaction_is_read_as_what_it_will_be() -> None:
    disk = kafka("txn-a-0")
    disk.rename(f"txn-a-0/{LOG}", f"txn-a-0/{LOG}.swap")
    assert rows(disk, f"txn-a-0/{LOG}.swap")[0]["kind"] == "batch"


def test_text_of_a_row() -> None:
    assert as_text({"kind": "x", "a": 1, "b": "plain", "c": "with space ü", "d": None, "e": ["ü"]}) == (
        'x a: 1 b: plain c: "with space ü" d: null e: ["ü"]'
    )
    assert shown(None) is None


def test_files_on_the_real_disk(tmp_path: Path) -> None:
    (tmp_path / "partition.metadata").write_bytes(files()["txn-a-0/partition.metadata"])
    assert rows(OsDisk(str(tmp_path)), "partition.metadata")[0]["kind"] == "partition_metadata"


# Check


def errors(disk: Disk) -> list[Finding]:
    return [finding for finding in check_directory(disk) if finding.severity == ERROR]


def test_what_kafka_closed_is_right() -> None:
    told: list[tuple[str, int, int]] = []
    found = check_directory(kafka(), progress=lambda *args: told.append(args))
    assert found == []
    assert (
        "rolled-0",
        *2 * (sum(len(v) for k, v in files().items() if k.startswith("rolled-0/") and k.endswith(".log")),),
    ) in told


def test_what_kafka_left_at_a_kill_is_worth_notices_only() -> None:
    disk = kafka(archive="killed")
    assert errors(disk) == []
    assert ".kafka_cleanshutdown" in {finding.path for finding in check_directory(disk)}
    name = next(name for name in files("killed") if name.endswith(".log") and len(files("killed")[name]) > 100)
    disk.write_atomic(name, disk.read_bytes(name)[:-1])
    torn = [f for f in check_directory(disk) if f.path == name]
    assert torn[0].severity == NOTICE


def test_our_own_directory_is_right() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    for n in range(20):
        append(log, batch(b"x" * 500, pid=7, seq=n, txn=n % 4 > 1))
        if n % 4 == 3:
            end_transaction(log, 7, commit=n % 8 == 7)
        if n % 10 == 9:
            log.roll(0)
    log.close()
    found = [f for f in check_directory(disk) if f.path.startswith("t-0")]
    assert found == []


#: Bytes that only other files could contradict, or that are blank space.
UNKNOWABLE = {"partition.metadata": range(21, 43), "leader-epoch-checkpoint": range(6, 99)}


@pytest.mark.parametrize("every", thinned([13, 5], 2))
@pytest.mark.parametrize("partition", ["txn-a-0", "open-0"])
def test_any_flipped_bit_is_found(partition: str, every: int) -> None:
    disk = kafka(partition)
    assert errors(disk) == []
    names = [name for name in files() if name.startswith(partition + "/")]
    tried = 0
    for name in names:
        content = files()[name]
        for position in range(tried % every, len(content), every):
            if position in UNKNOWABLE.get(name.rpartition("/")[2], ()):
                continue
            broken = bytearray(content)
            broken[position] ^= 1 << position % 8
            disk.write_atomic(name, bytes(broken))
            assert errors(disk), f"{name}, byte {position}"
            tried += 1
        disk.write_atomic(name, content)
    assert tried > 300 // every


def only(disk: Disk) -> Finding:
    (finding,) = errors(disk)
    assert str(finding).startswith(f"error: {finding.path}")
    return finding


def test_a_wrong_checksum_names_file_byte_and_offset() -> None:
    disk = kafka("codec-none-0")
    name = f"codec-none-0/{LOG}"
    second = rows(disk, name)[1]
    data = bytearray(disk.read_bytes(name))
    data[second["position"] + 70] ^= 1
    disk.write_atomic(name, bytes(data))
    finding = only(disk)
    assert (finding.path, finding.position, finding.offset) == (name, second["position"], second["base_offset"])
    assert (finding.rule, "another CRC-32C" in finding.message) == ("checksum", True)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("partition.metadata", b"version: 9\n", "version"),
        ("leader-epoch-checkpoint", b"0\n1\n7 0\n", "leader epoch"),
        ("leader-epoch-checkpoint", b"0\n2\n0 0\n9 999\n", "after the log's end"),
        (f"{0:020d}.index", (1).to_bytes(4) + (1).to_bytes(4), "no batch begins at byte 1"),
        (f"{0:020d}.index", bytes([0, 0, 0, 9]), "8"),
        (f"{0:020d}.timeindex", (5).to_bytes(8) + (1).to_bytes(4), "ends at this offset|largest"),
        (
            f"{0:020d}.txnindex",
            bytes(2) + b"".join(n.to_bytes(8) for n in (9, 1, 2, 3)),
            "of producer 9 aborted; the log has no such marker",
        ),
        (f"{999:020d}.snapshot", bytes.fromhex("000148674bc700000000"), "its log ends at 50"),
        (f"{7:020d}.index", b"", "index of no log"),
    ],
)
def test_small_files_that_contradict_the_log(name: str, content: bytes, reason: str) -> None:
    disk = kafka("plain-0")
    disk.write_atomic(f"plain-0/{name}", content)
    found = errors(disk)
    assert found
    assert all(finding.path == f"plain-0/{name}" or "leader epoch" in finding.message for finding in found)
    assert any(re.search(reason, finding.message) for finding in found), found


def test_a_segment_that_is_just_deleted() -> None:
    """A Kafka 4.4.0 that was stopped by a signal after the first of its renames (LogSegment.changeFileSuffixes)."""
    disk = kafka("plain-0")
    for suffix in ("log.deleted", "index", "timeindex"):
        disk.write_atomic(f"plain-0/{7:020d}.{suffix}", b"")
    assert errors(disk) == []


def test_a_snapshot_that_is_not_what_the_log_says() -> None:
    disk = kafka("rolled-0")
    name = f"rolled-0/{46:020d}.snapshot"
    disk.write_atomic(name, disk.read_bytes(f"rolled-0/{23:020d}.snapshot"))
    found = errors(disk)
    assert {finding.path for finding in found} == {name}
    assert "last sequence" in found[0].message


def test_the_snapshot_at_the_end_is_compared_too() -> None:
    disk = kafka("append-time-0")
    name = f"append-time-0/{9:020d}.snapshot"
    disk.write_atomic(name, files()[f"append-time-1/{6:020d}.snapshot"])
    assert only(disk).path == name


def test_an_abort_the_index_does_not_list() -> None:
    disk = kafka("rolled-0")
    disk.remove(f"rolled-0/{0:020d}.txnindex")
    assert "no entry for the aborted transaction 4-22 of producer 14" in only(disk).message


def test_a_missing_segment_and_segments_that_overlap() -> None:
    disk = kafka("rolled-0")
    for suffix in (".log", ".index", ".timeindex", ".txnindex"):
        disk.remove(f"rolled-0/{23:020d}{suffix}")
    hole = [finding for finding in check_directory(disk) if finding.rule == "offset-hole"]
    assert [(one.path, one.offset, one.severity) for one in hole] == [("rolled-0", 23, NOTICE)]
    assert "23 offsets are of no batch" in hole[0].message
    disk = kafka("rolled-0")
    for suffix in (".log", ".index", ".timeindex", ".txnindex"):
        disk.write_atomic(f"rolled-0/{30:020d}{suffix}", disk.read_bytes(f"rolled-0/{23:020d}{suffix}"))
    assert any("offsets 23-45 come twice" in finding.message for finding in errors(disk))


@pytest.mark.parametrize("clean", [True, False])
def test_checkpoints_past_the_end(clean: bool) -> None:
    disk = kafka("plain-0")
    for name in ("log-start-offset-checkpoint", "cleaner-offset-checkpoint"):
        disk.write_atomic(name, b"")
    disk.write_atomic("recovery-point-offset-checkpoint", b"0\n1\nplain 0 51\n")
    disk.write_atomic("replication-offset-checkpoint", b"0\n3\ngone 2 1\nplain 0 50\ngone 3 1\n")
    if not clean:
        disk.remove(".kafka_cleanshutdown")
    found = {(f.path, f.severity): f.message for f in check_directory(disk)}
    said = "says plain-0 reached offset 51, its log ends at 50"
    if clean:
        assert found["recovery-point-offset-checkpoint", ERROR] == said
    else:  # of a broker that ran, its log may have been copied first
        assert found["recovery-point-offset-checkpoint", NOTICE] == f"{said} ({COPIED})"
    # of a broker that was not stopped it may have been given up a moment ago
    gone = [f.message for f in check_directory(disk) if f.path == "replication-offset-checkpoint"]
    assert gone == (["gone-2 has no directory", "gone-3 has no directory"] if clean else [])
    disk.write_atomic("replication-offset-checkpoint", b"x")
    assert any(f.path == "replication-offset-checkpoint" for f in errors(disk))


def test_high_watermarks_of_the_last_partitions_that_left() -> None:
    """Kafka rewrites them for a log directory that has a partition, and the other checkpoints for all."""
    disk = MemoryDisk()
    disk.make_dir("__cluster_metadata-0")
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        disk.write_atomic(name, b"0\n1\ngone 0 1\n")
    disk.write_atomic(".kafka_cleanshutdown", b"")
    root = RootFiles(DiskReader(disk), lambda _: None)
    root.look()
    paths = [finding.path for _, finding in root.without_directory(lambda: ["gone"])]
    assert paths == ["recovery-point-offset-checkpoint"]
    disk.make_dir("here-0")
    root = RootFiles(DiskReader(disk), lambda _: None)
    root.look()
    paths = [finding.path for _, finding in root.without_directory(lambda: ["gone"])]
    assert paths == ["recovery-point-offset-checkpoint", "replication-offset-checkpoint"]


def test_a_log_that_begins_above_its_high_watermark() -> None:
    """After a crash the two may be of different times."""
    disk = kafka("plain-0")
    disk.write_atomic("replication-offset-checkpoint", b"0\n1\nplain 0 40\n")
    for start, said in ((40, []), (41, ["plain-0 begins at 41, replication-offset-checkpoint says 40"])):
        disk.write_atomic("log-start-offset-checkpoint", b"0\n1\nplain 0 %d\n" % start)
        assert [f.message for f in errors(disk) if f.path == "log-start-offset-checkpoint"] == said
    disk.remove(".kafka_cleanshutdown")
    assert not [f for f in errors(disk) if f.path == "log-start-offset-checkpoint"]


def test_partitions_that_only_checkpoints_name() -> None:
    """A running broker may have deleted a topic a moment ago, but not one that is known to exist."""
    disk = written(batch(b"x"))
    disk.write_atomic("replication-offset-checkpoint", b"0\n4\ngone 0 1\nt 0 1\nthere 1 1\nthere 2 1\n")
    for clean in (True, False):
        root = RootFiles(DiskReader(disk), lambda _: None)
        root.look()
        found = [(place, f.severity) for place, f in root.without_directory(lambda: ["there"])]
        there = [(("there", index), ERROR if clean else NOTICE) for index in (1, 2)]
        assert found == ([(("gone", 0), NOTICE), *there] if clean else there)
        if clean:
            disk.remove(".kafka_cleanshutdown")


def test_identity() -> None:
    disk = kafka("txn-a-0", "txn-a-1")
    disk.write_atomic("txn-a-1/partition.metadata", disk.read_bytes("txn-a-1/partition.metadata")[:-2] + b"AA")
    assert "txn-a-0 has" in only(disk).message
    disk = kafka("txn-a-0")
    disk.write_atomic("meta.properties", b"version=1\n")
    assert {f.message for f in errors(disk)} == {"expected a line node.id=…", "expected a line cluster.id=…"}
    disk.remove("meta.properties")
    assert only(disk).message == "the file is missing"


def written(*parts: bytes | bytearray, base: int = 0) -> MemoryDisk:
    """A partition whose log is these bytes and nothing else."""
    disk = MemoryDisk()
    disk.make_dir("t-0")
    disk.write_atomic(f"t-0/{base:020d}.log", b"".join(parts))
    disk.write_atomic("meta.properties", b"version=1\nnode.id=1\ncluster.id=x\n")
    disk.write_atomic(".kafka_cleanshutdown", b"")
    return disk


def with_header(data: bytearray, **fields: int) -> bytearray:
    """The batch with other header fields and a right checksum."""
    header = parse_header(data)
    for name, value in fields.items():
        setattr(header, name, value)
    rewrite_header(data, 0, header)
    return data


def at(offset: int, data: bytearray) -> bytearray:
    patch_offsets(data, 0, offset, 0)
    return data


def test_records_that_do_not_add_up_under_a_right_checksum() -> None:
    assert "records" in only(written(with_header(batch(b"x", b"y"), record_count=3))).message
    assert "delta -1" in errors(written(with_header(batch(b"x"), last_offset_delta=-1)))[0].message


@pytest.mark.parametrize(("last", "fits"), [((1 << 31) - 1, True), (1 << 31, False)])
@pytest.mark.parametrize("base", [0, 1 << 31, 1 << 40])
def test_offsets_fit_their_segment(base: int, last: int, fits: bool) -> None:
    disk = written(at(base, batch(b"x")), at(base + last, batch(b"y")), base=base)
    assert any("does not fit a segment" in finding.message for finding in errors(disk)) is not fits


def test_a_batch_that_reaches_into_the_next_segment() -> None:
    disk = written(batch(b"x", b"y", b"z"))
    disk.write_atomic(f"t-0/{2:020d}.log", at(2, batch(b"x")))
    first, *_ = errors(disk)
    assert first.message == "offsets 2-2 come twice"


def test_a_batch_that_its_producers_transaction_forbids() -> None:
    disk = written(at(0, batch(b"x", pid=7, seq=0, txn=True)), at(1, batch(b"x", pid=7, seq=1)))
    finding = only(disk)
    assert (finding.position, finding.offset) == (len(batch(b"x", pid=7)), 1)
    assert finding.message == "not transactional, while the transaction from offset 0 is open"


def index_entry(offset: int, position: int) -> bytes:
    return offset.to_bytes(4) + position.to_bytes(4)


def time_entry(timestamp: int, offset: int) -> bytes:
    return timestamp.to_bytes(8) + offset.to_bytes(4)


@pytest.mark.parametrize(
    ("suffix", "content", "reason"),
    [
        (".index", index_entry(1, 71) * 2, "must rise"),
        (".index", index_entry(1, 71) + index_entry(2, 71), "must rise"),
        (".index", index_entry(0, 71), "entry for offset 0, the batch at byte 71 ends at 1"),
        (".timeindex", time_entry(5, 0) * 2, "must rise"),
        (".timeindex", time_entry(5, 1) + time_entry(6, 0), "must rise"),
        (".timeindex", time_entry(5, 1), "entry says 5 is the largest timestamp up to here, it is 7"),
    ],
    ids=["same", "same position", "wrong offset", "same timestamp", "offset falls", "wrong timestamp"],
)
def test_index_entries(suffix: str, content: bytes, reason: str) -> None:
    first, second = at(0, batch(b"x", timestamp=7)), at(1, batch(b"x", timestamp=6))
    assert len(first) == 71
    disk = written(first, second)
    disk.write_atomic(f"t-0/{0:020d}{suffix}", content)
    assert reason in only(disk).message


def test_a_torn_end_excuses_no_entry_before_it() -> None:
    """Entries for what is not there any more are not held against it."""
    disk = written(at(0, batch(b"x", timestamp=7)), at(1, batch(b"x", timestamp=6)), at(2, batch(b"x"))[:-1])
    disk.remove(".kafka_cleanshutdown")
    disk.write_atomic(f"t-0/{0:020d}.index", index_entry(1, 71) + index_entry(2, 142))
    assert not [finding for finding in check_directory(disk) if finding.rule == "offset-index"]
    disk.write_atomic(f"t-0/{0:020d}.index", index_entry(0, 71) + index_entry(2, 142))
    (finding,) = [finding for finding in check_directory(disk) if finding.rule == "offset-index"]
    # Above the recovery point, so that opening the log makes the index anew.
    assert (finding.message, finding.severity) == ("entry for offset 0, the batch at byte 71 ends at 1", NOTICE)


def aborted_entry(pid: int, first: int, last: int) -> bytes:
    return bytes(2) + b"".join(n.to_bytes(8) for n in (pid, first, last, last + 1))


@pytest.mark.parametrize(("base", "listed", "reasons"), [
    (0, (7, 0, 1), []),
    (0, (7, 1, 1), ["first offset and last stable offset are (0, 2) in the log, (1, 2) in the index"]),
    (0, (8, 0, 1), ["no entry for the aborted transaction 0-1 of producer 7",
                    "an entry says 0-1 of producer 8 aborted; the log has no such marker"]),
    (5, (7, 2, 6), []),
    (5, (7, 5, 6), []),
    (5, (7, 6, 6), ["first offset and last stable offset are (5, 7) in the log, (6, 7) in the index"]),
])  # fmt: skip
def test_abort_index_entries(base: int, listed: tuple[int, int, int], reasons: list[str]) -> None:
    """Where the log begins later than the topic, a transaction may have begun before what is left of it."""
    marker = end_txn_marker(producer_id=7, producer_epoch=0, commit=False, coordinator_epoch=0, timestamp_ms=1)
    disk = written(at(base, batch(b"x", pid=7, txn=True)), at(base + 1, marker), base=base)
    disk.write_atomic(f"t-0/{base:020d}.txnindex", aborted_entry(*listed))
    found = [finding.message for finding in errors(disk)]
    assert len(found) == len(reasons)
    assert all(message.startswith(reason) for message, reason in zip(found, reasons, strict=True)), found


@pytest.mark.parametrize("segments", [1, 2])
@pytest.mark.parametrize(("before", "said"), [(3, ["first offset and last stable offset are"]), (1, [])])
def test_an_abort_may_have_begun_in_what_compaction_took(before: int, said: list[str], segments: int) -> None:
    """The log is whole up to the transaction, or two offsets before it are missing, in its segment or between two."""
    first, marker = batch(*[b"x"] * before), end_txn_marker(
        producer_id=7, producer_epoch=0, commit=False, coordinator_epoch=0, timestamp_ms=1
    )  # fmt: skip
    aborted = [at(3, batch(b"x", pid=7, txn=True)), at(4, marker)]
    disk = written(first, *aborted) if segments == 1 else written(first)
    if segments == 2:
        disk.write_atomic(f"t-0/{3:020d}.log", b"".join(aborted))
    disk.write_atomic(f"t-0/{3 * (segments - 1):020d}.txnindex", aborted_entry(7, 2, 4))
    found = [finding.message for finding in errors(disk)]
    assert [message[:39] for message in found] == said


def test_an_emptied_marker_makes_no_snapshot_wrong() -> None:
    """The log then knows less of the producer than the snapshot does."""
    disk = MemoryDisk()
    log = open_log(disk, config=LogConfig(cleanup_policy=frozenset({"compact"}), delete_retention_ms=0))
    kept = build_batch(
        [Record(0, NOW, b"its own key", b"x")], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True
    )
    append(log, kept)
    end_transaction(log, 7, commit=True)
    end_transaction(log, 7, 1, commit=True)
    append(log, batch(b"x", b"y"))
    append(log, batch(b"x", b"y"))
    for now in (NOW, NOW + 1):
        log.roll(now)
        assert compact(log, 0, now, force=True)
        append(log, batch(b"x", b"y"))
    assert any(h.is_control and not h.record_count for _, h in log.segments[0].headers())
    log.close()
    assert not [finding for finding in errors(disk) if finding.path.startswith("t-0")]


def test_coordinator_records_that_cannot_be_read() -> None:
    topic = "__transaction_state"
    for key, value in ((None, None), (b"", None), (b"\0", None), (b"\0\x63", None), (b"\0\0\0\x09x", None)):
        assert decode_coordinator_record(topic, key, value) is None
    key = b"\0\0\0\1x"
    assert decode_coordinator_record(topic, key, b"\0") is None
    assert decode_coordinator_record(topic, key, b"\0\x63") is None
    assert decode_coordinator_record(topic, key, None) == {
        "type": "TransactionLog",
        "key": {"transactional_id": "x"},
        "value": None,
    }


def test_leftovers_are_named() -> None:
    disk = kafka("txn-a-0")
    disk.write_atomic(f"txn-a-0/{LOG}.swap", b"")
    disk.write_atomic(f"txn-a-0/{LOG}.deleted", b"")
    disk.make_dir("aside")
    disk.write_atomic(f"txn-a-0/{0:019d}x.log", b"")
    disk.make_dir("txn-b-0.abc-delete")
    disk.make_dir("empty-0")
    disk.remove(f"txn-a-0/{0:020d}.index")
    found = {f.path: f for f in check_directory(disk) if f.severity == NOTICE and "has no directory" not in f.message}
    assert found.keys() >= {f"txn-a-0/{LOG}.swap", "txn-b-0.abc-delete", "empty-0", f"txn-a-0/{0:020d}.index"}
    assert f"txn-a-0/{LOG}.deleted" not in found  # a broker that is stopped leaves what has a minute to go
    assert errors(disk) == []


def test_nothing_is_changed() -> None:
    disk = kafka("txn-a-0")
    check_directory(disk)
    for name, content in files().items():
        if name.startswith("txn-a-0/"):
            assert disk.read_bytes(name) == content
    assert sorted(disk.list("txn-a-0")) == sorted(n.rpartition("/")[2] for n in files() if n.startswith("txn-a-0/"))


@pytest.mark.parametrize("kind", ["checksum", "records", "marker"])
def test_a_batch_that_cannot_be_read_is_found_once(kind: str) -> None:
    """Neither its producer's snapshot nor the abort index is wrong because of it."""
    disk = MemoryDisk()
    directory = DataDirectory.open(disk, node_id=1, make_id=lambda: "A" * 22)
    log = directory.open_log("t", 0, config=LogConfig(), rules=RULES, now_ms=NOW)
    append(log, batch(b"a", pid=1))
    append(log, batch(b"b" * 50, pid=1, seq=1, compression=1, txn=True))
    if kind == "marker":
        end_transaction(log, 1, commit=False)
    log.close()
    directory.close([log])
    path = f"t-0/{LOG}"
    data = bytearray(disk.read_bytes(path))
    position, header = [*iter_batches(data)][-1]
    if kind == "marker":
        record, producer = Record(0, NOW, b"\0", b"x"), {"producer_id": 1, "producer_epoch": 0}
        data[position:] = build_batch(
            [record], base_offset=header.base_offset, control=True, transactional=True, leader_epoch=0, **producer
        )
    else:
        data[-8:] = bytes(8)
        if kind == "records":
            write_crc(data, position, header.size)
    disk.write_atomic(path, bytes(data))
    finding = only(disk)
    assert (finding.path, finding.position, finding.offset) == (path, position, header.base_offset)
