"""listeners, advertised.listeners and log.dirs, as Kafka's images set them."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from minibroker import ConfigError, Minibroker
from minibroker.server import declared
from minibroker.server.declared import declared_listeners
from minibroker.settings import Settings
from minibroker.wire import Connection
from minibroker_protocol.headers import RequestHeader
from minibroker_protocol.messages.metadata import MetadataRequest, MetadataResponse


def free() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def brokers_told(port: int) -> list[tuple[str, int]]:
    header = RequestHeader(request_api_key=3, request_api_version=4, correlation_id=1, client_id="t")
    request = MetadataRequest(topics=[], allow_auto_topic_creation=False)
    with Connection(("127.0.0.1", port), 5) as connection:
        connection.send_frame(header.encode(1) + request.encode(4))
        response = MetadataResponse.decode(connection.receive(5), 4, 4)
    return [(broker.host, broker.port) for broker in response.brokers]


def test_each_listener_has_its_own_address_for_clients() -> None:
    inside, outside = free(), free()
    config = {
        "listeners": f"PLAINTEXT://127.0.0.1:{outside},BROKER://0.0.0.0:{inside},CONTROLLER://0.0.0.0:1",
        "advertised.listeners": f"PLAINTEXT://kafka.example:1234,BROKER://127.0.0.1:{inside}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT",
    }
    with Minibroker(config=config) as broker:
        assert broker.bootstrap_servers == f"127.0.0.1:{outside}"
        for _ in range(2):
            assert brokers_told(outside) == [("kafka.example", 1234)]
            assert brokers_told(inside) == [("127.0.0.1", inside)]
            broker.state.restart_broker(broker=1)


def test_without_an_advertised_address_it_is_the_one_the_client_came_to() -> None:
    port = free()
    with Minibroker(config={"listeners": f"PLAINTEXT://0.0.0.0:{port}"}):
        assert brokers_told(port) == [("127.0.0.1", port)]


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"listeners": "PLAINTEXT:9092"}, "NAME://HOST:PORT"),
        ({"listeners": "PLAINTEXT://h:x"}, "NAME://HOST:PORT"),
        ({"listeners": "A://h:1,A://h:2"}, "A is there twice"),
        ({"advertised.listeners": "A://h:1"}, "needs listeners"),
        ({"listeners": "A://h:1", "advertised.listeners": "B://h:1"}, "no listener B"),
        ({"listeners": "SSL://h:1"}, "SSL is not served"),
        ({"listeners": "A://h:1", "listener.security.protocol.map": "A:SASL_SSL"}, "SASL_SSL is not served"),
        ({"log.dirs": "/a,/b"}, "one directory"),
    ],
)
def test_what_cannot_be_is_refused_at_once(config: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        Minibroker(config=config)


def test_listeners_are_for_a_single_broker() -> None:
    with pytest.raises(ConfigError, match="single broker"):
        declared_listeners(Settings({"listeners": "PLAINTEXT://:9092"}), 2)


def test_log_dirs_keeps_the_data(tmp_path: Path) -> None:
    for _ in range(2):
        with Minibroker(config={"log.dirs": str(tmp_path / "logs")}) as broker:
            if "kept" not in broker.control.describe()["topics"]:
                broker.state.create_topic(topic="kept")
    assert (tmp_path / "logs" / "meta.properties").exists()
    with Minibroker(config={"log.dirs": str(tmp_path / "logs")}) as broker:
        assert "kept" in broker.control.describe()["topics"]


def test_inside_a_container(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mark, routes = tmp_path / "mark", tmp_path / "route"
    mark.touch()
    routes.write_text(
        "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n"
        "eth0 000011AC 00000000 0001 0 0 0 0000FFFF 0 0 0\n"
        "eth0 00000000 010011AC 0003 0 0 0 00000000 0 0 0\n"
    )
    monkeypatch.setattr(declared, "_CONTAINER_MARKS", (str(mark),))
    monkeypatch.setattr(declared, "_ROUTES", str(routes))
    monkeypatch.setattr(socket, "gethostname", lambda: "c0ffee")
    declared.name_in_container.cache_clear()
    try:
        name_for = declared.name_in_container()
        assert name_for is not None
        assert name_for("172.17.0.1", "172.17.0.5") == "localhost"
        assert name_for("172.17.0.9", "172.17.0.5") == "c0ffee"
        assert name_for("127.0.0.1", "127.0.0.1") == "127.0.0.1"
    finally:
        declared.name_in_container.cache_clear()


def test_outside_a_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(declared, "_CONTAINER_MARKS", ("/no/such/mark",))
    declared.name_in_container.cache_clear()
    try:
        assert declared.name_in_container() is None
    finally:
        declared.name_in_container.cache_clear()
