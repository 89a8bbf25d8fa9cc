"""AddPartitionsToTxn and AddOffsetsToTxn (keys 24, 25): partitions join a transaction, or are looked up in it.

KIP-98, KIP-890; Kafka's TransactionCoordinator.handleAddPartitionsToTransaction, handleVerifyPartitionsInTransaction.
Why the rules are as they are: `minibroker.coordinators.transactions`.
"""

from __future__ import annotations

from collections.abc import Iterable

from minibroker.coordinators.result import CoordinatorResult
from minibroker.coordinators.transactions import transitions
from minibroker.coordinators.transactions.metadata import ProducerIdAndEpoch, TopicPartition, TransactionEntry
from minibroker.coordinators.transactions.refusals import fenced, refuse_timed_out
from minibroker.coordinators.transactions.shard import TransactionShard
from minibroker.coordinators.transactions.states import ONGOING, PREPARED
from minibroker_protocol.errors import ApiError, ErrorCode


def add_partitions(
    shard: TransactionShard,
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    partitions: Iterable[TopicPartition],
    *,
    transaction_version: int,
    now_ms: int,
) -> CoordinatorResult[None]:
    """Add `partitions`, beginning a transaction when none is running.

    transaction_version: the client's.

    Raises ApiError: INVALID_PRODUCER_ID_MAPPING, CONCURRENT_TRANSACTIONS, PRODUCER_FENCED.
    """
    entry = shard.entry(transactional_id)
    refuse_timed_out(shard.config.semantics, entry, producer)
    # Before the id and epoch: after EndTxn v5 used the epochs up, a client's next transaction may come with the new
    # producer id while the old one is still completing (KAFKA-18660).
    ending = entry.volatile.pending_state is not None
    if ending and shard.config.semantics.join_while_ending == "refused":
        raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS, f"{transactional_id} is in {entry}")
    _require_producer(shard, entry, producer)
    if ending or entry.metadata.state in PREPARED:
        raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS, f"{transactional_id} is in {entry}")
    added = frozenset(partitions)
    # The retry of an add, or one by a leader for each batch: nothing to log
    # (TransactionCoordinator.handleAddPartitionsToTransaction).
    if entry.metadata.state is ONGOING and added <= entry.metadata.partitions:
        return CoordinatorResult(None)
    metadata = transitions.with_partitions(entry, added, transaction_version=transaction_version, now_ms=now_ms)
    return shard.write(entry, metadata, None)


def verify_partitions(
    shard: TransactionShard, transactional_id: str, producer: ProducerIdAndEpoch, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, ErrorCode]:
    """NONE for each partition that is in the running transaction, else TRANSACTION_ABORTABLE; changes nothing.

    Raises ApiError: INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS.
    """
    entry = shard.entry(transactional_id)
    refuse_timed_out(shard.config.semantics, entry, producer)
    _require_producer(shard, entry, producer)
    metadata = entry.metadata
    if metadata.state in PREPARED:
        raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS, f"{transactional_id} is in {entry}")
    known = metadata.partitions
    return {tp: ErrorCode.NONE if tp in known else ErrorCode.TRANSACTION_ABORTABLE for tp in partitions}


def _require_producer(shard: TransactionShard, entry: TransactionEntry, producer: ProducerIdAndEpoch) -> None:
    # Id before epoch, as in Kafka: clients bump and continue on the first error, and end on the second.
    if producer.producer_id != entry.metadata.producer_id:
        raise ApiError(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            f"{producer} does not hold {entry.metadata.transactional_id}, which is {entry}",
        )
    if producer.producer_epoch != entry.epoch:
        raise fenced(entry, producer, "does not have the current epoch")
