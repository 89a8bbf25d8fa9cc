"""Connections to a cluster that requires TLS or SASL, configured by Kafka's property names.

A Kafka client's own properties file will do: `security.protocol`, `sasl.mechanism`, `sasl.jaas.config` or librdkafka's
`sasl.username` and `sasl.password`, and certificates as PEM files. Keys of other kinds are left alone.
"""

from __future__ import annotations

import argparse
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minibroker.client.connection import BrokerFailed, Connection
from minibroker.kernel.addresses import Address
from minibroker.kernel.extras import hint
from minibroker.security.protocols import SecurityProtocol
from minibroker.security.sasl import MECHANISMS
from minibroker_protocol.dsl import Request
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

PROTOCOLS = tuple(SecurityProtocol.__members__)
_CLIENT_ID = "minibroker"
_OURS = ("security.protocol", "sasl.", "ssl.")
_SAME = {
    "sasl.mechanisms": "sasl.mechanism",
    "ssl.ca.location": "ssl.truststore.location",
    "ssl.certificate.location": "ssl.keystore.location",
}
"""librdkafka's names, and Kafka's."""
_KNOWN = frozenset(
    {
        "security.protocol",
        "sasl.mechanism",
        "sasl.jaas.config",
        "sasl.username",
        "sasl.password",
        "ssl.truststore.location",
        "ssl.truststore.type",
        "ssl.keystore.location",
        "ssl.keystore.type",
        "ssl.key.location",
        "ssl.key.password",
        "ssl.endpoint.identification.algorithm",
    }
)
_JAAS = re.compile(r'\b(username|password)\s*=\s*"((?:[^"\\]|\\.)*)"')


class LoginFailed(BrokerFailed):
    """A certificate that cannot be read, or a login that the broker does not take."""


def read_properties(path: str) -> dict[str, str]:
    """The settings in a properties file: KEY=VALUE a line, `#` and `!` begin comments, `\\` goes on in the next line.

    Raises OSError, ValueError.
    """
    properties: dict[str, str] = {}
    try:
        lines = iter(Path(path).read_text(encoding="utf-8").splitlines())
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: {error}") from None
    for number, line in enumerate(lines, 1):
        text = line.strip()
        while text.endswith("\\"):
            text = text[:-1] + next(lines, "").strip()
        if not text or text[0] in "#!":
            continue
        key, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"{path}: line {number}: expected KEY=VALUE")
        properties[key.strip()] = value.strip()
    return properties


@dataclass(frozen=True)
class Security:
    """What a connection needs before the first request. Can be pickled. Files are PEM."""

    tls: bool = False
    mechanism: str = ""
    username: str = ""
    password: str = ""
    authorities: str | None = None
    certificate: str | None = None
    key: str | None = None
    key_password: str | None = None
    any_name: bool = False

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> Security:
        """Raises ValueError, naming the setting."""
        values = {_SAME.get(key, key): value for key, value in settings.items() if key.startswith(_OURS)}
        for key in values.keys() - _KNOWN:
            raise ValueError(f"{key}: not known here; there are {', '.join(sorted(_KNOWN))}")
        protocol = values.get("security.protocol", "PLAINTEXT").upper()
        if protocol not in PROTOCOLS:
            raise ValueError(f"security.protocol={protocol}: none of {', '.join(PROTOCOLS)}")
        for name in ("ssl.truststore.type", "ssl.keystore.type"):
            if values.get(name, "PEM").upper() != "PEM":
                raise ValueError(f"{name}={values[name]}: only PEM files can be read")
        login = {
            match[1]: re.sub(r"\\(.)", r"\1", match[2]) for match in _JAAS.finditer(values.get("sasl.jaas.config", ""))
        }
        made = cls(
            tls=protocol in ("SSL", "SASL_SSL"),
            mechanism=values.get("sasl.mechanism", "").upper() if protocol.startswith("SASL") else "",
            username=values.get("sasl.username", login.get("username", "")),
            password=values.get("sasl.password", login.get("password", "")),
            authorities=values.get("ssl.truststore.location"),
            certificate=values.get("ssl.keystore.location"),
            key=values.get("ssl.key.location"),
            key_password=values.get("ssl.key.password"),
            any_name=values.get("ssl.endpoint.identification.algorithm", "https").lower() in ("", "none"),
        )
        if protocol.startswith("SASL"):
            if made.mechanism not in MECHANISMS:
                named = made.mechanism or "(none)"
                raise ValueError(f"sasl.mechanism={named}: none of {', '.join(MECHANISMS)}")
            if not made.username:
                raise ValueError("sasl.username and sasl.password, or sasl.jaas.config, are needed")
        return made

    def connect(self, address: Address, timeout: float) -> Connection:
        """A connection that is ready for requests. Raises BrokerFailed."""
        connection = Connection(address, timeout, tls=self.context() if self.tls else None)
        if self.mechanism:
            try:
                _Login(connection, timeout, self).run()
            except BaseException:
                connection.close()
                raise
        return connection

    def context(self) -> ssl.SSLContext:
        """Raises LoginFailed for files that cannot be read."""
        try:
            context = ssl.create_default_context(cafile=self.authorities)
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key, self.key_password)
        except OSError as error:
            files = ", ".join(name for name in (self.authorities, self.certificate, self.key) if name)
            raise LoginFailed(f"{files}: {error.strerror or error}") from None
        context.check_hostname = not self.any_name
        return context


