"""EndTxn (key 26), aborts by the coordinator, and the completion that follows both.

Versions up to 4, and the coordinator below transaction.version 2, keep the epoch; version 5 bumps it with every end
(KIP-890). Kafka's TransactionCoordinator.endTransaction and endTransactionWithTV1. Why the rules are as they are:
`minibroker.coordinators.transactions`.
"""

from __future__ import annotations

from typing import Final, TypeVar

from minibroker.coordinators.result import CoordinatorResult
from minibroker.coordinators.transactions import transitions
from minibroker.coordinators.transactions.effects import Complete
from minibroker.coordinators.transactions.metadata import (
    LAST_USABLE_EPOCH,
    NO_PRODUCER,
    NO_PRODUCER_ID,
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionEntry,
)
from minibroker.coordinators.transactions.refusals import fenced, refuse_timed_out
from minibroker.coordinators.transactions.shard import ProducerIdSource, TransactionShard
from minibroker.coordinators.transactions.states import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    COMPLETED,
    EMPTY,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    PREPARED,
    TransactionState,
)
from minibroker.coordinators.transactions.transitions import EPOCH_BUMP_VERSION
from minibroker.releases.semantics import END_TXN, EPOCH_BUMPING_END_TXN
from minibroker_protocol.errors import ApiError, ErrorCode

R = TypeVar("R")

OK: Final = ErrorCode.NONE
_CONCURRENT: Final = ErrorCode.CONCURRENT_TRANSACTIONS
_INVALID: Final = ErrorCode.INVALID_TXN_STATE

REPEATED_END: Final[dict[tuple[TransactionState, bool], ErrorCode]] = {
    # (state, commit) → what an end gets when there is nothing left to end
    (COMPLETE_COMMIT, True): OK,
    (COMPLETE_COMMIT, False): _INVALID,
    (COMPLETE_ABORT, True): _INVALID,
    (COMPLETE_ABORT, False): OK,
    # The retry asks again until every marker is written, and then finds Complete*.
    (PREPARE_COMMIT, True): _CONCURRENT,
    (PREPARE_COMMIT, False): _INVALID,
    (PREPARE_ABORT, True): _INVALID,
    (PREPARE_ABORT, False): _CONCURRENT,
    (EMPTY, True): _INVALID,
    (EMPTY, False): _INVALID,
}


def end_txn(
    shard: TransactionShard,
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    *,
    commit: bool,
    transaction_version: int,
    producer_ids: ProducerIdSource,
    now_ms: int,
) -> CoordinatorResult[ProducerIdAndEpoch]:
    """A client ends its transaction. The answer leaves when the decision is durable, before any marker is written.

    The response has the producer id and epoch for the next transaction, (-1, -1) below transaction.version 2.
    Raises ApiError: INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS, INVALID_TXN_STATE,
    COORDINATOR_LOAD_IN_PROGRESS (epochs used up and no producer id at hand).
    """
    entry = shard.entry(transactional_id)
    bumping = transaction_version >= EPOCH_BUMP_VERSION
    semantics = shard.config.semantics
    # Without a code of its own, version 5 finds its way back as with Kafka: an abort is answered with the new epoch.
    if (
        not bumping
        or semantics.timed_out_code(END_TXN, EPOCH_BUMPING_END_TXN, "commit" if commit else "abort") is not None
    ):
        refuse_timed_out(semantics, entry, producer)
    if bumping:
        return _end_and_bump(shard, entry, producer, commit, transaction_version, producer_ids, now_ms)
    _require_producer_id(entry, producer)
    if producer.producer_epoch != entry.epoch:
        raise fenced(entry, producer, "does not have the current epoch")
    _require_nothing_pending(entry)
    # A client whose answer was lost sends the same end again, and must not take it for a failure.
    if entry.metadata.state is not ONGOING:
        _repeat_or_refuse(entry, commit)
        return CoordinatorResult(NO_PRODUCER)
    metadata = transitions.prepared(
        entry,
        PREPARE_COMMIT if commit else PREPARE_ABORT,
        transaction_version=transaction_version,
        now_ms=now_ms,
    )
    return shard.write(entry, metadata, NO_PRODUCER)


def _end_and_bump(
    shard: TransactionShard,
    entry: TransactionEntry,
    producer: ProducerIdAndEpoch,
    commit: bool,
    transaction_version: int,
    producer_ids: ProducerIdSource,
    now_ms: int,
) -> CoordinatorResult[ProducerIdAndEpoch]:
    metadata = entry.metadata
    state = metadata.state
    _require_nothing_pending(entry)
    # The end of a transaction bumps the epoch, so a client whose answer was lost asks again with the one before.
    retry = entry.epoch == producer.producer_epoch + 1
    # With the epochs used up the end gave a new producer id at epoch 0, which that client does not know yet
    # (TransactionCoordinator.endTransaction, retryOnOverflow).
    overflow_retry = (
        metadata.previous_producer_id == producer.producer_id
        and producer.producer_epoch == LAST_USABLE_EPOCH
        and entry.epoch == 0
    )
    if not overflow_retry:
        _require_producer_id(entry, producer)
    current = producer.producer_epoch == entry.epoch
    # The epoch is bumped when the decision is logged: only a retry can meet a transaction that still ends.
    if state in PREPARED:
        valid = retry
    elif state in COMPLETED:
        valid = retry or overflow_retry or current
    else:
        valid = current
    if not valid:
        raise fenced(entry, producer, "has neither the current epoch nor that of a retry")
    # An abort of nothing goes on and bumps: the client may not know whether its first batch, which begins the
    # transaction, has arrived (KIP-890).
    if state is not ONGOING and (retry or overflow_retry or commit or state in PREPARED):
        if not (retry or overflow_retry) and state in COMPLETED:
            # The epoch moved on with the last end: this is a commit of a transaction that never began.
            raise _nothing_to_end(entry, commit)
        _repeat_or_refuse(entry, commit)
        return CoordinatorResult(metadata.producer)
    prepared = transitions.prepared(
        entry,
        PREPARE_COMMIT if commit else PREPARE_ABORT,
        transaction_version=transaction_version,
        # This end uses up the last epoch: the next transaction has a producer id of its own (KIP-890).
        next_producer_id=producer_ids.take() if entry.epoch_exhausted else NO_PRODUCER_ID,
        now_ms=now_ms,
    )
    return shard.write(entry, prepared, ProducerIdAndEpoch(*transitions.after_completion(prepared)))


