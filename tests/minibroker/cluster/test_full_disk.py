"""A disk without room: what writes is refused with an error that clients try again, reads are served, and everything
goes on where it was once there is room."""

from __future__ import annotations

import pytest
from seed_client import OK, SeedClient
from served import fetched, group_offsets

from minibroker.releases.semantics import KAFKA
from minibroker.rules.directory import check_directory
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.topics import CreateTopicsRequest, CreateTopicsResponse
from minibroker_storage.check_finding import ERROR
from minibroker_storage.memory_disk import MemoryDisk

ROOM = 16 << 20
# What librdkafka and the Java client try again, after asking for the coordinator where that is it.
TRIED_AGAIN = {
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.CONCURRENT_TRANSACTIONS,
}


@pytest.mark.parametrize("left", [0, 1, 60, 61, 100, 150, 200])
def test_nothing_is_lost_or_doubled_by_a_disk_that_was_full_for_a_while(left: int) -> None:
    disk = MemoryDisk(ROOM)
    client = SeedClient(KAFKA, disk=disk)
    idempotent, producer = client.new(name=None), client.new()
    for number in range(3):
        assert client.produce(idempotent, number, transactional=False, partition=1).code == OK
    assert client.add(producer) == OK
    assert client.produce(producer, 0).code == OK
    assert client.add_offsets(producer) == OK

    disk.max_bytes = disk.used_bytes + left
    acknowledged = 3
    refused = 0
    for _ in range(6):  # a client tries the same batch again and again
        answer = client.produce(idempotent, acknowledged, transactional=False, partition=1)
        if answer.code == OK:
            acknowledged += 1
        else:
            assert answer.code == ErrorCode.KAFKA_STORAGE_ERROR
            refused += 1
    assert refused > 2
    in_transaction = client.produce(producer, 1).code == OK
    offset_code = client.commit_offset(producer, 7)
    end_code = client.end(producer, commit=True)
    assert {offset_code, end_code} <= {OK, *TRIED_AGAIN}
    assert [value for _, value in fetched(client.cluster, "t-1", 0)] == [b"%d" % i for i in range(acknowledged)]
    client.cluster.timers.advance(120_000)  # sweeps and checkpoints that cannot write

    disk.max_bytes = ROOM
    for number in range(acknowledged, 8):
        assert client.produce(idempotent, number, transactional=False, partition=1).code == OK
    assert [value for _, value in fetched(client.cluster, "t-1", 0)] == [b"%d" % i for i in range(8)]
    code, _ = client.init()
    if code == ErrorCode.CONCURRENT_TRANSACTIONS:
        client.cluster.timers.advance(1000)
        code, _ = client.init()
    assert code == OK
    committed = [value for _, value in fetched(client.cluster, "t-0", 1)]
    # Its timeout passed while the disk was full, unless it had ended before.
    assert committed in ([], [b"0", b"1"] if in_transaction else [b"0"])
    assert bool(committed) == (end_code == OK)
    expected = {"t-0": [7, "m"]} if end_code == OK and offset_code == OK else {}
    assert group_offsets(client.cluster, "g") == expected
    client.stop()
    assert [finding for finding in check_directory(disk) if finding.severity == ERROR] == []
    again = SeedClient(KAFKA, disk=disk)
    assert [value for _, value in fetched(again.cluster, "t-1", 0)] == [b"%d" % i for i in range(8)]
    assert [value for _, value in fetched(again.cluster, "t-0", 1)] == committed
    again.stop()


def test_topics_are_made_once_there_is_room() -> None:
    disk = MemoryDisk(ROOM)
    client = SeedClient(KAFKA, disk=disk)
    topic = CreateTopicsRequest.CreatableTopic(
        name="late", num_partitions=1, replication_factor=1, assignments=[], configs=[]
    )
    request = CreateTopicsRequest(topics=[topic])
    disk.max_bytes = disk.used_bytes + 20
    (answer,) = client.cluster.call(request, CreateTopicsResponse, 5).topics
    assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert "late" not in client.cluster.broker.image.topics
    disk.max_bytes = ROOM
    (answer,) = client.cluster.call(request, CreateTopicsResponse, 5).topics
    assert answer.error_code == OK
    client.stop()
    again = SeedClient(KAFKA, disk=disk)
    assert "late" in again.cluster.broker.image.topics
    again.stop()


def test_the_log_names_what_the_disk_refused_and_no_other_refusal(caplog: pytest.LogCaptureFixture) -> None:
    disk = MemoryDisk(ROOM)
    client = SeedClient(KAFKA, disk=disk)
    producer = client.new(name=None)
    assert client.produce(producer, 7, transactional=False).code != ErrorCode.KAFKA_STORAGE_ERROR
    assert client.produce(producer, 99, transactional=False).code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
    disk.max_bytes = disk.used_bytes
    assert client.produce(producer, 8, transactional=False).code == ErrorCode.KAFKA_STORAGE_ERROR
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert said.startswith("append to t-0 refused: ")
    disk.max_bytes = ROOM
    client.cluster.stop()


def test_a_full_disk_is_said_once_a_second(caplog: pytest.LogCaptureFixture) -> None:
    disk = MemoryDisk(ROOM)
    client = SeedClient(KAFKA, disk=disk)
    producer = client.new(name=None)
    assert client.produce(producer, 7, transactional=False).code == OK
    disk.max_bytes = disk.used_bytes

    def said_of(requests: int) -> list[str]:
        caplog.clear()
        for _ in range(requests):
            assert client.produce(producer, 8, transactional=False).code == ErrorCode.KAFKA_STORAGE_ERROR
        client.cluster.timers.advance(1000)
        return [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]

    for _ in range(2):
        first, more = said_of(5)
        assert first.startswith("append to t-0 refused: ")
        assert first.endswith(" (data directory: /memory)")
        assert more == "4 more appends were refused with KAFKA_STORAGE_ERROR within 1 s"
    assert len(said_of(1)) == 1
    disk.max_bytes = ROOM
    client.stop()
