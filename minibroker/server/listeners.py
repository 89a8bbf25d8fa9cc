"""Sockets that are bound and listening before their port is published."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Sequence
from typing import Any

from minibroker.kernel.addresses import format_address

_BACKLOG = 128

_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


class ListenError(OSError):
    """The broker cannot listen on an address; the text is one line with the address and the reason."""


def listen_all(host: str, ports: Sequence[int], backlog: int = _BACKLOG) -> list[socket.socket]:
    """One listening socket for each port, all of them or none; port 0 takes a free port and keeps it.

    Raises ListenError.
    """
    listeners: list[socket.socket] = []
    try:
        for port in ports:
            listeners.append(_listen(host, port, backlog))  # noqa: PERF401  the ones before a failure must be closed
    except BaseException:
        for listener in listeners:
            listener.close()
        raise
    return listeners


def hold(host: str, port: int) -> socket.socket:
    """A socket that reserves the port and refuses connections until `listen` is called. Raises ListenError."""
    return _listen(host, port, None)


def _listen(host: str, port: int, backlog: int | None) -> socket.socket:
    family, address = _resolve(host, port)
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name == "posix":
            # Lets a restarted broker have its port back while old connections are still in TIME_WAIT.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        elif hasattr(socket, "SO_EXCLUSIVEADDRUSE"):
            # Windows would let two processes listen on one port.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        if family == socket.AF_INET6 and hasattr(socket, "IPPROTO_IPV6"):
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        if backlog is not None:
            listener.listen(backlog)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise ListenError(why_not(error, host, port)) from None
    return listener


def _resolve(host: str, port: int) -> tuple[socket.AddressFamily, Any]:
    # As text it would be encoded by a codec whose import is a hundredth of a start.
    name = host.encode() if host.isascii() else host
    try:
        addresses = socket.getaddrinfo(name or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ListenError(f"host {host!r} has no address: {error.strerror or error}") from None
    # localhost is often both; clients that try 127.0.0.1 first are the rule.
    addresses.sort(key=lambda entry: entry[0] != socket.AF_INET)
    family, _, _, _, address = addresses[0]
    return family, address


def why_not(error: OSError, host: str, port: int) -> str:
    """The reason why the address cannot be used, and what to do."""
    where = format_address(host, port)
    if error.errno == errno.EADDRINUSE or getattr(error, "winerror", None) in (10013, 10048):
        return f"{where} is in use by another program; choose another port, or 0 for a free one"
    if error.errno == errno.EACCES:
        return f"{where} needs more rights than this program has; choose a port above 1023"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{where}: {host} is not an address of this machine"
    return f"{where} cannot be listened on: {error.strerror or error}"


def local_address(listener: socket.socket) -> tuple[str, int]:
    """(host, port) under which a client on this machine reaches the socket."""
    host, port = listener.getsockname()[:2]
    return _WILDCARDS.get(host, host), port
