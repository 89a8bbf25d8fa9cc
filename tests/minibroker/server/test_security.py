"""Listeners with TLS and SASL, on the wire."""

from __future__ import annotations

import contextlib
import hashlib
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import NameOID
from golden import unpack

from minibroker import ConfigError, Minibroker, StartError
from minibroker.cli import main
from minibroker.client.connection import BrokerFailed, Connection, ConnectionClosed
from minibroker.client.security import PLAINTEXT, Security
from minibroker.kernel.addresses import parse_address
from minibroker.security.certificate_names import subject_name
from minibroker_protocol import messages as m
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.headers import RequestHeader
from minibroker_protocol.messages.metadata import MetadataRequest, MetadataResponse
from minibroker_protocol.messages.produce import ProduceRequest, ProduceResponse
from minibroker_protocol.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from minibroker_protocol.messages.topics import CreateTopicsRequest, CreateTopicsResponse
from minibroker_protocol.records import Record, build_batch

USERS = {"minibroker.sasl.users": "alice:secret", "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256"}
JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="secret";'


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, True),
        ({"minibroker.security.protocol": "SASL_PLAINTEXT"}, False),
        ({"minibroker.security.protocol": "SASL_PLAINTEXT", "listeners": "PLAINTEXT://127.0.0.1:0"}, True),
        ({"listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0"}, False),
    ],
)
def test_users_that_no_listener_asks_for_are_said(
    config: dict[str, str], said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with Minibroker(config={**USERS, **config}, ephemeral=True):
        assert ("minibroker.sasl.users has no effect" in caplog.text) == said
    assert "secret" not in caplog.text


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def pems(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ca.pem, server.pem and client.pem."""
    directory = tmp_path_factory.mktemp("pems")
    authority.cert_pem.write_to_path(directory / "ca.pem")
    server = authority.issue_cert("localhost", "127.0.0.1", "kafka.test")
    server.private_key_and_cert_chain_pem.write_to_path(directory / "server.pem")
    client = authority.issue_cert("client.test", common_name="client", organization_name="Tests")
    client.private_key_and_cert_chain_pem.write_to_path(directory / "client.pem")
    return directory


@contextlib.contextmanager
def broker(protocol: str, pems: Path | None = None, **config: str) -> Iterator[tuple[str, int]]:
    settings: dict[str, Any] = {"minibroker.security.protocol": protocol, **USERS, **config}
    if pems is not None:
        settings["ssl.keystore.location"] = str(pems / "server.pem")
    with Minibroker(config=settings, ephemeral=True) as running:
        yield parse_address(running.bootstrap_servers)


def brokers_told(address: tuple[str, int], security: Security) -> list[tuple[str, int]]:
    request = MetadataRequest(topics=[], allow_auto_topic_creation=False)
    with security.connect(address, 5) as connection:
        connection.send_frame(header(3, 4) + request.encode(4))
        response = MetadataResponse.decode(connection.receive(5), 4, 4)
    return [(broker.host, broker.port) for broker in response.brokers]


def header(api_key: int, version: int) -> bytes:
    made = RequestHeader(request_api_key=api_key, request_api_version=version, correlation_id=1, client_id="t")
    return bytes(made.encode(1))


def login(mechanism: str = "PLAIN", protocol: str = "SASL_PLAINTEXT", jaas: str = JAAS, **more: str) -> Security:
    return Security.of({"security.protocol": protocol, "sasl.mechanism": mechanism, "sasl.jaas.config": jaas, **more})


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_a_user_gets_in_and_a_stranger_is_told_why_not(mechanism: str) -> None:
    with broker("SASL_PLAINTEXT") as address:
        assert brokers_told(address, login(mechanism)) == [address]
        with pytest.raises(BrokerFailed, match="login refused: Authentication failed"):
            brokers_told(address, login(mechanism, jaas=JAAS.replace("secret", "wrong")))


def scram(user: str, password: str, mechanism: str = "SCRAM-SHA-256") -> Security:
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    return login(mechanism, jaas=f'{module} required username="{user}" password="{password}";')


def produce_code(address: tuple[str, int], security: Security, topic: str) -> int:
    batch = bytes(build_batch([Record(0, 0, b"k", b"v")]))
    data = ProduceRequest.TopicProduceData(
        name=topic, partition_data=[ProduceRequest.PartitionProduceData(index=0, records=batch)]
    )
    request = ProduceRequest(transactional_id=None, acks=-1, timeout_ms=1000, topic_data=[data])
    with security.connect(address, 5) as connection:
        connection.send_frame(header(0, 8) + request.encode(8))
        response = ProduceResponse.decode(connection.receive(5), 8, 4)
    return response.responses[0].partition_responses[0].error_code


def test_users_and_acls_of_a_kafka_directory_hold_at_this_start_and_the_next(tmp_path: Path) -> None:
    directory = unpack("kafka-4.4.0/two-brokers.tar.xz", tmp_path) / "1a"
    config = {
        "minibroker.security.protocol": "SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
        "log.retention.ms": "-1",
    }
    alice = scram("alice", "alice-new")
    for _ in range(2):
        with Minibroker(data_dir=str(directory), config=config) as running:
            address = parse_address(running.bootstrap_servers)
            for known in (alice, scram("alice", "alice-secret", "SCRAM-SHA-512"), scram("bob", "bob-secret")):
                assert brokers_told(address, known) == [address]
            for stranger in (scram("alice", "old"), scram("dave", "dave-secret"), scram("carol", "carol-secret")):
                with pytest.raises(BrokerFailed, match="login refused"):
                    brokers_told(address, stranger)
            assert produce_code(address, alice, "open") == ErrorCode.NONE
            assert produce_code(address, alice, "secret") == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            assert produce_code(address, scram("bob", "bob-secret"), "open") == ErrorCode.TOPIC_AUTHORIZATION_FAILED


@pytest.mark.parametrize(
    ("mechanism", "number", "digest"), [("SCRAM-SHA-256", 1, "sha256"), ("SCRAM-SHA-512", 2, "sha512")]
)
def test_a_password_is_changed_and_taken_away(mechanism: str, number: int, digest: str) -> None:
    """KIP-554: the client sends the salted password, as kafka-configs.sh does."""
    kind = m.AlterUserScramCredentialsRequest

    def password(text: str) -> m.AlterUserScramCredentialsRequest:
        salted = hashlib.pbkdf2_hmac(digest, text.encode(), b"0123456789abcdef", 4096)
        change = kind.ScramCredentialUpsertion(
            name="drill", mechanism=number, iterations=4096, salt=b"0123456789abcdef", salted_password=salted
        )
        return kind(deletions=[], upsertions=[change])

    config = {
        "minibroker.security.protocol": "SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": f"PLAIN,{mechanism}",
        "minibroker.sasl.users": "alice:secret",
    }
    with Minibroker(config=config, ephemeral=True) as running:
        address = parse_address(running.bootstrap_servers)
        old, new = (scram("drill", text, mechanism) for text in ("old", "new"))

        def fits(security: Security) -> bool:
            try:
                return brokers_told(address, security) == [address]
            except BrokerFailed as error:
                assert "login refused" in str(error)  # noqa: PT017
                return False

        with login("PLAIN").connect(address, 5) as admin:
            for request, expected in (
                (password("old"), (True, False)),
                (password("new"), (False, True)),
                (
                    kind(deletions=[kind.ScramCredentialDeletion(name="drill", mechanism=number)], upsertions=[]),
                    (False, False),
                ),
            ):
                answer = admin.ask(request, 0, "admin", 5)
                assert [(one.user, one.error_code) for one in answer.results] == [("drill", 0)]
                assert (fits(old), fits(new)) == expected


def test_a_jaas_line_of_a_listener_names_its_users() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = {
        "listeners": f"IN://127.0.0.1:{port}",
        "listener.security.protocol.map": "IN:SASL_PLAINTEXT",
        "listener.name.in.plain.sasl.jaas.config": f'{JAAS[:-1]} user_carol="c";',
    }
    carol = JAAS.replace("alice", "carol").replace("secret", "c")
    with Minibroker(config=config, ephemeral=True):
        assert brokers_told(("127.0.0.1", port), login(jaas=carol)) == [("127.0.0.1", port)]
        with pytest.raises(BrokerFailed, match="Invalid username or password"):
            brokers_told(("127.0.0.1", port), login())


def test_who_has_not_said_who_it_is_gets_no_answer() -> None:
    with broker("SASL_PLAINTEXT") as address, pytest.raises(ConnectionClosed):
        brokers_told(address, PLAINTEXT)


@pytest.mark.parametrize(("setting", "most"), [({}, 512 * 1024), ({"sasl.server.max.receive.size": "1000"}, 1000)])
def test_before_a_login_a_request_has_sasl_server_max_receive_size_at_most(setting: dict[str, str], most: int) -> None:
    with broker("SASL_PLAINTEXT", **setting) as address:
        handshake = header(17, 0) + SaslHandshakeRequest(mechanism="PLAIN").encode(0)
        with Connection(address, 5) as client:
            client.send_frame(handshake)
            client.receive(5)
            client.send((most + 1).to_bytes(4, "big"))
            with pytest.raises(ConnectionClosed):
                client.receive(5)
        topics = [MetadataRequest.MetadataRequestTopic(name="x" * 249) for _ in range(most // 250 + 1)]
        with login().connect(address, 5) as client:
            client.send_frame(header(3, 4) + MetadataRequest(topics=topics).encode(4))
            assert client.receive(5)


def test_a_mechanism_that_is_not_offered_closes_the_connection_after_its_answer() -> None:
    with broker("SASL_PLAINTEXT") as address, Connection(address, 5) as connection:
        connection.send_frame(header(17, 1) + SaslHandshakeRequest(mechanism="GSSAPI").encode(1))
        answer = SaslHandshakeResponse.decode(connection.receive(5), 1, 4)
        assert (answer.error_code, answer.mechanisms) == (33, ["PLAIN", "SCRAM-SHA-256"])
        with pytest.raises(ConnectionClosed):
            connection.receive(5)


def test_a_second_handshake_is_told_that_it_has_no_place_before_the_connection_closes() -> None:
    """As a live Kafka 4.3.1: 0, then 34 with no mechanisms, then the end."""
    with broker("SASL_PLAINTEXT") as address, Connection(address, 5) as connection:
        frame = header(17, 1) + SaslHandshakeRequest(mechanism="PLAIN").encode(1)
        connection.send_frame(frame)
        assert SaslHandshakeResponse.decode(connection.receive(5), 1, 4).error_code == 0
        connection.send_frame(frame)
        second = SaslHandshakeResponse.decode(connection.receive(5), 1, 4)
        assert (second.error_code, second.mechanisms) == (34, [])
        with pytest.raises(ConnectionClosed):
            connection.receive(5)


def test_between_handshake_and_token_nothing_else_is_answered() -> None:
    with broker("SASL_PLAINTEXT") as address, Connection(address, 5) as connection:
        connection.send_frame(header(17, 1) + SaslHandshakeRequest(mechanism="PLAIN").encode(1))
        assert SaslHandshakeResponse.decode(connection.receive(5), 1, 4).error_code == 0
        connection.send_frame(header(3, 4) + MetadataRequest(topics=[]).encode(4))
        with pytest.raises(ConnectionClosed):
            connection.receive(5)


def test_the_connection_closes_once_the_refusal_of_a_token_is_sent() -> None:
    """As Kafka, which gives no second try."""
    with broker("SASL_PLAINTEXT") as address, Connection(address, 5) as connection:
        connection.send_frame(header(17, 1) + SaslHandshakeRequest(mechanism="PLAIN").encode(1))
        connection.receive(5)
        connection.send_frame(header(36, 0) + SaslAuthenticateRequest(auth_bytes=b"\0alice\0wrong").encode(0))
        assert SaslAuthenticateResponse.decode(connection.receive(5), 0, 4).error_code == 58
        with pytest.raises(ConnectionClosed):
            connection.receive(5)


def test_tokens_without_headers_after_a_handshake_of_version_0() -> None:
    with broker("SASL_PLAINTEXT") as address:
        for password, lets_in in ((b"secret", True), (b"wrong", False)):
            with Connection(address, 5) as connection:
                connection.send_frame(header(17, 0) + SaslHandshakeRequest(mechanism="PLAIN").encode(0))
                assert SaslHandshakeResponse.decode(connection.receive(5), 0, 4).error_code == 0
                connection.send_frame(b"\0alice\0" + password)
                if not lets_in:
                    with pytest.raises(ConnectionClosed):
                        connection.receive(5)
                    continue
                assert connection.receive(5) == b""
                connection.send_frame(header(3, 4) + MetadataRequest(topics=[]).encode(4))
                assert MetadataResponse.decode(connection.receive(5), 4, 4).brokers


def test_who_is_in_need_not_say_so_again() -> None:
    with broker("SASL_PLAINTEXT") as address, login().connect(address, 5) as connection:
        connection.send_frame(header(17, 1) + SaslHandshakeRequest(mechanism="PLAIN").encode(1))
        assert SaslHandshakeResponse.decode(connection.receive(5), 1, 4).error_code == 34  # ILLEGAL_SASL_STATE


def test_tls_and_the_name_the_client_asked_for(pems: Path) -> None:
    with broker("SSL", pems) as (host, port):
        security = Security.of({"security.protocol": "SSL", "ssl.truststore.location": str(pems / "ca.pem")})
        assert brokers_told((host, port), security) == [(host, port)]
        assert brokers_told(("localhost", port), security) == [("localhost", port)]


def test_plain_bytes_at_a_tls_listener_get_no_answer(pems: Path) -> None:
    with broker("SSL", pems) as address, pytest.raises(ConnectionClosed):
        brokers_told(address, PLAINTEXT)


def test_a_client_must_show_a_certificate_where_one_is_required(pems: Path) -> None:
    wanted = {"ssl.client.auth": "required", "ssl.truststore.location": str(pems / "ca.pem")}
    trusting = {"security.protocol": "SSL", "ssl.truststore.location": str(pems / "ca.pem")}
    with broker("SSL", pems, **wanted) as address:
        security = Security.of({**trusting, "ssl.keystore.location": str(pems / "client.pem")})
        assert brokers_told(address, security) == [address]
        with pytest.raises(ConnectionClosed):
            brokers_told(address, Security.of(trusting))


def client_pem(authority: trustme.CA, place: Path, *subject: tuple[x509.ObjectIdentifier, str]) -> str:
    """A file with a key and a certificate of `authority` for a subject."""
    key = ec.generate_private_key(ec.SECP256R1())
    signer = load_pem_private_key(authority.private_key_pem.bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    issuer = x509.load_pem_x509_certificate(authority.cert_pem.bytes())
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(kind, value) for kind, value in subject]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(issuer.not_valid_before_utc)
        .not_valid_after(issuer.not_valid_after_utc)
        .sign(signer, SHA256())
    )
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    place.write_bytes(secret + made.public_bytes(Encoding.PEM))
    return str(place)


def test_a_subject_whose_text_looks_like_a_super_users_is_not_one(
    authority: trustme.CA, pems: Path, tmp_path: Path
) -> None:
    admin = client_pem(
        authority, tmp_path / "a.pem", (NameOID.ORGANIZATION_NAME, "corp"), (NameOID.COMMON_NAME, "admin")
    )
    other = client_pem(authority, tmp_path / "b.pem", (NameOID.COMMON_NAME, "admin,O=corp"))
    config = {
        "ssl.client.auth": "required",
        "ssl.truststore.location": str(pems / "ca.pem"),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:CN=admin,O=corp",
    }
    request = CreateTopicsRequest(
        topics=[CreateTopicsRequest.CreatableTopic(name="t", num_partitions=1, replication_factor=1)]
    )
    trusting = {"security.protocol": "SSL", "ssl.truststore.location": str(pems / "ca.pem")}

    def error_of(pem: str) -> int:
        security = Security.of({**trusting, "ssl.keystore.location": pem})
        with security.connect(address, 5) as connection:
            connection.send_frame(header(19, 4) + request.encode(4))
            return CreateTopicsResponse.decode(connection.receive(5), 4, 4).topics[0].error_code

    with broker("SSL", pems, **config) as address:
        assert error_of(other) == 29  # TOPIC_AUTHORIZATION_FAILED
        assert error_of(admin) == 0


def test_a_certificate_that_cannot_be_read_closes_the_connection(
    pems: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def cut_off(certificate: bytes) -> str:
        return subject_name(certificate[:-1])

    monkeypatch.setattr("minibroker.security.tls.subject_name", cut_off)
    wanted = {"ssl.client.auth": "requested", "ssl.truststore.location": str(pems / "ca.pem")}
    trusting = {"security.protocol": "SSL", "ssl.truststore.location": str(pems / "ca.pem")}
    with broker("SSL", pems, **wanted) as address:
        with pytest.raises((BrokerFailed, ConnectionClosed)):
            brokers_told(address, Security.of({**trusting, "ssl.keystore.location": str(pems / "client.pem")}))
        assert brokers_told(address, Security.of(trusting)) == [address]
    assert "the subject of its certificate cannot be read: an element is cut off" in caplog.text
    assert "Traceback" not in caplog.text


def test_a_certificate_is_made_where_none_is_given(tmp_path: Path) -> None:
    authority = str(tmp_path / "ca.pem")
    settings = {"minibroker.security.protocol": "SSL", "minibroker.ssl.ca.location": authority}
    Minibroker(config=settings)  # checked, but not started
    assert not list(tmp_path.iterdir())
    with broker("SASL_SSL", **{"minibroker.ssl.ca.location": authority}) as (_, port):
        security = login("SCRAM-SHA-256", "SASL_SSL", **{"ssl.truststore.location": authority})
        assert brokers_told(("localhost", port), security) == [("localhost", port)]


def test_a_broker_that_finds_its_port_taken_leaves_the_certificate_of_the_one_that_has_it(tmp_path: Path) -> None:
    authority = {"minibroker.security.protocol": "SSL", "minibroker.ssl.ca.location": str(tmp_path / "ca.pem")}
    with broker("SSL", **authority) as (_, port):
        made = (tmp_path / "ca.pem").read_bytes()
        with pytest.raises(StartError, match="is in use"):
            Minibroker(port=port, config=authority, ephemeral=True).start()
        assert (tmp_path / "ca.pem").read_bytes() == made


def test_a_command_that_is_not_let_in_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=SSL\n")
    with broker("SSL", **{"minibroker.ssl.ca.location": str(tmp_path / "ca.pem")}) as (host, port):
        asked = ["transactions", "list", "--bootstrap", f"{host}:{port}"]
        closed = "ApiVersions v0: connection closed by the broker; does this listener want TLS or a password?"
        for options, said in (
            ([], f"{host}:{port}: {closed}"),
            (["--command-config", str(file)], f"no TLS with {host}:{port}: its certificate is not trusted: "),
        ):
            assert main([*asked, *options]) == 1
            line = capsys.readouterr().err.splitlines()[-1]
            assert line.startswith(f"minibroker transactions: {said}")
            assert "_ssl.c" not in line


def test_a_chain_and_a_key_as_text_leave_no_file(
    authority: trustme.CA, pems: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made = authority.issue_cert("localhost")
    config = {
        "ssl.keystore.certificate.chain": "".join(pem.bytes().decode() for pem in made.cert_chain_pems),
        "ssl.keystore.key": made.private_key_pem.bytes().decode(),
    }
    with broker("SSL", **config) as (_, port):
        security = Security.of({"security.protocol": "SSL", "ssl.truststore.location": str(pems / "ca.pem")})
        assert brokers_told(("localhost", port), security)
    assert not list(tmp_path.glob("*.pem"))


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({}, "needs ssl.keystore.location"),
        ({"ssl.keystore.location": "/nowhere.pem"}, "nowhere.pem cannot be read"),
        ({"ssl.keystore.location": __file__}, "cannot be used as PEM"),
        ({"ssl.keystore.location": "x.jks", "ssl.keystore.type": "JKS"}, "must be one of: PEM"),
        ({"ssl.enabled.protocols": "SSLv3"}, "'SSLv3' is none of"),
        ({"minibroker.ssl.ca.location": "ca.pem", "ssl.client.auth": "required"}, "needs ssl.truststore.location"),
    ],
)
def test_what_makes_no_tls_is_refused_in_one_line(
    config: dict[str, str], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=reason) as refused:
        Minibroker(config={"minibroker.security.protocol": "SSL", **config}).start()
    assert "\n" not in str(refused.value)


def test_versions_of_tls_are_those_enabled(pems: Path) -> None:
    with broker("SSL", pems, **{"ssl.enabled.protocols": "TLSv1.3"}) as address:
        context = ssl.create_default_context(cafile=str(pems / "ca.pem"))
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(BrokerFailed, match="no TLS with"):
            Connection(address, 5, tls=context)
