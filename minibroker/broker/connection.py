"""The client of a connection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from minibroker.kernel.deferred import Deferred
from minibroker_protocol.fields import Buffer

if TYPE_CHECKING:
    from minibroker.security.sasl import Authentication


class Channel(Protocol):
    """The connection, for writes that are not the response to a request."""

    def push(self, buffers: list[Buffer]) -> None:
        """Write now, also while a request is served."""

    def reset(self) -> None:
        """Cut the connection; the client sees a reset instead of an orderly end."""

    def close(self) -> None:
        """End the connection once everything written has left."""

    def answer_room(self) -> int | None:
        """Bytes that answers may still take until clients have read some, over all connections; None for no limit."""

    def hold(self, size: int) -> None:
        """Count `size` bytes, which the answer to the request being served will have, as not read by the client."""

    def mute(self, ms: int) -> None:
        """Begin no further request for this long; the response to the current one is still sent."""


@dataclass(slots=True)
class ConnectionInfo:
    """The client of a connection, and the local address that it connected to.

    channel: None when there is no socket behind it.
    server_name: the host name that a TLS client asked for (SNI), "" without one.
    authentication: the SASL exchange of the connection, None where the listener wants none.
    gone: it was closed, so no response can be sent; read on other threads too.
    on_gone: called when it is closed, for the request that waits.
    on_late: called with what is resolved once a request is over that a rule applies after its turn.
    release: gives back the memory of a request's frame; it works after the close as well.
    """

    client_host: str = ""
    client_port: int = 0
    local_host: str = ""
    local_port: int = 0
    listener: str = "PLAINTEXT"
    principal: str = "User:ANONYMOUS"
    software_name: str = "unknown"
    software_version: str = "unknown"
    channel: Channel | None = None
    server_name: str = ""
    authentication: Authentication | None = None
    gone: bool = False
    on_gone: Callable[[], None] | None = None
    on_late: Callable[[Deferred[Any]], None] | None = None
    release: Callable[[Buffer], None] | None = None
