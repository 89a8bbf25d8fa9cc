"""What an API is follows from its messages and its row: one made up here is served like any other."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from faulty import FaultyCluster
from memory_cluster import MemoryCluster
from reference import api_table
from samples import sample

from minibroker.broker.connection import ConnectionInfo
from minibroker.faults.facts import ProducerFact, carried_by, facts_of
from minibroker.handlers import table
from minibroker.requests.api import Api
from minibroker.requests.context import CloseConnection, RequestContext
from minibroker.requests.error_responses import refused
from minibroker.requests.rights import ALTER, TOPIC, ItemRight
from minibroker.security.create_authorizer import STANDARD
from minibroker.security.sasl import Authentication, PlainSaslServer
from minibroker.trace.plain import refusals
from minibroker_protocol import dsl, headers
from minibroker_protocol.dsl import Request, Response
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.fields import f, int16, int32, int64, string
from minibroker_protocol.headers import first_flexible_version
from minibroker_protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from minibroker_protocol.structs import Struct

KEY = 12345
COUNT = len(dsl.DECLARED)


class PaintTopicsRequest(Request, key=KEY, versions="0-2", flexible="1+", private=True):
    """Paint partitions. No field is called as Kafka would call it."""

    class Wall(Struct):
        where: string = f(entity="topicName", map_key=True)
        stripes: list[int32] = f(entity="partition")

    painter: int64 = f(entity="producerId")
    walls: list[Wall]


class PaintTopicsResponse(Response, key=KEY, versions="0-2", flexible="1+", private=True):
    """Whether each was painted."""

    class Stripe(Struct):
        number: int32 = f(entity="partition")
        trouble: int16 = f(default=0, error=True)
        why: string | None = f("1+", nullable="1+", default=None, ignorable=True, error_message=True)

    class Painted(Struct):
        surface: string = f(entity="topicName", map_key=True)
        stripes: list[PaintTopicsResponse.Stripe]

    wait_ms: int32 = f(default=0, throttle=True)
    painted: list[Painted]


# Other tests go through everything that is declared; each test here declares its API for its own time.
dsl.APIS.pop(KEY)
del dsl.DECLARED[COUNT:]


def paint(ctx: RequestContext, request: PaintTopicsRequest) -> PaintTopicsResponse:
    """Paints all but what is called wet."""

    def stripe(wall: PaintTopicsRequest.Wall, number: int) -> PaintTopicsResponse.Stripe:
        code = ErrorCode.INVALID_TOPIC_EXCEPTION if wall.where == "wet" else ErrorCode.NONE
        return PaintTopicsResponse.Stripe(number=number, trouble=code)

    return PaintTopicsResponse(
        painted=[
            PaintTopicsResponse.Painted(surface=wall.where, stripes=[stripe(wall, n) for n in wall.stripes])
            for wall in request.walls
        ]
    )


@pytest.fixture(autouse=True)
def _served(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one row, and the messages where declared messages are, as long as the test lasts."""
    rows = table._rows
    monkeypatch.setitem(dsl.APIS, KEY, {"request": PaintTopicsRequest, "response": PaintTopicsResponse})
    first_flexible_version(KEY)  # reads the registry, once
    monkeypatch.setitem(headers._flexible_from, KEY, PaintTopicsRequest.__flexible__)
    row = Api(
        KEY, "PaintTopics", PaintTopicsRequest, PaintTopicsResponse, paint, 0, 2, rights=(ItemRight(ALTER, TOPIC),)
    )
    monkeypatch.setattr(table, "_rows", lambda api_versions: [*rows(api_versions), row])


def walls(*names: str) -> PaintTopicsRequest:
    kind = PaintTopicsRequest.Wall
    return PaintTopicsRequest(painter=7, walls=[kind(where=name, stripes=[0, 3]) for name in names])


