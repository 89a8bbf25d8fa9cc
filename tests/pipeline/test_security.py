"""TLS and logins of the audit's own client, against a small TLS and SASL front before a broker that has neither."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

pytest.importorskip("pyarrow")

from minibroker.cli import main
from minibroker.client.security import Security, read_properties
from minibroker.kernel.addresses import parse_address
from minibroker.testing.embedded import Minibroker
from minibroker_protocol.headers import parse_request_header
from minibroker_protocol.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

CERTIFICATES = Path(__file__).parent / "certificates"
USER, PASSWORD = 'ann, "the"=1', "se=cr,et"
SALT, ROUNDS = b"salt" * 4, 4096


class Front:
    """Listens with TLS, lets those in who can log in, and passes on what they say to the broker."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.broker: tuple[str, int] = ("", 0)
        self.be(tls=True)
        threading.Thread(target=self._accept, daemon=True).start()

    def be(
        self, *, tls: bool, logins: tuple[str, ...] = (), certificates: bool = False, impostor: bool = False
    ) -> None:
        """What is asked of those who come from now on. An impostor takes any password."""
        self._logins = logins
        self._impostor = impostor
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) if tls else None
        if self._context is not None:
            self._context.load_cert_chain(CERTIFICATES / "server.pem")
            if certificates:
                self._context.load_verify_locations(CERTIFICATES / "ca.pem")
                self._context.verify_mode = ssl.CERT_REQUIRED

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError, AssertionError, EOFError):
            try:
                if self._context is not None:
                    client = self._context.wrap_socket(client, server_side=True)
                if self._logins:
                    self._login(client)
                with socket.create_connection(self.broker) as broker:
                    while True:
                        broker.sendall(frame(received(client)))
                        client.sendall(frame(received(broker)))
            finally:
                client.close()

    def _login(self, client: socket.socket) -> None:
        header, rest = parsed(received(client))
        assert (header.key, header.version) == (17, 1)
        mechanism = SaslHandshakeRequest.decode(rest, 1).mechanism
        code = 0 if mechanism in self._logins else 33
        answer(client, header, SaslHandshakeResponse(error_code=code, mechanisms=list(self._logins)))
        if mechanism == "PLAIN":
            header, message = self._message(client)
            self._finish(client, header, message == f"\0{USER}\0{PASSWORD}".encode(), b"")
        else:
            self._scram(client, {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}[mechanism])

    def _message(self, client: socket.socket) -> tuple[Header, bytes]:
        header, rest = parsed(received(client))
        assert header.key == 36
        return header, bytes(SaslAuthenticateRequest.decode(rest, header.version).auth_bytes)

    def _scram(self, client: socket.socket, algorithm: str) -> None:
        """The server's side, as RFC 5802 writes it down."""
        header, message = self._message(client)
        first = message.decode().removeprefix("n,,")
        name, nonce = first.split(",")
        assert name == "n=" + USER.replace("=", "=3D").replace(",", "=2C")
        nonce = nonce.removeprefix("r=") + "server"
        challenge = f"r={nonce},s={base64.b64encode(SALT).decode()},i={ROUNDS}"
        answer(client, header, SaslAuthenticateResponse(auth_bytes=challenge.encode()))
        header, message = self._message(client)
        without, _, proof = message.decode().rpartition(",p=")
        signed = f"{first},{challenge},{without}".encode()
        salted = hashlib.pbkdf2_hmac(algorithm, PASSWORD.encode(), SALT, ROUNDS)
        stored = hashlib.new(algorithm, hmac.digest(salted, b"Client Key", algorithm)).digest()
        signature = hmac.digest(stored, signed, algorithm)
        key = bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True))
        server = hmac.digest(hmac.digest(salted, b"Server Key", algorithm), signed, algorithm)
        known = hashlib.new(algorithm, key).digest() == stored and f"r={nonce}" in without
        self._finish(client, header, known, b"v=" + base64.b64encode(b"?" if self._impostor else server))

    def _finish(self, client: socket.socket, header: Header, known: bool, last: bytes) -> None:
        found = SaslAuthenticateResponse(auth_bytes=last)
        if not known:
            found = SaslAuthenticateResponse(error_code=58, error_message="Authentication failed", auth_bytes=b"")
        answer(client, header, found)
        assert known


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def received(source: socket.socket) -> bytes:
    def exactly(count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = source.recv(count - len(data))
            if not piece:
                raise EOFError
            data += piece
        return data

    return exactly(struct.unpack(">i", exactly(4))[0])


class Header(NamedTuple):
    key: int
    version: int
    correlation_id: int


def parsed(body: bytes) -> tuple[Header, bytes]:
    key, version, correlation_id, _, at = parse_request_header(body)
    return Header(key, version, correlation_id), body[at:]


def answer(client: socket.socket, header: Header, response: SaslHandshakeResponse | SaslAuthenticateResponse) -> None:
    client.sendall(frame(struct.pack(">i", header.correlation_id) + response.encode(header.version)))


@pytest.fixture(scope="module")
def front() -> Iterator[Front]:
    """The only way to a broker with a topic of one partition, for all it tells its clients."""
    found = Front()
    config = {"listeners": "PLAINTEXT://127.0.0.1:0", "advertised.listeners": f"PLAINTEXT://{found.address}"}
    with Minibroker(ephemeral=True, topics={"t": 1}, config=config) as broker:
        found.broker = parse_address(broker.bootstrap_servers)
        yield found
    found.close()


def settings(path: Path, **changed: str | None) -> str:
    """A client's properties file, as Kafka's own tools take one."""
    quoted = [text.replace("\\", "\\\\").replace('"', '\\"') for text in (USER, PASSWORD)]
    found: dict[str, str | None] = {
        "bootstrap.servers": "elsewhere:1",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required \\\n"
        f'  username="{quoted[0]}" password="{quoted[1]}";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(CERTIFICATES / "ca.pem"),
        **{name.replace("__", "."): value for name, value in changed.items()},
    }
    text = "# how to get in\n" + "".join(f"{key} = {value}\n" for key, value in found.items() if value is not None)
    (path / "client.properties").write_text(text)
    return str(path / "client.properties")


def audit(front: Front, file: str, *more: str) -> int:
    return main(["audit", "--bootstrap", front.address, "--command-config", file, "--topic", "t", *more])


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_tls_and_a_login(mechanism: str, front: Front, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    front.be(tls=True, logins=(mechanism,))
    file = settings(tmp_path, sasl__mechanism=mechanism)
    assert audit(front, file, "--json", "-") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["logs"] == 1
    assert found["source"] == f"--bootstrap {front.address} --command-config {file}"
    assert audit(front, settings(tmp_path, sasl__mechanism=mechanism, sasl__password="wrong")) == 2
    assert "login refused: Authentication failed" in capsys.readouterr().err


def test_a_login_without_tls_in_the_names_of_librdkafka(front: Front, tmp_path: Path) -> None:
    front.be(tls=False, logins=("PLAIN",))
    plain = {"security__protocol": "sasl_plaintext", "sasl__mechanism": None, "sasl__jaas__config": None}
    named = {"sasl__mechanisms": "PLAIN", "sasl__username": USER, "sasl__password": PASSWORD}
    assert audit(front, settings(tmp_path, **plain, **named)) == 0


def test_certificates_of_both_sides(front: Front, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    front.be(tls=True, certificates=True)
    own = str(CERTIFICATES / "client.pem")
    assert audit(front, settings(tmp_path, security__protocol="SSL", ssl__keystore__location=own)) == 0
    assert audit(front, settings(tmp_path, security__protocol="SSL")) == 2
    assert front.address in capsys.readouterr().err


def test_a_broker_nobody_vouches_for(front: Front, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    front.be(tls=True)
    assert audit(front, settings(tmp_path, security__protocol="SSL", ssl__truststore__location=None)) == 2
    assert "its certificate is not trusted: " in capsys.readouterr().err


def test_the_name_in_the_certificate(front: Front, tmp_path: Path) -> None:
    """Is compared with the broker's unless ssl.endpoint.identification.algorithm is empty, as in Kafka."""
    front.be(tls=True)
    strict = {"security__protocol": "SSL"}
    lax = {**strict, "ssl__endpoint__identification__algorithm": ""}
    for changed, compared in ((strict, True), (lax, False)):
        file = settings(tmp_path, **changed)
        assert Security.of(read_properties(file)).context().check_hostname is compared
        assert audit(front, file) == 0


def test_a_broker_that_does_not_know_the_password(
    front: Front, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    front.be(tls=True, logins=("SCRAM-SHA-256",), impostor=True)
    assert audit(front, settings(tmp_path, sasl__mechanism="SCRAM-SHA-256")) == 2
    assert "does not know the password" in capsys.readouterr().err


def test_a_mechanism_that_is_not_offered(front: Front, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    front.be(tls=True, logins=("SCRAM-SHA-512",))
    assert audit(front, settings(tmp_path)) == 2
    assert "UNSUPPORTED_SASL_MECHANISM, the broker offers SCRAM-SHA-512" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"security.protocol": "TLS"}, "security.protocol=TLS"),
        ({"sasl.mechanism": "GSSAPI"}, "sasl.mechanism=GSSAPI: none of PLAIN"),
        ({"sasl.jaas.config": ""}, "sasl.username"),
        ({"ssl.truststore.type": "JKS"}, "only PEM"),
        ({"ssl.truststore.location": "nothing-here.pem"}, "nothing-here.pem"),
        ({"ssl.protocols": "TLSv1.3"}, "ssl.protocols: not known here"),
    ],
)
def test_wrong_settings(
    changed: dict[str, str], reason: str, front: Front, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = settings(tmp_path, **{name.replace(".", "__"): value for name, value in changed.items()})
    assert audit(front, file) == 2
    assert reason in capsys.readouterr().err


def test_files_of_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "p"
    file.write_text("! a\n\n a.b = c = d \\\n  e\n")
    assert read_properties(str(file)) == {"a.b": "c = d e"}
    file.write_text("nonsense\n")
    assert main(["audit", "--bootstrap", "127.0.0.1:1", "--command-config", str(file)]) == 2
    assert "line 1: expected KEY=VALUE" in capsys.readouterr().err
    file.write_bytes(b"sasl.password=caf\xe9\n")
    assert main(["audit", "--bootstrap", "127.0.0.1:1", "--command-config", str(file)]) == 2
    assert f"{file}: 'utf-8' codec can't decode byte 0xe9" in capsys.readouterr().err
    assert main(["audit", str(tmp_path), "--command-config", str(file)]) == 2
    assert "goes with --bootstrap" in capsys.readouterr().err
