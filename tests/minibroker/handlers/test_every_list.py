"""Whatever list of whatever request is long, no turn of the loop is: each is counted, for every API and every list.

What a first use of an API imports and compiles does not count.
"""

from __future__ import annotations

import pytest
from large_requests import large_request, places
from watched_loop import MOST_AT_ONCE, MOST_CALLS, watched

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


def check(place: tuple[str, str], count: int, **config: str) -> int:
    """How many turns it takes."""
    api, path = PLACES[place]
    with watched({"wide": 128}, **config) as loop:
        for elements in (1, count):  # the first one imports, and compiles
            request, version = large_request(api, path, elements, "wide")
            if hasattr(request, "timeout_ms"):
                request.timeout_ms = 60_000  # without time a controller does nothing
            loop.serve(request, version)
        assert max(loop.turns) < MOST_CALLS
        return len(loop.turns)


@pytest.mark.parametrize("place", SAMPLE, ids=".".join)
def test_a_long_list_leaves_others_their_turn(place: tuple[str, str]) -> None:
    assert check(place, 4000) > 4000 // MOST_AT_ONCE


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES, ids=".".join)
def test_every_list_leaves_others_their_turn(place: tuple[str, str]) -> None:
    check(place, 20_000)


@pytest.mark.parametrize("timeout_ms", [0, 60_000])
def test_a_long_list_that_is_refused_as_it_is_late_leaves_others_their_turn(timeout_ms: int) -> None:
    """At once, or after a minute without a controller."""
    api, path = PLACES["CreateTopics", "topics"]
    with watched() as loop:
        loop.cluster.cluster.stop_controller()
        for count in (1, 4000):
            request, version = large_request(api, path, count)
            request.timeout_ms = timeout_ms  # type: ignore[attr-defined]
            assert loop.serve(request, version) is not None
        assert max(loop.turns) < MOST_CALLS


AUTHORIZED = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES, ids=".".join)
def test_what_may_not_be_done_leaves_others_their_turn(place: tuple[str, str]) -> None:
    """Nothing is allowed here: the guard refuses it all."""
    check(place, 20_000, **AUTHORIZED)
