"""A key and certificate for tests of TLS: localhost, kafka.example and 127.0.0.1, its own authority, until 2126."""

from __future__ import annotations

import ssl
from pathlib import Path

_DIRECTORY = Path(__file__).parent / "tls"
LOCALHOST = _DIRECTORY / "localhost.pem"
ENCRYPTED = _DIRECTORY / "encrypted.pem"
"""The same with a password, ``secret``."""


def trusting() -> ssl.SSLContext:
    """A client's context that trusts the certificate and checks the name."""
    return ssl.create_default_context(cafile=str(LOCALHOST))
