"""Types of configuration resources (Kafka's ConfigResource.Type)."""

from __future__ import annotations

import re
from enum import IntEnum


class ConfigResourceType(IntEnum):
    """The values are those of DescribeConfigs and of metadata records."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


_INTEGER = re.compile(r"([+-]?)0*(\d{1,10})")


def node_id_of(name: str) -> int | None:
    """The broker that a resource's name means; None where Java's Integer.parseInt throws. Work is linear to the
    name."""
    match = _INTEGER.fullmatch(name)
    if match is None:
        return None
    node_id = int(match[1] + match[2])
    return node_id if -(1 << 31) <= node_id < 1 << 31 else None
