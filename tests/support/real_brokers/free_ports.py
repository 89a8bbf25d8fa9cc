"""Ports for what cannot tell which port it got."""

from __future__ import annotations

import socket
from random import SystemRandom

_BELOW_EPHEMERAL = (20_000, 32_768)
"""No system gives these to outgoing connections, one of which could take a port before it is listened on."""


def free_ports(count: int) -> list[int]:
    """Ports nobody listened on a moment ago."""
    random, found = SystemRandom(), set[int]()
    while len(found) < count:
        port = random.randrange(*_BELOW_EPHEMERAL)
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        found.add(port)
    return list(found)


def free_port() -> int:
    """One of them."""
    return free_ports(1)[0]
