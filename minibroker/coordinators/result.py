"""The result of a coordinator decision: records to append, the response, and what follows once they are durable.

A coordinator method is a function of its state, the request and now. It returns a `CoordinatorResult`. The
host (`minibroker.coordinator_runtime.coordinator_host`) appends them, has them replayed, and only then lets the answer
go. The idea is that of Kafka's CoordinatorResult.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from minibroker_protocol.dsl import Data
from minibroker_protocol.errors import ErrorCode
from minibroker_storage.producer_verification import VerificationGuard

R = TypeVar("R")


@dataclass(slots=True)
class CoordinatorRecord:
    """One record of an internal topic: typed key and value; `value` None is a tombstone. Never changed once made.

    On disk key and value each start with an int16: `key_type` for the key, `value_version` for the value.
    """

    key_type: int
    key: Data
    value: Data | None
    value_version: int = 0
    key_version: int = 0
    _encoded: bytes | None = field(default=None, init=False, repr=False, compare=False)

    def encode(self) -> None:
        """Do now, on whichever thread, what `value_bytes` would do later."""
        self._encoded = self.value_bytes()

    def key_bytes(self) -> bytes:
        return b"".join(self.key.encode_buffers(self.key_version, self.key_type.to_bytes(2, "big")))

    def value_bytes(self) -> bytes | None:
        if self.value is None:
            return None
        if self._encoded is not None:
            return self._encoded
        version = self.value_version
        return b"".join(self.value.encode_buffers(version, version.to_bytes(2, "big")))


@dataclass(slots=True)
class CoordinatorResult(Generic[R]):
    """A decision. `response` is what the caller gets once `records` are durable.

    on_error: makes the response when the append is refused; gets the coordinator-level error
        (COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR, UNKNOWN_SERVER_ERROR …), see Kafka's appendTransactionToLog and
        CoordinatorRuntime.
    before_append / on_abandon: volatile bookkeeping around an append in flight (a pending transition), never state.
    after_append: runs once the log has the records, whether they are replicated in time or not.
    after_commit: runs after the records were replayed, before the response leaves (send markers, arm timers).
    producer_id .. transactional: set for batches written inside a transaction (TxnOffsetCommit). guard: proof that the
        transaction coordinator was asked about this partition, as the log demands it (KIP-890).
    """

    response: R
    records: tuple[CoordinatorRecord, ...] = ()
    on_error: Callable[[ErrorCode], R] | None = None
    before_append: Callable[[], None] | None = None
    on_abandon: Callable[[], None] | None = None
    after_append: Callable[[], None] | None = None
    after_commit: Callable[[], None] | None = None
    producer_id: int = -1
    producer_epoch: int = -1
    transactional: bool = False
    guard: VerificationGuard | None = None
