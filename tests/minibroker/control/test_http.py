"""The control API over HTTP: who may use it, what it takes, and that its description is true."""

from __future__ import annotations

import http.client
import json
import re
import socket
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from minibroker.cli import main
from minibroker.control.commands import all_commands
from minibroker.control.http_client import ControlError, HttpCaller
from minibroker.control.openapi import describe
from minibroker.control.server import ControlServer, parse_control
from minibroker.faults import FaultError
from minibroker.kernel.addresses import parse_address
from minibroker.kernel.http_limits import MAX_HEAD_BYTES
from minibroker.server.options import make_options
from minibroker.testing.in_thread import ThreadRunner
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.headers import encode_request
from minibroker_protocol.messages.api_versions import ApiVersionsRequest

TOKEN = "open-sesame"
JSON = "application/json"
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def runner() -> Iterator[ThreadRunner]:
    options = make_options(ephemeral=True, topics={"t": 1}, control=("127.0.0.1", 0), control_token=TOKEN)
    running = ThreadRunner(options)
    running.start().result()
    yield running
    running.stop().result()
    running.join()


@pytest.fixture
def address(runner: ThreadRunner) -> tuple[str, int]:
    assert runner.service.control is not None
    return runner.service.control.address


@pytest.fixture
def caller(address: tuple[str, int]) -> Iterator[HttpCaller]:
    made = HttpCaller(f"http://{address[0]}:{address[1]}", TOKEN)
    yield made
    made.call("fault.clear", {})


def ask(
    address: tuple[str, int], method: str, path: str, body: str | None = "{}", **headers: str
) -> tuple[int, dict[str, Any]]:
    given = {"Authorization": f"Bearer {TOKEN}", "Content-Type": JSON}
    given.update({name.replace("_", "-"): value for name, value in headers.items()})
    connection = http.client.HTTPConnection(*address, timeout=10)
    connection.request(method, path, body, {name: value for name, value in given.items() if value})
    response = connection.getresponse()
    answer = json.loads(response.read())
    assert response.getheader("Content-Type") == JSON
    assert response.getheader("Access-Control-Allow-Origin") is None
    connection.close()
    return response.status, answer


def test_a_rule_is_set_seen_and_taken_away(caller: HttpCaller) -> None:
    rule = caller.call("fault.add", {"api": "EndTxn", "action": {"name": "delay", "ms": 5}})
    assert caller.call("fault.list", {})[0]["id"] == rule["id"]
    assert caller.call("fault.get", {"id": rule["id"]})["rule"]["action"] == {
        "name": "delay",
        "ms": 5,
        "when": "before",
    }
    caller.call("fault.remove", {"id": rule["id"]})
    assert caller.call("fault.list", {}) == []


def test_waiting_holds_up_no_other_request(runner: ThreadRunner, caller: HttpCaller) -> None:
    rule = caller.call("fault.add", {"api": "ApiVersions", "action": "close"})
    assert caller.call("fault.wait", {"id": rule["id"], "timeout_ms": 1})["fired"] == 0
    found: list[Any] = []
    waiting = {"id": rule["id"], "timeout_ms": 30_000}
    waiter = threading.Thread(target=lambda: found.append(caller.call("fault.wait", waiting)))
    waiter.start()
    waiter.join(0.1)  # it is there, most of the time
    assert caller.call("clock.get", {})["frozen"] is False
    assert found == []
    with socket.create_connection(parse_address(runner.service.bootstrap_servers)) as client:
        body = encode_request(ApiVersionsRequest(), 0, 1, "x")
        client.sendall(len(body).to_bytes(4, "big") + body)
        assert client.recv(1) == b""
    waiter.join(30)
    assert found[0]["fired"] == 1
    caller.call("fault.remove", {"id": rule["id"]})


def test_clock(caller: HttpCaller) -> None:
    stopped = caller.call("clock.freeze", {})
    assert caller.call("clock.advance", {"ms": 3_600_000})["now_ms"] == stopped["now_ms"] + 3_600_000
    assert caller.call("clock.sweep", {})["frozen"] is True
    assert caller.call("clock.unfreeze", {})["frozen"] is False


def test_state(caller: HttpCaller) -> None:
    caller.call("state.create_topic", {"topic": "made", "partitions": 2})
    assert set(caller.call("cluster.describe", {})["topics"]["made"]) == {"0", "1"}


def test_a_pause_a_full_disk_and_a_rule_between_brokers(caller: HttpCaller) -> None:
    caller.call("state.pause_broker", {"broker": 1})
    caller.call("state.fill_disk", {"broker": 1})
    known = caller.call("cluster.describe", {})
    assert (known["paused_brokers"], known["failed_disks"]) == ([1], [1])
    caller.call("state.resume_broker", {"broker": 1})
    with pytest.raises(ApiError) as raised:
        caller.call("state.create_topic", {"topic": "no-room"})
    assert raised.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    caller.call("state.heal_disk", {"broker": 1})
    known = caller.call("cluster.describe", {})
    assert (known["paused_brokers"], known["failed_disks"]) == ([], [])
    rule = {"action": {"name": "hold"}, "api": "WriteTxnMarkers", "between_brokers": True}
    added = caller.call("fault.add", rule)
    assert added["rule"]["between_brokers"] is True
    caller.call("fault.remove", {"id": added["id"]})


