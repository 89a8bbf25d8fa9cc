"""A long list in a request is answered as a short one is, element by element: what may be done and what may not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from large_requests import large_request, places
from memory_cluster import MemoryCluster

from minibroker.handlers import list_offsets
from minibroker.requests.context import CloseConnection
from minibroker.requests.rights import ItemRight, RequestRight
from minibroker.security.create_authorizer import STANDARD
from minibroker_protocol import messages as m
from minibroker_protocol.records import TakesLong
from minibroker_protocol.structs import Struct

PLACES = {f"{api.name}.{'.'.join(path)}": (api, path) for api, path in places()}
GUARDED = [
    name
    for name, (api, path) in PLACES.items()
    if len(path) == 1 and any(isinstance(rule, ItemRight | RequestRight) for rule in api.rights)
]


FEW, SOME, MANY = 4, 40, 120  # at once, in parts, in several turns of the loop; `large_request` has 128 partitions


def running(**config: str) -> Iterator[MemoryCluster]:
    made = MemoryCluster({"auto.create.topics.enable": "false"} | config, topics={"t": 128})
    yield made
    made.stop()


@pytest.fixture(scope="module")
def open_to_all() -> Iterator[MemoryCluster]:
    yield from running()


@pytest.fixture(scope="module")
def guarded() -> Iterator[MemoryCluster]:
    yield from running(**{"authorizer.class.name": STANDARD})


def codes(value: Any) -> list[int]:
    """Error codes of an answer."""
    if isinstance(value, list):
        return [code for one in value for code in codes(one)]
    if not isinstance(value, Struct):
        return []
    own = [getattr(value, field.name) for field in value.__fields__ if field.error]
    return own + [code for field in value.__fields__ for code in codes(getattr(value, field.name))]


def answered(cluster: MemoryCluster, place: str, count: int) -> list[int] | str:
    api, path = PLACES[place]
    request, version = large_request(api, path, count, "t")
    try:
        pending = cluster.send(request, version)
        cluster.timers.advance(10_000)
        return codes(pending.result())
    except CloseConnection:
        return "closed"


def check(cluster: MemoryCluster, place: str) -> None:
    """So many more codes for so many more elements, and no others."""
    few, some, many = (answered(cluster, place, count) for count in (FEW, SOME, MANY))
    assert set(few) == set(some) == set(many)
    assert (len(some) - len(few)) * (MANY - SOME) == (len(many) - len(some)) * (SOME - FEW)


@pytest.mark.parametrize("place", PLACES)
def test_many_are_answered_as_few_are(open_to_all: MemoryCluster, place: str) -> None:
    check(open_to_all, place)


@pytest.mark.parametrize("place", GUARDED)
def test_many_are_refused_as_few_are(guarded: MemoryCluster, place: str) -> None:
    check(guarded, place)


@pytest.mark.parametrize("count", [1, 5, SOME])
def test_lookups_that_take_a_turn_each_are_all_answered(
    open_to_all: MemoryCluster, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    class OneATurn:
        """Says after the first step that a turn is over."""

        def __init__(self) -> None:
            self.begun = False

        def __call__(self, _: int) -> None:
            if self.begun:
                raise TakesLong
            self.begun = True

    monkeypatch.setattr(list_offsets, "Brief", OneATurn)
    kind = m.ListOffsetsRequest
    wanted = [kind.ListOffsetsPartition(partition_index=index, timestamp=-2) for index in range(count)]
    topics = [kind.ListOffsetsTopic(name=name, partitions=wanted) for name in ("t", "no")]
    for few in (topics, topics[:1]):
        pending = open_to_all.send(kind(replica_id=-1, topics=few), 7)
        open_to_all.timers.advance(1000)
        found = [[(one.error_code, one.offset) for one in topic.partitions] for topic in pending.result().topics]
        assert found == [[(0, 0)] * count, [(3, -1)] * count][: len(few)]
