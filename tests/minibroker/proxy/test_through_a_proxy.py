"""A proxy in front of three brokers, over sockets."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from free_ports import free_port
from running_proxy import running_proxy
from scripted_broker import CLOSE, scripted_broker
from tls_files import LOCALHOST

from minibroker import Minibroker, Proxy, StartError
from minibroker.cli import main
from minibroker.client.cluster import ClusterClient
from minibroker.client.connection import Connection, ConnectionClosed
from minibroker.client.security import Security
from minibroker.faults import Error
from minibroker.kernel.addresses import format_address, parse_address
from minibroker.server.connection import send_reset_on_close
from minibroker.server.proxy_service import ProxyService
from minibroker_protocol import messages as m
from minibroker_protocol.headers import encode_request
from minibroker_protocol.records import Record, build_batch

GROUP = 0


@pytest.fixture(scope="module")
def brokers() -> Iterator[Minibroker]:
    few = {"offsets.topic.num.partitions": 1}
    with Minibroker(brokers=3, topics={"t": 3}, config=few, ephemeral=True) as running:
        yield running


@pytest.fixture(scope="module")
def proxy(brokers: Minibroker) -> Iterator[ProxyService]:
    with running_proxy(brokers.bootstrap_servers) as running:
        yield running


@pytest.fixture
def client(proxy: ProxyService) -> Iterator[ClusterClient]:
    with ClusterClient(proxy.bootstrap_servers) as asking:
        yield asking


def ports_of(servers: str) -> set[int]:
    return {parse_address(server)[1] for server in servers.split(",")}


def test_every_answer_with_an_address_leads_to_the_proxy(
    brokers: Minibroker, proxy: ProxyService, client: ClusterClient
) -> None:
    here, there = set(proxy.nodes.ports.values()), ports_of(brokers.bootstrap_servers)
    assert len(here) == 3
    assert not here & there

    def ports(request: Any, response: Any, *versions: int) -> Iterator[set[int]]:
        for version in versions:
            answer = client.ask_any(request, response, version)
            nodes = getattr(answer, "brokers", None) or getattr(answer, "coordinators", None) or [answer]
            yield {node.port for node in nodes}

    metadata = [*ports(m.MetadataRequest(topics=[]), m.MetadataResponse, *client.versions()[3])]
    cluster = m.DescribeClusterRequest(include_cluster_authorized_operations=False)
    metadata += ports(cluster, m.DescribeClusterResponse, 0)
    assert metadata == [here] * len(metadata)
    client.coordinator("g", GROUP)
    coordinators = [
        *ports(m.FindCoordinatorRequest(key="g"), m.FindCoordinatorResponse, 0, 3),
        *ports(m.FindCoordinatorRequest(coordinator_keys=["g"]), m.FindCoordinatorResponse, 4),
    ]
    assert all(found < here for found in coordinators)


def test_a_nodes_listener_is_that_node(brokers: Minibroker, proxy: ProxyService, client: ClusterClient) -> None:
    for (topic, partition), address in client.leaders(["t"]).items():
        leader = brokers.cluster.leader(topic, partition)
        assert leader is not None
        assert address == ("127.0.0.1", proxy.nodes.ports[leader])
        asked = m.ListOffsetsRequest.ListOffsetsPartition(partition_index=partition, timestamp=-1)
        named = m.ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[asked])
        answer = client.ask(address, m.ListOffsetsRequest(replica_id=-1, topics=[named]), m.ListOffsetsResponse, 5)
        assert answer.topics[0].partitions[0].error_code == 0  # another broker would not lead it


def test_clients_that_go_leave_nothing_behind() -> None:
    with scripted_broker() as upstream, running_proxy(upstream.bootstrap) as proxy:
        before = len(upstream.connections)
        with ClusterClient(proxy.bootstrap_servers) as client:
            client.brokers()
        with Connection(parse_address(proxy.bootstrap_servers), 5.0) as unfinished:
            unfinished.ask(m.ApiVersionsRequest(), 0, "app", 5.0)
            unfinished.send(b"\0\0\0\x20half")
        assert len(upstream.connections) > before
        deadline = time.monotonic() + 60
        while any(connection.fileno() != -1 for connection in upstream.connections):
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_broker_that_ends_takes_its_connections_along_and_has_its_port_again() -> None:
    with Minibroker(brokers=2, ephemeral=True) as brokers, running_proxy(brokers.bootstrap_servers) as proxy:
        ports = proxy.nodes.ports
        with Connection(("127.0.0.1", ports[2]), 5.0) as connection:
            connection.ask(m.ApiVersionsRequest(), 0, "app", 5.0)
            brokers.cluster.kill_broker(2)
            with pytest.raises(ConnectionClosed):
                connection.receive(5.0)
        with ClusterClient(proxy.bootstrap_servers) as client:
            assert list(client.brokers()) == [1]
            brokers.cluster.start_broker(2)
            assert client.brokers() == {n: ("127.0.0.1", port) for n, port in ports.items()}


def test_any_live_broker_is_reached_by_the_bootstrap_listener() -> None:
    with Minibroker(brokers=2, ephemeral=True) as brokers:
        first = brokers.bootstrap_servers.split(",")[0]
        with running_proxy(first) as proxy, ClusterClient(proxy.bootstrap_servers) as client:
            brokers.cluster.kill_broker(1)
            assert list(client.brokers()) == [2]


def test_a_node_that_comes_later_gets_a_listener() -> None:
    with Minibroker(ephemeral=True) as brokers, running_proxy(brokers.bootstrap_servers) as proxy:
        before = proxy.nodes.ports
        added = brokers.cluster.add_broker()
        with ClusterClient(proxy.bootstrap_servers) as client:
            found = client.brokers()
            assert found.keys() == {*before, added}
            assert client.ask(found[added], m.ApiVersionsRequest(), m.ApiVersionsResponse, 0).error_code == 0


def test_a_node_has_the_port_that_it_was_given_and_no_other_takes_it(brokers: Minibroker) -> None:
    port = next(port for port in iter(free_port, 0) if is_free(port + 1))
    with Proxy(brokers.bootstrap_servers, port=port, ports={2: port + 1}) as proxy:
        with ClusterClient(proxy.bootstrap_servers) as client:
            ports = {node: address[1] for node, address in client.brokers().items()}
        assert ports[2] == port + 1
        assert len({port, *ports.values()}) == 4
        with pytest.raises(StartError, match=f"{port + 1}"), Proxy(brokers.bootstrap_servers, ports={1: port + 1}):
            pass


def test_answers_name_the_advertised_host(brokers: Minibroker) -> None:
    with (
        running_proxy(brokers.bootstrap_servers, advertised_host="localhost") as proxy,
        ClusterClient(proxy.bootstrap_servers) as client,
    ):
        assert {host for host, _ in client.brokers().values()} == {"localhost"}


def test_limits_of_the_listeners_are_kept(brokers: Minibroker) -> None:
    with (
        running_proxy(brokers.bootstrap_servers, config={"max.connections": 1}) as proxy,
        Connection(parse_address(proxy.bootstrap_servers), 5.0) as first,
        Connection(parse_address(proxy.bootstrap_servers), 5.0) as second,
    ):
        first.ask(m.ApiVersionsRequest(), 0, "app", 5.0)
        with pytest.raises(ConnectionClosed):
            second.ask(m.ApiVersionsRequest(), 0, "app", 5.0)


def test_a_rule_acts_on_a_listener_that_was_opened_after_it() -> None:
    with Minibroker(ephemeral=True) as brokers, Proxy(brokers.bootstrap_servers) as proxy:
        added = brokers.cluster.add_broker()
        rule = proxy.faults.inject("ListGroups", Error("COORDINATOR_NOT_AVAILABLE"), broker=added)
        with ClusterClient(proxy.bootstrap_servers) as client:
            answer = client.ask(client.brokers()[added], m.ListGroupsRequest(), m.ListGroupsResponse, 2)
        assert (answer.error_code, rule.fired) == (15, 1)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_a_login_passes_and_tls_ends_here_and_begins_anew(mechanism: str, tmp_path: Path) -> None:
    tls = {"minibroker.security.protocol": "SASL_SSL", "ssl.keystore.location": str(LOCALHOST)}
    users = {"minibroker.sasl.users": "alice:secret,proxy:own", "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256"}
    login = {"security.protocol": "SASL_SSL", "ssl.truststore.location": str(LOCALHOST), "sasl.mechanism": mechanism}
    config = tmp_path / "proxy.properties"
    own = {**login, "sasl.username": "proxy", "sasl.password": "own"}
    config.write_text("\n".join(f"{name}={value}" for name, value in own.items()))
    security = Security.of({**login, "sasl.username": "alice", "sasl.password": "secret"})
    with (
        Minibroker(config={**tls, **users}, ephemeral=True) as broker,
        running_proxy(broker.bootstrap_servers, command_config=str(config), config=tls) as proxy,
    ):
        port = parse_address(proxy.bootstrap_servers)[1]
        for host in ("127.0.0.1", "localhost"):  # as the certificate has to name it, so that of the handshake (SNI)
            with ClusterClient(f"{host}:{port}", security=security) as client:
                assert client.brokers() == {1: (host, proxy.nodes.ports[1])}


def test_a_producer_with_acks_0_that_leaves_at_once_loses_nothing(proxy: ProxyService, client: ClusterClient) -> None:
    """Its connection to the upstream is still in the making then."""
    batch = build_batch([Record(value=b"v")])
    data = m.ProduceRequest.PartitionProduceData(index=0, records=batch)
    topic = m.ProduceRequest.TopicProduceData(name="t", partition_data=[data])
    frame = encode_request(m.ProduceRequest(acks=0, timeout_ms=1000, topic_data=[topic]), 9, 1, "app")
    place = m.ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)
    asked = m.ListOffsetsRequest(
        replica_id=-1, topics=[m.ListOffsetsRequest.ListOffsetsTopic(name="t", partitions=[place])]
    )

    def end() -> int:
        answer = client.ask(client.leader("t", 0), asked, m.ListOffsetsResponse, 5)
        return answer.topics[0].partitions[0].offset

    before = end()
    for _ in range(2):
        with socket.create_connection(client.leader("t", 0)) as producer:
            producer.sendall((len(frame).to_bytes(4, "big") + frame) * 100)
    deadline = time.monotonic() + 60
    while end() < before + 200 and time.monotonic() < deadline:
        pass
    assert end() == before + 200


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A broker that refuses connections until it listens, and then reads what a test reads."""
    with socket.socket() as broker:
        broker.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        broker.settimeout(60)
        broker.bind(("127.0.0.1", 0))
        yield broker


