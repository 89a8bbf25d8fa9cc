"""The four security protocols of a listener (Kafka's ``SecurityProtocol``)."""

from __future__ import annotations

from enum import Enum

from minibroker.config.types import ConfigError


class SecurityProtocol(Enum):
    """Whether a listener uses TLS, and whether clients authenticate."""

    PLAINTEXT = (False, False)
    SSL = (True, False)
    SASL_PLAINTEXT = (False, True)
    SASL_SSL = (True, True)

    @property
    def tls(self) -> bool:
        return self.value[0]

    @property
    def sasl(self) -> bool:
        return self.value[1]


def protocol_named(name: str, listener: str) -> SecurityProtocol:
    """Raises ConfigError naming the listener."""
    try:
        return SecurityProtocol[name]
    except KeyError:
        names = ", ".join(protocol.name for protocol in SecurityProtocol)
        raise ConfigError(f"listener {listener}: {name!r} is no security protocol, only {names}") from None
