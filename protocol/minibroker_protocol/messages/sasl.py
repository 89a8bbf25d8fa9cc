"""Authentication: SaslHandshake (17), SaslAuthenticate (36).

Field names and versions: Kafka 4.4.0's message definitions.
"""

from __future__ import annotations

from minibroker_protocol.dsl import Request, Response
from minibroker_protocol.fields import bytes_, f, int16, int64, string


class SaslHandshakeRequest(Request, key=17, versions="0-1"):
    """Choose a SASL mechanism."""

    mechanism: string


class SaslHandshakeResponse(Response, key=17, versions="0-1"):
    """The mechanisms on offer."""

    error_code: int16 = f(default=0, error=True)
    mechanisms: list[string] = f(default=[])


class SaslAuthenticateRequest(Request, key=36, versions="0-2", flexible="2+"):
    """One step of a SASL exchange."""

    auth_bytes: bytes_ = f(secret=True)


class SaslAuthenticateResponse(Response, key=36, versions="0-2", flexible="2+"):
    """The broker's answer to the step."""

    error_code: int16 = f(default=0, error=True)
    error_message: string | None = f(nullable="0+", default="", error_message=True)
    auth_bytes: bytes_ = f(default=b"", secret=True)
    session_lifetime_ms: int64 = f("1+", default=0, ignorable=True)
