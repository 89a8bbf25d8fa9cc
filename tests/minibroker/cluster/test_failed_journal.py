"""A sync of the metadata journal that failed once: nothing after it is acknowledged, and every broker ends, as Kafka's
do when the directory of their metadata log fails."""

from __future__ import annotations

import asyncio
import errno
from types import SimpleNamespace

import pytest
from memory_cluster import MemoryCluster

from minibroker.controller.journal import JOURNAL, MetadataJournal
from minibroker.server import command
from minibroker_lab.simulation.faulty_disk import FaultyDisk
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.messages.topics import CreateTopicsRequest, CreateTopicsResponse
from minibroker_storage.directory import CLEAN_FILE
from minibroker_storage.disk import StorageError


def create(cluster: MemoryCluster, name: str) -> tuple[int, str | None]:
    topic = CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    answer = cluster.call(CreateTopicsRequest(topics=[topic], timeout_ms=1000), CreateTopicsResponse, 7)
    (result,) = answer.topics
    return result.error_code, result.error_message


def fail_once(disk: FaultyDisk, *calls: str, path: str = JOURNAL) -> None:
    """The next of each such call on a file fails, and those after it succeed."""
    due = [*calls]

    def refuses(what: str, refused_path: str) -> StorageError | None:
        if refused_path != path or what not in due:
            return None
        due.remove(what)
        return StorageError(errno.EIO, "input/output error", path)

    disk.refuses = refuses


def test_after_a_failed_sync_nothing_is_acknowledged_and_every_broker_ends(caplog: pytest.LogCaptureFixture) -> None:
    disk = FaultyDisk()
    disk.root = "/data"
    cluster = MemoryCluster(disk=disk)
    assert create(cluster, "before") == (0, None)
    fail_once(disk, "sync")
    refused = (ErrorCode.KAFKA_STORAGE_ERROR, f"{JOURNAL}: input/output error")
    assert create(cluster, "lost") == refused
    assert create(cluster, "later") == refused
    ended: list[bool] = []
    cluster.cluster.on_failure = lambda: ended.append(True)
    cluster.timers.advance(1)
    assert ended == [True]
    assert not cluster.cluster.brokers
    assert not cluster.cluster.has_controller
    assert f"{JOURNAL}: input/output error (data directory: /data)" in caplog.text
    cluster.cluster.stop()
    assert not disk.exists(CLEAN_FILE)
    again = MemoryCluster(disk=disk.after_power_loss(), seed=8)
    assert [*again.cluster.image.topics] == ["before"]
    again.cluster.stop()


def test_half_a_line_that_stays_ends_the_journal() -> None:
    disk = FaultyDisk()
    journal = MetadataJournal(disk)
    journal.append({"type": "one"})
    fail_once(disk, "append")
    with pytest.raises(ApiError, match="input/output"):
        journal.append({"type": "two"})
    journal.append({"type": "three"})  # what was written of the refused one was cut off
    fail_once(disk, "append", "truncate")
    for _ in range(2):
        with pytest.raises(ApiError, match="input/output"):
            journal.append({"type": "four"})
    with pytest.raises(ApiError, match="input/output"):
        journal.sync()
    journal.close()
    assert [entry["type"] for entry in MetadataJournal(disk).replay()] == ["one", "three"]


def test_a_call_fails_once_and_power_is_lost_later() -> None:
    """What was acknowledged is there, and nothing that was refused stands between it."""
    n, calls = 0, 1
    while n < calls:
        n += 1
        disk = FaultyDisk(fail_at=n)
        journal, written, acknowledged = MetadataJournal(disk), [], []
        for number in range(6):
            try:
                journal.append({"type": str(number)})
                written.append(str(number))
                if number % 2:
                    journal.sync()
                    acknowledged = [*written]
            except (ApiError, StorageError):
                continue
        calls = max(calls, disk.calls)
        replayed = [entry["type"] for entry in MetadataJournal(disk.after_power_loss()).replay()]
        assert replayed[: len(acknowledged)] == acknowledged, disk.history[n - 1 : n]
    assert n > 8


def test_the_name_of_a_journal_whose_process_was_killed_before_it_was_synced_is_synced_by_the_next() -> None:
    disk = FaultyDisk()
    MetadataJournal(disk).append({"type": "one"})
    journal = MetadataJournal(disk)
    assert len([*journal.replay()]) == 1
    journal.append({"type": "two"})
    journal.sync()
    assert [entry["type"] for entry in MetadataJournal(disk.after_power_loss()).replay()] == ["one", "two"]


def test_a_mark_that_cannot_be_written_is_only_older() -> None:
    disk = FaultyDisk()
    journal = MetadataJournal(disk)
    journal.append({"type": "one"})
    journal.sync()
    fail_once(disk, "pwrite", path=f"{JOURNAL}.synced")
    journal.append({"type": "two"})
    journal.sync()
    assert journal.failed is None
    assert MetadataJournal(disk).lost() is None
    assert [entry["type"] for entry in MetadataJournal(disk.after_power_loss()).replay()] == ["one", "two"]


def test_serve_ends_with_an_error(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = SimpleNamespace(on_failure=None, failure=None)
    stopped: list[bool] = []

    async def start() -> None:
        def fail() -> None:
            cluster.failure = ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "disk on fire")
            cluster.on_failure()

        asyncio.get_running_loop().call_soon(fail)

    async def stop() -> None:
        stopped.append(True)

    monkeypatch.setattr(command, "_say_where", lambda *_: None)
    monkeypatch.setattr(command, "_load_ahead", lambda: None)
    service = SimpleNamespace(start=start, stop=stop, cluster=cluster)
    code = asyncio.run(command._serve(service, SimpleNamespace(until_stdin_closes=False)))  # type: ignore[arg-type]
    assert (code, stopped) == (command.EXIT_FAILED, [True])
    assert capsys.readouterr().err == "minibroker: the metadata journal failed: disk on fire\n"
