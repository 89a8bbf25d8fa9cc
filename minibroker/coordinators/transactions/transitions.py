"""The next durable state of a transactional id, one function per transition (Kafka's TransactionMetadata.prepare…).

Each takes the id as it is and returns new metadata; nothing is changed. The previous producer id is set on every way to
the one held before it, so it differs from the producer id only right after a rotation. Why the rules are as they are:
`minibroker.coordinators.transactions`.
"""

from __future__ import annotations

from minibroker.coordinators.transactions.metadata import (
    MAX_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    TopicPartition,
    TransactionEntry,
    TransactionMetadata,
)
from minibroker.coordinators.transactions.states import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    ONGOING,
    PREPARE_COMMIT,
    TransactionState,
    require_legal,
)
from minibroker_protocol.errors import ApiError, ErrorCode

EPOCH_BUMP_VERSION = 2
"""First transaction.version in which every end of a transaction bumps the epoch (KIP-890)."""


def _moved(entry: TransactionEntry, to: TransactionState, now_ms: int) -> TransactionMetadata:
    """The fields that every transition changes."""
    metadata = entry.metadata
    require_legal(metadata.transactional_id, metadata.state, to)
    return metadata._replace(
        previous_producer_id=metadata.producer_id, next_producer_id=NO_PRODUCER_ID, state=to, last_update_ms=now_ms
    )


def bumped(
    entry: TransactionEntry, *, producer_epoch: int, last_producer_epoch: int, timeout_ms: int, now_ms: int
) -> TransactionMetadata:
    """InitProducerId that keeps the producer id."""
    return _moved(entry, EMPTY, now_ms)._replace(
        producer_epoch=producer_epoch,
        last_producer_epoch=last_producer_epoch,
        timeout_ms=timeout_ms,
        partitions=frozenset(),
        start_ms=NO_TIMESTAMP,
        timed_out=False,
    )


def rotated(
    entry: TransactionEntry, *, producer_id: int, last_producer_epoch: int, timeout_ms: int, now_ms: int
) -> TransactionMetadata:
    """InitProducerId that gives a new producer id, because the epochs of the old one are used up."""
    metadata = bumped(
        entry, producer_epoch=0, last_producer_epoch=last_producer_epoch, timeout_ms=timeout_ms, now_ms=now_ms
    )
    return metadata._replace(producer_id=producer_id)


def with_partitions(
    entry: TransactionEntry, added: frozenset[TopicPartition], *, transaction_version: int, now_ms: int
) -> TransactionMetadata:
    """Partitions join the transaction; the first ones begin it."""
    metadata = entry.metadata
    return _moved(entry, ONGOING, now_ms)._replace(
        producer_epoch=entry.epoch,
        last_producer_epoch=entry.last_epoch,
        partitions=metadata.partitions | added,
        # The timeout counts from the first partition, however many join later
        # (TransactionMetadata.prepareAddPartitions).
        start_ms=metadata.start_ms if metadata.state is ONGOING else now_ms,
        client_transaction_version=transaction_version,
        timed_out=False,
    )


def prepared(
    entry: TransactionEntry,
    to: TransactionState,
    *,
    transaction_version: int,
    now_ms: int,
    next_producer_id: int = NO_PRODUCER_ID,
    timed_out: bool = False,
) -> TransactionMetadata:
    """The end of a transaction is decided; below transaction.version 2 the epoch stays.

    Raises ApiError(UNKNOWN_SERVER_ERROR) for a commit whose epoch cannot be bumped.
    """
    metadata = entry.metadata
    epoch, last_epoch = entry.epoch, entry.last_epoch
    if transaction_version >= EPOCH_BUMP_VERSION:
        if epoch == MAX_EPOCH and to is PREPARE_COMMIT:
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"no epoch follows {entry}")
        # After the last usable epoch the markers carry 32767, which no client may hold.
        epoch, last_epoch = min(epoch + 1, MAX_EPOCH), epoch
    return _moved(entry, to, now_ms)._replace(
        producer_epoch=epoch,
        last_producer_epoch=last_epoch,
        next_producer_id=next_producer_id,
        # An abort with nothing open has no start of its own.
        start_ms=metadata.start_ms if metadata.state is ONGOING else now_ms,
        client_transaction_version=transaction_version,
        timed_out=timed_out,
    )


def fence_epoch(entry: TransactionEntry) -> int:
    """The epoch that fences the running producer.

    After a fence whose append failed the epoch is not bumped again, because no producer got it (KAFKA-9666); nor at
    32767, which no client may hold (TransactionMetadata.prepareFenceProducerEpoch).
    """
    return entry.epoch if entry.volatile.failed_epoch_fence else min(entry.epoch + 1, MAX_EPOCH)


def fenced(
    entry: TransactionEntry,
    to: TransactionState,
    *,
    epoch: int,
    keep_last_epoch: bool,
    transaction_version: int,
    now_ms: int,
    timed_out: bool,
) -> TransactionMetadata:
    """The coordinator aborts below transaction.version 2: the epoch is `epoch`, and the old one forgotten or kept."""
    return _moved(entry, to, now_ms)._replace(
        producer_epoch=epoch,
        last_producer_epoch=entry.metadata.producer_epoch if keep_last_epoch else NO_PRODUCER_EPOCH,
        client_transaction_version=transaction_version,
        timed_out=timed_out,
    )


def completed(entry: TransactionEntry, *, now_ms: int) -> TransactionMetadata:
    """Every marker is written. A producer id allocated while preparing takes over at epoch 0; the last epoch stays what
    the client saw."""
    to = COMPLETE_COMMIT if entry.metadata.state is PREPARE_COMMIT else COMPLETE_ABORT
    producer_id, epoch = after_completion(entry.metadata)
    return _moved(entry, to, now_ms)._replace(producer_id=producer_id, producer_epoch=epoch, partitions=frozenset())


def after_completion(metadata: TransactionMetadata) -> tuple[int, int]:
    """(producer id, epoch) that Complete* will hold, which is what EndTxn v5+ answers already while preparing."""
    if metadata.client_transaction_version >= EPOCH_BUMP_VERSION and metadata.next_producer_id != NO_PRODUCER_ID:
        return metadata.next_producer_id, 0
    return metadata.producer_id, metadata.producer_epoch
