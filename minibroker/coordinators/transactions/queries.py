"""DescribeTransactions, ListTransactions and DescribeTransactionState (keys 65, 66, 10001): reading, no writing."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from minibroker.coordinators.transactions.metadata import NO_TIMESTAMP, TransactionEntry, by_topic
from minibroker.coordinators.transactions.shard import TransactionShard
from minibroker.coordinators.transactions.states import DEAD, PREPARED
from minibroker_protocol.errors import ApiError, ErrorCode


class TransactionFilter(NamedTuple):
    """Which transactional ids ListTransactions names; an empty collection and None let everything pass.

    matches: whether the whole id fits a pattern, or ApiError.
    """

    states: Collection[str] = ()
    producer_ids: Collection[int] = ()
    longer_than_ms: int = -1
    matches: Callable[[str], bool] | None = None

    def passes(self, transactional_id: str, entry: TransactionEntry, now_ms: int) -> bool:
        metadata = entry.metadata
        if forgotten(entry):
            return False
        if self.states and metadata.state.label not in self.states:
            return False
        if self.producer_ids and metadata.producer_id not in self.producer_ids:
            return False
        # An id that never began a transaction has start -1, and so counts as old (TransactionStateManager).
        if self.longer_than_ms >= 0 and now_ms - metadata.start_ms <= self.longer_than_ms:
            return False
        return self.matches is None or self.matches(transactional_id)


def forgotten(entry: TransactionEntry) -> bool:
    """The id has expired and exists only until its tombstone is written."""
    return entry.metadata.state is DEAD or entry.volatile.pending_state is DEAD


def describe(shard: TransactionShard, transactional_id: str) -> TransactionEntry:
    """The entry to describe; raises ApiError(TRANSACTIONAL_ID_NOT_FOUND)."""
    entry = shard.entries.get(transactional_id)
    if entry is None or forgotten(entry):
        raise ApiError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, f"transactional id {transactional_id} is not known")
    return entry


def partitions_of(entry: TransactionEntry) -> list[tuple[str, list[int]]]:
    """(topic, partitions) of the transaction; while it ends, only those that lack their marker."""
    partitions = entry.volatile.missing_markers if entry.metadata.state in PREPARED else entry.metadata.partitions
    return list(by_topic(partitions).items())


def places_of(entry: TransactionEntry) -> list[str]:
    """`partitions_of` as a person reads them: ``topic-partition``."""
    return [f"{topic}-{index}" for topic, indexes in partitions_of(entry) for index in indexes]


def start_of(entry: TransactionEntry) -> int:
    """Milliseconds, -1 when no transaction ever began."""
    return entry.metadata.start_ms if entry.metadata.start_ms >= 0 else NO_TIMESTAMP
