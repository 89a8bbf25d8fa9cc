"""One shard of the transaction coordinator on a log in memory, without a broker around it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from minibroker.coordinators.result import CoordinatorRecord, CoordinatorResult, Effect
from minibroker.coordinators.transactions import end_txn, expiry, init_producer_id, partitions, records
from minibroker.coordinators.transactions.effects import Complete, SendMarkers
from minibroker.coordinators.transactions.metadata import (
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionEntry,
    TransactionMetadata,
)
from minibroker.coordinators.transactions.shard import TransactionConfig, TransactionShard, durable_state
from minibroker.coordinators.transactions.states import PREPARED
from minibroker_protocol.errors import ApiError, ErrorCode

R = TypeVar("R")

ID = "tx"


class Counter:
    """Producer ids 1000, 1001, …"""

    def __init__(self) -> None:
        self.next_id = 1000

    def take(self) -> int:
        self.next_id += 1
        return self.next_id - 1


class CoordinatorDouble:
    """Executes outcomes at once, or holds or refuses their appends when told to.

    hold_markers: leave transactions in Prepare* until `write_markers` is called. fail_next: the error the next append
    ends with. log: (key bytes, value bytes) as they would lie on disk.
    """

    def __init__(self, config: TransactionConfig | None = None, *, hold_markers: bool = False) -> None:
        self.config = config or TransactionConfig()
        self.hold_markers = hold_markers
        self.fail_next: ErrorCode | None = None
        self.now_ms = 1_000_000
        self.producer_ids = Counter()
        self.log: list[tuple[bytes, bytes | None]] = []
        self.due: list[str] = []
        self.coordinator_epoch = 0
        self.shard = TransactionShard(0, 0, self.config)

    # -- requests ----------------------------------------------------------------------------------------------------

    def init(
        self, expected: tuple[int, int] | None = None, *, timeout_ms: int = 60_000, name: str = ID
    ) -> ProducerIdAndEpoch:
        outcome = init_producer_id.init_producer_id(
            self.shard,
            name,
            timeout_ms=timeout_ms,
            expected=None if expected is None else ProducerIdAndEpoch(*expected),
            producer_ids=self.producer_ids,
            now_ms=self.now_ms,
        )
        answer = self.execute(outcome)
        if isinstance(answer, ApiError):
            raise answer
        return answer

    def add(
        self,
        producer: tuple[int, int],
        wanted: Iterable[TopicPartition] = (("t", 0),),
        *,
        version: int = 0,
        name: str = ID,
    ) -> None:
        self.execute(
            partitions.add_partitions(
                self.shard,
                name,
                ProducerIdAndEpoch(*producer),
                wanted,
                transaction_version=version,
                now_ms=self.now_ms,
            )
        )

    def verify(
        self, producer: tuple[int, int], wanted: Iterable[TopicPartition] = (("t", 0),), *, name: str = ID
    ) -> dict[TopicPartition, ErrorCode]:
        return partitions.verify_partitions(self.shard, name, ProducerIdAndEpoch(*producer), wanted)

    def end(self, producer: tuple[int, int], *, commit: bool, version: int = 0, name: str = ID) -> ProducerIdAndEpoch:
        return self.execute(
            end_txn.end_txn(
                self.shard,
                name,
                ProducerIdAndEpoch(*producer),
                commit=commit,
                transaction_version=version,
                producer_ids=self.producer_ids,
                now_ms=self.now_ms,
            )
        )

    def sweep_timeouts(self) -> list[str]:
        ids = expiry.timed_out(self.shard, self.now_ms)
        for name in ids:
            self.execute(expiry.abort_timed_out(self.shard, name, producer_ids=self.producer_ids, now_ms=self.now_ms))
        return ids

    def sweep_expired(self) -> list[str]:
        ids = expiry.expired(self.shard, self.now_ms)
        if ids:
            self.execute(expiry.forget(self.shard, ids))
        return ids

    # -- what happens around them ------------------------------------------------------------------------------------

    def execute(self, outcome: CoordinatorResult[R]) -> R:
        for pending in outcome.pending:
            self.shard.note(pending)
        if self.fail_next is not None and outcome.records:
            code, self.fail_next = self.fail_next, None
            for pending in outcome.pending:
                self.shard.refused(pending, code)
            raise ApiError(code, "refused by the test")
        for record in outcome.records:
            self._append(record)
        self._perform(outcome.effects)
        return outcome.response

    def _perform(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, SendMarkers):
                self._prepared(effect.transactional_id)
            elif isinstance(effect, Complete):
                self.execute(
                    end_txn.complete(self.shard, self.shard.entry(effect.transactional_id), now_ms=self.now_ms)
                )

    def _append(self, record: CoordinatorRecord) -> None:
        self.log.append((record.key_bytes(), record.value_bytes()))
        self.shard.replay(record, offset=len(self.log) - 1)

    def _prepared(self, name: str) -> None:
        self.due.append(name)
        if not self.hold_markers:
            self.write_markers(name)

    def write_markers(self, name: str = ID) -> None:
        """Every partition confirms its marker, and the transaction completes."""
        self.due.remove(name)
        entry = self.shard.entries[name]
        assert entry.metadata.state in PREPARED
        if not entry.metadata.partitions:
            self._perform((Complete(name),))
        for partition in sorted(entry.metadata.partitions):
            self._perform(end_txn.marker_written(self.shard, name, partition))
        assert entry.metadata.state not in PREPARED

    def set_epoch(self, epoch: int) -> None:
        """The producer of `ID` is at `epoch`, as after so many requests; the log does not have it."""
        self.shard.entries[ID] = TransactionEntry(self.metadata._replace(producer_epoch=epoch))

    def reload(self, config: TransactionConfig | None = None) -> None:
        """Another broker becomes coordinator: all it has is the log."""
        self.due.clear()
        self.config = config or self.config
        self.coordinator_epoch += 1
        self.shard = TransactionShard(0, self.coordinator_epoch, self.config)
        for key, value in self.log:
            record = self.shard.decode(key, value)
            if record is not None:
                self.shard.replay(record)
        self._perform(self.shard.loaded())

    # -- looking -----------------------------------------------------------------------------------------------------

    @property
    def entry(self) -> TransactionEntry:
        return self.shard.entries[ID]

    @property
    def metadata(self) -> TransactionMetadata:
        return self.entry.metadata

    def durable(self) -> dict[str, TransactionMetadata]:
        return durable_state(self.shard.entries.values())


def refusal(call: Callable[[], object]) -> ErrorCode:
    """The code `call` is refused with, NONE when it is not; every refusal must say why."""
    try:
        call()
    except ApiError as error:
        if not error.message:
            raise AssertionError(f"{error.code.name} without a reason") from error
        return error.code
    return ErrorCode.NONE


def as_reloaded(metadata: TransactionMetadata, *, value_version: int, with_last_epoch: bool) -> TransactionMetadata:
    """What is left of `metadata` after it went through the log: without what the record does not carry."""
    record = records.record_of(metadata, value_version=value_version, with_last_epoch=with_last_epoch)
    decoded = records.decode(record.key_bytes(), record.value_bytes())
    assert decoded is not None
    assert decoded.metadata is not None
    return decoded.metadata