PLAINTEXT = Security()


class _Login:
    """SASL over Kafka's own requests (KIP-43, KIP-152): handshake, then the mechanism's messages."""

    def __init__(self, connection: Connection, timeout: float, security: Security) -> None:
        self._connection = connection
        self._timeout = timeout
        self._security = security

    def run(self) -> None:
        mechanism = self._security.mechanism
        answer = self._ask(SaslHandshakeRequest(mechanism=mechanism))
        if answer.error_code:
            offered = ", ".join(answer.mechanisms) or "none"
            raise LoginFailed(
                f"sasl.mechanism={mechanism}: {ErrorCode(answer.error_code).name}, the broker offers {offered}"
            )
        if mechanism == "PLAIN":
            self._send(f"\0{self._security.username}\0{self._security.password}".encode())
        else:
            scram(self._security.username, self._security.password, mechanism, self._send)

    def _send(self, message: bytes) -> bytes:
        answer = self._ask(SaslAuthenticateRequest(auth_bytes=message))
        if answer.error_code:
            raise LoginFailed(f"login refused: {answer.error_message or ErrorCode(answer.error_code).name}")
        return bytes(answer.auth_bytes)

    def _ask(self, request: Request) -> Any:
        return self._connection.ask(request, 1, _CLIENT_ID, self._timeout)


def scram(username: str, password: str, mechanism: str, send: Callable[[bytes], bytes]) -> None:
    """RFC 5802; `send` takes a message and returns the answer.

    Raises LoginFailed, also if the broker cannot prove that it knows the password.
    """
    try:
        from scramp import ScramClient, ScramException
    except ImportError:
        raise LoginFailed(hint(mechanism, "scramp")) from None
    exchange = ScramClient([mechanism], username, password)
    try:
        exchange.set_server_first(send(exchange.get_client_first().encode()).decode())
        final = send(exchange.get_client_final().encode()).decode()
    except (ScramException, ValueError) as error:
        raise LoginFailed(f"login: no answer of SCRAM: {error}") from None
    try:
        exchange.set_server_final(final)
    except (ScramException, ValueError):
        raise LoginFailed("login: the broker does not know the password either") from None


def add_command_config(parser: argparse.ArgumentParser) -> None:
    """The option under the name that Kafka's tools have for it."""
    parser.add_argument(
        "--command-config", metavar="FILE", help="properties of a client: security.protocol, ssl.*, sasl.*"
    )


def read_security(path: str | None) -> Security:
    """What the file of --command-config says. Raises OSError, ValueError."""
    return PLAINTEXT if path is None else Security.of(read_properties(path))
