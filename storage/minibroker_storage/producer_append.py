"""The checks one batch of a producer must pass (Kafka's ProducerAppendInfo), as functions that change nothing.

What the state is for, and what can go wrong: `minibroker_storage.producer_state`.
"""

from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.records import CONTROL_MASK, TRANSACTIONAL_MASK, BatchHeader, ControlRecord, ControlType
from minibroker_protocol.records.sequences import increment_sequence
from minibroker_storage.origin import Origin
from minibroker_storage.producer_entry import NO_EPOCH, NO_OFFSET, BatchMetadata, ProducerEntry
from minibroker_storage.producer_rules import ProducerRules
from minibroker_storage.producer_verification import VerificationEntry

MAX_EPOCH = 32767
NO_TRANSACTION_VERSION = -1
_HALF_OF_SEQUENCES = 1 << 30
_SEQUENCE_MASK = 0x7FFFFFFF


class ProducerAppend:
    """A batch that passed every check and is not yet part of the state."""

    def __init__(self, header: BatchHeader) -> None:
        self.producer_id = header.producer_id
        self.epoch = header.producer_epoch
        self.transactional = header.attributes & TRANSACTIONAL_MASK != 0
        self.control = header.attributes & CONTROL_MASK != 0
        self.timestamp = header.max_timestamp
        self.offset = header.base_offset
        self.marker: ControlType | None = None
        self.coordinator_epoch = NO_EPOCH
        self.batch: BatchMetadata | None = None
        if not self.control:
            delta = header.last_offset_delta
            self.batch = BatchMetadata(header.last_sequence, self.offset + delta, delta, self.timestamp)

    def apply_to(self, entry: ProducerEntry, now_ms: int) -> bool:
        """Change `entry` as this batch does (an emptied control batch does not); True when it opens a transaction."""
        batch = self.batch
        if batch is not None:
            if entry.epoch != self.epoch:
                entry.set_epoch(self.epoch)
            entry.batches.append(batch)
            entry.last_timestamp = self.timestamp
            entry.arrival_ms = now_ms
            if self.transactional and entry.current_txn_first_offset == NO_OFFSET:
                entry.current_txn_first_offset = self.offset
                return True
        elif self.marker is not None:
            entry.set_epoch(self.epoch)
            entry.coordinator_epoch = self.coordinator_epoch
            entry.last_timestamp = self.timestamp
            entry.arrival_ms = now_ms
            entry.current_txn_first_offset = NO_OFFSET
        return False


def check_data(
    append: ProducerAppend,
    first_sequence: int,
    entry: ProducerEntry | None,
    *,
    origin: Origin,
    rules: ProducerRules,
    verification: VerificationEntry | None,
) -> None:
    """Raise ApiError when a data batch, whose epoch was checked, may not follow `entry`: sequence, then transaction."""
    # Coordinators write transactional offsets without sequences (AppendOrigin.COORDINATOR).
    if origin is Origin.CLIENT:
        _check_sequence(append.epoch, first_sequence, entry, rules, verification)
    # Inside a transaction such a batch would be visible at once, whatever the marker says
    # (ProducerAppendInfo.appendDataBatch).
    if entry is not None and entry.current_txn_first_offset != NO_OFFSET and not append.transactional:
        raise ApiError(
            ErrorCode.INVALID_TXN_STATE,
            f"batch of producer {append.producer_id} is not transactional, but its transaction is open here since "
            f"offset {entry.current_txn_first_offset}",
        )


def check_epoch(producer_id: int, epoch: int, entry: ProducerEntry | None) -> None:
    current = NO_EPOCH if entry is None else entry.epoch
    if epoch < current:
        raise ApiError(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"producer {producer_id}: expected epoch {current} or higher, got {epoch}",
        )


