"""What a handler is told beside the request itself."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from minibroker.kernel.deferred import Deferred
from minibroker_protocol.dsl import Buffer, Request, Response, registry
from minibroker_protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from minibroker.broker.broker import Broker
    from minibroker.kernel.refusals import Refusal
    from minibroker.security.sasl import Authentication


# A setting may answer with a number that is none of Kafka's.
_KNOWN_CODES = frozenset(map(int, ErrorCode))


class Link(Protocol):
    """The connection itself, for what goes past the usual one answer a request."""

    def push(self, buffers: list[Buffer]) -> None:
        """Write now, whatever is being served."""
        ...

    def reset(self) -> None:
        """Cut the connection; the client sees a reset instead of an orderly end."""
        ...

    def answer_room(self) -> int | None:
        """Bytes that answers may still take until clients have read some, over all connections; None for no limit."""
        ...

    def mute(self, ms: int) -> None:
        """Begin no further request for this long; the answer to the one being served still leaves."""
        ...


@dataclass(slots=True)
class ConnectionInfo:
    """Who is at the other end of a connection, and which of our addresses it reached.

    link: None when there is no socket behind it. server_name: what a client of TLS called us, "" for nothing.
    authentication: the SASL exchange of the connection, None where the listener wants none.
    """

    client_host: str = ""
    client_port: int = 0
    local_host: str = ""
    local_port: int = 0
    listener: str = "PLAINTEXT"
    principal: str = "User:ANONYMOUS"
    software_name: str = "unknown"
    software_version: str = "unknown"
    link: Link | None = None
    server_name: str = ""
    authentication: Authentication | None = None


@dataclass(slots=True)
class RequestContext:
    """One request on its way: the broker that serves it, its version, and the connection it came over.

    inter_broker: the request came from another broker of the cluster (CLUSTER_ACTION is granted).
    """

    broker: Broker
    api_key: int
    api_version: int
    client_id: str | None
    connection: ConnectionInfo
    inter_broker: bool = False
    #: codes that `refused` was told of
    noted: set[int] | None = None
    #: told of every refusal with its reason
    on_refusal: Callable[[Refusal], None] | None = None

    def refused(self, subject: object, error: ApiError, code: int | None = None) -> None:
        """Remember why: `subject` is what the refusal is about, `code` what is sent where that is not the error's."""
        from minibroker.kernel.refusals import Refusal

        sent = int(error.code if code is None else code)
        if self.noted is None:
            self.noted = set()
        self.noted.add(sent)
        refusal = Refusal(
            time_ms=self.broker.clock.now_ms(),
            node_id=self.broker.node_id,
            api=registry()[self.api_key][0].__name__.removesuffix("Request"),
            api_version=self.api_version,
            client_id=self.client_id,
            subject=str(subject),
            code=sent,
            error=ErrorCode(sent).name if sent in _KNOWN_CODES else error.code.name,
            reason=error.message or "no reason given",
        )
        self.broker.refusals.note(refusal)
        if self.on_refusal is not None:
            self.on_refusal(refusal)


# A handler answers at once, later, or (Produce with acks=0) not at all.
Answer = Response | None | Deferred[Any] | Coroutine[Deferred[Any], None, Any]
Handler = Callable[[RequestContext, Any], Answer]


@dataclass(frozen=True, slots=True)
class Api:
    """One row of the handler table.

    min_version..max_version: what is served. advertised_min: what ApiVersions says when that differs (KAFKA-18659).
    advertised: False for APIs that are always served but not listed by default. unstable_from: first version that
    needs unstable.api.versions.enable (Kafka's latestVersionUnstable).
    """

    key: int
    name: str
    request: type[Request]
    response: type[Response]
    handler: Handler
    min_version: int
    max_version: int
    advertised_min: int | None = None
    advertised: bool = True
    unstable_from: int | None = None
