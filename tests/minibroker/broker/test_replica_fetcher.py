"""Which partitions a follower fetches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from manual_time import ManualTimers

from minibroker.broker.replica_fetcher import ReplicaFetcher
from minibroker.config.settings import Settings

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
