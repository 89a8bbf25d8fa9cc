"""``HOST:PORT`` as text and as a pair."""

from __future__ import annotations

from typing import Final

Address = tuple[str, int]
_LARGEST_PORT: Final = 65535


def parse_address(text: str, *, least_port: int = 1, any_host: bool = False) -> Address:
    """``HOST:PORT``, an IPv6 address as ``[HOST]:PORT``.

    least_port: 0 where 0 means a free one.
    any_host: the host may be missing.

    Raises ValueError.
    """
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    is_port = port.isascii() and port.isdecimal() and len(port) <= len(str(_LARGEST_PORT))
    if not colon or not (host or any_host) or not is_port or not least_port <= int(port) <= _LARGEST_PORT:
        raise ValueError(f"{text!r} is not HOST:PORT")
    return host, int(port)


def format_address(host: str, port: int) -> str:
    """``host:port``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