def _check_sequence(
    epoch: int, first: int, entry: ProducerEntry | None, rules: ProducerRules, verification: VerificationEntry | None
) -> None:
    if verification is not None:
        _check_waiting(epoch, first, entry, rules, verification)
    if entry is None:
        # The state may have expired or been deleted with the records, so Kafka accepts any first sequence (KAFKA-5793).
        if first != 0 and rules.unknown_producer_sequence != "accept":
            raise _unknown_producer(epoch, first, None)
        return
    if epoch == entry.epoch and entry.batches:
        expected = (entry.batches[-1].last_sequence + 1) & _SEQUENCE_MASK
        # Epoch -1 is no epoch: Kafka then accepts any sequence.
        if first == expected or entry.epoch == NO_EPOCH:
            return
        # Sequences wrap at 2^31 (DefaultRecordBatch.incrementSequence): the shorter way around says which is behind.
        stale = (first - expected) & _SEQUENCE_MASK >= _HALF_OF_SEQUENCES
        code = rules.stale_sequence_error if stale else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        raise ApiError(code, _expected(expected, first, epoch, entry))
    # A client that bumps its epoch starts its sequences again at 0 (KIP-360).
    if first == 0:
        return
    known_epoch = entry.epoch == epoch
    if rules.unknown_producer_sequence == "unknown_producer_id" or (
        known_epoch and rules.unknown_producer_sequence != "accept"
    ):
        raise _unknown_producer(epoch, first, entry)
    if entry.epoch != NO_EPOCH:
        raise ApiError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, _expected(0, first, epoch, entry))


def _check_waiting(
    epoch: int, first: int, entry: ProducerEntry | None, rules: ProducerRules, verification: VerificationEntry
) -> None:
    """The two rules of a verification under way: a new epoch's first sequence is 0, and batches keep their order."""
    # Transactions of transaction.version 2 have an epoch each, so their first batch on a partition has sequence 0; an
    # older client's may continue (KIP-890).
    if verification.supports_epoch_bump and first != 0 and (entry is None or not entry.batches):
        if rules.unknown_producer_sequence == "unknown_producer_id":
            raise _unknown_producer(epoch, first, entry)
        raise ApiError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, _expected(0, first, epoch, entry))
    # The batch would be written before the one that waits, which then is out of order for good (KIP-890, part 1).
    if first > verification.lowest_sequence:
        if rules.waiting_sequence_check == "unless_in_sequence" and _in_sequence(epoch, first, entry):
            return
        raise ApiError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"got sequence {first} while sequence {verification.lowest_sequence} still waits for the verification of "
            "its transaction",
        )


def _in_sequence(epoch: int, first: int, entry: ProducerEntry | None) -> bool:
    if entry is None or entry.epoch != epoch or not entry.batches:
        return False
    return first == increment_sequence(entry.last_sequence, 1)


def _expected(expected: int, first: int, epoch: int, entry: ProducerEntry | None) -> str:
    described = "nothing known of the producer" if entry is None else f"known: {entry.describe()}"
    return f"expected sequence {expected}, got {first} at epoch {epoch}; {described}"


def _unknown_producer(epoch: int, first: int, entry: ProducerEntry | None) -> ApiError:
    return ApiError(
        ErrorCode.UNKNOWN_PRODUCER_ID,
        "no sequence known for this producer and epoch: " + _expected(0, first, epoch, entry),
    )


def check_marker(
    append: ProducerAppend,
    control: ControlRecord,
    entry: ProducerEntry | None,
    *,
    origin: Origin,
    transaction_version: int,
) -> None:
    """Raise ApiError when an end marker comes from an older coordinator than the last one.

    From transaction.version 2 on the coordinator bumps the epoch with every marker, so the marker's epoch must be above
    the known one; a repeated marker, with the same epoch and no open transaction, is accepted again (KAFKA-19999).
    """
    # A follower takes what its leader has accepted.
    if origin is Origin.REPLICATION:
        return
    if transaction_version == NO_TRANSACTION_VERSION:
        raise ValueError("an end marker needs the transaction version of its coordinator")
    if entry is not None:
        _check_bumped(append, entry, transaction_version)
    current = NO_EPOCH if entry is None else entry.coordinator_epoch
    coordinator_epoch = control.coordinator_epoch
    if coordinator_epoch is not None and coordinator_epoch < current:
        raise ApiError(
            ErrorCode.TRANSACTION_COORDINATOR_FENCED,
            f"producer {append.producer_id}: expected coordinator epoch {current} or higher, got {coordinator_epoch}",
        )


def _check_bumped(append: ProducerAppend, entry: ProducerEntry, transaction_version: int) -> None:
    # At the last epoch there is none above: the transaction after it has another producer id.
    repeated = entry.current_txn_first_offset == NO_OFFSET or append.epoch == MAX_EPOCH
    if transaction_version >= 2 and append.epoch == entry.epoch and not repeated:
        raise ApiError(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"producer {append.producer_id}: expected a marker with an epoch above {entry.epoch}, got {append.epoch}",
        )
