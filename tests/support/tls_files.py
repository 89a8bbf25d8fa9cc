"""A key and certificate for tests of TLS: localhost, kafka.example and 127.0.0.1, its own authority, until 2126."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

_DIRECTORY = Path(__file__).parent / "tls"
LOCALHOST = _DIRECTORY / "localhost.pem"
ENCRYPTED = _DIRECTORY / "encrypted.pem"
"""The same with a password, ``secret``."""


def trusting() -> ssl.SSLContext:
    """A client's context that trusts the certificate and checks the name."""
    return ssl.create_default_context(cafile=str(LOCALHOST))


def free_port() -> int:
    """A port nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
