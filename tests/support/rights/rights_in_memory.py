"""The matrix's other side: minibroker in memory, asked without sockets."""

from __future__ import annotations

from typing import Any

from memory_cluster import MemoryCluster
from reasons import check_reasons
from rights_record import AUTHORIZER, COMMON, NAMES
from rights_world import CLOSED, fitted

from minibroker.kernel.deferred import Deferred
from minibroker.releases.semantics import KAFKA, Semantics
from minibroker.requests.context import CloseConnection, ConnectionInfo
from minibroker.security.sasl import Authentication, PlainSaslServer
from minibroker_protocol.dsl import Request

# Kafka's own defaults that a broker for tests has other values for are not among what is compared.
_SETTINGS = {**COMMON, "authorizer.class.name": AUTHORIZER, "super.users": "User:admin"}


class MemorySide:
    """One broker; each user's connection is as after a login by SASL PLAIN."""

    def __init__(self, semantics: Semantics = KAFKA) -> None:
        self._cluster = MemoryCluster(_SETTINGS, semantics=semantics)
        self._connections = {user: _logged_in(user) for user in NAMES}

    def ask(self, user: str, request: Request, version: int) -> Any:
        frame = self._cluster.frame(fitted(request, version), version)
        try:
            answer = self._cluster.dispatcher.dispatch(frame, self._connections[user])
        except CloseConnection:
            self._connections[user] = _logged_in(user)
            return CLOSED
        if isinstance(answer, Deferred):
            if not answer.done:
                self._cluster.timers.advance(10)
            answer = answer.result()
        self._cluster.timers.advance(0)  # what a coordinator does right after an answer
        decoded = self._cluster.decode(type(request), version, answer)
        if decoded is not None:
            check_reasons(self._cluster.broker, decoded)
        return decoded

    def settle(self) -> None:
        """Entries count with the answer."""

    def close(self) -> None:
        self._cluster.stop()


def _logged_in(user: str) -> ConnectionInfo:
    authentication = Authentication({"PLAIN": lambda: PlainSaslServer({user: "a"})})
    authentication.handshake("PLAIN", 1)
    authentication.token(f"\0{user}\0a".encode())
    return ConnectionInfo(client_host="127.0.0.1", principal=f"User:{user}", authentication=authentication)
