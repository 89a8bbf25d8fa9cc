"""Brokers prove to each other that they are of one cluster, before anything else is read: a mutual challenge.

Both ends know one secret. Each makes a random number, and shows that it knows the secret by an HMAC (SHA-256) over both
numbers, both node ids and its own role, so that no answer can be used a second time, for another node, or by the other
end. Bytes in, bytes out: what carries them is the caller's.

    connecting: its node id (int32), its number          (36 bytes)
    listening:  its number, its proof                    (64 bytes)
    connecting: its proof                                (32 bytes)
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from hashlib import sha256
from typing import Final

NUMBER_BYTES: Final = 32
_ID_BYTES: Final = 4

RandomBytes = Callable[[int], bytes]


class BrokerAuthenticationFailed(Exception):
    """The other end does not know the secret or does not speak this protocol; the text says which."""


class ClientAuthenticator:
    """The end that connects, `source`, to the node `target`."""

    def __init__(self, secret: bytes, random_bytes: RandomBytes, source: int, target: int) -> None:
        self._secret = secret
        self._ids = _ids(source, target)
        self._number = random_bytes(NUMBER_BYTES)
        self.hello = source.to_bytes(_ID_BYTES, "big", signed=True) + self._number

    def prove(self, challenge: bytes) -> bytes:
        """The last step: check the other end's proof. Raises BrokerAuthenticationFailed."""
        if len(challenge) != 2 * NUMBER_BYTES:
            raise BrokerAuthenticationFailed(f"the challenge has {len(challenge)} bytes, not {2 * NUMBER_BYTES}")
        numbers = self._number + challenge[:NUMBER_BYTES]
        expected = _proof(self._secret, b"listening", self._ids, numbers)
        if not hmac.compare_digest(expected, challenge[NUMBER_BYTES:]):
            raise BrokerAuthenticationFailed("the node that listens does not know the cluster's secret")
        return _proof(self._secret, b"connecting", self._ids, numbers)


class ServerAuthenticator:
    """The accepting end, of the node `target`.

    source: the connected node, once authenticated.
    """

    def __init__(self, secret: bytes, random_bytes: RandomBytes, target: int) -> None:
        self.source: int | None = None
        self._secret = secret
        self._random_bytes = random_bytes
        self._target = target
        self._claimed = 0
        self._expected = b""

    def step(self, data: bytes) -> bytes:
        """The answer to `data`; the last step sets `source`. Raises BrokerAuthenticationFailed."""
        if not self._expected:
            return self._challenge(data)
        if not hmac.compare_digest(self._expected, data):
            raise BrokerAuthenticationFailed("it does not know the cluster's secret")
        self.source = self._claimed
        return b""

    def _challenge(self, hello: bytes) -> bytes:
        if len(hello) != _ID_BYTES + NUMBER_BYTES:
            raise BrokerAuthenticationFailed(f"a greeting of {len(hello)} bytes")
        self._claimed = int.from_bytes(hello[:_ID_BYTES], "big", signed=True)
        ids = _ids(self._claimed, self._target)
        number = self._random_bytes(NUMBER_BYTES)
        numbers = hello[_ID_BYTES:] + number
        self._expected = _proof(self._secret, b"connecting", ids, numbers)
        return number + _proof(self._secret, b"listening", ids, numbers)


def _ids(source: int, target: int) -> bytes:
    return b"".join(node_id.to_bytes(_ID_BYTES, "big", signed=True) for node_id in (source, target))


def _proof(secret: bytes, role: bytes, ids: bytes, numbers: bytes) -> bytes:
    return hmac.digest(secret, role + b"\0" + ids + numbers, sha256)
