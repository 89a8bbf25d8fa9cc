"""Which partitions a follower fetches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from logs import NOW, batch, open_log
from manual_time import ManualTimers

from minibroker.broker.replica_fetcher import ReplicaFetcher
from minibroker.config.settings import Settings
from minibroker.kernel.deferred import Deferred, failed, resolved
from minibroker_protocol.dsl import Request
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.messages.fetch import FetchRequest, FetchResponse
from minibroker_protocol.messages.offsets import ListOffsetsResponse
from minibroker_storage.memory_disk import MemoryDisk

BACKOFF_MS = 1000


@pytest.mark.parametrize("then", ["time", "a new leader epoch", "another follows"])
def test_a_partition_that_failed_pauses_until_it_has_reason_to_go_on(then: str) -> None:
    timers, leader = ManualTimers(), Leader(about_the_first(error_code=ErrorCode.UNKNOWN_SERVER_ERROR))
    fetcher = follower_of(leader, timers)
    fetcher.leave(followed(1))
    timers.advance(0)
    if then == "time":
        timers.advance(BACKOFF_MS - 1)
        assert len(leader.requests) == 1
        timers.advance(1)
    else:
        fetcher.follow(followed(0 if then == "a new leader epoch" else 1))
        timers.advance(0)
    first, second = ([p.partition for p in request.topics[0].partitions] for request in leader.requests)
    assert (first, second) == ([0], [1 if then == "another follows" else 0])
    timers.advance(BACKOFF_MS)
    assert len(leader.requests) == (3 if then == "another follows" else 2)


class Leader:
    """Answers each fetch with the next response or error of `script`, and then no more. others: the answers to requests
    of another kind, which are still to come."""

    def __init__(self, *script: FetchResponse | ApiError) -> None:
        self.script = list(script)
        self.requests: list[FetchRequest] = []
        self.others: list[Deferred[Any]] = []

    def send(self, node_id: int, request: Request, api_version: int) -> Deferred[Any]:
        if not isinstance(request, FetchRequest):
            self.others.append(Deferred())
            return self.others[-1]
        self.requests.append(request)
        if not self.script:
            return Deferred()
        answer = self.script.pop(0)
        return failed(answer) if isinstance(answer, ApiError) else resolved(answer)


def follower_of(leader: Leader, timers: ManualTimers, **config: str) -> ReplicaFetcher:
    settings = Settings({name.replace("_", "."): value for name, value in config.items()})
    broker: Any = SimpleNamespace(timers=timers, clock=timers, settings=settings, transport=leader, node_id=2, epoch=7)
    fetcher = ReplicaFetcher(broker, 1)
    for index in range(2):
        fetcher.follow(followed(index))
    return fetcher


def followed(index: int, **more: Any) -> Any:
    partition = SimpleNamespace(
        topic="t", topic_id=bytes(16), index=index, log_end_offset=5, log_start_offset=0, latest_epoch=0,
        leader_epoch=0, is_synced=lambda offset: True,
    )  # fmt: skip
    partition.__dict__.update(more)
    return partition


def about_the_first(**data: Any) -> FetchResponse:
    known = {"high_watermark": 0, "aborted_transactions": None, "records": None}
    partition = FetchResponse.PartitionData(partition_index=0, **{**known, **data})
    topic = FetchResponse.FetchableTopicResponse(topic_id=bytes(16), partitions=[partition])
    return FetchResponse(session_id=9, responses=[topic])


@pytest.mark.parametrize(
    ("epoch", "end", "cut"),
    [
        (0, 9, 2),
        (1, 9, 4),  # the leader has more of epoch 1 than this log, and none of the epoch after it
        (1, 3, 3),
        (2, 5, 4),  # not known here: where the one before it ends
        (9, 5, 5),
        (-1, 3, 3),
        (-1, 9, 6),
        (9, 1, 1),
        (-1, -1, 1),  # the leader has nothing in common: back to the high watermark
        (0, -1, 1),
    ],
)
def test_where_a_log_is_cut_that_has_other_batches_than_its_leader(epoch: int, end: int, cut: int) -> None:
    """AbstractFetcherThread.getOffsetTruncationState. The log: two batches of each of epochs 0, 1 and 3."""
    log = open_log(MemoryDisk())
    batches = [batch(base_offset=offset, leader_epoch=known) for offset, known in enumerate([0, 0, 1, 1, 3, 3])]
    log.append_as_follower(b"".join(batches), 3, now_ms=NOW)
    log.update_high_watermark(1)
    diverging = FetchResponse.EpochEndOffset(epoch=epoch, end_offset=end)
    timers, leader = ManualTimers(), Leader(about_the_first(diverging_epoch=diverging))
    follower_of(leader, timers).follow(followed(0, log=log))
    timers.advance(0)
    assert log.log_end_offset == cut


@pytest.mark.parametrize(
    ("end", "start", "left"),
    [
        (3, 0, (0, 3)),  # the leader's log is shorter
        (1, 0, (0, 1)),
        (4, 0, (0, 2)),  # the same range, and an epoch that it does not know: what is committed is common
        (9, 4, (0, 2)),
        (9, 5, (5, 5)),  # its log begins after ours ends
    ],
)
def test_where_a_log_is_cut_whose_leader_has_another_range(end: int, start: int, left: tuple[int, int]) -> None:
    """AbstractFetcherThread.fetchOffsetAndTruncate. The log: offsets 0 to 3, of which 0 and 1 are committed."""
    log = open_log(MemoryDisk())
    log.append_as_follower(b"".join(batch(base_offset=offset) for offset in range(4)), 0, now_ms=NOW)
    log.update_high_watermark(2)
    timers, leader = ManualTimers(), Leader(about_the_first(error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
    follower_of(leader, timers).follow(followed(0, log=log, log_end_offset=4, high_watermark=2, has_log=True))
    timers.advance(0)
    kind = ListOffsetsResponse
    for offset, waiting in zip((end, start), leader.others, strict=False):
        data = kind.ListOffsetsPartitionResponse(partition_index=0, error_code=0, timestamp=-1, offset=offset)
        waiting.resolve(kind(topics=[kind.ListOffsetsTopicResponse(name="t", partitions=[data])]))
    assert len(leader.others) == (1 if end < 4 else 2)
    assert (log.log_start_offset, log.log_end_offset) == left


def test_an_error_that_comes_after_a_change_of_the_partitions_pauses_none() -> None:
    timers, leader = ManualTimers(), Leader(about_the_first(error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
    fetcher = follower_of(leader, timers)
    timers.advance(0)
    (asked_for_an_offset,) = leader.others
    fetcher.follow(followed(0, leader_epoch=1))
    timers.advance(0)
    asked_for_an_offset.fail(ApiError(ErrorCode.NETWORK_EXCEPTION, "the leader cannot be reached"))
    timers.advance(0)
    assert [[p.partition for p in request.topics[0].partitions] for request in leader.requests] == [[0, 1], [0, 1]]


@pytest.mark.parametrize(
    ("answer", "following"),
    [
        (FetchResponse(session_id=9), (9, 2, [])),
        (FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND), (0, 0, [0, 1])),
        (FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH), (0, 0, [0, 1])),
        (ApiError(ErrorCode.NETWORK_EXCEPTION, "the leader cannot be reached"), (0, 0, [0, 1])),
    ],
)
def test_a_follower_goes_on_after_each_answer(
    answer: FetchResponse | ApiError, following: tuple[int, int, list[int]]
) -> None:
    """In its session, or in a new one that names all partitions again."""
    timers, leader = ManualTimers(), Leader(FetchResponse(session_id=9), answer)
    follower_of(leader, timers)
    timers.advance(BACKOFF_MS)
    asked = [
        (request.session_id, request.session_epoch, [p.partition for topic in request.topics for p in topic.partitions])
        for request in leader.requests
    ]
    assert asked == [(0, 0, [0, 1]), (9, 1, []), following]


def test_an_error_of_the_leader_makes_a_pause_of_the_backoff() -> None:
    timers = ManualTimers()
    leader = Leader(ApiError(ErrorCode.NETWORK_EXCEPTION, "the leader cannot be reached"))
    follower_of(leader, timers, replica_fetch_backoff_ms="70")
    timers.advance(69)
    assert len(leader.requests) == 1
    timers.advance(1)
    assert len(leader.requests) == 2


def test_a_follower_fetches_within_its_limits() -> None:
    timers, leader = ManualTimers(), Leader()
    follower_of(
        leader,
        timers,
        replica_fetch_max_bytes="11",
        replica_fetch_min_bytes="12",
        replica_fetch_response_max_bytes="13",
        replica_fetch_wait_max_ms="14",
    )
    timers.advance(0)
    (request,) = leader.requests
    assert [p.partition_max_bytes for topic in request.topics for p in topic.partitions] == [11, 11]
    assert (request.min_bytes, request.max_bytes, request.max_wait_ms) == (12, 13, 14)
    assert (request.replica_state.replica_id, request.replica_state.replica_epoch) == (2, 7)
