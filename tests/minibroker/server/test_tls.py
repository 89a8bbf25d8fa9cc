"""Listeners whose protocol is SSL: who is let in, what they are told, and what cannot be used as a key."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
from free_ports import free_port
from tls_files import ENCRYPTED, LOCALHOST, trusting

from minibroker import ConfigError, Minibroker
from minibroker.config.settings import Settings
from minibroker.security.tls import make_certificate
from minibroker_protocol.messages.headers import RequestHeader
from minibroker_protocol.messages.metadata import MetadataRequest, MetadataResponse

NAMES = {"listener.security.protocol.map": "HOST:SSL,PLAIN:PLAINTEXT"}
KEY = {"ssl.keystore.location": str(LOCALHOST)}


def received(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise ConnectionError("the broker closed the connection")
        data += more
    return data


def ask(
    port: int, name: str | None, topics: list[str], *, context: ssl.SSLContext | None = None, host: str = "127.0.0.1"
) -> MetadataResponse:
    """Metadata over TLS, to a broker that the client calls `name`."""
    header = RequestHeader(request_api_key=3, request_api_version=4, correlation_id=1, client_id="t")
    request = MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=topic) for topic in topics], allow_auto_topic_creation=False
    )
    frame = header.encode(1) + request.encode(4)
    with (
        socket.create_connection((host, port), 10) as plain,
        (context or trusting()).wrap_socket(plain, server_hostname=name) as connection,
    ):
        connection.sendall(len(frame).to_bytes(4, "big") + frame)
        size = int.from_bytes(received(connection, 4), "big")
        return MetadataResponse.decode(received(connection, size), 4, 4)


def told(port: int, name: str | None, **more: Any) -> list[tuple[str, int]]:
    return [(broker.host, broker.port) for broker in ask(port, name, [], **more).brokers]


@pytest.mark.parametrize("uvloop", ["true", "false"])
def test_clients_are_told_the_name_they_asked_for(uvloop: str) -> None:
    port, plain, fixed = free_port(), free_port(), free_port()
    config = {
        "listeners": f"HOST://0.0.0.0:{port},PLAIN://127.0.0.1:{plain},SSL://127.0.0.1:{fixed}",
        "advertised.listeners": f"SSL://fixed.example:{fixed}",
        "minibroker.uvloop": uvloop,
    }
    with Minibroker(config=config | NAMES | KEY) as broker:
        for _ in range(2):
            assert told(port, "kafka.example") == [("kafka.example", port)]
            assert told(port, "localhost") == [("localhost", port)]
            assert told(port, "127.0.0.1") == [("127.0.0.1", port)]  # an address is not a server name
            assert told(fixed, "kafka.example") == [("fixed.example", fixed)]
            broker.state.restart_broker(broker=1)


def test_large_requests_and_answers_pass() -> None:
    port = free_port()
    topics = [f"t-{number:030}" for number in range(20_000)]
    with Minibroker(config={"listeners": f"HOST://127.0.0.1:{port}"} | NAMES | KEY):
        answer = ask(port, "localhost", topics)
    assert [topic.name for topic in answer.topics] == topics


TRUSTED = LOCALHOST.read_text()
TRUSTED = TRUSTED[TRUSTED.index("-----BEGIN CERTIFICATE-----") :]


@pytest.mark.parametrize(
    "truststore", [{"ssl.truststore.location": str(LOCALHOST)}, {"ssl.truststore.certificates": TRUSTED}], ids=str
)
def test_a_client_that_must_show_a_certificate(truststore: dict[str, str]) -> None:
    port = free_port()
    config = {"ssl.client.auth": "required", **truststore}
    known = trusting()
    known.load_cert_chain(LOCALHOST)
    with Minibroker(config={"listeners": f"HOST://127.0.0.1:{port}"} | config | NAMES | KEY):
        assert told(port, "localhost", context=known) == [("localhost", port)]
        with pytest.raises(OSError):
            told(port, "localhost")
        assert told(port, "localhost", context=known) == [("localhost", port)]


def test_plain_text_at_a_port_of_tls_harms_nobody_else() -> None:
    port = free_port()
    with Minibroker(config={"listeners": f"HOST://127.0.0.1:{port}"} | NAMES | KEY):
        with socket.create_connection(("127.0.0.1", port), 10) as plain:
            plain.sendall(b"\0\0\0\x11\0\x12\0\0\0\0\0\1\0\7healthy")
            assert plain.recv(100)[:1] in (b"", b"\x15")  # closed, or an alert and closed
        assert told(port, "localhost") == [("localhost", port)]


def test_keys_may_be_in_the_settings_and_have_a_password() -> None:
    port = free_port()
    key, _, chain = ENCRYPTED.read_text().partition("-----BEGIN CERTIFICATE-----")
    config = {
        "ssl.keystore.key": key,
        "ssl.keystore.certificate.chain": f"-----BEGIN CERTIFICATE-----{chain}",
        "ssl.key.password": "secret",
    }
    with Minibroker(config={"listeners": f"HOST://127.0.0.1:{port}"} | config | NAMES):
        assert told(port, "localhost") == [("localhost", port)]
    shown = {entry.name: entry for entry in Settings(config).describe()}
    assert {shown[name].value for name in config} == {None}
    assert {synonym.value for name in config for synonym in shown[name].synonyms} == {None}


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({}, "needs ssl.keystore.location"),
        ({"ssl.keystore.key": "x"}, "needs ssl.keystore.location"),
        ({"ssl.keystore.location": "/no/such/file"}, "ssl.keystore.location: /no/such/file cannot be read"),
        ({"ssl.keystore.location": __file__}, "cannot be used as PEM"),
        ({"ssl.keystore.location": str(ENCRYPTED)}, "cannot be used as PEM"),
        ({"ssl.keystore.key": "x", "ssl.keystore.certificate.chain": "y"}, "ssl.keystore.key cannot be used as PEM"),
        ({"ssl.keystore.type": "JKS"}, "ssl.keystore.type"),
        (KEY | {"ssl.client.auth": "required"}, "needs ssl.truststore"),
        (KEY | {"ssl.truststore.location": "/no/such/file"}, "ssl.truststore.location"),
        (KEY | {"ssl.truststore.location": __file__}, "ssl.truststore.location cannot be used as PEM"),
        (KEY | {"ssl.truststore.certificates": "x"}, "ssl.truststore.certificates"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(config: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as refused:
        Minibroker(config={"listeners": "HOST://127.0.0.1:1"} | config | NAMES)
    assert "\n" not in str(refused.value)


def test_a_certificate_that_cannot_be_written_is_refused_in_one_line(tmp_path: Path) -> None:
    settings = Settings({"minibroker.ssl.ca.location": str(tmp_path / "none" / "ca.pem")})
    with pytest.raises(ConfigError, match=r"minibroker.ssl.ca.location: .*ca.pem cannot be written: No such file"):
        make_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), settings, ["localhost"])


def test_no_key_is_left_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    config = {"ssl.keystore.key": "x", "ssl.keystore.certificate.chain": "y"}
    with pytest.raises(ConfigError):
        Minibroker(config={"listeners": "HOST://127.0.0.1:1"} | config | NAMES)
    assert list(tmp_path.iterdir()) == []