def leave(client: socket.socket, proxy: ProxyService) -> None:
    """What a client has sent that only closes is still served; this one resets its connection. The proxy has heard of
    it when it has refused a later one."""
    send_reset_on_close(client)
    client.close()
    with socket.create_connection(parse_address(proxy.bootstrap_servers)) as stranger, suppress(ConnectionError):
        stranger.sendall(b"\xff\xff\xff\xff")
        assert stranger.recv(1) == b""


def received(connection: socket.socket, at_most: int = 1 << 62) -> int:
    """How many bytes come until so many have, or until the connection ends."""
    count = 0
    with suppress(ConnectionError):
        while count < at_most and (data := connection.recv(1 << 20)):
            count += len(data)
    return count


@pytest.mark.parametrize("leaves", [True, False])
def test_a_stop_ends_connections_that_are_still_being_made(leaves: bool, silent: socket.socket, tmp_path: Path) -> None:
    """The upstream accepts them and says nothing of TLS, for which a proxy that does not stop waits 10 seconds."""
    tls = {"minibroker.security.protocol": "SSL", "ssl.keystore.location": str(LOCALHOST)}
    config = tmp_path / "proxy.properties"
    config.write_text(f"security.protocol=SSL\nssl.truststore.location={LOCALHOST}\n")
    with Minibroker(config=tls, ephemeral=True) as broker:
        upstream = f"{format_address(*silent.getsockname())},{broker.bootstrap_servers}"
        with running_proxy(upstream, command_config=str(config)) as proxy:
            silent.listen()
            client = socket.create_connection(parse_address(proxy.bootstrap_servers))
            frame = encode_request(m.ApiVersionsRequest(), 0, 1, "app")
            client.sendall(len(frame).to_bytes(4, "big") + frame)
            connecting, _ = silent.accept()
            assert connecting.recv(1) == b"\x16"  # a handshake of TLS
            if leaves:
                leave(client, proxy)
            stops = time.monotonic()
        assert time.monotonic() - stops < 9
    with client, connecting:
        connecting.settimeout(60)
        assert received(connecting) < 1 << 16


