"""``__transaction_state`` records: TransactionMetadata ↔ TransactionLogKey and TransactionLogValue.

Value version 0 below transaction.version 1, else 1 (flexible). Version 0 has no previous and next producer id, no
client version and no last epoch. A data directory made for it holds version 1 in KIP-360's literal layout instead,
which has the last producer id and the last epoch.

The last epoch: apache/kafka#22096 (KAFKA-20357) persists it in a tagged field of version 1; see
`minibroker_protocol.coordinator_records.TransactionLogValue` for what is known of that field.

Why a transaction was aborted is in none of these layouts. Read back, it was a timeout (`timed_out`)

* exactly, if the client version is 1: clients end in version 0 or 2, and a coordinator at transaction.version 1 writes
  that one for timeouts that leave a last epoch to be claimed (Kafka's are logged as 0 and leave none);
* perhaps, if it is 2, or the layout is KIP-360's, and the abort was completed later than the transaction's timeout
  allows. What a client or a new instance aborted that late looks the same. Earlier, it was none;
* never, if it is 0 (a client's), or if the last epoch is not there, as in version 0 of the message.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

from minibroker.coordinators.result import CoordinatorRecord
from minibroker.coordinators.transactions.metadata import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TopicPartition,
    TransactionMetadata,
    by_topic,
)
from minibroker.coordinators.transactions.states import COMPLETE_ABORT, EMPTY, PREPARE_ABORT, TransactionState
from minibroker.coordinators.transactions.transitions import EPOCH_BUMP_VERSION
from minibroker.releases.semantics import TransactionStateLayout
from minibroker_protocol.coordinator_records import LiteralTransactionLogValue, TransactionLogKey, TransactionLogValue
from minibroker_protocol.errors import ApiError, ErrorCode, Malformed

KNOWN_VALUE_VERSIONS = (0, 1)
LITERAL_VERSION = 1

_COORDINATORS_OWN_VERSION: Final = 1

_Partitions = TransactionLogValue.PartitionsSchema | LiteralTransactionLogValue.PartitionsSchema


@dataclass(slots=True)
class TransactionRecord(CoordinatorRecord):
    """A record with the state it stands for; `metadata` None is a tombstone.

    Live, `metadata` is the state that was encoded; after a reload it is what decoding the bytes gives back.
    """

    transactional_id: str = ""
    metadata: TransactionMetadata | None = None

    def key_bytes(self) -> bytes:
        return _key_bytes(self.transactional_id)


def record_of(
    metadata: TransactionMetadata,
    *,
    value_version: int,
    with_last_epoch: bool,
    layout: TransactionStateLayout = "kafka",
) -> TransactionRecord:
    """The record that makes `metadata` durable.

    Raises ApiError(UNSUPPORTED_VERSION) for a client version that version 0 has no room for, as Kafka does: with
    transaction.version 0 the requests of transaction.version 2 do not work.
    """
    name = metadata.transactional_id
    if value_version == 0 and metadata.client_transaction_version:
        raise ApiError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"with transaction.version 0 the state of {name} cannot be logged for a client of"
            f" transaction.version {metadata.client_transaction_version}",
        )
    if value_version == LITERAL_VERSION and layout == "kip-360":
        return TransactionRecord(_key(name), _literal(metadata), value_version, name, metadata)
    value = TransactionLogValue(
        producer_id=metadata.producer_id,
        producer_epoch=metadata.producer_epoch,
        transaction_timeout_ms=metadata.timeout_ms,
        transaction_status=int(metadata.state),
        # Kafka writes null for Empty and an empty array for Complete*.
        transaction_partitions=None if metadata.state is EMPTY else _grouped(metadata.partitions),
        transaction_last_update_timestamp_ms=metadata.last_update_ms,
        transaction_start_timestamp_ms=metadata.start_ms,
    )
    if value_version >= 1:
        value.previous_producer_id = metadata.previous_producer_id
        value.next_producer_id = metadata.next_producer_id
        value.client_transaction_version = metadata.client_transaction_version
        if with_last_epoch:
            value.last_producer_epoch = metadata.last_producer_epoch
    return TransactionRecord(_key(name), value, value_version, name, metadata)


@lru_cache(maxsize=4096)
def _key(transactional_id: str) -> TransactionLogKey:
    return TransactionLogKey(transactional_id=transactional_id)


@lru_cache(maxsize=4096)
def _key_bytes(transactional_id: str) -> bytes:
    return CoordinatorRecord(_key(transactional_id)).key_bytes()


def _literal(metadata: TransactionMetadata) -> LiteralTransactionLogValue:
    new_instance = metadata.last_producer_epoch == NO_PRODUCER_EPOCH
    return LiteralTransactionLogValue(
        producer_id=metadata.producer_id,
        # By the text both "last" fields are -1 for a new producer instance; Kafka writes the instance's own id.
        last_producer_id=NO_PRODUCER_ID if new_instance else metadata.previous_producer_id,
        current_epoch=metadata.producer_epoch,
        last_epoch=metadata.last_producer_epoch,
        txn_timeout_duration=metadata.timeout_ms,
        txn_status=int(metadata.state),
        txn_partitions=_grouped(metadata.partitions, LiteralTransactionLogValue.PartitionsSchema),
        txn_last_update_time=metadata.last_update_ms,
        txn_start_time=metadata.start_ms,
    )


def tombstone_of(transactional_id: str) -> TransactionRecord:
    """The record that makes the log forget the id."""
    return TransactionRecord(_key(transactional_id), transactional_id=transactional_id)


def decode(key: bytes, value: bytes | None, layout: TransactionStateLayout = "kafka") -> TransactionRecord | None:
    """Bytes as they lie in the log; None for a key or value version this code does not know.

    Raises Malformed when a known version does not parse.
    """
    if int.from_bytes(key[:2], "big", signed=True) != TransactionLogKey.__record_type__:
        return None
    transactional_id = TransactionLogKey.decode(key, 0, 2).transactional_id
    if value is None:
        return tombstone_of(transactional_id)
    version = int.from_bytes(value[:2], "big", signed=True)
    if version not in KNOWN_VALUE_VERSIONS:
        return None
    if version == LITERAL_VERSION and layout == "kip-360":
        literal = LiteralTransactionLogValue.decode(value, version, 2)
        state = _of_literal(transactional_id, literal)
        return TransactionRecord(_key(transactional_id), literal, version, transactional_id, state)
    fields = TransactionLogValue.decode(value, version, 2)
    metadata = TransactionMetadata(
        transactional_id=transactional_id,
        producer_id=fields.producer_id,
        producer_epoch=fields.producer_epoch,
        previous_producer_id=fields.previous_producer_id,
        next_producer_id=fields.next_producer_id,
        last_producer_epoch=fields.last_producer_epoch,
        timeout_ms=fields.transaction_timeout_ms,
        state=_state(fields.transaction_status, version),
        partitions=_flat(fields.transaction_partitions or ()),
        start_ms=fields.transaction_start_timestamp_ms,
        last_update_ms=fields.transaction_last_update_timestamp_ms,
        client_transaction_version=fields.client_transaction_version,
    )
    by_coordinator = fields.client_transaction_version == _COORDINATORS_OWN_VERSION
    bumping = fields.client_transaction_version >= EPOCH_BUMP_VERSION
    timed_out = by_coordinator or (bumping and _ended_late(metadata))
    metadata = metadata._replace(timed_out=timed_out and _may_have_timed_out(metadata))
    return TransactionRecord(_key(transactional_id), fields, version, transactional_id, metadata)


def _may_have_timed_out(metadata: TransactionMetadata) -> bool:
    """The transaction was aborted, and the epoch bumped away is known."""
    aborted = metadata.state in (PREPARE_ABORT, COMPLETE_ABORT)
    return aborted and metadata.last_producer_epoch != NO_PRODUCER_EPOCH


def _ended_late(metadata: TransactionMetadata) -> bool:
    return metadata.last_update_ms - metadata.start_ms > metadata.timeout_ms


def _of_literal(transactional_id: str, fields: LiteralTransactionLogValue) -> TransactionMetadata:
    metadata = TransactionMetadata(
        transactional_id=transactional_id,
        producer_id=fields.producer_id,
        producer_epoch=fields.current_epoch,
        previous_producer_id=fields.last_producer_id,
        last_producer_epoch=fields.last_epoch,
        timeout_ms=fields.txn_timeout_duration,
        state=_state(fields.txn_status, LITERAL_VERSION),
        partitions=_flat(fields.txn_partitions),
        start_ms=fields.txn_start_time,
        last_update_ms=fields.txn_last_update_time,
    )
    return metadata._replace(timed_out=_may_have_timed_out(metadata) and _ended_late(metadata))


def _state(status: int, version: int) -> TransactionState:
    try:
        return TransactionState(status)
    except ValueError:
        raise Malformed(f"TransactionLogValue v{version}: unknown status {status}") from None


def _flat(topics: Iterable[_Partitions]) -> frozenset[TopicPartition]:
    return frozenset((topic.topic, index) for topic in topics for index in topic.partition_ids)


def with_partitions(record: TransactionRecord, partitions: frozenset[TopicPartition]) -> TransactionRecord:
    """The same state with other `partitions`, in the version and layout in which it was read."""
    assert record.metadata is not None
    value = copy(record.value)
    if isinstance(value, LiteralTransactionLogValue):
        value.txn_partitions = _grouped(partitions, LiteralTransactionLogValue.PartitionsSchema)
    else:
        assert isinstance(value, TransactionLogValue)
        value.transaction_partitions = _grouped(partitions)
    return replace(record, value=value, metadata=record.metadata._replace(partitions=partitions))


def _grouped(partitions: frozenset[TopicPartition], schema: Any = TransactionLogValue.PartitionsSchema) -> list[Any]:
    if not partitions:
        return []
    return [schema(topic=topic, partition_ids=indexes) for topic, indexes in by_topic(partitions).items()]
