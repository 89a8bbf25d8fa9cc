"""`minibroker dump` and `minibroker check` on directories of a real Kafka and of our own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_process import start_command
from golden import unpack
from memory_cluster import MemoryCluster

from minibroker.cli import main
from minibroker_storage.os_disk import OsDisk

LOG = "00000000000000000000.log"


@pytest.fixture
def kafka(tmp_path: Path) -> Path:
    """What a real Kafka 4.3.1 left after a clean end."""
    return unpack("kafka-4.3.1/directory/clean.tar.gz", tmp_path / "kafka")


def contents(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


# check


def test_a_directory_of_kafka_is_sound_and_stays_as_it_is(kafka: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(kafka)
    assert main(["check", str(kafka)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("0 error(s)")
    assert contents(kafka) == before


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="needs files that may not be written")
def test_a_directory_that_may_not_be_written_can_be_checked(kafka: Path) -> None:
    for path in kafka.rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        assert main(["check", str(kafka)]) == 0
    finally:
        for path in kafka.rglob("*"):
            path.chmod(0o755)


def test_a_read_only_disk_refuses_to_write(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"kept")
    disk = OsDisk(str(tmp_path), read_only=True)
    file = disk.open("file")
    assert file.pread(4, 0) == b"kept"
    with pytest.raises(OSError, match="file"):
        file.append([b"more"])
    disk.close()
    assert (tmp_path / "file").read_bytes() == b"kept"


def test_a_flipped_byte_is_named_by_file_position_and_offset(kafka: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = kafka / "txn-a-0" / LOG
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)
    assert main(["check", "--json", "--quiet", str(kafka)]) == 1
    findings = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"path", "position", "offset", "message", "severity"} <= findings[0].keys()
    assert findings[0]["path"] == f"txn-a-0/{LOG}"
    assert findings[0]["severity"] == "error"
    assert 0 < findings[0]["position"] <= len(data) // 2
    assert 0 <= findings[0]["offset"] < 58


def test_a_broker_of_our_own_leaves_a_sound_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    MemoryCluster(topics={"orders": 2}, disk=OsDisk(str(tmp_path))).stop()
    assert main(["check", str(tmp_path)]) == 0
    journal = tmp_path / "metadata.journal"
    journal.write_bytes(journal.read_bytes() + b'{"type":"to')
    assert main(["check", str(tmp_path)]) == 0  # torn by a crash: the next start drops it
    assert "metadata.journal" in capsys.readouterr().out
    journal.write_bytes(b"nonsense\n" + journal.read_bytes())
    assert main(["check", str(tmp_path)]) == 1
    assert "error: metadata.journal, byte 0: " in capsys.readouterr().out


def test_every_broker_of_a_cluster_is_checked(kafka: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = tmp_path / "cluster"
    for number in (1, 2):
        unpack("kafka-4.3.1/directory/clean.tar.gz", cluster / f"broker{number}")
    (cluster / "broker2" / "meta.properties").unlink()
    assert main(["check", "--quiet", str(cluster)]) == 1
    assert capsys.readouterr().out.splitlines()[0] == "error: broker2/meta.properties: the file is missing"


def test_every_log_directory_in_a_directory_is_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unpack("kafka-4.4.0/two-brokers.tar.xz", tmp_path)
    (tmp_path / "notes").mkdir()
    assert main(["check", str(tmp_path)]) == 0
    for folder in ("1a", "1b", "2"):
        assert main(["check", str(tmp_path / folder)]) == 0
    (tmp_path / "1b" / "placed-2" / "partition.metadata").write_text("version: 0\n")
    (tmp_path / "2" / "metadata.journal").write_text("[]\n")
    capsys.readouterr()
    assert main(["check", "--quiet", str(tmp_path)]) == 1
    found = [line.split()[1] for line in capsys.readouterr().out.splitlines() if line.startswith("error: ")]
    assert [path[:-1] for path in found] == ["1b/placed-2/partition.metadata", "2/metadata.journal"]


@pytest.mark.parametrize("name", ["missing", "empty"])
def test_what_is_no_data_directory_is_refused(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["check", str(tmp_path / name)]) == 2
    said = capsys.readouterr().err
    assert name in said
    assert said.count("\n") == 1


# dump


def test_a_log_is_printed_batch_by_batch(kafka: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = str(kafka / "txn-a-0" / LOG)
    assert main(["dump", "--json", log]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["kind"] for row in rows} == {"batch"}
    assert all(row["file"] == log and row["valid"] for row in rows)
    wanted = {"producer_id", "producer_epoch", "base_sequence", "is_transactional", "is_control", "base_offset"}
    assert wanted <= rows[0].keys()
    assert any(row["is_control"] for row in rows)
    assert any(row["is_transactional"] and not row["is_control"] for row in rows)


def test_records_of_the_coordinators_are_decoded(kafka: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (log,) = [p for p in sorted(kafka.glob("__transaction_state-*/*.log")) if p.stat().st_size][:1]
    assert main(["dump", "--records", "--json", str(log)]) == 0
    first = capsys.readouterr().out
    assert "transactional_id" in first
    moved = kafka / LOG
    moved.write_bytes(log.read_bytes())
    assert main(["dump", "--records", "--json", "--topic", "__transaction_state", str(moved)]) == 0
    assert capsys.readouterr().out.replace(str(moved), str(log)) == first


def test_every_kind_of_file_is_printed_as_text(kafka: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = sorted(kafka.glob("rolled-0/*")) + sorted(kafka.glob("*-checkpoint")) + [kafka / "meta.properties"]
    assert {path.suffix for path in files} >= {".log", ".index", ".timeindex", ".txnindex", ".snapshot", ".metadata"}
    assert main(["dump", *map(str, files)]) == 0
    out = capsys.readouterr().out
    assert [line[2:] for line in out.splitlines() if line.startswith("# ")] == [str(path) for path in files]
    assert "producer_id: " in out


def test_a_broken_file_is_printed_up_to_there(kafka: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = kafka / "txn-a-0" / LOG
    log.write_bytes(log.read_bytes()[:-5])
    good = kafka / "txn-a-0" / "leader-epoch-checkpoint"
    assert main(["dump", "--json", str(log), str(good)]) == 1
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (broken,) = [row for row in rows if row["kind"] == "error"]
    assert "at byte" in broken["message"]
    assert rows[0]["kind"] == "batch"
    assert rows[-1]["kind"] == "leader_epoch"


@pytest.mark.parametrize("name", ["missing.log", "notes.txt"])
def test_a_file_that_cannot_be_printed_is_one_line(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    assert main(["dump", str(tmp_path / name)]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"minibroker dump: {tmp_path / name}")
    assert said.err.count("\n") == 1


@pytest.mark.skipif(os.name != "posix", reason="pipes that break")
def test_a_reader_that_has_seen_enough_is_told_nothing(kafka: Path) -> None:
    log = str(kafka / "rolled-0" / LOG)
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    pipe = subprocess.PIPE
    with start_command("dump", "--records", *[log] * 50, stdout=pipe, stderr=pipe, env=environment) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(30) == 141


@pytest.mark.skipif(sys.platform == "win32", reason="no such file names")
def test_names_and_texts_with_escape_sequences_are_shown(
    kafka: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    strange = tmp_path / "x\x1b[2J\n0 error(s)\x9b31m\x7f"
    kafka.rename(strange)
    log = next(path for path in strange.rglob(LOG) if path.stat().st_size)
    log.write_bytes(log.read_bytes()[:-1])
    assert main(["check", str(strange)]) == 1
    assert main(["dump", str(log), str(log)]) == 1
    assert main(["check", f"{strange}/\x1bmissing"]) != 0
    assert main(["check", str(strange), "--json"]) == 1
    assert main(["dump", str(log), "--json"]) == 1
    said = capsys.readouterr()
    assert r"x\x1b[2J\n0 error(s)\x9b31m\x7f" in said.out
    assert r"x\u001b[2J\n0 error(s)\u009b31m\u007f" in said.out
    assert r"\x1bmissing" in said.err
    assert all(character == "\n" or character.isprintable() for character in said.out + said.err)
    assert not [line for line in said.out.splitlines() if line.startswith("0 error(s)")]
