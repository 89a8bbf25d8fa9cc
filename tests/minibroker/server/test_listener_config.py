"""listeners, advertised.listeners and log.dirs, as Kafka's images set them."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from free_ports import free_port

from minibroker import ConfigError, Minibroker, StartError
from minibroker.client.connection import Connection
from minibroker.config.settings import Settings
from minibroker.server.listener_config import listener_configs, name_in_container
from minibroker_protocol.messages.headers import RequestHeader
from minibroker_protocol.messages.metadata import MetadataRequest, MetadataResponse


def metadata(port: int) -> MetadataResponse:
    header = RequestHeader(request_api_key=3, request_api_version=4, correlation_id=1, client_id="t")
    request = MetadataRequest(topics=[], allow_auto_topic_creation=False)
    with Connection(("127.0.0.1", port), 5) as connection:
        connection.send_frame(header.encode(1) + request.encode(4))
        return MetadataResponse.decode(connection.receive(5), 4, 4)


def brokers_told(port: int) -> list[tuple[str, int]]:
    return [(broker.host, broker.port) for broker in metadata(port).brokers]


def test_each_listener_has_its_own_address_for_clients() -> None:
    inside, outside = free_port(), free_port()
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
    port = free_port()
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
        (
            {"listeners": "A://h:1", "listener.security.protocol.map": "B:SSL"},
            "No security protocol defined for listener A",
        ),
        ({"listeners": "A://h:1", "listener.security.protocol.map": "A:TLS"}, "'TLS' is no security protocol"),
        ({"log.dirs": "/a,/b"}, "one directory"),
    ],
)
def test_what_cannot_be_is_refused_at_once(config: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        Minibroker(config=config)


def test_listeners_are_for_a_single_broker() -> None:
    with pytest.raises(ConfigError, match="single broker"):
        listener_configs(Settings({"listeners": "PLAINTEXT://:9092"}), 2)


def test_log_dirs_keeps_the_data(tmp_path: Path) -> None:
    for _ in range(2):
        with Minibroker(config={"log.dirs": str(tmp_path / "logs")}) as broker:
            if "kept" not in broker.control.describe()["topics"]:
                broker.state.create_topic(topic="kept")
    assert (tmp_path / "logs" / "meta.properties").exists()
    with Minibroker(config={"log.dirs": str(tmp_path / "logs")}) as broker:
        assert "kept" in broker.control.describe()["topics"]
    with Minibroker(config={"log.dirs": str(tmp_path / "logs")}, data_dir=str(tmp_path / "said")) as broker:
        assert "kept" not in broker.control.describe()["topics"]
    assert (tmp_path / "said" / "meta.properties").exists()


def identity(port: int) -> tuple[str | None, int]:
    """(cluster id, node id of the one broker) as Metadata tells them."""
    answer = metadata(port)
    return answer.cluster_id, answer.brokers[0].node_id


@pytest.mark.parametrize("name", ["node.id", "broker.id"])
@pytest.mark.parametrize("ephemeral", [True, False])
def test_node_and_cluster_id_are_the_given_ones(name: str, ephemeral: bool) -> None:
    for node_id in (0, 7):
        config = {name: node_id, "minibroker.cluster.id": "4L6g3nShT-eMCtK--X86sw"}
        with Minibroker(config=config, ephemeral=ephemeral) as broker:
            assert identity(int(broker.bootstrap_servers.rpartition(":")[2])) == ("4L6g3nShT-eMCtK--X86sw", node_id)


def test_the_rack_is_told_to_clients() -> None:
    with Minibroker(config={"broker.rack": "r1"}, ephemeral=True) as broker:
        told = metadata(int(broker.bootstrap_servers.rpartition(":")[2])).brokers
        assert [one.rack for one in told] == ["r1"]


def test_node_id_outweighs_broker_id() -> None:
    with Minibroker(config={"node.id": 3, "broker.id": 4}) as broker:
        assert identity(int(broker.bootstrap_servers.rpartition(":")[2]))[1] == 3


@pytest.mark.parametrize(
    ("config", "reason"),
    [({"node.id": 4}, "node.id 3, not of 4"), ({"minibroker.cluster.id": "other"}, "of cluster first, this is")],
)
def test_a_data_directory_keeps_its_identity(config: Mapping[str, Any], reason: str, tmp_path: Path) -> None:
    with Minibroker(config={"node.id": 3, "minibroker.cluster.id": "first"}, data_dir=str(tmp_path)):
        pass
    with pytest.raises((ConfigError, StartError), match=reason):
        Minibroker(config=config, data_dir=str(tmp_path)).start()
    with Minibroker(data_dir=str(tmp_path)) as broker:
        assert identity(int(broker.bootstrap_servers.rpartition(":")[2])) == ("first", 3)


def test_identities_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match=r"minibroker\.cluster\.id"):
        Minibroker(config={"minibroker.cluster.id": "a\nb"})
    with pytest.raises(ConfigError, match=r"node\.id is for a single broker"):
        Minibroker(config={"node.id": 5}, brokers=2).start()


def test_inside_a_container(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mark, routes = tmp_path / "mark", tmp_path / "route"
    mark.touch()
    routes.write_text(
        "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n"
        "eth0 000011AC 00000000 0001 0 0 0 0000FFFF 0 0 0\n"
        "eth0 00000000 010011AC 0003 0 0 0 00000000 0 0 0\n"
    )
    monkeypatch.setattr(socket, "gethostname", lambda: "c0ffee")
    name_for = name_in_container((str(mark),), str(routes))
    assert name_for is not None
    assert name_for("172.17.0.1", "172.17.0.5") == "localhost"
    assert name_for("172.17.0.9", "172.17.0.5") == "c0ffee"
    assert name_for("127.0.0.1", "127.0.0.1") == "127.0.0.1"


def test_outside_a_container() -> None:
    assert name_in_container(("/no/such/mark",)) is None