def test_it_is_listed_and_served() -> None:
    cluster = MemoryCluster()
    request = ApiVersionsRequest(client_software_name="x", client_software_version="1")
    listed = cluster.call(request, ApiVersionsResponse, 3).api_keys
    assert [(r.min_version, r.max_version) for r in listed if r.api_key == KEY] == [(0, 2)]
    answer = cluster.call(walls("a", "wet"), PaintTopicsResponse, 2)
    assert [(p.surface, [(s.number, s.trouble) for s in p.stripes]) for p in answer.painted] == [
        ("a", [(0, 0), (3, 0)]),
        ("wet", [(0, 17), (3, 17)]),
    ]
    # Its handler noted no reason: those are read off the answer.
    told = next(iter(cluster.broker.refusals))
    assert (told.api, told.subject, told.error) == ("PaintTopics", "wet-0", "INVALID_TOPIC_EXCEPTION")


def test_who_has_no_right_is_refused_item_by_item() -> None:
    cluster = MemoryCluster(
        {
            "minibroker.security.protocol": "SASL_PLAINTEXT",
            "minibroker.sasl.users": "alice:a",
            "authorizer.class.name": STANDARD,
            "super.users": "User:admin",
        }
    )

    def ask(user: str) -> Any:
        login = Authentication({"PLAIN": lambda: PlainSaslServer({user: "a"})})
        login.handshake("PLAIN", 1)
        login.token(f"\0{user}\0a".encode())
        connection = ConnectionInfo(principal=f"User:{user}", authentication=login)
        raw: Any = cluster.dispatcher.dispatch(cluster.frame(walls("a", "b"), 2), connection)
        return cluster.decode(PaintTopicsRequest, 2, raw)

    assert refusals(ask("admin")) == []
    denied = "TOPIC_AUTHORIZATION_FAILED (29)"
    assert refusals(ask("alice")) == [f"{denied} at {place}" for place in ("a-0", "a-3", "b-0", "b-3")]


def test_an_error_has_a_place_for_each_item() -> None:
    answer: Any = refused(walls("a"), 2, ErrorCode.NOT_CONTROLLER, "why")
    assert refusals(answer) == ["NOT_CONTROLLER (41) at a-0: why", "NOT_CONTROLLER (41) at a-3: why"]
    assert answer.wait_ms == 0


def test_faults_match_it() -> None:
    assert carried_by(PaintTopicsRequest) == {"topic", "partition", "producer_id"}
    facts = facts_of(walls("a"))
    assert (facts.partitions, facts.producers) == ([("a", 0), ("a", 3)], [ProducerFact(7, -1)])
    cluster = FaultyCluster()
    cluster.inject("PaintTopics", {"name": "error", "code": "NOT_CONTROLLER"}, topic="b", partition=3)
    cluster.inject("PaintTopics", {"name": "throttle", "ms": 5}, topic="c")
    assert refusals(cluster.call(walls("a"), PaintTopicsResponse, 2)) == []
    answer = cluster.call(walls("a", "b"), PaintTopicsResponse, 2)
    assert {stripe.trouble for painted in answer.painted for stripe in painted.stripes} == {41}
    assert cluster.send(walls("c"), 2).result().wait_ms == 5
    cluster.commands.close()


def test_the_page_of_apis_has_it() -> None:
    assert f"- PaintTopics ({KEY}): 0–2" in api_table()


def test_random_requests_reach_it() -> None:
    assert PaintTopicsRequest in [api.request for api in table.apis().values()]
    cluster = MemoryCluster()
    random = Random(1)
    for _ in range(40):
        version = random.randint(0, 2)
        request = sample(PaintTopicsRequest, version, random)
        assert isinstance(request, Request)
        frame = cluster.frame(request, version)
        if random.random() < 0.3:
            frame[random.randrange(8, len(frame))] = random.randrange(256)
        try:
            cluster.dispatcher.dispatch(frame, ConnectionInfo())
        except CloseConnection:
            continue
