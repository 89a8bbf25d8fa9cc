"""Security of a listener: TLS, authentication, both or neither."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from minibroker.security.protocols import SecurityProtocol

if TYPE_CHECKING:
    from minibroker.config.settings import Settings
    from minibroker.requests.dispatch import Dispatch
    from minibroker.security.credentials import ScramCredentials
    from minibroker.security.sasl import SaslServer
    from minibroker.server.authenticator import Authenticated

# NetworkReceive.UNLIMITED: as a setting too.
_UNLIMITED = -1


class ListenerSecurity(NamedTuple):
    """tls: None for a listener without it.
    mechanisms: makers of SASL exchanges by name, None for a listener without authentication.
    max_receive_bytes: `sasl.server.max.receive.size`.
    """

    tls: ssl.SSLContext | None = None
    mechanisms: Mapping[str, Callable[[], SaslServer]] | None = None
    max_receive_bytes: int = _UNLIMITED

    def max_frame_bytes(self, largest: int) -> int:
        """The largest request of a new connection.

        largest: that of an authenticated one.
        """
        return largest if self.mechanisms is None or self.max_receive_bytes == _UNLIMITED else self.max_receive_bytes

    def dispatch_of(self, connection: Authenticated, dispatch: Dispatch) -> Dispatch:
        """What serves the connection's frames."""
        if self.mechanisms is None:
            return dispatch
        from minibroker.server.authenticator import Authenticator

        return Authenticator(connection, dispatch, self.mechanisms).serve


OPEN = ListenerSecurity()


def listener_securities(
    settings: Settings,
    listeners: Sequence[tuple[str, SecurityProtocol]],
    credentials: Callable[[], ScramCredentials],
) -> list[ListenerSecurity]:
    """One for each (name, protocol); they share a TLS context.

    credentials: those of the metadata.

    Raises ConfigError.
    """
    tls = None
    if any(protocol.tls for _, protocol in listeners):
        from minibroker.security.tls import server_context

        tls = server_context(settings)
    max_receive_bytes = settings.get_int("sasl.server.max.receive.size")
    return [
        ListenerSecurity(
            tls if protocol.tls else None,
            _mechanisms(settings, name, credentials) if protocol.sasl else None,
            max_receive_bytes,
        )
        for name, protocol in listeners
    ]


def _mechanisms(
    settings: Settings, listener: str, credentials: Callable[[], ScramCredentials]
) -> Mapping[str, Callable[[], SaslServer]]:
    from minibroker.security.credentials import users_of_listener
    from minibroker.security.sasl import mechanisms

    users = users_of_listener(settings.jaas, listener, settings.get("minibroker.sasl.users"))  # type: ignore[arg-type]
    return mechanisms(settings.get_list("sasl.enabled.mechanisms"), users, credentials)