def test_the_clock_takes_parts_of_a_unit(caller: HttpCaller) -> None:
    before = caller.call("clock.freeze", {})["now_ms"]
    assert caller.call("clock.advance", {"minutes": 0.5})["now_ms"] == before + 30_000
    caller.call("clock.unfreeze", {})


def test_errors_come_back_as_what_they_are(caller: HttpCaller) -> None:
    with pytest.raises(FaultError, match="did you mean EndTxn"):
        caller.call("fault.add", {"api": "EndTxx", "action": "close"})
    with pytest.raises(FaultError, match="no command"):
        caller.call("fault.explode", {})
    with pytest.raises(FaultError, match=r"did you mean cluster\.reset topics=true\?"):
        caller.call("state.delete_topic", {"topic": "t"})
    with pytest.raises(FaultError, match=r"no command 'fault.inject', did you mean fault.add\?"):
        caller.call("fault.inject", {"api": "EndTxn", "action": "close"})
    for name, given, right in [
        ("clock.advanse", {}, "clock.advance"),
        ("state.kil_broker", {}, "state.kill_broker"),
        ("clock.advance", {"minuts": 2}, "minutes"),
        ("state.kill_broker", {"brokr": 1}, "broker"),
        ("fault.add", {"api": "EndTxn", "action": {"name": "delay", "mss": 1}}, "ms"),
    ]:
        with pytest.raises(FaultError, match=re.escape(f"did you mean {right}?")):
            caller.call(name, given)
    with pytest.raises(FaultError, match="never goes back"):
        caller.call("clock.advance", {"ms": -1})
    with pytest.raises(FaultError, match="advance needs ms"):
        caller.call("clock.advance", {})
    with pytest.raises(FaultError, match=r"advance: hours is a number, not 'x'"):
        caller.call("clock.advance", {"hours": "x"})
    with pytest.raises(ApiError) as raised:
        caller.call("state.kill_broker", {"broker": 9})
    assert raised.value.code is ErrorCode.BROKER_ID_NOT_REGISTERED


@pytest.mark.parametrize(
    "authorization", ["", "Bearer wrong", "Basic b3Blbi1zZXNhbWU=", "Bearer", "Bearer " + TOKEN + "x"]
)
def test_nobody_without_the_token(address: tuple[str, int], authorization: str) -> None:
    status, answer = ask(address, "POST", "/v1/clock/freeze", Authorization=authorization)
    assert (status, answer["error"]["code"]) == (401, "TOKEN")
    assert ask(address, "POST", "/v1/clock/get")[1]["result"]["frozen"] is False


def test_a_token_in_the_url_is_none(address: tuple[str, int]) -> None:
    assert ask(address, "POST", f"/v1/clock/get?token={TOKEN}", Authorization="")[0] == 401
    assert ask(address, "POST", f"/v1/clock/get?token={TOKEN}")[0] == 404


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1"])
def test_no_web_page(address: tuple[str, int], origin: str) -> None:
    assert ask(address, "POST", "/v1/clock/get", Origin=origin)[0] == 403


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("evil.example", 403),
        ("evil.example:9094", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.nip.io", 403),
        ("localhost:9094", 200),
        ("[::1]:9094", 200),
        ("172.17.0.2:9094", 200),
    ],
)
def test_no_name_that_could_point_elsewhere(address: tuple[str, int], host: str, status: int) -> None:
    assert ask(address, "POST", "/v1/clock/get", Host=host)[0] == status


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status"),
    [
        ("POST", "/v1/clock/get", "{}", {"Content_Type": "text/plain"}, 415),
        ("POST", "/v1/clock/get", "clock", {}, 400),
        ("POST", "/v1/clock/get", "[]", {}, 400),
        ("POST", "/v1/clock/get", "[" * 100_000, {}, 400),
        ("POST", "/v1/clock/get", "{}", {"Content_Length": "2000000"}, 413),
        ("POST", "/v1/clock/get", "{}", {"Content_Length": "x"}, 411),
        ("POST", "/etc/passwd", "{}", {}, 404),
        ("POST", "/v1/../../etc/passwd", "{}", {}, 400),
        ("GET", "/v1/clock/get", None, {}, 404),
    ],
)
def test_what_makes_no_sense(
    address: tuple[str, int], method: str, path: str, body: str | None, headers: dict[str, str], status: int
) -> None:
    assert ask(address, method, path, body, **headers)[0] == status


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"])
def test_other_methods_are_refused_in_json_too(address: tuple[str, int], method: str) -> None:
    status, answer = ask(address, method, "/v1/clock/get")
    assert status == 501
    assert answer["error"]["code"] == "HTTP"


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"POST /v1/clock/get HTTP/9.9\r\n\r\n", 505),
        (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"POST /v1/clock/get HTTP/1.1\r\nHost: localhost\r\n\r\n", 401),
        (b"POST /v1/clock/get HTTP/1.1\r\n\r\n", 403),
        (b"GET /v1/openapi.json HTTP/1.1\r\n" + b"".join(b"X%d: %s\r\n" % (n, b"x" * 1000) for n in range(70)), 431),
    ],
    ids=["no HTTP", "another version", "a long line", "no token", "no host", "long headers"],
)
def test_broken_requests_are_refused_in_json(address: tuple[str, int], request_: bytes, status: int) -> None:
    with socket.create_connection(address, 10) as connection:
        connection.sendall(request_)
        answer = b""
        while data := connection.recv(65536):
            answer += data
    assert b" %d " % status in answer.splitlines()[0] + b" "
    assert "error" in json.loads(answer.partition(b"\r\n\r\n")[2])


