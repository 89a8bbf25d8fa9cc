"""TLS and SASL for `wire.Connection`, from the same properties that Kafka's own tools take with --command-config."""

from __future__ import annotations

import argparse
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from minibroker.config_types import ConfigError
from minibroker.security.credentials import login_of_jaas
from minibroker.security.protocols import SecurityProtocol, protocol_named
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.headers import RequestHeader
from minibroker_protocol.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

Call = Callable[[bytes], bytes]
_CLIENT_ID = "minibroker"
_HANDSHAKE_VERSION = _AUTHENTICATE_VERSION = 1


class LoginFailed(Exception):
    """The broker does not take the name or the password; the text is what it said."""


@dataclass(frozen=True, slots=True)
class ClientSecurity:
    """How a client gets in. tls: None without it; mechanism: "" without SASL."""

    tls: ssl.SSLContext | None = None
    mechanism: str = ""
    username: str = ""
    password: str = ""

    def wrap(self, plain: socket.socket, host: str) -> socket.socket:
        """The socket, under TLS where that is wanted. Raises OSError, of which ssl.SSLError is one."""
        return plain if self.tls is None else self.tls.wrap_socket(plain, server_hostname=host)

    def log_in(self, call: Call) -> None:
        """Say who we are. call: takes a request frame without its size, returns the response's. Raises LoginFailed."""
        if not self.mechanism:
            return
        request = SaslHandshakeRequest(mechanism=self.mechanism)
        header = RequestHeader(
            request_api_key=request.__api_key__,
            request_api_version=_HANDSHAKE_VERSION,
            correlation_id=0,
            client_id=_CLIENT_ID,
        )
        frame = call(header.encode(1) + request.encode(_HANDSHAKE_VERSION))
        handshake = SaslHandshakeResponse.decode(frame, _HANDSHAKE_VERSION, 4)
        if handshake.error_code:
            offered = ", ".join(handshake.mechanisms)
            raise LoginFailed(f"the broker does not offer {self.mechanism}, only {offered or 'nothing'}")
        if self.mechanism == "PLAIN":
            _token(call, f"\0{self.username}\0{self.password}".encode())
            return
        from scramp import ScramClient

        exchange = ScramClient([self.mechanism], self.username, self.password)
        exchange.set_server_first(_token(call, exchange.get_client_first().encode()).decode())
        exchange.set_server_final(_token(call, exchange.get_client_final().encode()).decode())


def _token(call: Call, data: bytes) -> bytes:
    request = SaslAuthenticateRequest(auth_bytes=data)
    header = RequestHeader(
        request_api_key=request.__api_key__,
        request_api_version=_AUTHENTICATE_VERSION,
        correlation_id=0,
        client_id=_CLIENT_ID,
    )
    frame = call(header.encode(1) + request.encode(_AUTHENTICATE_VERSION))
    response = SaslAuthenticateResponse.decode(frame, _AUTHENTICATE_VERSION, 4)
    if response.error_code:
        raise LoginFailed(response.error_message or ErrorCode(response.error_code).name)
    return bytes(response.auth_bytes)


def client_security(properties: Mapping[str, str]) -> ClientSecurity:
    """From security.protocol, ssl.* (PEM) and sasl.* as a Java client has them. Raises ConfigError."""
    protocol = protocol_named(properties.get("security.protocol", "PLAINTEXT").upper(), "security.protocol")
    tls = _tls(properties) if protocol.tls else None
    if not protocol.sasl:
        return ClientSecurity(tls)
    mechanism = properties.get("sasl.mechanism", "PLAIN")
    username, password = login_of_jaas(properties.get("sasl.jaas.config", ""))
    username = properties.get("sasl.username", username)
    password = properties.get("sasl.password", password)
    if mechanism not in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
        raise ConfigError(f"sasl.mechanism: {mechanism!r} is none of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512")
    if not username:
        raise ConfigError(f"{SecurityProtocol(protocol).name} needs sasl.jaas.config with username and password")
    return ClientSecurity(tls, mechanism, username, password)


def _tls(properties: Mapping[str, str]) -> ssl.SSLContext:
    trusted = properties.get("ssl.truststore.location") or properties.get("ssl.ca.location")
    own = properties.get("ssl.keystore.location")
    try:
        context = ssl.create_default_context(cafile=trusted)
        if own:
            password = properties.get("ssl.key.password") or properties.get("ssl.keystore.password") or ""
            context.load_cert_chain(own, password=lambda: password)
    except OSError as error:
        raise ConfigError(f"ssl.truststore.location or ssl.keystore.location: {error}") from None
    if properties.get("ssl.endpoint.identification.algorithm", "https") == "":
        context.check_hostname = False
    return context


def add_command_config(parser: argparse.ArgumentParser) -> None:
    """The option under the name that Kafka's tools have for it."""
    parser.add_argument(
        "--command-config", type=Path, metavar="FILE", help="properties of a client: security.protocol, ssl.*, sasl.*"
    )


def read_client_security(path: Path | None) -> ClientSecurity | None:
    """What --command-config says; None without it. Raises ConfigError."""
    return None if path is None else client_security(read_properties(path))


def read_properties(path: Path) -> dict[str, str]:
    """A Java properties file, as far as clients' use them. Raises ConfigError."""
    found = {}
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from None
    for line in text.replace("\\\n", "").splitlines():
        name, separator, value = line.strip().partition("=")
        if separator and not name.startswith(("#", "!")):
            found[name.strip()] = value.strip()
    return found
