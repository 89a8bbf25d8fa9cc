"""Kafka's listener settings: where one broker listens, and the address that it advertises to the clients of each
listener.

The advertised address is the first of: advertised.listeners; the server name that a TLS client asked for; inside a
container, ``localhost`` for clients that come through the bridge's gateway, which are those of the host, and the
container's name for all others; the address they came to.
"""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from minibroker.config.settings import Settings
from minibroker.config.types import ConfigError
from minibroker.kernel.addresses import parse_address
from minibroker.security.protocols import SecurityProtocol, protocol_named

# A file that Docker, or Podman, puts into every container.
_CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv")
_ROUTES = "/proc/net/route"
_UP_AND_GATEWAY = 0x3


class ListenerConfig(NamedTuple):
    """One of `listeners`.

    advertised: (host, port) for its clients; None: the address that the client connected to.
    """

    name: str
    host: str
    port: int
    advertised: tuple[str, int] | None = None
    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT


def listener_configs(settings: Settings, brokers: int) -> tuple[ListenerConfig, ...]:
    """The listeners of the settings for clients and brokers, () without any. Raises ConfigError.

    Listeners of a Kafka controller (CONTROLLER in every image) are ignored.
    """
    listeners = _parse(settings, "listeners")
    advertised = _parse(settings, "advertised.listeners")
    if not listeners and not advertised:
        return ()
    if brokers > 1:
        raise ConfigError("listeners and advertised.listeners are for a single broker; use --port and --host")
    # A listener that listener.security.protocol.map lacks has the protocol of its name.
    protocols = {**SecurityProtocol.__members__, **_protocols(settings)}
    if not listeners:
        raise ConfigError("advertised.listeners needs listeners of the same names")
    unknown = advertised.keys() - listeners.keys()
    if unknown:
        raise ConfigError(f"advertised.listeners: there is no listener {min(unknown)}")
    unmapped = listeners.keys() - protocols.keys()
    if unmapped:
        raise ConfigError(
            f"No security protocol defined for listener {min(unmapped)}; add it to listener.security.protocol.map"
        )
    return tuple(
        ListenerConfig(name, *address, advertised.get(name), protocols[name]) for name, address in listeners.items()
    )


def _parse(settings: Settings, key: str) -> dict[str, tuple[str, int]]:
    addresses: dict[str, tuple[str, int]] = {}
    for text in filter(None, settings.get_list(key) or ()):
        name, separator, address = text.partition("://")
        try:
            parsed = parse_address(address if separator else "", least_port=0, any_host=True)
        except ValueError:
            raise ConfigError(f"{key}: expected NAME://HOST:PORT, got {text!r}") from None
        name = name.upper()
        if name == "CONTROLLER":
            continue
        if name in addresses:
            raise ConfigError(f"{key}: {name} is there twice")
        addresses[name] = parsed
    return addresses


def _protocols(settings: Settings) -> dict[str, SecurityProtocol]:
    """By listener, as listener.security.protocol.map has them."""
    protocols = {}
    for text in settings.get_string("listener.security.protocol.map").split(","):
        name, colon, protocol = text.strip().upper().partition(":")
        if name != "CONTROLLER" and colon:
            protocols[name] = protocol_named(protocol, name)
    return protocols


def advertised_by_port(
    declared: Sequence[ListenerConfig], bound: Sequence[socket.socket]
) -> Mapping[int, tuple[str, int]]:
    """Port that a client connected to → (host, port) that it is given; the host "" stands for the address it connected
    to."""
    addresses: dict[int, tuple[str, int]] = {}
    for listener, at in zip(declared, bound, strict=False):
        host, port = at.getsockname()[:2]
        open_to_all = listener.protocol.tls or host in ("0.0.0.0", "::")
        addresses[port] = listener.advertised or ("" if open_to_all else host, port)
    return addresses


def told_outside(
    declared: Sequence[ListenerConfig], bound: Sequence[socket.socket], name: str
) -> list[tuple[str, int]]:
    """For each socket the address given to clients on other machines.

    name: this machine's name, used if nothing else is set.
    """
    advertised = advertised_by_port(declared, bound)
    addresses = []
    for at in bound:
        own, port = at.getsockname()[:2]
        host, port = advertised.get(port, (own, port))
        addresses.append((name if host in ("", "0.0.0.0", "::") else host, port))
    return addresses


@functools.cache
def name_in_container(
    marks: tuple[str, ...] = _CONTAINER_MARKS, routes: str = _ROUTES
) -> Callable[[str, str], str] | None:
    """(client's address, our address) → the advertised host, inside a container; None elsewhere.

    marks: files of which one says that it is a container. routes: the table of routes, as Linux writes it.
    """
    if not any(map(os.path.exists, marks)):
        return None
    gateway, name = _gateway(routes), socket.gethostname()

    def host(client: str, local: str) -> str:
        if local.startswith("127.") or local == "::1":
            return local
        return "localhost" if client == gateway else name

    return host


def _gateway(routes: str) -> str | None:
    """The default route's next hop, as Linux tells it."""
    try:
        with open(routes, encoding="ascii") as file:
            rows = [line.split() for line in file.readlines()[1:]]
    except OSError:
        return None
    for row in rows:
        if row[1] == "00000000" and int(row[3], 16) & _UP_AND_GATEWAY == _UP_AND_GATEWAY:
            return socket.inet_ntoa(bytes.fromhex(row[2])[::-1])
    return None
