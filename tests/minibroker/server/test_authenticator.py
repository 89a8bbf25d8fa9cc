"""A connection of a SASL listener, until its user is known."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from minibroker.kernel.deferred import Deferred
from minibroker.security.sasl import AuthenticationFailed, PlainSaslServer
from minibroker.server.authenticator import Authenticator

HANDSHAKE, AUTHENTICATE = b"\x00\x11\x00\x01", b"\x00\x24\x00\x02"


@pytest.mark.parametrize(("password", "became"), [("secret", ["User:alice"]), ("wrong", ["closed"])])
@pytest.mark.parametrize("later", [False, True], ids=["at once", "later"])
def test_a_token_counts_once_it_is_answered(later: bool, password: str, became: list[str]) -> None:
    """A fault, or a pause of the broker, may hold the request."""
    events: list[str] = []
    held: Deferred[Any] = Deferred()
    info: Any = SimpleNamespace(principal="User:ANONYMOUS")
    connection = SimpleNamespace(
        authenticated=lambda _: events.append(info.principal), close_once_answered=lambda _: events.append("closed")
    )

    def handle_token() -> None:
        with contextlib.suppress(AuthenticationFailed):
            info.authentication.token(f"\0alice\0{password}".encode())

    def dispatch(frame: Any, _: Any) -> Any:
        if frame == HANDSHAKE:
            info.authentication.handshake("PLAIN", 1)
        elif later:
            return held
        else:
            handle_token()
        return [b"answer"]

    authenticator = Authenticator(connection, dispatch, {"PLAIN": lambda: PlainSaslServer({"alice": "secret"})})
    authenticator.serve(HANDSHAKE, info)
    authenticator.serve(AUTHENTICATE, info)
    if later:
        assert events == []
        handle_token()
        held.resolve([b"answer"])
    assert events == became
