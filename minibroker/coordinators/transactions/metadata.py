"""The coordinator's state of one transactional id: a durable part, which is in the log, and a volatile one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from minibroker.coordinators.transactions.states import EMPTY, TransactionState

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_TIMESTAMP: Final = -1
MAX_EPOCH: Final = 32767
LAST_USABLE_EPOCH: Final = MAX_EPOCH - 1
"""A client never holds 32767: it is kept so that the coordinator can always fence (Kafka's isEpochExhausted)."""
NEVER_TIMES_OUT_MS: Final = 2**31 - 1
"""The transaction timeout of a two-phase-commit id (KIP-939)."""

TopicPartition = tuple[str, int]


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Topics and their partitions in order, as requests and records have them."""
    indexes: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        indexes.setdefault(topic, []).append(index)
    return indexes


class ProducerIdAndEpoch(NamedTuple):
    producer_id: int
    producer_epoch: int

    def __str__(self) -> str:
        return f"producer id {self.producer_id} epoch {self.producer_epoch}"


NO_PRODUCER: Final = ProducerIdAndEpoch(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


class TransactionMetadata(NamedTuple):
    """The durable state of one transactional id; replaced as a whole (Kafka's TransactionMetadata), with `_replace`.

    Always made with keywords. Times are milliseconds of the broker clock.

    previous_producer_id: the id held before the last transition.
    next_producer_id: allocated while preparing, taken over on completion, when the epoch is used up (KIP-890).
    last_producer_epoch: the epoch before the current one as a client may still hold it, -1 for none (KIP-360).
    timed_out: the coordinator aborted the last transaction because of its timeout, and no producer has continued since.
        No record has a field for it; `records` says what a reload can infer.
    """

    transactional_id: str
    producer_id: int
    timeout_ms: int
    last_update_ms: int
    producer_epoch: int = NO_PRODUCER_EPOCH
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    state: TransactionState = EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = NO_TIMESTAMP
    client_transaction_version: int = 0
    timed_out: bool = False

    @property
    def producer(self) -> ProducerIdAndEpoch:
        return ProducerIdAndEpoch(self.producer_id, self.producer_epoch)


@dataclass(slots=True)
class Volatile:
    """The volatile part: never logged; a reload starts with a new one.

    pending_state: the state an append in flight, or the marker phase, leads to.
    fence_epoch: the epoch in memory while a fence below transaction.version 2 is being logged, and after that failed
        (Kafka's hasFailedEpochFence); it fences old producers although the log does not know it.
    missing_markers: partitions that have not confirmed their marker yet, in Prepare* states.
    """

    pending_state: TransactionState | None = None
    fence_epoch: int | None = None
    failed_epoch_fence: bool = False
    missing_markers: set[TopicPartition] = field(default_factory=set)


class TransactionEntry:
    """One transactional id in the coordinator's memory.

    `nascent` is True until the first InitProducerId was logged: Kafka keeps the id, with epoch -1, from its first
    request on. A reload does not know it.
    """

    __slots__ = ("metadata", "nascent", "volatile")

    def __init__(self, metadata: TransactionMetadata, *, nascent: bool = False) -> None:
        self.metadata = metadata
        self.volatile = Volatile()
        self.nascent = nascent

    @property
    def epoch(self) -> int:
        """The producer epoch requests are compared with."""
        fence_epoch = self.volatile.fence_epoch
        return self.metadata.producer_epoch if fence_epoch is None else fence_epoch

    @property
    def last_epoch(self) -> int:
        return self.metadata.last_producer_epoch if self.volatile.fence_epoch is None else NO_PRODUCER_EPOCH

    @property
    def epoch_exhausted(self) -> bool:
        return self.epoch >= LAST_USABLE_EPOCH

    def __str__(self) -> str:
        m = self.metadata
        pending = self.volatile.pending_state
        text = f"{m.state.label}, producer id {m.producer_id} epoch {self.epoch} (last epoch {self.last_epoch})"
        return text if pending is None else f"{text}, on its way to {pending.label}"
