"""The live page over HTTP: who may load it, what it is given, and that it only shows."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import Any
from urllib.parse import urlsplit

import pytest

from minibroker import Minibroker
from minibroker.client.cluster import ClusterClient
from minibroker.client.transactional import Producer, TransactionalClient
from minibroker.control import live_page
from minibroker.control.live_page import KEPT, MOST_STREAMS, POLICY
from minibroker.control.live_state import GONE_KEPT
from minibroker.kernel.http_limits import MAX_CONNECTIONS
from minibroker.trace.saved import read
from minibroker_protocol import messages as m
from minibroker_protocol.errors import ApiError

pytestmark = pytest.mark.waits

HOSTILE = "</script><script>alert(1)</script>\n\nevent: begin\ndata: {}"


@pytest.fixture(scope="module")
def broker() -> Iterator[Minibroker]:
    with Minibroker(ephemeral=True, page=True) as running:
        with TransactionalClient(running.bootstrap_servers) as client:
            client.init_producer_id(HOSTILE, 60_000, transaction_version=2)
        yield running


@contextmanager
def got(broker: Minibroker, path: str, method: str = "GET", **headers: str) -> Iterator[http.client.HTTPResponse]:
    url = urlsplit(broker.page_url)
    connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=20)
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    with connection.getresponse() as response:
        yield response
    connection.close()


def events(response: http.client.HTTPResponse) -> Iterator[tuple[str, Any]]:
    while name := response.readline():
        data = response.readline()
        assert response.readline() == b"\n"
        yield name.decode().removeprefix("event: ").strip(), json.loads(data.removeprefix(b"data: "))


_MANY = 30
"""Events of a stream, which has a state each second, until a test fails."""


def ends(response: http.client.HTTPResponse) -> bool:
    return len(list(islice(events(response), _MANY))) < _MANY


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("", "text/html"),
        ("page.css", "text/css"),
        ("live.js", "text/javascript"),
        ("hands.js", "text/javascript"),
        ("story.js", "text/javascript"),
    ],
)
def test_what_the_page_loads(broker: Minibroker, name: str, kind: str) -> None:
    with got(broker, f"/page/{name}") as response:
        assert response.status == 200
        assert (response.getheader("Content-Type") or "").startswith(kind)
        assert response.getheader("Content-Security-Policy") == POLICY
        assert response.getheader("X-Content-Type-Options") == "nosniff"
        assert response.getheader("Access-Control-Allow-Origin") is None
        text = response.read().decode()
    assert "http:" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "innerHTML" not in text


def test_what_was_recorded_is_a_trace(broker: Minibroker) -> None:
    with TransactionalClient(broker.bootstrap_servers) as client:  # another test may have begun another trace
        client.init_producer_id(HOSTILE, 60_000, transaction_version=2)
    with got(broker, "/page/trace.jsonl") as response:
        found = read(response.read().decode().splitlines()).exchanges
    assert HOSTILE in [one["request"]["transactional_id"] for one in found if one["api"] == "InitProducerId"]


def test_events_go_on_where_they_are(broker: Minibroker) -> None:
    with got(broker, "/page/events") as response:
        assert response.getheader("Content-Type") == "text/event-stream"
        told = events(response)
        assert next(told) == ("begin", {})
        name, old = next(told)
        assert name == "exchanges"
        # What the id says ends no event.
        assert HOSTILE in [one["request"].get("transactional_id") for one in old]
        name, rows = next(told)
        assert name == "rows"
        assert HOSTILE in [row["name"] for row in rows if row["kind"] == "transaction"]
        name, state = next(told)
        assert (name, state["brokers"], state["rules"], state["waiting"]) == ("state", [1], [], [])
        with TransactionalClient(broker.bootstrap_servers) as client:
            client.init_producer_id("later", 60_000, transaction_version=2)
        new: list[Any] = []
        while "InitProducerId" not in [one["api"] for one in new]:
            name, data = next(told)
            new += data if name == "exchanges" else []
        assert min(one["number"] for one in new) > max(one["number"] for one in old)
        # Another trace begins with another number 1, and all rows are told again.
        broker.control.record(KEPT)
        while name != "begin":
            name, _ = next(told)
        again = [row for name, data in islice(told, 5) if name == "rows" for row in data]
        assert {row["name"] for row in again if row["kind"] == "transaction"} >= {HOSTILE, "later"}


def test_a_rule_and_what_it_holds_are_told(broker: Minibroker) -> None:
    with (
        got(broker, "/page/events") as response,
        broker.faults.inject("InitProducerId", "hold", transactional_id="held") as rule,
        TransactionalClient(broker.bootstrap_servers) as client,
    ):
        states = (data for name, data in events(response) if name == "state")
        assert next(state for state in states if state["rules"])["rules"][0]["rule"]["action"]["name"] == "hold"
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(client.init_producer_id, "held", 60_000, transaction_version=2)
            told = next(state for state in states if state["waiting"])
            assert [one["request"]["transactional_id"] for one in told["waiting"]] == ["held"]
            assert told["rules"][0]["held"] == 1
            rule.release()
            waiting.result(20)
        assert next(state for state in states if not state["waiting"])["rules"][0]["held"] == 0


PATHS = ["/page/", "/page/draw.js", "/page/trace.jsonl", "/page/events"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.nip.io"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
    ],
    ids=lambda headers: " ".join(headers.values()),
)
def test_nothing_for_other_pages(broker: Minibroker, path: str, headers: dict[str, str]) -> None:
    with got(broker, path, **headers) as response:
        assert response.status == 403
        assert json.loads(response.read())["error"]["code"] in ("HOST", "ORIGIN")


@pytest.mark.parametrize("path", PATHS[1:])
@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_nothing_of_it_is_loaded_into_others(broker: Minibroker, path: str, site: str) -> None:
    """`same-site` is another port of this machine."""
    with got(broker, path, Sec_Fetch_Site=site) as response:
        assert response.status == 403


def test_its_own_requests_are_served(broker: Minibroker) -> None:
    own = broker.page_url.partition("/page/")[0]
    with got(broker, "/page/draw.js", Origin=own, Sec_Fetch_Site="same-origin") as response:
        assert response.status == 200


def test_it_gives_no_command_without_the_token(broker: Minibroker) -> None:
    own = broker.page_url.partition("/page/")[0]
    with got(broker, "/v1/clock/freeze", "POST", Origin=own) as response:
        assert response.status == 401
    assert not broker.clock.frozen


@pytest.mark.parametrize("path", ["/page/../server.py", "/page/page.html", "/page/x", "/pages", "/page/events?a"])
def test_what_there_is_not(broker: Minibroker, path: str) -> None:
    with got(broker, path) as response:
        assert response.status in (401, 404)


@pytest.mark.parametrize("process", [False, True])
def test_no_page_and_no_record_unless_asked_for(process: bool) -> None:
    with Minibroker(ephemeral=True, process=process) as plain:
        with pytest.raises(RuntimeError, match="page=True"):
            _ = plain.page_url
        assert plain.control.exchanges() == []


def test_so_many_pages_at_once() -> None:
    with Minibroker(ephemeral=True, page=True) as running:
        with ExitStack() as open_pages:
            for _ in range(MOST_STREAMS):
                assert open_pages.enter_context(got(running, "/page/events")).status == 200
            with got(running, "/page/events") as response:
                assert response.status == 503
        deadline = time.monotonic() + 30
        while response.status != 200:  # the thread of a page that was closed learns of it when it writes next
            assert time.monotonic() < deadline
            with got(running, "/page/events") as response:
                pass


def test_visitors_do_not_keep_out_the_owner_of_the_token() -> None:
    with Minibroker(ephemeral=True, page=True) as running, ExitStack() as open_pages:
        token = f"Bearer {urlsplit(running.page_url).fragment.removeprefix('token=')}"
        first, *others = [open_pages.enter_context(got(running, "/page/events")) for _ in range(MOST_STREAMS)]
        with got(running, "/page/events", Authorization="Bearer wrong") as response:
            assert response.status == 503
        own = open_pages.enter_context(got(running, "/page/events", Authorization=token))
        assert own.status == 200
        assert next(events(own)) == ("begin", {})
        assert ends(first)
        assert [next(events(other)) for other in others] == [("begin", {})] * len(others)
        # Connections that show no token do not end it either.
        host, port = urlsplit(running.page_url).hostname, urlsplit(running.page_url).port
        for _ in range(MAX_CONNECTIONS):
            open_pages.enter_context(socket.create_connection((host, port), 20))
        assert all(ends(other) for other in others)
        told = events(own)
        running.state.create_topic(topic="later")
        rows = (row for name, data in islice(told, _MANY) if name == "rows" for row in data)
        assert "later-0" in (row["name"] for row in rows)


def test_owners_of_the_token_make_no_room_for_each_other() -> None:
    with Minibroker(ephemeral=True, page=True) as running:
        token = f"Bearer {urlsplit(running.page_url).fragment.removeprefix('token=')}"
        with ExitStack() as open_pages:
            owners = [
                open_pages.enter_context(got(running, "/page/events", Authorization=token)) for _ in range(MOST_STREAMS)
            ]
            for headers in ({"Authorization": token}, {}):
                with got(running, "/page/events", **headers) as response:
                    assert response.status == 503
            assert [next(events(owner)) for owner in owners] == [("begin", {})] * MOST_STREAMS


def test_a_page_that_is_far_behind_begins_again() -> None:
    with (
        Minibroker(ephemeral=True, page=True, topics={"t": GONE_KEPT + 1}) as running,
        got(running, "/page/events") as response,
    ):
        told = events(response)
        assert next(told) == ("begin", {})
        shown: set[str] = set()
        while not {f"t-{index}" for index in range(GONE_KEPT + 1)} <= shown:
            name, data = next(told)
            shown |= {row["name"] for row in data} if name == "rows" else set()
        running.state.create_topic(topic="later")
        while "later-0" not in shown:
            name, data = next(told)
            shown |= {row["name"] for row in data} if name == "rows" else set()
        with ClusterClient(running.bootstrap_servers) as client:
            client.ask_any(m.DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000), m.DeleteTopicsResponse, 4)
        assert "begin" in (name for name, _ in islice(told, _MANY))
        again = [row["name"] for name, data in islice(told, 5) if name == "rows" for row in data]
        assert "later-0" in again
        assert not [name for name in again if name.startswith("t-")]


def test_a_stream_ends_with_the_broker() -> None:
    with Minibroker(ephemeral=True, page=True) as running:
        response = got(running, "/page/events")
        told = events(response.__enter__())
        next(told)
    for _ in told:
        pass
    response.__exit__(None, None, None)


@pytest.mark.parametrize("process", [False, True])
def test_its_address_has_the_token(process: bool) -> None:
    with Minibroker(ephemeral=True, process=process, page=True) as running:
        token = urlsplit(running.page_url).fragment.removeprefix("token=")
        with got(running, "/page/") as response:
            assert response.status == 200
            assert token not in response.read().decode()
        with got(running, "/v1/openapi.json", Authorization=f"Bearer {token}") as response:
            assert response.status == 200


def test_what_came_too_fast_is_said() -> None:
    """A stream rests after its work; of what ends meanwhile the recorder keeps the last one here."""
    with Minibroker(ephemeral=True, page=True) as running, got(running, "/page/events") as response:
        running.control.record(1)
        told = events(response)
        with TransactionalClient(running.bootstrap_servers) as client:
            client.init_producer_id("first", 60_000, transaction_version=2)
            while next(told)[0] != "exchanges":
                pass
            for _ in range(100):
                client.init_producer_id("first", 60_000, transaction_version=2)
        assert next(data for name, data in islice(told, 40) if name == "state" and data["missed"])


def test_a_busy_broker_records_some_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_page, "KEPT", 50)
    monkeypatch.setattr(live_page, "SHOWN_PER_SECOND", 10)
    monkeypatch.setattr(live_page, "UNSEEN_PER_SECOND", 10)
    with Minibroker(ephemeral=True, page=True) as running, TransactionalClient(running.bootstrap_servers) as client:
        with got(running, "/page/events") as response:
            told = events(response)
            states = (data for name, data in told if name == "state")
            assert not next(states)["missed"]
            for _ in range(200):
                client.init_producer_id("busy", 60_000, transaction_version=2)
            assert next(state for state in states if state["missed"])
        # What is refused is recorded all the same, and a stream that begins now has missed nothing.
        with pytest.raises(ApiError):
            client.end(Producer("busy", 1 << 40, 0, 2), commit=True)
        with got(running, "/page/events") as response:
            found: list[Any] = []
            for name, data in events(response):
                found += data if name == "exchanges" else []
                if name == "state":
                    assert not data["missed"]
                    break
        assert len(found) <= 50
        assert (found[-1]["api"], found[-1]["errors"]) == ("EndTxn", ["INVALID_PRODUCER_ID_MAPPING (49)"])
        (reason,) = found[-1]["reasons"]
        assert "busy" in reason
