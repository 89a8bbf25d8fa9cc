"""Whether the batches of a Produce request are transactional, read from the first batch's header."""

from __future__ import annotations

from minibroker_protocol.fields import Buffer
from minibroker_protocol.messages.produce import ProduceRequest

_HEADER_SIZE = 61
_MAGIC_BYTE, _MAGIC = 16, 2
_ATTRIBUTES_LOW_BYTE = 22
_TRANSACTIONAL_BIT = 0x10


def is_transactional(records: Buffer | None) -> bool:
    """Whether the records start with a transactional batch. Older messages have no such bit."""
    return (
        records is not None
        and len(records) >= _HEADER_SIZE
        and records[_ATTRIBUTES_LOW_BYTE] & _TRANSACTIONAL_BIT != 0
        and records[_MAGIC_BYTE] >= _MAGIC
    )


def has_transactional_batch(request: ProduceRequest) -> bool:
    """Whether one of its partitions gets a transactional batch."""
    return any(is_transactional(part.records) for topic in request.topic_data for part in topic.partition_data)
