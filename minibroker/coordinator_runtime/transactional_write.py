"""What a partition leader asks the transaction coordinator about (KIP-890)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Write(NamedTuple):
    """The partitions, (topic, index), that a client wants to write to in a transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: Sequence[tuple[str, int]]
