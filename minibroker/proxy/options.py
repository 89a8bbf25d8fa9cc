"""Start options of a proxy, checked before anything is opened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from minibroker.client.security import PLAINTEXT, Security, read_security
from minibroker.config.types import ConfigError
from minibroker.kernel.addresses import Address, parse_address
from minibroker.kernel.words import reason

DEFAULT_HOST = "127.0.0.1"
_MOST_PORT = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyOptions:
    """One proxy to start. Made by `proxy_options`, which checks it.

    upstream: addresses of some brokers. security: what a connection to any of them needs. port: of the bootstrap
    listener, 0 for a free one; the nodes get the ports after it, in the order in which they become known. config: the
    settings of the listeners (minibroker.security.protocol, ssl.…). record: file that every exchange is written to;
    record_contents: with keys and values of records.
    """

    upstream: tuple[Address, ...]
    security: Security = field(default=PLAINTEXT, repr=False)
    host: str = DEFAULT_HOST
    port: int = 0
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
    config: Mapping[str, Any] | None = None,
    control: Address | None = None,
    control_token: str | None = None,
    page: bool = False,
    record: str | None = None,
    record_contents: bool = True,
) -> ProxyOptions:
    """upstream: ``HOST:PORT[,HOST:PORT…]``. command_config: file with the properties of a client. With `page` and no
    `control` address the API is served on a free port. Raises ConfigError."""
    if record is not None and page:
        raise ConfigError("the page records some exchanges and a file all of them: --page or --record, not both")
    if not 0 <= port <= _MOST_PORT:
        raise ConfigError(f"the port is between 0 and {_MOST_PORT}, not {port}")
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
        config=dict(config or {}),
        control=(DEFAULT_HOST, 0) if page and control is None else control,
        control_token=control_token,
        page=page,
        record=record,
        record_contents=record_contents,
    )
