"""Full garbage collections wait while a long request is in hand."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from held_executor import HeldExecutor
from large_requests import large_request, places
from memory_cluster import MemoryCluster

from minibroker.broker.connection import ConnectionInfo
from minibroker.kernel.deferred import Deferred
from minibroker.kernel.executor import DiskInline
from minibroker.kernel.garbage import without_full_collections
from minibroker.requests import dispatch
from minibroker.requests.dispatch import CloseConnection


def full_collections() -> int:
    return int(gc.get_stats()[2]["collections"])


def test_only_young_objects_are_looked_at() -> None:
    thresholds = gc.get_threshold()
    begin = full_collections()
    with without_full_collections():
        with without_full_collections():
            held: list[Any] = [[] for _ in range(100_000)]
        young = gc.get_stats()[0]["collections"]
        held += [[] for _ in range(200_000)]
        assert gc.get_stats()[0]["collections"] > young
        assert full_collections() == begin
    assert gc.get_threshold() == thresholds
    del held


@pytest.mark.parametrize("how", ["answered", "too long", "malformed"])
def test_a_long_request_holds_them_until_it_is_answered(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    computing = HeldExecutor()
    cluster = MemoryCluster(topics={"wide": 8}, executor=DiskInline(computing))
    thresholds = gc.get_threshold()
    api, path = next((api, path) for api, path in places() if api.name == "Metadata")
    frame = cluster.frame(*large_request(api, path, 10_000))
    if how == "too long":
        monkeypatch.setattr(dispatch, "MOST_REQUEST_BYTES", 1 << 20)
    if how == "malformed":
        del frame[-20:]
    answer = cluster.dispatcher.dispatch(frame, ConnectionInfo())
    assert isinstance(answer, Deferred)
    assert gc.get_threshold()[2] > thresholds[2]
    while not answer.done:
        if computing.waiting:
            computing.run()
        cluster.timers.advance(10)
    assert gc.get_threshold() == thresholds
    if how == "answered":
        assert answer.result()
    else:
        with pytest.raises(CloseConnection):
            answer.result()
    cluster.stop()