@pytest.mark.parametrize("length", ["9" * 13, "9" * 6000, "1048577"])
def test_a_body_that_is_too_long_is_not_read(address: tuple[str, int], length: str) -> None:
    with socket.create_connection(address, 10) as connection:
        head = f"POST /v1/clock/get HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
        connection.sendall(f"{head}Content-Type: {JSON}\r\nContent-Length: {length}\r\n\r\n".encode())
        assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")


def test_the_limit_of_headers_is_one_of_each_request(address: tuple[str, int]) -> None:
    connection = http.client.HTTPConnection(*address, timeout=10)
    for _ in range(3):
        headers = {"Authorization": f"Bearer {TOKEN}", "X": "x" * (MAX_HEAD_BYTES // 2)}
        connection.request("GET", "/v1/openapi.json", headers=headers)
        with connection.getresponse() as response:
            assert response.status == 200
            response.read()
    connection.close()


def test_silent_connections_do_not_keep_the_owner_out() -> None:
    """They take the places and nothing else: the one that has waited longest makes room."""
    done: Future[Any] = Future()
    done.set_result("done")
    server = ControlServer(("127.0.0.1", 0), TOKEN, lambda *_: done, dict, max_connections=2)
    server.start()
    silent = [socket.create_connection(server.address, 10) for _ in range(4)]
    try:
        for early in silent[:2]:
            assert early.recv(1) == b""
        assert HttpCaller(f"127.0.0.1:{server.address[1]}", TOKEN).call("any.thing", {}) == "done"
        assert silent[2].recv(1) == b""
    finally:
        for one in silent:
            one.close()
        server.close()


def test_a_connection_that_is_served_is_not_closed_for_another() -> None:
    answer: Future[Any] = Future()
    asked: Queue[str] = Queue()

    def run(name: str, _: Mapping[str, Any]) -> Future[Any]:
        asked.put(name)
        return answer

    server = ControlServer(("127.0.0.1", 0), TOKEN, run, dict, max_connections=1)
    server.start()
    try:
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(HttpCaller(f"127.0.0.1:{server.address[1]}", TOKEN).call, "any.thing", {})
            assert asked.get(timeout=20) == "any.thing"
            with socket.create_connection(server.address, 10) as second:
                assert second.recv(1) == b""
            answer.set_result("done")
            assert waiting.result(timeout=20) == "done"
    finally:
        server.close()


def test_numbers_that_would_hold_everything_up_are_refused(caller: HttpCaller) -> None:
    for name, arguments in (
        ("clock.advance", {"ms": 10**30}),
        ("fault.add", {"api": "Produce", "action": {"name": "duplicate", "copies": 10**9}}),
        ("fault.add", {"api": "Produce", "action": {"name": "delay", "ms": 10**30}}),
    ):
        with pytest.raises(FaultError, match="at most"):
            caller.call(name, arguments)


def test_it_says_so_when_others_can_reach_it(caplog: pytest.LogCaptureFixture) -> None:
    for host, warned in (("127.0.0.1", False), ("0.0.0.0", True)):
        caplog.clear()
        server = ControlServer((host, 0), TOKEN, lambda *_: Future(), dict)
        server.start()
        server.close()
        assert ("reachable from other machines" in caplog.text) == warned


def test_a_broker_that_does_not_answer() -> None:
    with pytest.raises(ControlError, match="no answer"):
        HttpCaller("127.0.0.1:1", TOKEN).call("clock.get", {})


@pytest.mark.parametrize("text", ["9094", "host", ":9094", "host:99999", "host:x"])
def test_a_wrong_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        parse_control(text)


def test_the_description_names_every_command_and_its_arguments(caller: HttpCaller) -> None:
    described = caller.description()
    commands = all_commands()
    assert described == json.loads(json.dumps(describe(commands)))
    assert {path.removeprefix("/v1/").replace("/", ".") for path in described["paths"]} == set(commands)
    for path, methods in described["paths"].items():
        assert methods["post"]["summary"], path


def test_the_command_line_prints_the_description(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["control", "--describe"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(describe(all_commands())))


def test_every_command_that_is_described_can_be_asked(caller: HttpCaller) -> None:
    """An argument that nobody knows is refused by the command itself, so each was found."""
    for path in caller.description()["paths"]:
        name = path.removeprefix("/v1/").replace("/", ".")
        with pytest.raises(FaultError, match=r"has no (field )?'no_such_argument'"):
            caller.call(name, {"no_such_argument": 1})
