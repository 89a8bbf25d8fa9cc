"""Users and their passwords, from Kafka's JAAS lines and from our own setting, and the SCRAM credentials of
metadata."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from minibroker.config.names import jaas_listener
from minibroker.config.types import ConfigError

# user_alice="secret" among the options of PlainLoginModule
_JAAS_USER = re.compile(r"""\buser_(?P<name>[^\s=]+)\s*=\s*(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<bare>[^\s;"]+))""")
_ESCAPED = re.compile(r"\\(.)")


SCRAM_MECHANISMS = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
"""Kafka's numbers of them (ScramMechanism)."""
SCRAM_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


class ScramCredential(NamedTuple):
    """What a broker knows of a user's password (RFC 5802, KIP-554)."""

    user: str
    mechanism: str
    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int


MIN_SALT_BYTES = 12
"""scramp refuses a shorter one; Kafka takes any, and its own tools make 25 bytes."""

ScramCredentials = Mapping[tuple[str, str], ScramCredential]
"""By mechanism and user."""


def users_of_jaas(text: str) -> dict[str, str]:
    """name → password of the ``user_NAME="PASSWORD"`` options of one login module."""
    users = {}
    for match in _JAAS_USER.finditer(text):
        quoted = match["quoted"]
        users[match["name"]] = match["bare"] if quoted is None else _ESCAPED.sub(r"\1", quoted)
    return users


def users_of_setting(text: str | None) -> dict[str, str]:
    """name → password of ``NAME:PASSWORD,…``. Raises ConfigError, whose text has no password."""
    users = {}
    for number, entry in enumerate((text or "").split(","), start=1):
        if not entry.strip():
            continue
        name, colon, password = entry.strip().partition(":")
        if not colon or not name or not password:
            raise ConfigError(f"minibroker.sasl.users: entry {number} is not NAME:PASSWORD")
        users[name] = password
    return users


def users_of_listener(jaas: Mapping[str, str], listener: str, setting: str | None) -> dict[str, str]:
    """All users of `listener`: those of its JAAS lines and those of minibroker.sasl.users.

    jaas: text by full configuration name.
    """
    users = users_of_setting(setting)
    for name, text in jaas.items():
        if (jaas_listener(name) or "").upper() == listener.upper():
            users.update(users_of_jaas(text))
    return users
