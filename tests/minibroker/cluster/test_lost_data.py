"""A start on a data directory that has lost something says so, and does not happen where the settings refuse it."""

from __future__ import annotations

import json
import logging
import os
import shutil
from pathlib import Path

import pytest
from logs import NOW, RULES, append, batch
from memory_cluster import MemoryCluster

from minibroker.cli import main
from minibroker_pipeline.files import Files
from minibroker_pipeline.listing import list_directory
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.messages import CreateTopicsRequest, CreateTopicsResponse
from minibroker_storage.config import LogConfig
from minibroker_storage.directory import DataDirectory
from minibroker_storage.disk import Disk
from minibroker_storage.memory_disk import MemoryDisk
from minibroker_storage.os_disk import OsDisk

LOG = "t-0/00000000000000000000.log"
SAID = "replication-offset-checkpoint says t-0 reached offset 1347, "
REFUSE = {"minibroker.refuse.lost.data": "true"}


def killed(disk: Disk) -> None:
    """A broker that held topic t and was killed after a checkpoint said that t-0 reached offset 1347."""
    cluster = MemoryCluster(topics={"t": 1}, disk=disk)
    cluster.broker.partition("t", 0).log  # noqa: B018  (made when it is asked for)
    cluster.cluster.stop(keep=False)
    disk.write_atomic("replication-offset-checkpoint", b"0\n1\nt 0 1347\n")


