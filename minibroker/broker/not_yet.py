"""Errors by which a Kafka makes clients retry and this broker would not need to (`minibroker.not.yet.answers`).

Counted, not timed, so that every run is alike. A live Kafka 4.4.0 needs 81 to 111 ms for the first coordinator of a
kind and 36 to 66 ms for a topic; the counts are those of a client that retries after 100 ms.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from minibroker.metadata.image import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from minibroker_protocol.errors import ErrorCode

_FIRST_COORDINATOR: Final[Mapping[str, int]] = {CONSUMER_OFFSETS_TOPIC: 1, TRANSACTION_STATE_TOPIC: 2}
_NEW_TOPIC: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE)
"""To the Metadata that creates the topic, and to the next one that names it."""


class NotYet:
    """The errors still to be sent, by the topic that a client's request created."""

    def __init__(self) -> None:
        self._owed: dict[str, list[ErrorCode]] = {}

    def created(self, topic: str) -> None:
        times = _FIRST_COORDINATOR.get(topic)
        self._owed[topic] = [ErrorCode.COORDINATOR_NOT_AVAILABLE] * times if times else list(_NEW_TOPIC)

    def next_code(self, topic: str) -> ErrorCode | None:
        """The code to answer with instead of the topic or its coordinator, None when the client need not wait."""
        owed = self._owed.get(topic)
        if owed is None:
            return None
        code = owed.pop(0)
        if not owed:
            del self._owed[topic]
        return code
