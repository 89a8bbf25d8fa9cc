"""Partitions that a fetch finds nothing in: their logs are not created, and no answers are built to be dropped."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from calls import Calls
from memory_cluster import MemoryCluster

from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.fetch import FetchRequest, FetchResponse
from minibroker_protocol.messages.offsets import DeleteRecordsRequest
from minibroker_protocol.messages.produce import ProduceRequest
from minibroker_protocol.messages.topics import DeleteTopicsRequest
from minibroker_protocol.records import Record, build_batch

VERSION = 12
RECORD = bytes(build_batch([Record(0, 1_700_000_000_000, None, b"v")]))


def fetch(
    partitions: Sequence[int],
    *,
    session: tuple[int, int] = (0, -1),
    offset: int = 0,
    epoch: int = -1,
    wait_ms: int = 0,
    isolation: int = 1,
    min_bytes: int = 1,
    most: int = 1 << 20,
    leader_epoch: int = -1,
) -> FetchRequest:
    """Of the topic `t`; session: (its id, its epoch)."""
    wanted = [
        FetchRequest.FetchPartition(
            partition=index,
            current_leader_epoch=leader_epoch,
            fetch_offset=offset,
            last_fetched_epoch=epoch,
            log_start_offset=-1,
            partition_max_bytes=most,
        )
        for index in partitions
    ]
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=min_bytes,
        max_bytes=1 << 20,
        isolation_level=isolation,
        session_id=session[0],
        session_epoch=session[1],
        topics=[FetchRequest.FetchTopic(topic="t", partitions=wanted)] if wanted else [],
        forgotten_topics_data=[],
    )


def produce(cluster: MemoryCluster, partitions: Sequence[int]) -> None:
    data = [ProduceRequest.PartitionProduceData(index=index, records=RECORD) for index in partitions]
    topics = [ProduceRequest.TopicProduceData(name="t", partition_data=data)]
    cluster.send(ProduceRequest(transactional_id=None, acks=1, timeout_ms=30_000, topic_data=topics), 9)
    cluster.timers.advance(0)


def ask(cluster: MemoryCluster, request: FetchRequest) -> FetchResponse:
    answer = cluster.send(request, VERSION)
    cluster.timers.advance(0)
    response = answer.result()
    assert isinstance(response, FetchResponse)
    return response


def named(response: FetchResponse) -> dict[int, tuple[int, int]]:
    """{partition: (error code, high watermark)}."""
    return {p.partition_index: (p.error_code, p.high_watermark) for t in response.responses for p in t.partitions}


def open_session(cluster: MemoryCluster, count: int, *, offset: int = 0) -> int:
    answer = ask(cluster, fetch(range(count), session=(0, 0), offset=offset))
    assert len(named(answer)) == count
    return answer.session_id


def test_a_fetch_creates_no_log() -> None:
    cluster = MemoryCluster(topics={"t": 40})
    before = cluster.disk.list()
    answer = ask(cluster, fetch(range(40), session=(0, 0)))
    assert named(answer) == dict.fromkeys(range(40), (0, 0))
    (topic,) = answer.responses
    assert {(p.last_stable_offset, p.log_start_offset, bytes(p.records or b"")) for p in topic.partitions} == {
        (0, 0, b"")
    }
    assert {tuple(p.aborted_transactions or ()) for p in topic.partitions} == {()}
    beyond = named(ask(cluster, fetch([0], offset=1)))
    assert beyond == {0: (ErrorCode.OFFSET_OUT_OF_RANGE, -1)}
    assert named(ask(cluster, fetch([0], epoch=3))) == {0: (ErrorCode.OFFSET_OUT_OF_RANGE, -1)}
    assert cluster.disk.list() == before
    cluster.stop()


@pytest.mark.parametrize("isolation", [0, 1])
@pytest.mark.parametrize("written", [False, True])
def test_it_answers_as_an_open_log_does(isolation: int, written: bool) -> None:
    answers = []
    for opened in (False, True):
        cluster = MemoryCluster(topics={"t": 1})
        if opened:
            assert cluster.broker.partition("t", 0).log.log_end_offset == 0
        waiting = cluster.send(fetch([0], wait_ms=500, isolation=isolation), VERSION)
        assert not waiting.done
        if written:
            produce(cluster, [0])
        else:
            cluster.timers.advance(500)
        answers.append(waiting.result())
        cluster.stop()
    assert answers[0] == answers[1]


@pytest.mark.parametrize("written", [False, True])
def test_what_has_no_news_costs_a_session_a_few_calls(written: bool) -> None:
    calls = []
    for count in (100, 400):
        cluster = MemoryCluster(topics={"t": count})
        if written:
            produce(cluster, range(count))
        session = open_session(cluster, count, offset=int(written))
        with Calls() as counted:
            answer = ask(cluster, fetch([], session=(session, 1)))
        assert answer.responses == []
        calls.append(counted.count)
        cluster.stop()
    assert (calls[1] - calls[0]) / 300 < 10


@pytest.mark.parametrize("count", [3, 100])
@pytest.mark.parametrize("written", [False, True])
def test_a_waiting_fetch_watches_them(count: int, written: bool) -> None:
    cluster = MemoryCluster(topics={"t": count})
    if written:
        produce(cluster, range(count))
    session = open_session(cluster, count, offset=int(written))
    moved: list[int] = []
    for epoch, partition in ((1, count - 1), (2, 0)):
        request = fetch(moved, session=(session, epoch), offset=1 + int(written), wait_ms=500)
        waiting = cluster.send(request, VERSION)
        cluster.timers.advance(0)
        assert not waiting.done
        produce(cluster, [partition])
        cluster.timers.advance(0)
        assert named(waiting.result()) == {partition: (0, 1 + int(written))}
        moved = [partition]
    request = fetch(moved, session=(session, 3), offset=1 + int(written), wait_ms=500)
    waiting = cluster.send(request, VERSION)
    cluster.timers.advance(499)
    assert not waiting.done
    cluster.timers.advance(1)
    assert waiting.result().responses == []
    waiting = cluster.send(fetch([], session=(session, 4), wait_ms=500), VERSION)
    cluster.send(DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000), 5)
    cluster.timers.advance(0)
    assert named(waiting.result()) == dict.fromkeys(range(count), (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1))
    cluster.stop()


def test_a_new_log_start_is_news() -> None:
    cluster = MemoryCluster(topics={"t": 2})
    produce(cluster, [0, 1])
    session = open_session(cluster, 2, offset=1)
    cluster.broker.partition("t", 1).log.advance_log_start(1)
    assert named(ask(cluster, fetch([], session=(session, 1)))) == {1: (0, 1)}
    assert named(ask(cluster, fetch([], session=(session, 2)))) == {}
    cluster.stop()


@pytest.mark.parametrize("written", [False, True])
def test_a_leader_epoch_that_the_broker_does_not_know_is_told_where_nothing_is_new(written: bool) -> None:
    cluster = MemoryCluster(topics={"t": 2})
    if written:
        produce(cluster, [0, 1])
    session = open_session(cluster, 2, offset=int(written))
    known = cluster.broker.partition("t", 0).leader_epoch
    for epoch, leader_epoch, told in (
        (1, known, {}),
        (2, known + 1, {0: (ErrorCode.UNKNOWN_LEADER_EPOCH, -1)}),
        (3, known, {0: (0, int(written))}),  # after an error the client is told the limits again
    ):
        request = fetch([0], session=(session, epoch), offset=int(written), leader_epoch=leader_epoch)
        assert named(ask(cluster, request)) == told
    cluster.stop()


def test_an_epoch_that_the_log_does_not_have_is_told_where_nothing_is_new() -> None:
    cluster = MemoryCluster(topics={"t": 1})
    produce(cluster, [0])
    session = open_session(cluster, 1, offset=1)
    answer = ask(cluster, fetch([0], session=(session, 1), offset=1, epoch=5))
    assert named(answer) == {0: (ErrorCode.OFFSET_OUT_OF_RANGE, -1)}
    cluster.stop()


def test_the_first_answer_after_an_error_names_the_partition() -> None:
    """FetchSession's CachedPartition.maybeUpdateResponseData: an error is repeated, and its end is news."""
    cluster = MemoryCluster(topics={"t": 2})
    session = open_session(cluster, 2)
    beyond, nothing = {0: (ErrorCode.OFFSET_OUT_OF_RANGE, -1)}, dict[int, tuple[int, int]]()
    said = [
        named(ask(cluster, fetch(wanted, session=(session, epoch), offset=offset)))
        for epoch, (wanted, offset) in enumerate([([], 0), ([0], 3), ([], 0), ([0], 0), ([], 0)], 1)
    ]
    assert said == [nothing, beyond, beyond, {0: (0, 0)}, nothing]
    cluster.stop()


