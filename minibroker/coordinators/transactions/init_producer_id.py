"""InitProducerId (key 22): a producer's claim on a transactional id (KIP-98, KIP-360; transactional half).

Kafka's TransactionCoordinator.handleInitProducerId and prepareInitProducerIdTransit. Why the rules are as they are:
`minibroker.coordinators.transactions`.
"""

from __future__ import annotations

from minibroker.coordinators.result import CoordinatorResult
from minibroker.coordinators.transactions import transitions
from minibroker.coordinators.transactions.end_txn import abort_for_owner, abort_with_fence
from minibroker.coordinators.transactions.metadata import (
    LAST_USABLE_EPOCH,
    NEVER_TIMES_OUT_MS,
    NO_PRODUCER_EPOCH,
    ProducerIdAndEpoch,
    TransactionEntry,
    TransactionMetadata,
)
from minibroker.coordinators.transactions.refusals import fenced
from minibroker.coordinators.transactions.shard import ProducerIdSource, TransactionConfig, TransactionShard
from minibroker.coordinators.transactions.states import ONGOING, PREPARED
from minibroker_protocol.errors import ApiError, ErrorCode

InitAnswer = ProducerIdAndEpoch | ApiError
"""What the caller gets once the records are durable: a producer id and epoch, or a refusal that changed something."""


def checked_timeout_ms(
    config: TransactionConfig,
    timeout_ms: int,
    *,
    enable_two_phase_commit: bool = False,
    keep_prepared_transaction: bool = False,
) -> int:
    """The transaction timeout to use; raises ApiError for a request that is invalid in every state."""
    if enable_two_phase_commit and not config.two_phase_commit_enabled:
        raise ApiError(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "two-phase commit needs transaction.two.phase.commit.enable=true",
        )
    if keep_prepared_transaction:
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION, "keeping a prepared transaction is not supported (KIP-939)")
    if enable_two_phase_commit:
        return NEVER_TIMES_OUT_MS
    if not 0 < timeout_ms <= config.max_timeout_ms:
        raise ApiError(
            ErrorCode.INVALID_TRANSACTION_TIMEOUT,
            f"transaction timeout {timeout_ms} ms is not within 1 and transaction.max.timeout.ms"
            f" ({config.max_timeout_ms})",
        )
    return timeout_ms


def init_producer_id(
    shard: TransactionShard,
    transactional_id: str,
    *,
    timeout_ms: int,
    expected: ProducerIdAndEpoch | None,
    producer_ids: ProducerIdSource,
    now_ms: int,
) -> CoordinatorResult[InitAnswer]:
    """`expected`: the producer id and epoch the caller believes to hold, None for a new instance.

    Raises ApiError: CONCURRENT_TRANSACTIONS, PRODUCER_FENCED, COORDINATOR_LOAD_IN_PROGRESS (no producer id at hand),
    UNKNOWN_SERVER_ERROR (epochs used up and not the current one offered).
    """
    entry = shard.entries.get(transactional_id)
    if entry is None:
        fresh = TransactionMetadata(
            transactional_id=transactional_id,
            producer_id=producer_ids.take(),
            timeout_ms=timeout_ms,
            last_update_ms=now_ms,
        )
        entry = TransactionEntry(fresh, nascent=True)
        # Kafka caches the id before its first append, so that a second request meets a pending transition.
        shard.entries[transactional_id] = entry
    metadata = entry.metadata
    # Before the epochs are compared: the append on its way may change them
    # (TransactionCoordinator.prepareInitProducerIdTransit).
    if entry.volatile.pending_state is not None:
        raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS, f"{transactional_id} is in {entry}")
    if expected is not None and not _may_claim(shard, entry, expected):
        raise fenced(entry, expected, "does not hold this transactional id")
    # Its markers, of the epoch that it has now, are still being written: the client backs off
    # (prepareInitProducerIdTransit).
    if metadata.state in PREPARED:
        raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS, f"{transactional_id} is in {entry}")
    if metadata.state is ONGOING:
        return _take_over(shard, entry, expected, producer_ids, now_ms)
    claimed = _claim(shard, entry, expected, timeout_ms, producer_ids, now_ms)
    return shard.write(entry, claimed, claimed.producer)


