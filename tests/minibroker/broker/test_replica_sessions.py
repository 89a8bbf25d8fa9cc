"""Fetch sessions of followers: one for each, and what ends with it."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from minibroker.broker.replica_sessions import ReplicaSession, ReplicaSessions
from minibroker_protocol.errors import ApiError, ErrorCode

KEY = (b"t" * 16, 0)


class Watched:
    """A partition, of which only who watches it counts."""

    def __init__(self) -> None:
        self.watchers: list[tuple[int, Any]] = []

    def watch_replica(self, node_id: int, watcher: Any) -> None:
        self.watchers.append((node_id, watcher))

    def unwatch_replica(self, node_id: int, watcher: Any) -> None:
        self.watchers.remove((node_id, watcher))


def code(sessions: ReplicaSessions, session: ReplicaSession, epoch: int) -> ErrorCode:
    try:
        assert sessions.resume(session.node_id, session.id, epoch) is session
    except ApiError as error:
        return error.code
    return ErrorCode.NONE


def test_a_session_goes_on_epoch_by_epoch() -> None:
    sessions = ReplicaSessions(Random(1))
    first, other = sessions.create(2, 5), sessions.create(3, 6)
    assert [code(sessions, first, epoch) for epoch in (1, 2, 2, 4, 3)] == [
        0, 0, ErrorCode.INVALID_FETCH_SESSION_EPOCH, ErrorCode.INVALID_FETCH_SESSION_EPOCH, 0,
    ]  # fmt: skip
    assert code(sessions, other, 1) == ErrorCode.NONE
    stranger = ReplicaSession(first.id + 1, 2, 5)
    assert code(sessions, stranger, 4) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


@pytest.mark.parametrize("end", ["a new one", "close", "close_all"])
def test_a_session_that_ends_watches_nothing_and_keeps_nobody_waiting(end: str) -> None:
    sessions, partition, again = ReplicaSessions(Random(1)), Watched(), Watched()
    session = sessions.create(2, 5)
    session.watch(KEY, partition)  # type: ignore[arg-type]
    session.watch(KEY, partition)  # type: ignore[arg-type]
    assert len(partition.watchers) == 1
    session.watch(KEY, again)  # type: ignore[arg-type]
    assert (len(partition.watchers), len(again.watchers)) == (0, 1)
    session.begin()
    waiting = session.news()
    assert not waiting.done
    if end == "a new one":
        sessions.create(2, 6)
    elif end == "close":
        sessions.close(2)
        sessions.close(2)
    else:
        sessions.close_all()
    assert waiting.done
    assert again.watchers == []
    assert code(sessions, session, 1) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_only_urgent_news_end_a_wait() -> None:
    session, partition = ReplicaSession(7, 2, 5), Watched()
    assert not session.news().done
    session.watch(KEY, partition)  # type: ignore[arg-type]
    ((_, news),) = partition.watchers
    session.begin()
    waiting = session.news()
    news(False)
    assert (waiting.done, list(session.ready)) == (False, [KEY])
    news(True)
    assert waiting.done
    assert session.news().done  # it is still to be looked at
    session.begin()
    assert not session.news().done
