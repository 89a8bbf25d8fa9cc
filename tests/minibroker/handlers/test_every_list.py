"""Whatever list of whatever request is long, no turn of the loop is: each is timed, for every API and every list.

What is timed is the processor time of the loop's own thread, which a busy machine does not add to. The work for the
thread that computes is done in between and not counted, nor is what a first use of an API imports and compiles.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from time import thread_time
from typing import Any

import pytest
from held_executor import HeldExecutor
from large_requests import large_request, places
from memory_cluster import MemoryCluster

from minibroker.broker.connection import ConnectionInfo
from minibroker.handlers.api import Api
from minibroker.handlers.context import CloseConnection
from minibroker.kernel.deferred import Deferred
from minibroker.kernel.executor import DiskInline

MOST_SECONDS = 0.05
TRIES = 3
"""A disturbed turn takes longer than it is long; a long one does so each time."""
SAMPLE = [
    ("AddPartitionsToTxn", "v3_and_below_topics"),
    ("CreateAcls", "creations"),
    ("DescribeConfigs", "resources"),
    ("DescribeProducers", "topics.partition_indexes"),
    ("Fetch", "topics.partitions"),
    ("Metadata", "topics"),
    ("OffsetCommit", "topics.partitions"),
    ("WriteTxnMarkers", "markers"),
]
PLACES = {(api.name, ".".join(path)): (api, path) for api, path in places()}


class Watched:
    """A broker in memory whose turns of the loop are timed."""

    def __init__(self, **config: str) -> None:
        self.computing = HeldExecutor()
        self.cluster = MemoryCluster(
            topics={"wide": 128},
            config={"unstable.api.versions.enable": "true", **config},
            executor=DiskInline(self.computing),
        )
        self.turns: list[float] = []
        arm = self.cluster.timers.call_later

        def call_later(delay_ms: float, callback: Any) -> Any:
            return arm(delay_ms, lambda: self._timed(callback))

        self.cluster.timers.call_later = call_later  # type: ignore[method-assign]

    def _timed(self, callback: Any) -> Any:
        begin = thread_time()
        try:
            return callback()
        finally:
            self.turns.append(thread_time() - begin)

    def longest_turn(self, api: Api, path: tuple[str, ...], count: int) -> float:
        """Serve a request whose list at `path` has `count` elements; seconds of the longest turn."""
        request, version = large_request(api, path, count, "wide")
        frame = self.cluster.frame(request, version)
        del request
        gc.collect()
        self.turns.clear()
        try:
            answer = self._timed(lambda: self.cluster.dispatcher.dispatch(frame, ConnectionInfo()))
        except CloseConnection:
            answer = None
        while (
            isinstance(answer, Deferred) and not answer.done and (self.computing.waiting or self.cluster.timers.armed)
        ):
            if self.computing.waiting:
                self.computing.work()
                self._timed(self.computing.run)
            elif self.cluster.timers.armed:
                self.cluster.timers.advance(10)
            else:
                raise AssertionError(f"{api.name} waits for nothing")
        return max(self.turns)


@contextmanager
def watched(**config: str) -> Iterator[Watched]:
    loop = Watched(**config)
    yield loop
    loop.cluster.stop()


def check(place: tuple[str, str], count: int, **config: str) -> None:
    api, path = PLACES[place]
    longest = 0.0
    for _ in range(TRIES):
        with watched(**config) as loop:
            loop.longest_turn(api, path, 1)
            longest = loop.longest_turn(api, path, count)
        if longest < MOST_SECONDS:
            return
    raise AssertionError(f"{place} with {count} elements: a turn of {longest * 1000:.0f} ms")


@pytest.mark.parametrize("place", SAMPLE, ids=".".join)
def test_a_long_list_leaves_others_their_turn(place: tuple[str, str]) -> None:
    check(place, 4000)


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES, ids=".".join)
def test_every_list_leaves_others_their_turn(place: tuple[str, str]) -> None:
    check(place, 2000)


AUTHORIZED = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES, ids=".".join)
def test_what_may_not_be_done_leaves_others_their_turn(place: tuple[str, str]) -> None:
    """Nothing is allowed here: the guard refuses it all."""
    check(place, 2000, **AUTHORIZED)