def test_a_stop_ends_connections_whose_bytes_are_still_unread(brokers: Minibroker, silent: socket.socket) -> None:
    """More of them than sockets hold: those that a client left are written as long as the proxy runs."""
    size = 64 << 20
    data = m.ProduceRequest.PartitionProduceData(index=0, records=bytes(size))
    topic = m.ProduceRequest.TopicProduceData(name="t", partition_data=[data])
    frame = encode_request(m.ProduceRequest(acks=1, timeout_ms=1000, topic_data=[topic]), 9, 1, "app")
    with running_proxy(f"{format_address(*silent.getsockname())},{brokers.bootstrap_servers}") as proxy:
        silent.listen()
        client = socket.create_connection(parse_address(proxy.bootstrap_servers))
        client.sendall(len(frame).to_bytes(4, "big") + frame)
        unread, _ = silent.accept()
        first = received(unread, 1)
        leave(client, proxy)
        first += received(unread, size // 2)
        assert first >= size // 2
    with unread:
        unread.settimeout(5)
        assert first + received(unread) < size


# -- bad input ---------------------------------------------------------------------------------------------------------


def refusal(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str]:
    code = main(["proxy", "--log-level", "error", *options])
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    return code, said.err


def is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def test_an_upstream_that_cannot_be_reached(capsys: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    assert refusal(capsys, "--upstream", f"127.0.0.1:{port}") == (
        1,
        f"minibroker: the upstream: cannot connect to 127.0.0.1:{port}: Connection refused\n",
    )


def test_an_upstream_that_wants_a_login(capsys: pytest.CaptureFixture[str]) -> None:
    with scripted_broker() as upstream:
        upstream.handlers[m.MetadataRequest] = lambda request, version: CLOSE
        code, line = refusal(capsys, "--upstream", upstream.bootstrap)
    assert code == 1
    assert "does this listener want TLS or a password? (--command-config)" in line


def test_an_upstream_that_is_not_kafka(capsys: pytest.CaptureFixture[str]) -> None:
    with scripted_broker() as upstream:
        upstream.handlers[m.ApiVersionsRequest] = lambda request, version: b"HTTP/1.1 400 Bad Request"
        code, line = refusal(capsys, "--upstream", upstream.bootstrap)
    assert code == 1
    assert line.startswith(f"minibroker: the upstream: {upstream.bootstrap}: ")


def test_an_upstream_that_leads_back_here(brokers: Minibroker, capsys: pytest.CaptureFixture[str]) -> None:
    own = free_port()
    assert refusal(capsys, "--port", str(own), "--upstream", f"127.0.0.1:{own}") == (
        1,
        "minibroker: the upstream: it leads back to this proxy\n",
    )
    # And past another one: this one's upstream is the other, whose upstream is this one's port.
    with socket.create_server(("127.0.0.1", 0)) as placeholder:
        own = placeholder.getsockname()[1]
        servers = f"127.0.0.1:{own},{brokers.bootstrap_servers}"
    with running_proxy(servers) as other:
        assert refusal(capsys, "--port", str(own), "--upstream", other.bootstrap_servers)[1] == (
            "minibroker: the upstream: it leads back to this proxy\n"
        )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--upstream", "kafka"], "'kafka' is not HOST:PORT"),
        (["--upstream", "a..b:9092"], "'a..b:9092' is not HOST:PORT"),
        (["--upstream", "k:1", "--port", "70000"], "the port is between 0 and 65535, not 70000"),
        (["--upstream", "k:1", "--command-config", "/nowhere"], "/nowhere: No such file or directory"),
        (["--upstream", "k:1", "-c", "minibroker.security.protocol=SSL"], "needs ssl.keystore.location"),
        (["--upstream", "k:1", "-c", "advertised.listeners=PLAINTEXT://h:1"], "advertised.listeners is for brokers"),
        (["--upstream", "k:1", "-c", "ssl.cipher.suites=x"], "ssl.cipher.suites has no effect here; a proxy reads"),
        (["--upstream", "k:1", "-c", "ssl.engine.factory.class=x"], "ssl.engine.factory.class has no effect here"),
        (["--upstream", "k:1", "-c", "max.conections=1"], "max.connections"),
        (["--upstream", "k:1", "--ports", "1"], "a node's port is ID=PORT"),
        (["--upstream", "k:1", "--ports", "1=9001,1=9002"], "each id once"),
        (["--upstream", "k:1", "--ports", "1=9001,2=9001"], "cannot have one port"),
        (["--upstream", "k:1", "--ports", "1=9001", "--control", "127.0.0.1:9001"], "one and the control API, cannot"),
        (["--upstream", "k:1", "--host", "0.0.0.0", "--port", "9001", "--control", "127.0.0.1:9001"], "one port"),
        (["--upstream", "k:1", "--ports", "1=70000"], "not 1=70000"),
    ],
)
def test_options_that_make_no_sense(capsys: pytest.CaptureFixture[str], options: list[str], said: str) -> None:
    try:
        code, line = refusal(capsys, *options)
    except SystemExit as ended:
        code, line = ended.code, capsys.readouterr().err  # type: ignore[assignment]
    assert code == 2
    assert said in line
