"""Timeouts of transactional ids: running transactions are aborted, idle ids are forgotten.

Kafka's TransactionCoordinator.abortTimedOutTransactions and TransactionStateManager.removeExpiredTransactionalIds. Why
the rules are as they are: `minibroker.coordinators.transactions`.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from minibroker.coordinators.result import CoordinatorResult
from minibroker.coordinators.transactions import records
from minibroker.coordinators.transactions.effects import PendingTransition
from minibroker.coordinators.transactions.end_txn import abort_with_fence
from minibroker.coordinators.transactions.metadata import NEVER_TIMES_OUT_MS, TransactionEntry
from minibroker.coordinators.transactions.shard import ProducerIdSource, TransactionShard
from minibroker.coordinators.transactions.states import DEAD, EXPIRABLE, ONGOING, require_legal


def next_timeout_ms(shard: TransactionShard) -> float:
    """The first time at which `timed_out` names one of those that run now; infinite when none does."""
    return min(
        (
            entry.metadata.start_ms + entry.metadata.timeout_ms + 1
            for entry in shard.entries.values()
            if _may_time_out(entry)
        ),
        default=inf,
    )


def _may_time_out(entry: TransactionEntry) -> bool:
    metadata = entry.metadata
    return (
        # A pending transition is an end on its way; a two-phase commit has no timeout (KIP-939).
        metadata.state is ONGOING and entry.volatile.pending_state is None and metadata.timeout_ms != NEVER_TIMES_OUT_MS
    )


def timed_out(shard: TransactionShard, now_ms: int) -> list[str]:
    """Ids whose running transaction is past its timeout."""
    return [
        transactional_id
        for transactional_id, entry in shard.entries.items()
        if _may_time_out(entry) and entry.metadata.start_ms + entry.metadata.timeout_ms < now_ms
    ]


def abort_timed_out(
    shard: TransactionShard, transactional_id: str, *, producer_ids: ProducerIdSource, now_ms: int
) -> CoordinatorResult[None]:
    """Abort one of them; raises ApiError when it cannot be fenced, or no producer id is at hand."""
    return abort_with_fence(
        shard, shard.entry(transactional_id), None, producer_ids=producer_ids, now_ms=now_ms, timed_out=True
    )


def expired(shard: TransactionShard, now_ms: int) -> list[str]:
    """Ids that nothing happened to for transactional.id.expiration.ms."""
    oldest_ms = now_ms - shard.config.id_expiration_ms
    return [
        transactional_id
        for transactional_id, entry in shard.entries.items()
        # Kafka drops no id in a transaction, whatever its age: its tombstone would lose the decision
        # (TransactionStateManager.shouldExpire).
        if entry.metadata.state in EXPIRABLE
        and entry.volatile.pending_state is None
        and entry.metadata.last_update_ms <= oldest_ms
    ]


def forget(shard: TransactionShard, transactional_ids: Iterable[str]) -> CoordinatorResult[None]:
    """Tombstones for ids that `expired` named; they are Dead until those are durable."""
    names = list(transactional_ids)
    for name in names:
        require_legal(name, shard.entry(name).metadata.state, DEAD)
    return CoordinatorResult(
        None,
        tuple(records.tombstone_of(name) for name in names),
        pending=tuple(PendingTransition(name, DEAD) for name in names),
    )