def abort_with_fence(
    shard: TransactionShard,
    entry: TransactionEntry,
    response: R,
    *,
    producer_ids: ProducerIdSource,
    now_ms: int,
    timed_out: bool,
) -> CoordinatorResult[R]:
    """The coordinator aborts the running transaction and fences its producer (a new instance, or a timeout)."""
    epoch = transitions.fence_epoch(entry)
    version = shard.config.transaction_version
    if version >= EPOCH_BUMP_VERSION:
        metadata = transitions.prepared(
            entry,
            PREPARE_ABORT,
            transaction_version=version,
            next_producer_id=producer_ids.take() if entry.epoch_exhausted else NO_PRODUCER_ID,
            now_ms=now_ms,
            timed_out=timed_out,
        )
        return shard.write(entry, metadata, response)
    recoverable = timed_out and shard.config.semantics.timeout_keeps_last_epoch == "always"
    metadata = transitions.fenced(
        entry,
        PREPARE_ABORT,
        epoch=epoch,
        keep_last_epoch=recoverable,
        # Kafka's coordinator logs 0 here. The level tells a reload that this was a timeout; see `records`.
        transaction_version=version if recoverable else 0,
        now_ms=now_ms,
        timed_out=timed_out,
    )
    return shard.write(entry, metadata, response, fence_epoch=epoch)


def abort_for_owner(
    shard: TransactionShard, entry: TransactionEntry, response: R, *, producer_ids: ProducerIdSource, now_ms: int
) -> CoordinatorResult[R]:
    """The coordinator aborts the running transaction as its owner's EndTxn would, so that the owner keeps its place.

    From transaction.version 2 on that bumps the epoch and the owner's becomes the last one. Below, the epoch stays,
    which every version of the transaction state message can hold.
    """
    version = shard.config.transaction_version
    bumps = version >= EPOCH_BUMP_VERSION
    metadata = transitions.prepared(
        entry,
        PREPARE_ABORT,
        # Below, clients of the protocol before KIP-890 are logged as 0.
        transaction_version=version if bumps else 0,
        next_producer_id=producer_ids.take() if bumps and entry.epoch_exhausted else NO_PRODUCER_ID,
        now_ms=now_ms,
    )
    return shard.write(entry, metadata, response)


def marker_written(shard: TransactionShard, transactional_id: str, partition: TopicPartition) -> tuple[Complete, ...]:
    """`partition` has its marker, or needs none any more. When it was the last one missing the transaction is over:
    what is to be done then."""
    entry = shard.entries.get(transactional_id)
    if entry is None or partition not in entry.volatile.missing_markers:
        return ()
    entry.volatile.missing_markers.remove(partition)
    return () if entry.volatile.missing_markers else (Complete(transactional_id),)


def complete(shard: TransactionShard, entry: TransactionEntry, *, now_ms: int) -> CoordinatorResult[None]:
    """Every marker is written: the transaction is over. A refused append leaves it as it is; the service tries
    again after COORDINATOR_NOT_AVAILABLE."""
    # Nothing is noted: the completion has been pending since Prepare* was replayed (`TransactionShard.replay`).
    metadata = transitions.completed(entry, now_ms=now_ms)
    return CoordinatorResult(None, records=(shard.record_of(metadata),))


def _require_producer_id(entry: TransactionEntry, producer: ProducerIdAndEpoch) -> None:
    if producer.producer_id != entry.metadata.producer_id:
        raise ApiError(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            f"{producer} does not hold {entry.metadata.transactional_id}, which is {entry}",
        )


def _require_nothing_pending(entry: TransactionEntry) -> None:
    if entry.volatile.pending_state is not None:
        raise ApiError(_CONCURRENT, f"{entry.metadata.transactional_id} is in {entry}")


def _repeat_or_refuse(entry: TransactionEntry, commit: bool) -> None:
    """Let the repetition of an end that already happened pass; raise for every other end of nothing."""
    code = REPEATED_END[entry.metadata.state, commit]
    if code is OK:
        return
    if code is _CONCURRENT:
        raise ApiError(_CONCURRENT, f"{entry.metadata.transactional_id} is in {entry}")
    raise _nothing_to_end(entry, commit)


def _nothing_to_end(entry: TransactionEntry, commit: bool) -> ApiError:
    why = f", timed out after {entry.metadata.timeout_ms} ms" if entry.metadata.timed_out else ""
    end = "commit" if commit else "abort"
    return ApiError(_INVALID, f"{entry.metadata.transactional_id} cannot {end} in {entry}{why}")
