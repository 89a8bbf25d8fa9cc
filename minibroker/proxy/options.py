"""Start options of a proxy, checked before anything is opened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from minibroker.client.security import PLAINTEXT, Security, read_security
from minibroker.config.keys import BROKER_KEYS
from minibroker.config.settings import Settings
from minibroker.config.types import ConfigError
from minibroker.kernel.addresses import Address, parse_address
from minibroker.kernel.words import reason

DEFAULT_HOST = "127.0.0.1"
_MOST_PORT = 65535
_ALL_HOSTS: Final = frozenset({"0.0.0.0", "::"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyOptions:
    """One proxy to start. Made by `proxy_options`, which checks it.

    upstream: addresses of some brokers.
    security: what a connection to any of them needs.
    port: the port of the bootstrap listener, 0 for a free one; the nodes get the ports after it, in the order in which
        they become known.
    ports: those of nodes by their ids.
    advertised_host: in answers, "" for the address that a client came to.
    config: the settings of the listeners (`listener_settings`).
    record: file that every exchange is written to.
    record_contents: with keys and values of records.
    """

    upstream: tuple[Address, ...]
    security: Security = field(default=PLAINTEXT, repr=False)
    host: str = DEFAULT_HOST
    port: int = 0
    ports: Mapping[int, int] = field(default_factory=dict)
    advertised_host: str = ""
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)
    control: Address | None = None
    control_token: str | None = field(default=None, repr=False)
    page: bool = False
    record: str | None = None
    record_contents: bool = True


def proxy_options(
    upstream: str,
    *,
    command_config: str | None = None,
    host: str = DEFAULT_HOST,
    port: int = 0,
    ports: Mapping[int, int] | None = None,
    advertised_host: str = "",
    config: Mapping[str, Any] | None = None,
    control: Address | None = None,
    control_token: str | None = None,
    page: bool = False,
    record: str | None = None,
    record_contents: bool = True,
) -> ProxyOptions:
    """upstream: ``HOST:PORT[,HOST:PORT…]``.
    command_config: file with the properties of a client.

    With `page` and no `control` address the API is served on a free port. Raises ConfigError.
    """
    if record is not None and page:
        raise ConfigError("the page records some exchanges and a file all of them: --page or --record, not both")
    if not 0 <= port <= _MOST_PORT:
        raise ConfigError(f"the port is between 0 and {_MOST_PORT}, not {port}")
    ports = dict(ports or {})
    for node_id, node_port in ports.items():
        if node_id < 0 or not 0 < node_port <= _MOST_PORT:
            raise ConfigError(f"a node's port is ID=PORT, both numbers, not {node_id}={node_port}")
    taken = [number for number in (*ports.values(), port) if number]
    if control is not None and (host == control[0] or {host, control[0]} & _ALL_HOSTS):
        taken += [control[1]] if control[1] else []
    if len(set(taken)) < len(taken):
        raise ConfigError("two listeners, or one and the control API, cannot have one port")
    try:
        addresses = tuple(parse_address(text.strip()) for text in upstream.split(","))
        security = read_security(command_config)
    except (OSError, ValueError) as error:
        raise ConfigError(reason(error)) from None
    return ProxyOptions(
        upstream=addresses,
        security=security,
        host=host,
        port=port,
        ports=ports,
        advertised_host=advertised_host,
        config=dict(config or {}),
        control=(DEFAULT_HOST, 0) if page and control is None else control,
        control_token=control_token,
        page=page,
        record=record,
        record_contents=record_contents,
    )


_READ: Final = frozenset(
    {
        *(name for name in BROKER_KEYS if name.startswith("ssl.")),
        "connections.max.idle.ms",
        "max.connections",
        "minibroker.queued.max.response.bytes",
        "minibroker.security.protocol",
        "minibroker.ssl.ca.location",
        "minibroker.uvloop",
        "queued.max.request.bytes",
        "socket.listen.backlog.size",
        "socket.request.max.bytes",
    }
)


def listener_settings(config: Mapping[str, Any]) -> Settings:
    """The settings of a proxy's listeners: their limits, and TLS. Raises ConfigError, also for a setting of brokers
    that a proxy would not act on, and for one that nothing here acts on."""
    settings = Settings(dict(config))
    for name in config:
        if name not in _READ:
            why = "is for brokers" if name in BROKER_KEYS else "has no effect here"
            raise ConfigError(f"{name} {why}; a proxy reads {', '.join(sorted(_READ))}")
    return settings


def parse_node_ports(text: str) -> dict[int, int]:
    """``ID=PORT[,ID=PORT…]``. Raises ValueError."""
    ports: dict[int, int] = {}
    for pair in text.split(","):
        node_id, _, port = pair.strip().partition("=")
        if not node_id.isdecimal() or not port.isdecimal() or int(node_id) in ports:
            raise ValueError(f"a node's port is ID=PORT, each id once, not {pair.strip()!r}")
        ports[int(node_id)] = int(port)
    return ports
