"""What a client may not do with one element of a list it may not do with many: each is refused as one alone is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from large_requests import large_request, places
from memory_cluster import MemoryCluster

from minibroker.handlers.context import CloseConnection
from minibroker.handlers.rights import ItemRight, RequestRight
from minibroker.security.create_authorizer import STANDARD
from minibroker_protocol.structs import Struct

FEW, MANY = 3, 40  # what is looked at at once is in between
PLACES = {
    f"{api.name}.{path[0]}": (api, path)
    for api, path in places()
    if len(path) == 1 and any(isinstance(rule, ItemRight | RequestRight) for rule in api.rights)
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[MemoryCluster]:
    made = MemoryCluster({"authorizer.class.name": STANDARD, "auto.create.topics.enable": "false"}, topics={"t": 2})
    yield made
    made.stop()


def codes(value: Any) -> list[int]:
    """Error codes of an answer that are none of its own."""
    if isinstance(value, list):
        return [code for one in value for code in codes(one)]
    if not isinstance(value, Struct):
        return []
    own = [value.error_code] if hasattr(value, "error_code") and value.error_code else []
    return own + [code for field in value.__fields__ for code in codes(getattr(value, field.name))]


def refused(cluster: MemoryCluster, place: str, count: int) -> list[int] | str:
    api, path = PLACES[place]
    request, version = large_request(api, path, count, "t")
    try:
        pending = cluster.send(request, version)
        cluster.timers.advance(10_000)
        return codes(pending.result())
    except CloseConnection:
        return "closed"


@pytest.mark.parametrize("place", PLACES)
def test_many_are_refused_as_few_are(cluster: MemoryCluster, place: str) -> None:
    few, many = refused(cluster, place, FEW), refused(cluster, place, MANY)
    assert set(many) == set(few)
    if isinstance(few, list):
        whole = len(few) % FEW  # 1 where the answer has a code besides those of the elements
        assert (len(many) - whole) * FEW == (len(few) - whole) * MANY
