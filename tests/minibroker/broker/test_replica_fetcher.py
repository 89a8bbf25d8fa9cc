"""Which partitions a follower fetches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from manual_time import ManualTimers

from minibroker.broker.replica_fetcher import ReplicaFetcher
from minibroker.config.settings import Settings
from minibroker.kernel.deferred import Deferred, failed, resolved
from minibroker_protocol.dsl import Request
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.messages.fetch import FetchRequest, FetchResponse

BACKOFF_MS = 1000


@pytest.mark.parametrize("then", ["time", "a new leader epoch", "another follows"])
def test_a_partition_that_failed_pauses_until_it_has_reason_to_go_on(then: str) -> None:
    timers = ManualTimers()
    broker: Any = SimpleNamespace(timers=timers, settings=Settings({}))
    fetcher = ReplicaFetcher(broker, 1)
    fetcher._start = lambda: None  # type: ignore[method-assign]
    partitions: list[Any] = [SimpleNamespace(topic_id=bytes(16), index=index) for index in range(2)]
    fetcher.follow(partitions[0])
    fetcher._pause((bytes(16), 0))
    if then == "time":
        timers.advance(BACKOFF_MS)
    elif then == "a new leader epoch":
        fetcher.follow(partitions[0])
    else:
        fetcher.follow(partitions[1])
    assert list(fetcher._active()) == [(bytes(16), 1 if then == "another follows" else 0)]
    assert fetcher._paused.keys() == ({(bytes(16), 0)} if then == "another follows" else set())


class Leader:
    """Answers each fetch with the next response or error of `script`, and then no more."""

    def __init__(self, *script: FetchResponse | ApiError) -> None:
        self.script = list(script)
        self.requests: list[FetchRequest] = []

    def send(self, node_id: int, request: Request, api_version: int) -> Deferred[Any]:
        assert isinstance(request, FetchRequest)
        self.requests.append(request)
        if not self.script:
            return Deferred()
        answer = self.script.pop(0)
        return failed(answer) if isinstance(answer, ApiError) else resolved(answer)


def follower_of(leader: Leader, timers: ManualTimers, **config: str) -> ReplicaFetcher:
    settings = Settings({name.replace("_", "."): value for name, value in config.items()})
    broker: Any = SimpleNamespace(timers=timers, settings=settings, transport=leader, node_id=2, epoch=7)
    fetcher = ReplicaFetcher(broker, 1)
    for index in range(2):
        partition: Any = SimpleNamespace(
            topic_id=bytes(16), index=index, log_end_offset=5, log_start_offset=0, latest_epoch=0, leader_epoch=0
        )
        partition.is_synced = lambda offset: True
        fetcher.follow(partition)
    return fetcher


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
