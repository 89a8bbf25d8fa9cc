"""``HOST:PORT`` as text and as a pair."""

from __future__ import annotations

from typing import Final

Address = tuple[str, int]
_LARGEST_PORT: Final = 65535
_LONGEST_LABEL: Final = 63
"""Characters between two dots of a name."""


def parse_address(text: str, *, least_port: int = 1, any_host: bool = False) -> Address:
    """``HOST:PORT``, an IPv6 address as ``[HOST]:PORT``.

    least_port: 0 where 0 means a free one.
    any_host: the host may be missing.

    Raises ValueError.
    """
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    is_port = port.isascii() and port.isdecimal() and len(port) <= len(str(_LARGEST_PORT))
    is_host = _can_be_looked_up(host) if host else any_host
    if not colon or not is_host or not is_port or not least_port <= int(port) <= _LARGEST_PORT:
        raise ValueError(f"{text!r} is not HOST:PORT")
    return host, int(port)


def _can_be_looked_up(host: str) -> bool:
    """Whether the system's resolver takes the name; for some that it does not, Python raises no OSError."""
    if "\0" in host:
        return False
    if host.isascii():  # as the codec has it, whose import is a hundredth of a start
        *labels, last = host.split(".")
        return all(0 < len(label) <= _LONGEST_LABEL for label in labels) and len(last) <= _LONGEST_LABEL
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


def format_address(host: str, port: int) -> str:
    """``host:port``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
