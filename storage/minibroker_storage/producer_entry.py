"""What a partition remembers of one producer id (Kafka's ProducerStateEntry, BatchMetadata, CompletedTxn).

What the state is for, and what can go wrong: `minibroker_storage.producer_state`.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from minibroker_protocol.records.sequences import decrement_sequence

NO_EPOCH = -1
NO_SEQUENCE = -1
NO_OFFSET = -1
NO_TIMESTAMP = -1
REMEMBERED_BATCHES = 5
"""Batches kept per producer: a client may have five requests in flight (KIP-98)."""


class BatchMetadata:
    """One remembered data batch: sequences and offsets are both inclusive, `timestamp` the batch's largest in ms."""

    __slots__ = ("first_sequence", "last_offset", "last_sequence", "offset_delta", "timestamp")

    def __init__(self, last_sequence: int, last_offset: int, offset_delta: int, timestamp: int) -> None:
        self.last_sequence = last_sequence
        self.last_offset = last_offset
        self.offset_delta = offset_delta
        self.timestamp = timestamp
        # The common case inline; the shared helper knows the wrap at 2^31 - 1.
        first = last_sequence - offset_delta
        self.first_sequence = first if first >= 0 else decrement_sequence(last_sequence, offset_delta)

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta

    def _key(self) -> tuple[int, int, int, int]:
        return (self.last_sequence, self.last_offset, self.offset_delta, self.timestamp)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BatchMetadata) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        return f"{self.first_sequence}-{self.last_sequence}@{self.first_offset}"


class ActiveProducer(NamedTuple):
    """A row of DescribeProducers (KIP-664); -1 stands for "none" in every field but the id."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_txn_start_offset: int


def _no_batches() -> deque[BatchMetadata]:
    return deque(maxlen=REMEMBERED_BATCHES)


@dataclass(slots=True, eq=False)
class ProducerEntry:
    """The state of one producer id in one partition.

    `last_timestamp` is the largest timestamp of the last batch or of the last marker (ms; the client's clock on a
    CreateTime topic); `arrival_ms` is its arrival on the broker's clock.
    """

    producer_id: int
    epoch: int = NO_EPOCH
    coordinator_epoch: int = NO_EPOCH
    last_timestamp: int = NO_TIMESTAMP
    arrival_ms: int = NO_TIMESTAMP
    current_txn_first_offset: int = NO_OFFSET
    batches: deque[BatchMetadata] = field(default_factory=_no_batches)

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_data_offset(self) -> int:
        return self.batches[-1].last_offset if self.batches else NO_OFFSET

    def set_epoch(self, epoch: int) -> None:
        """Another epoch starts its sequences at 0, so the batches of the old one are forgotten."""
        if epoch != self.epoch:
            self.epoch = epoch
            self.batches.clear()

    def find_batch(self, epoch: int, first_sequence: int, last_sequence: int) -> BatchMetadata | None:
        if epoch == self.epoch:
            for batch in self.batches:
                if batch.last_sequence == last_sequence and batch.first_sequence == first_sequence:
                    return batch
        return None

    def copy(self) -> "ProducerEntry":
        return ProducerEntry(
            self.producer_id,
            self.epoch,
            self.coordinator_epoch,
            self.last_timestamp,
            self.arrival_ms,
            self.current_txn_first_offset,
            self.batches.copy(),
        )

    def active(self) -> ActiveProducer:
        return ActiveProducer(
            self.producer_id,
            self.epoch,
            self.last_sequence,
            self.last_timestamp,
            self.coordinator_epoch,
            self.current_txn_first_offset,
        )

    def describe(self) -> str:
        """The partition's state of this producer, for the text of a refusal."""
        remembered = ", ".join(map(repr, self.batches)) or "none"
        return f"epoch {self.epoch}, remembered batches {remembered}"

    def _key(self) -> tuple[object, ...]:
        kept = (self.epoch, self.coordinator_epoch, self.last_timestamp, self.current_txn_first_offset)
        return (self.producer_id, *kept, tuple(self.batches))

    def __eq__(self, other: object) -> bool:
        """Compares all that a log can restore; the arrival time is not in the log and is left out."""
        return isinstance(other, ProducerEntry) and self._key() == other._key()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ProducerEntry{self._key()}"


class CompletedTxn(NamedTuple):
    """A transaction that a marker ended; `last_offset` is the marker's.

    `last_stable_offset` is what the abort index records: the first offset of the oldest open transaction of another
    producer, else the offset after the marker.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    aborted: bool
    last_stable_offset: int


class LastRecord(NamedTuple):
    """What compaction must keep of a live producer: its last data offset (-1: only markers) and its epoch."""

    last_data_offset: int
    producer_epoch: int
