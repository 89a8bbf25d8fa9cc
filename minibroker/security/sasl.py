"""The server's side of SASL for one connection (Kafka's ``SaslServerAuthenticator``): PLAIN and SCRAM.

A plain state machine: handshake, then tokens in and out until a name is known. The SCRAM exchange itself (RFC 5802) is
scramp's.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Protocol

from minibroker.config.types import ConfigError
from minibroker.kernel.extras import hint
from minibroker.security.credentials import SCRAM_MECHANISMS, ScramCredentials

MECHANISMS = ("PLAIN", *SCRAM_MECHANISMS)
# What KIP-84 asks for at least.
_SCRAM_ITERATIONS = 4096
_NONCE = re.compile(r"(?:^|,)r=([^,]+)")


class AuthenticationFailed(Exception):
    """The name, password or token is wrong. The text is sent to the client.

    reason: for the log and the trace only; a client must not learn whether a user exists.
    """

    def __init__(self, text: str, reason: str = "") -> None:
        super().__init__(text)
        self.reason = reason or text


class IllegalSaslState(Exception):
    """A request that has no place in the exchange; Kafka closes the connection without an answer."""


class SaslServer(Protocol):
    """One mechanism's conversation with one client."""

    def token(self, data: bytes) -> tuple[bytes, str | None]:
        """(answer, user name once authenticated). Raises AuthenticationFailed."""


class PlainSaslServer:
    """RFC 4616: authorization id, name and password with a NUL between (Kafka's ``PlainSaslServer``)."""

    def __init__(self, users: Mapping[str, str]) -> None:
        self._users = users

    def token(self, data: bytes) -> tuple[bytes, str | None]:
        try:
            parts = data.decode().split("\0")
        except UnicodeDecodeError:
            parts = []
        if len(parts) != 3:
            raise AuthenticationFailed(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}")
        authorization, name, password = parts
        expected = self._users.get(name)
        if not name or not password or not hmac.compare_digest((expected or "").encode(), password.encode()):
            raise AuthenticationFailed("Authentication failed: Invalid username or password")
        if authorization not in ("", name):
            raise AuthenticationFailed(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        return b"", name


class ScramSaslServer:
    """RFC 5802 and 7677 (Kafka's ``ScramSaslServer``).

    mechanism: scramp's, secrets: what it keeps of each user.
    credentials: those of users that are not among them.
    """

    def __init__(self, name: str, mechanism: Any, secrets: Mapping[str, Any], credentials: ScramCredentials) -> None:
        self._name = name
        self._secrets = secrets
        self._credentials = credentials
        self._user = ""
        self._server = mechanism.make_server(self._secret_of)
        self._begun = False

    def _secret_of(self, user: str) -> Any:
        self._user = user
        if user in self._secrets:
            return self._secrets[user]
        held = self._credentials[self._name, user]
        return held.salt, held.stored_key, held.server_key, held.iterations

    def token(self, data: bytes) -> tuple[bytes, str | None]:
        from scramp import ScramException

        try:
            text = data.decode()
            if self._begun:
                self._take_nonce(text)
                self._server.set_client_final(text)
                return self._server.get_server_final().encode(), self._user
            self._begun = True
            self._server.set_client_first(text)
            return self._server.get_server_first().encode(), None
        except (ScramException, KeyError, ValueError) as error:
            raise AuthenticationFailed(
                "Authentication failed during authentication due to invalid credentials with SASL mechanism "
                + self._name,
                f"{self._name}: {_scram_reason(error)}",
            ) from None

    def _take_nonce(self, last: str) -> None:
        """The nonce of the client's last message may have more in front, as Kafka allows: librdkafka before 2.6.1 puts
        its own there twice (librdkafka#4895). Raises ValueError for any other."""
        expected = str(self._server.nonce)
        match = _NONCE.search(last)
        if match is None or not match[1].endswith(expected):
            nonce = "no nonce" if match is None else f"nonce {match[1]!r}"
            raise ValueError(f"the client's last message has {nonce}, which should end with {expected!r}")
        self._server.nonce = type(self._server.nonce)(match[1])


def _scram_reason(error: Exception) -> str:
    """What is wrong with a client's message, in the words of scramp where they name it."""
    if isinstance(error.__cause__, KeyError):
        return f"there is no user {error.__cause__.args[0][1]!r} with this mechanism"
    return " ".join(str(error).split())


def _none() -> ScramCredentials:
    return {}


def mechanisms(
    enabled: Sequence[str], users: Mapping[str, str], credentials: Callable[[], ScramCredentials] = _none
) -> dict[str, Callable[[], SaslServer]]:
    """Name → maker of an exchange.

    credentials: those of the metadata, for users that are not in `users`.

    Raises ConfigError for a mechanism that is unknown or lacks its library.
    """
    servers: dict[str, Callable[[], SaslServer]] = {}
    for name in enabled:
        if name == "PLAIN":
            servers[name] = lambda: PlainSaslServer(users)
        elif name in MECHANISMS:
            servers[name] = _scram(name, users, credentials)
        else:
            raise ConfigError(f"sasl.enabled.mechanisms: {name!r} is none of {', '.join(MECHANISMS)}")
    if not servers:
        raise ConfigError("sasl.enabled.mechanisms is empty: no client could authenticate")
    return servers


def _scram(
    name: str, users: Mapping[str, str], credentials: Callable[[], ScramCredentials]
) -> Callable[[], SaslServer]:
    try:
        from scramp import ScramMechanism
    except ImportError:
        raise ConfigError(hint(name, "scramp")) from None
    mechanism = ScramMechanism(name)
    secrets = {
        user: mechanism.make_auth_info(password, iteration_count=_SCRAM_ITERATIONS) for user, password in users.items()
    }
    return lambda: ScramSaslServer(name, mechanism, secrets, credentials())


class SaslState(Enum):
    """How far a connection is. RAW: tokens come without Kafka's headers, as after a handshake of version 0."""

    HANDSHAKE = "handshake"
    AUTHENTICATE = "authenticate"
    RAW = "raw"
    COMPLETE = "complete"
    FAILED = "failed"


class Authentication:
    """The exchange of one connection.

    name: the user's, once the state is COMPLETE.
    """

    def __init__(self, makers: Mapping[str, Callable[[], SaslServer]]) -> None:
        self._makers = makers
        self._exchange: SaslServer | None = None
        self.state = SaslState.HANDSHAKE
        self.name = ""

    @property
    def mechanisms(self) -> list[str]:
        """The mechanisms that the listener offers."""
        return list(self._makers)

    def handshake(self, mechanism: str, version: int) -> bool:
        """Choose a mechanism; False when it is not offered, which ends the connection. Raises IllegalSaslState."""
        if self.state is not SaslState.HANDSHAKE:
            raise IllegalSaslState("SaslHandshake after another one")
        maker = self._makers.get(mechanism)
        if maker is None:
            self.state = SaslState.FAILED
            return False
        self._exchange = maker()
        self.state = SaslState.AUTHENTICATE if version else SaslState.RAW
        return True

    def token(self, data: bytes) -> bytes:
        """The answer to a client's token. Raises AuthenticationFailed, and IllegalSaslState before a handshake."""
        if self._exchange is None or self.state not in (SaslState.AUTHENTICATE, SaslState.RAW):
            raise IllegalSaslState("SaslAuthenticate without a SaslHandshake before it")
        try:
            answer, name = self._exchange.token(data)
        except AuthenticationFailed:
            self.state = SaslState.FAILED
            raise
        if name is not None:
            self.name = name
            self.state = SaslState.COMPLETE
        return answer
