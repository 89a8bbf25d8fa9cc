"""The chain: its order, and that an empty place is not there."""

from __future__ import annotations

from typing import Any

from memory_cluster import MemoryCluster

from minibroker.handlers.table import apis
from minibroker.kernel.deferred import Deferred
from minibroker.requests.answers import follow
from minibroker.requests.api import Api
from minibroker.requests.chain import Place
from minibroker.requests.context import Answer, Handler, RequestContext
from minibroker_protocol import messages as m
from minibroker_protocol.errors import ErrorCode


class Noting:
    """A link that notes when it is entered and left."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self._name = name
        self._notes = notes

    def around(self, api: Api, onward: Handler) -> Handler:
        def handle(ctx: RequestContext, request: Any) -> Answer:
            self._notes.append(f"> {self._name}")
            return follow(onward(ctx, request), self._left)

        return handle

    def _left(self, answer: Any) -> Answer:
        self._notes.append(f"< {self._name}")
        return answer


class Refusing:
    """A link that answers in the handler's place, as a quota or a proxy would."""

    def around(self, api: Api, onward: Handler) -> Handler:
        if api.request is not m.MetadataRequest:
            return onward
        return lambda ctx, request: m.MetadataResponse(
            brokers=[], topics=[], controller_id=-1, throttle_time_ms=500, cluster_id="elsewhere"
        )


def test_links_are_passed_in_the_order_of_their_places_and_back() -> None:
    cluster = MemoryCluster(topics={"t": 1})
    notes: list[str] = []
    for place in (Place.RIGHTS, Place.PAUSE, Place.QUOTA, Place.FAULTS_AND_TRACE):
        cluster.dispatcher.link(place, Noting(place.name, notes))
    cluster.call(m.MetadataRequest(topics=None), m.MetadataResponse, 9)
    order = ["PAUSE", "FAULTS_AND_TRACE", "QUOTA", "RIGHTS"]
    assert notes == [*(f"> {name}" for name in order), *(f"< {name}" for name in reversed(order))]
    cluster.cluster.stop()


def test_a_link_may_answer_itself_and_only_for_the_apis_it_wants() -> None:
    cluster = MemoryCluster(topics={"t": 1})
    cluster.dispatcher.link(Place.QUOTA, Refusing())
    assert cluster.call(m.MetadataRequest(topics=None), m.MetadataResponse, 9).throttle_time_ms == 500
    assert (
        cluster.call(
            m.ApiVersionsRequest(client_software_name="c", client_software_version="1"), m.ApiVersionsResponse, 3
        ).error_code
        == ErrorCode.NONE
    )
    cluster.dispatcher.link(Place.QUOTA, None)
    assert cluster.call(m.MetadataRequest(topics=None), m.MetadataResponse, 9).throttle_time_ms == 0
    cluster.cluster.stop()


def test_without_links_a_request_goes_straight_to_its_handler() -> None:
    cluster = MemoryCluster(topics={"t": 1})
    bound = cluster.dispatcher._bind
    table = apis()
    for key in (m.ProduceRequest.__api_key__, m.FetchRequest.__api_key__):
        assert bound(table[key]) is table[key].handler
    cluster.cluster.stop()


def test_an_answer_is_one_however_it_was_returned() -> None:
    response = m.ApiVersionsResponse(error_code=0, api_keys=[])
    waiting: Deferred[Any] = Deferred()
    later = follow(waiting, lambda answer: [answer, b"used"])
    assert isinstance(later, Deferred)
    assert not later.done
    waiting.resolve(response)
    made = [follow(answer, lambda answer: [answer, b"used"]) for answer in (response, waiting)]
    assert [*made, later.result()] == [[response, b"used"]] * 3
    assert follow(None, lambda answer: answer) is None
