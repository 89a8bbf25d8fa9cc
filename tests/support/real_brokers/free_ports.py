"""Ports for what cannot tell which port it got."""

from __future__ import annotations

import socket
from random import SystemRandom

_BELOW_EPHEMERAL = (20_000, 32_768)
"""No system gives these to outgoing connections, one of which could take a port before it is listened on."""


def free_ports(count: int) -> list[int]:
    """Ports nobody listened on a moment ago."""
    random, ports = SystemRandom(), set[int]()
    while len(ports) < count:
        port = random.randrange(*_BELOW_EPHEMERAL)
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        ports.add(port)
    return list(ports)


def free_port() -> int:
    """One of them."""
    return free_ports(1)[0]
