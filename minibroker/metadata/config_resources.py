"""Types of configuration resources (Kafka's ConfigResource.Type)."""

from __future__ import annotations

from enum import IntEnum


class ConfigResourceType(IntEnum):
    """The values are those of DescribeConfigs and of metadata records."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32