SIZE = len(RECORD)


@pytest.mark.parametrize(
    ("min_bytes", "most", "written", "answered"),
    [
        (1, 1 << 20, 1, True),
        (2 * SIZE, 1 << 20, 1, False),
        (2 * SIZE, 1 << 20, 2, True),
        (2 * SIZE + 1, 1 << 20, 2, False),
        (2 * SIZE, 2 * SIZE, 2, True),
        (2 * SIZE, 2 * SIZE - 1, 3, False),  # it may not have so many bytes of this partition
    ],
)
def test_how_much_ends_a_wait(min_bytes: int, most: int, written: int, answered: bool) -> None:
    cluster = MemoryCluster(topics={"t": 1})
    waiting = cluster.send(fetch([0], wait_ms=500, min_bytes=min_bytes, most=most), VERSION)
    for _ in range(written):
        produce(cluster, [0])
    assert waiting.done is answered
    cluster.timers.advance(500)
    assert len(waiting.result().responses[0].partitions[0].records)
    cluster.stop()


@pytest.mark.parametrize(("start", "answered"), [(1, False), (2, True), (3, True)])
def test_a_wait_ends_when_what_it_is_for_was_deleted(start: int, answered: bool) -> None:
    cluster = MemoryCluster(topics={"t": 1})
    produce(cluster, [0])
    waiting = cluster.send(fetch([0], offset=1, wait_ms=500, min_bytes=10 * SIZE), VERSION)
    produce(cluster, [0])
    produce(cluster, [0])
    assert not waiting.done
    kind = DeleteRecordsRequest
    partition = kind.DeleteRecordsPartition(partition_index=0, offset=start)
    cluster.send(kind(topics=[kind.DeleteRecordsTopic(name="t", partitions=[partition])], timeout_ms=1000), 2)
    assert waiting.done is answered
    cluster.timers.advance(500)
    (told,) = waiting.result().responses[0].partitions
    assert told.error_code == (ErrorCode.OFFSET_OUT_OF_RANGE if answered else ErrorCode.NONE)
    cluster.stop()
