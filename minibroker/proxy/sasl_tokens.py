"""Tokens of SASL that have no header: after SaslHandshake v0, whole frames are what the mechanism says (KIP-43)."""

from __future__ import annotations

from typing import Final

GSSAPI: Final = "GSSAPI"
REFUSED: Final = "NOT-THROUGH-A-PROXY"
"""A mechanism that no broker has: it is asked for instead of one that cannot pass, so that the upstream refuses it in
its own way."""

TOKENS: Final = {"PLAIN": 1, "OAUTHBEARER": 1, "SCRAM-SHA-256": 2, "SCRAM-SHA-512": 2}
"""How many tokens the client sends. For any other mechanism the number is unknown, so it is not passed on."""
_FAILED_BEARER: Final = 1
"""After an error of OAUTHBEARER the client sends one byte more (RFC 7628, 3.2.3)."""


class RawTokens:
    """Counts the tokens of one connection.

    expected: whether the next frame of the client is one.
    """

    def __init__(self) -> None:
        self._mechanism = ""
        self._tokens_left = 0

    @property
    def expected(self) -> bool:
        return self._tokens_left > 0

    def begin(self, mechanism: str) -> None:
        """The broker took a SaslHandshake v0."""
        self._mechanism = mechanism
        self._tokens_left = TOKENS[mechanism]

    def sent(self) -> None:
        """The client has sent one."""
        self._tokens_left -= 1

    def answered(self, token: bytes) -> None:
        """The broker's answer to it."""
        if self._mechanism == "OAUTHBEARER" and token and not self._tokens_left:
            self._tokens_left = _FAILED_BEARER
