"""What a handler is told beside the request itself."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from minibroker.runtime.deferred import Deferred
from minibroker_protocol.dsl import Request, Response

if TYPE_CHECKING:
    from minibroker.cluster.broker import Broker


@dataclass(slots=True)
class ConnectionInfo:
    """Who is at the other end of a connection, and which of our addresses it reached."""

    client_host: str = ""
    client_port: int = 0
    local_host: str = ""
    local_port: int = 0
    listener: str = "PLAINTEXT"
    principal: str = "User:ANONYMOUS"
    software_name: str = "unknown"
    software_version: str = "unknown"


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
