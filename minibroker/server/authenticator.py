"""Serves a connection of a SASL listener until the client is authenticated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from struct import Struct
from typing import TYPE_CHECKING, Protocol

from minibroker.kernel.deferred import Deferred
from minibroker.requests.context import CloseConnection
from minibroker.requests.dispatch import Answered, Dispatch
from minibroker.security.sasl import Authentication, AuthenticationFailed, SaslServer, SaslState
from minibroker_protocol.fields import Buffer

if TYPE_CHECKING:
    from minibroker.broker.connection import ConnectionInfo

_SASL_HANDSHAKE, _API_VERSIONS, _SASL_AUTHENTICATE = 17, 18, 36
_ALLOWED = {
    SaslState.HANDSHAKE: frozenset({_SASL_HANDSHAKE, _API_VERSIONS}),
    SaslState.AUTHENTICATE: frozenset({_SASL_AUTHENTICATE}),
}
_pack_size = Struct(">i").pack


class Authenticated(Protocol):
    """The part of a connection that authentication changes."""

    def authenticated(self, dispatch: Dispatch) -> None: ...
    def close_once_answered(self, reason: str) -> None: ...


class Authenticator:
    """Accepts only handshake and tokens until the user is authenticated, then every request."""

    def __init__(
        self, connection: Authenticated, dispatch: Dispatch, makers: Mapping[str, Callable[[], SaslServer]]
    ) -> None:
        self._connection = connection
        self._dispatch = dispatch
        self._authentication = Authentication(makers)

    def serve(self, frame: Buffer, info: ConnectionInfo) -> Answered | Deferred[Answered]:
        """`Dispatch`. Raises CloseConnection for a request that comes too early."""
        authentication = info.authentication = self._authentication
        if authentication.state is SaslState.RAW:
            return self._raw(bytes(frame), info)
        api_key = int.from_bytes(frame[:2], "big")
        if authentication.state is SaslState.AUTHENTICATE and api_key == _SASL_HANDSHAKE:
            # The handler says ILLEGAL_SASL_STATE, as SaslServerAuthenticator.handleSaslToken does before it closes.
            answer = self._dispatch(frame, info)
            self._connection.close_once_answered("a SaslHandshake after another one")
            return answer
        if api_key not in _ALLOWED.get(authentication.state, ()):
            raise CloseConnection(f"API key {api_key} before the client is authenticated")
        answer = self._dispatch(frame, info)
        if isinstance(answer, Deferred):
            answer.then(lambda _: self._advance(info))
        else:
            self._advance(info)
        return answer

    def _raw(self, token: bytes, info: ConnectionInfo) -> Answered:
        try:
            answer = self._authentication.token(token)
        except AuthenticationFailed as error:
            raise CloseConnection(error.reason) from None
        self._advance(info)
        return [_pack_size(len(answer)), answer]

    def _advance(self, info: ConnectionInfo) -> None:
        state = self._authentication.state
        if state is SaslState.COMPLETE:
            info.principal = f"User:{self._authentication.name}"
            self._connection.authenticated(self._dispatch)
        elif state is SaslState.FAILED:
            self._connection.close_once_answered("authentication failed")