@pytest.mark.parametrize(
    ("gone", "there"), [(LOG, "it has no log"), ("t-0", "its directory is missing or empty"), ("", "its log ends at 0")]
)
def test_a_start_says_what_is_gone_and_can_be_refused(gone: str, there: str, caplog: pytest.LogCaptureFixture) -> None:
    disk = MemoryDisk()
    killed(disk)
    if gone:
        disk.remove_tree(gone) if disk.is_dir(gone) else disk.remove(gone)
    before = disk.read_bytes("replication-offset-checkpoint")
    for _ in range(2):  # a refused start leaves what it was refused for
        with pytest.raises(ApiError, match="not starting on lost data in /memory") as error:
            MemoryCluster(REFUSE, disk=disk)
        assert error.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert f"{SAID}{there}" in error.value.message
    assert disk.read_bytes("replication-offset-checkpoint") == before
    assert not disk.exists(".kafka_cleanshutdown")
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        MemoryCluster(disk=disk).stop()
    cause = "not synced yet: a power loss takes it, and a copy of a running broker may lack it; a killed process loses"
    assert [m for m in caplog.messages if "lost data" in m] == [
        f"lost data in /memory: {SAID}{there} ({cause} nothing)"
    ]
    MemoryCluster(REFUSE, disk=disk).stop()  # it went on from there


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_a_start_says_that_a_segment_is_missing_with_all_its_files(
    policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    disk = MemoryDisk()
    settings = {"log.cleanup.policy": policy}
    MemoryCluster(settings, topics={"t": 1}, disk=disk).stop()
    directory = DataDirectory.open(disk, node_id=1, make_id=lambda: "")
    log = directory.open_log("t", 0, config=LogConfig(segment_bytes=200), rules=RULES, now_ms=NOW)
    for _ in range(9):
        append(log, batch(b"v" * 40))
    bases = [segment.base_offset for segment in log.segments]
    log.close()
    directory.close([log])
    for name in disk.list("t-0"):
        if name.startswith(f"{bases[1]:020d}"):
            disk.remove(f"t-0/{name}")
    said = f"t-0/{bases[2]:020d}.log says by its name that the log reached offset {bases[2]}, the segment before it"
    if policy == "delete":
        with pytest.raises(ApiError, match=f"not starting on lost data in /memory.*{said}"):
            MemoryCluster({**REFUSE, **settings}, disk=disk)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        MemoryCluster(settings, disk=disk).stop()
    lost = [message for message in caplog.messages if "lost data" in message]
    assert [said in message for message in lost] == ([True] if policy == "delete" else [])


def test_a_checkpoint_that_cannot_be_read_is_told(caplog: pytest.LogCaptureFixture) -> None:
    disk = MemoryDisk()
    MemoryCluster(topics={"t": 1}, disk=disk).stop()
    disk.write_atomic("recovery-point-offset-checkpoint", b"nonsense")
    with caplog.at_level(logging.WARNING):
        MemoryCluster(disk=disk).stop()
    assert [m for m in caplog.messages if "recovery-point-offset-checkpoint, line 1" in m and "taken as empty" in m]


def test_a_directory_in_the_place_of_a_log_is_one_line() -> None:
    disk = MemoryDisk()
    MemoryCluster(topics={"t": 1}, disk=disk).stop()
    disk.make_dir(LOG)
    with pytest.raises(ApiError, match=f"/memory cannot be used: {LOG} says by its name that it is a log file"):
        MemoryCluster(disk=disk)


def test_check_and_audit_find_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    disk = OsDisk(str(tmp_path), durable=True)
    killed(disk)
    journal = tmp_path / "metadata.journal"
    journal.write_bytes(journal.read_bytes()[: len(journal.read_bytes()) // 2])
    disk.write_atomic("recovery-point-offset-checkpoint", b"0\n1\nt 0 1347\n")
    os.utime(tmp_path / "recovery-point-offset-checkpoint", (0, 0))
    assert main(["check", "--json", str(tmp_path)]) == 1
    found = {row["path"]: row["message"] for row in map(json.loads, capsys.readouterr().out.splitlines())}
    assert found["replication-offset-checkpoint"] == "says t-0 reached offset 1347, its log ends at 0"
    assert "bytes that were acknowledged, it has" in found["metadata.journal.synced"]
    listed = list_directory(Files(str(tmp_path))).findings
    lost = [(one.rule, str(one.log), one.file) for one in listed if one.severity == "error"]
    assert lost == [
        ("lost-data", "__cluster_metadata-0", "metadata.journal.synced"),
        ("lost-data", "t-0", "recovery-point-offset-checkpoint"),
        ("lost-data", "t-0", "replication-offset-checkpoint"),
    ]
    with pytest.raises(ApiError, match=r"metadata.journal.synced says metadata.journal had \d+ bytes"):
        MemoryCluster(REFUSE, disk=OsDisk(str(tmp_path), durable=True))


def _copied(source: Path, target: Path, *, directories: bool) -> None:
    target.mkdir(exist_ok=True)
    for entry in source.iterdir():
        if entry.is_dir() and directories:
            shutil.copytree(entry, target / entry.name)
        elif entry.is_file() and not directories:
            shutil.copy2(entry, target / entry.name)


@pytest.mark.parametrize("synced", [False, True])
def test_a_copy_of_a_running_broker_is_no_loss(
    synced: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its checkpoints and its journal were copied after the logs, which had grown, and in a second copy before them."""
    data, copies = tmp_path / "data", [tmp_path / "logs-first", tmp_path / "logs-last"]
    data.mkdir()
    cluster = MemoryCluster(topics={"t": 1}, disk=OsDisk(str(data), durable=True))
    directory, log = cluster.broker.directory, cluster.broker.partition("t", 0).log

    def grow() -> None:
        for _ in range(3):
            append(log, batch())
        log.high_watermark = log.log_end_offset
        if synced:
            log.flush()
        directory.note([log])
        directory.write_checkpoints()
        topic = CreateTopicsRequest.CreatableTopic(
            name=f"t{log.log_end_offset}", num_partitions=1, replication_factor=1
        )
        cluster.call(CreateTopicsRequest(topics=[topic], timeout_ms=1), CreateTopicsResponse, 5)

    grow()
    _copied(data, copies[0], directories=True)
    journal = shutil.copy2(data / "metadata.journal", tmp_path)
    _copied(data, copies[1], directories=False)
    grow()
    _copied(data, copies[0], directories=False)
    shutil.copy2(journal, copies[0])
    _copied(data, copies[1], directories=True)
    for copy, ahead in zip(copies, (True, False), strict=True):
        assert main(["check", "--json", str(copy)]) == 0
        lost = [row for row in map(json.loads, capsys.readouterr().out.splitlines()) if row["rule"] == "lost-data"]
        reason = "(synced: missing as in a copy" if synced else "(not synced yet: "
        names = ["recovery-point-offset-checkpoint"] * synced + ["replication-offset-checkpoint"]
        assert [row["path"] for row in lost] == [*names, "metadata.journal.synced"] * ahead
        assert all(reason in row["message"] for row in lost[:-1])
        found = [one for one in list_directory(Files(str(copy))).findings if one.rule == "lost-data"]
        assert sorted(one.file for one in found) == sorted(row["path"] for row in lost)
        assert {one.severity for one in found} <= {"notice"}
    cluster.stop()