def _may_claim(shard: TransactionShard, entry: TransactionEntry, expected: ProducerIdAndEpoch) -> bool:
    """The producer id is right, or it is the retry of a rotation whose answer was lost."""
    metadata = entry.metadata
    # Without an epoch the id was made just now: its producer comes with the pair that it lost after
    # UNKNOWN_PRODUCER_ID, and fences nobody (TransactionCoordinator.isValidProducerId).
    if entry.epoch == NO_PRODUCER_EPOCH or expected.producer_id == metadata.producer_id:
        return True
    if expected.producer_id != metadata.previous_producer_id:
        return False
    # The id was rotated because this epoch was the last: its owner did not get the answer.
    if expected.producer_epoch >= LAST_USABLE_EPOCH:
        return True
    # KIP-360's text has the coordinator remember what was offered; Kafka's only knows the rotation.
    return shard.config.semantics.remember_offered_producer_id and expected.producer_epoch == entry.last_epoch


def _take_over(
    shard: TransactionShard,
    entry: TransactionEntry,
    expected: ProducerIdAndEpoch | None,
    producer_ids: ProducerIdSource,
    now_ms: int,
) -> CoordinatorResult[InitAnswer]:
    """A transaction is running: abort it; the caller has to come again.

    Kafka shuts its producer out, the owner of the current epoch too. By the text the epoch decides as it does without a
    transaction: the last one is a late copy of a bump that was answered, the current one the owner's.
    """
    try_again = ApiError(
        ErrorCode.CONCURRENT_TRANSACTIONS,
        f"the running transaction of {entry.metadata.transactional_id} is aborted first",
    )
    if expected is not None and shard.config.semantics.init_compares_epoch_while_ongoing:
        if expected.producer_epoch == entry.epoch:
            return abort_for_owner(shard, entry, try_again, producer_ids=producer_ids, now_ms=now_ms)
        if expected.producer_epoch == entry.last_epoch:
            return CoordinatorResult(ProducerIdAndEpoch(entry.metadata.producer_id, entry.epoch))
        raise fenced(entry, expected, "has neither the current nor the last epoch")
    return abort_with_fence(shard, entry, try_again, producer_ids=producer_ids, now_ms=now_ms, timed_out=False)


def _claim(
    shard: TransactionShard,
    entry: TransactionEntry,
    expected: ProducerIdAndEpoch | None,
    timeout_ms: int,
    producer_ids: ProducerIdSource,
    now_ms: int,
) -> TransactionMetadata:
    epoch, last_epoch = entry.epoch, entry.last_epoch
    offered = None if expected is None else expected.producer_epoch
    # A timeout that fenced with the very last epoch leaves the one before it to be claimed; no client may hold 32767.
    timed_out = entry.metadata.timed_out and offered == last_epoch
    # No client may hold 32767: the coordinator keeps it to fence with (TransactionMetadata.isProducerEpochExhausted).
    if entry.epoch_exhausted and (offered in (None, epoch) or timed_out):
        return transitions.rotated(
            entry,
            producer_id=producer_ids.take(),
            last_producer_epoch=NO_PRODUCER_EPOCH if expected is None else last_epoch if timed_out else epoch,
            timeout_ms=timeout_ms,
            now_ms=now_ms,
        )
    if entry.epoch_exhausted:
        raise ApiError(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            f"no epochs are left for producer id {entry.metadata.producer_id}, and epoch {offered} is not current",
        )
    rotated = expected is not None and expected.producer_id != entry.metadata.producer_id
    if rotated and epoch != NO_PRODUCER_EPOCH and offered == last_epoch:
        bumped = (epoch, last_epoch)  # the answer that gave a new producer id was lost
    elif offered is None:
        # A new instance has no epoch before, so a late request of the old instance cannot claim one (KIP-360).
        bumped = (epoch + 1, NO_PRODUCER_EPOCH)
    elif offered == epoch or epoch == NO_PRODUCER_EPOCH:
        bumped = (epoch + 1, epoch)
    elif offered == last_epoch:
        bumped = (epoch, last_epoch)  # the answer to the bump was lost
    else:
        assert expected is not None
        raise fenced(entry, expected, "has neither the current nor the last epoch")
    claimed = transitions.bumped(
        entry, producer_epoch=bumped[0], last_producer_epoch=bumped[1], timeout_ms=timeout_ms, now_ms=now_ms
    )
    if expected is None or not shard.config.semantics.remember_offered_producer_id:
        return claimed
    return _remembering(entry, claimed, expected)


def _remembering(
    entry: TransactionEntry, claimed: TransactionMetadata, expected: ProducerIdAndEpoch
) -> TransactionMetadata:
    """Keep what an answered claim offered, so that the same request finds the same answer again (KIP-360)."""
    if entry.epoch == NO_PRODUCER_EPOCH:
        return claimed._replace(previous_producer_id=expected.producer_id, last_producer_epoch=expected.producer_epoch)
    if expected.producer_id != claimed.producer_id:
        return claimed._replace(previous_producer_id=expected.producer_id)
    return claimed
