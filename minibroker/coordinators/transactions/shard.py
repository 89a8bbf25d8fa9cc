"""The transactional ids of one partition of ``__transaction_state``.

Why the rules are as they are: `minibroker.coordinators.transactions`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeVar

from minibroker.coordinators.result import CoordinatorRecord, CoordinatorResult, Effect, Pending
from minibroker.coordinators.transactions import records
from minibroker.coordinators.transactions.effects import PendingTransition, SendMarkers
from minibroker.coordinators.transactions.metadata import TransactionEntry, TransactionMetadata
from minibroker.coordinators.transactions.records import TransactionRecord
from minibroker.coordinators.transactions.states import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    PREPARE_COMMIT,
    PREPARED,
)
from minibroker.releases.semantics import KAFKA, Semantics
from minibroker_protocol.errors import ApiError, ErrorCode

R = TypeVar("R")


class TransactionConfig(NamedTuple):
    """The inputs of the coordinator.

    transaction_version: the finalized feature level.
    """

    semantics: Semantics = KAFKA
    transaction_version: int = 2
    max_timeout_ms: int = 900_000
    id_expiration_ms: int = 604_800_000
    two_phase_commit_enabled: bool = False


class ProducerIdSource(Protocol):
    def take(self) -> int:
        """A producer id never given out before; raises ApiError(COORDINATOR_LOAD_IN_PROGRESS) while there is none."""


@dataclass(slots=True, eq=False)
class TransactionShard:
    """State of one partition, and the bookkeeping every decision shares.

    coordinator_epoch: the leader epoch of the partition, which markers carry.
    """

    index: int
    coordinator_epoch: int
    config: TransactionConfig
    entries: dict[str, TransactionEntry] = field(default_factory=dict, init=False)

    # -- what the host calls ---------------------------------------------------------------------------------------

    def decode(self, key: bytes, value: bytes | None) -> TransactionRecord | None:
        return records.decode(key, value, self.config.semantics.transaction_state_layout)

    def replay(
        self,
        record: CoordinatorRecord,
        *,
        offset: int = -1,
        producer_id: int = -1,
        producer_epoch: int = -1,
        transactional: bool = False,
    ) -> None:
        """Apply one durable record; the only writer of durable state."""
        assert isinstance(record, TransactionRecord)
        metadata = record.metadata
        if metadata is None:
            self.entries.pop(record.transactional_id, None)
            return
        entry = self.entries.get(record.transactional_id)
        if entry is None:
            entry = self.entries[record.transactional_id] = TransactionEntry(metadata)
        entry.metadata = metadata
        entry.nascent = False
        volatile = entry.volatile
        volatile.pending_state = None
        # The log has the epoch now with which memory has fenced.
        volatile.fence_epoch = None
        volatile.failed_epoch_fence = False
        if metadata.state in PREPARED:
            # Kafka prepares the completion in the very callback that caches Prepare*: requests see a pending transition
            # for the whole marker phase.
            volatile.pending_state = COMPLETE_COMMIT if metadata.state is PREPARE_COMMIT else COMPLETE_ABORT
            volatile.missing_markers = set(metadata.partitions)
        else:
            volatile.missing_markers.clear()  # those of a Prepare* that a load has replayed before

    def replay_marker(self, *, producer_id: int, producer_epoch: int, committed: bool) -> None:
        """``__transaction_state`` never takes part in a transaction: nothing to apply."""

    def loaded(self) -> tuple[Effect, ...]:
        """Resume what was prepared when the log was last written to: the same markers, from this leader's epoch."""
        return tuple(SendMarkers(name) for name, entry in self.entries.items() if entry.metadata.state in PREPARED)

    def note(self, pending: Pending) -> None:
        assert isinstance(pending, PendingTransition)
        volatile = self.entries[pending.transactional_id].volatile
        volatile.pending_state = pending.state
        if pending.fence_epoch is not None:
            volatile.fence_epoch = pending.fence_epoch

    def refused(self, pending: Pending, code: ErrorCode) -> None:
        """The append of a transition was refused: its id is where it was, but a fence below transaction.version 2 keeps
        the epoch that it fences with."""
        assert isinstance(pending, PendingTransition)
        entry = self.entries.get(pending.transactional_id)
        if entry is not None:
            entry.volatile.pending_state = None
            entry.volatile.failed_epoch_fence |= pending.fence_epoch is not None

    def resigned(self) -> None:
        self.entries.clear()

    # -- what decisions share --------------------------------------------------------------------------------------

    def entry(self, transactional_id: str) -> TransactionEntry:
        """Raises ApiError(INVALID_PRODUCER_ID_MAPPING) for an id this coordinator does not know."""
        entry = self.entries.get(transactional_id)
        if entry is None:
            raise ApiError(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING, f"transactional id {transactional_id} has no producer id"
            )
        return entry

    def record_of(self, metadata: TransactionMetadata) -> TransactionRecord:
        config = self.config
        return records.record_of(
            metadata,
            value_version=1 if config.transaction_version >= 1 else 0,  # TransactionVersion.transactionLogValueVersion
            with_last_epoch=config.semantics.persist_last_epoch,
            layout=config.semantics.transaction_state_layout,
        )

    def write(
        self, entry: TransactionEntry, metadata: TransactionMetadata, response: R, *, fence_epoch: int | None = None
    ) -> CoordinatorResult[R]:
        """Move `entry` to `metadata` once it is durable; until then its state is pending.

        fence_epoch: the epoch to fence with from now on, even if the append fails (below transaction.version 2).
        Raises ApiError(UNSUPPORTED_VERSION) when no record can hold `metadata`, see `records.record_of`.
        """
        try:
            record = self.record_of(metadata)
        except ApiError:
            # Kafka finds out when the transition is prepared already, and nothing ends it until a reload.
            entry.volatile.pending_state = metadata.state
            raise
        name = metadata.transactional_id
        return CoordinatorResult(
            response,
            (record,),
            pending=(PendingTransition(name, metadata.state, fence_epoch),),
            effects=(SendMarkers(name),) if metadata.state in PREPARED else (),
        )


def durable_state(entries: Iterable[TransactionEntry]) -> dict[str, TransactionMetadata]:
    """What a reload must give back, before what the record format leaves out."""
    return {entry.metadata.transactional_id: entry.metadata for entry in entries if not entry.nascent}
