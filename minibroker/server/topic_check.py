"""Whether a topic of the command line or of a setup file can be created."""

from __future__ import annotations

from minibroker.config.types import ConfigError


def check_topic(name: str, partitions: int) -> None:
    """Raises ConfigError for an invalid topic name or number of partitions."""
    from minibroker.controller.topics import check_topic_name
    from minibroker_protocol.errors import ApiError

    if not isinstance(partitions, int) or partitions < 1:
        raise ConfigError(f"topic {name!r} needs a number of partitions from 1 on, not {partitions!r}")
    try:
        check_topic_name(name)
    except ApiError as error:
        raise ConfigError(error.message or str(error)) from None
