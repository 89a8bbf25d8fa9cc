"""The result of a coordinator decision, as data: what is pending, the records, the response, and the effects.

A coordinator method is a function of its state, the request and now. It returns a `CoordinatorResult` and leaves the
durable state as it is; classic groups, which Kafka too changes in memory, say so on their pages. The host
(`minibroker.coordinator_runtime.coordinator_host`) carries it out, always in this order:

    note      the shard notes what is pending, before the append, so that no other decision comes between
    append    the records become one batch of the internal topic
    replay    the shard applies them: transactions when they are durable, groups at once
    answer    the response leaves when they are durable
    effects   what is due then (send markers, complete, arm a timer) waits in a queue, and is performed after that

A refused append ends in one call to the shard with what was pending, and an answer with the error. The idea is that of
Kafka's CoordinatorResult, whose appendFuture and callbacks are `pending` and `effects` here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from minibroker_protocol.dsl import Data
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.records import Record, build_batch, lone_batch
from minibroker_storage.producer_verification import VerificationGuard

R = TypeVar("R")


@dataclass(slots=True)
class CoordinatorRecord:
    """One record of an internal topic: typed key and value; `value` None is a tombstone. Never changed once made.

    On disk key and value each start with an int16: the type that the key's schema declares, and `value_version`.
    """

    key: Data
    value: Data | None = None
    value_version: int = 0
    _encoded: bytes | None = field(default=None, init=False, repr=False, compare=False)

    def encode(self) -> None:
        """Do now, on whichever thread, what `value_bytes` would do later."""
        self._encoded = self.value_bytes()

    def key_bytes(self) -> bytes:
        return b"".join(self.key.encode_buffers(0, self.key.__record_type__.to_bytes(2, "big")))

    def value_bytes(self) -> bytes | None:
        if self.value is None:
            return None
        if self._encoded is not None:
            return self._encoded
        version = self.value_version
        return b"".join(self.value.encode_buffers(version, version.to_bytes(2, "big")))


class Effect:
    """One thing to do after a decision. A coordinator's effects are dataclasses with the values that they need."""

    __slots__ = ()


class Pending:
    """What a shard notes before an append, and is given back when the append is refused."""

    __slots__ = ()


@dataclass(slots=True)
class CoordinatorResult(Generic[R]):
    """A decision. `response` is what the caller gets once `records` are durable.

    pending: noted by the shard (`Shard.note`) before the append. The shard's replay ends it, or `Shard.refused`.
    on_append: effects that are due once the log has the records, whether they are replicated in time or not.
    effects: performed in their order once the records were replayed and are durable, and the response may leave.
    refused: the response to a refused append as a pure function of the error code (COORDINATOR_NOT_AVAILABLE,
        NOT_COORDINATOR, UNKNOWN_SERVER_ERROR …, see Kafka's appendTransactionToLog and CoordinatorRuntime); None: the
        caller gets ApiError.
    producer_id .. transactional: set for batches written inside a transaction (TxnOffsetCommit). guard: proof that the
        transaction coordinator was asked about this partition, as the log demands it (KIP-890).
    """

    response: R
    records: tuple[CoordinatorRecord, ...] = ()
    pending: tuple[Pending, ...] = ()
    on_append: tuple[Effect, ...] = ()
    effects: tuple[Effect, ...] = ()
    refused: Callable[[ErrorCode], R] | None = None
    producer_id: int = -1
    producer_epoch: int = -1
    transactional: bool = False
    guard: VerificationGuard | None = None

    def batch(self, now_ms: int, base_sequence: int) -> bytearray:
        """The records as one batch."""
        if len(self.records) == 1:
            only = self.records[0]
            return lone_batch(
                only.key_bytes(),
                only.value_bytes(),
                now_ms,
                self.producer_id,
                self.producer_epoch,
                base_sequence,
                transactional=self.transactional,
            )
        return build_batch(
            [Record(i, now_ms, r.key_bytes(), r.value_bytes(), []) for i, r in enumerate(self.records)],
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=base_sequence,
            transactional=self.transactional,
        )
