"""The transaction coordinator of one broker: shards on their logs, markers, and sweeps on the broker clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from math import inf
from typing import Any, Final

from minibroker.coordinator_runtime.coordinator_host import CoordinatorHost
from minibroker.coordinator_runtime.ports import CoordinatingBroker
from minibroker.coordinator_runtime.transaction_markers import EndedTransaction, Marker, MarkerSender
from minibroker.coordinators.result import CoordinatorResult, Effect
from minibroker.coordinators.transactions import end_txn as ends
from minibroker.coordinators.transactions import expiry, queries
from minibroker.coordinators.transactions import init_producer_id as inits
from minibroker.coordinators.transactions import partitions as joins
from minibroker.coordinators.transactions.effects import Complete, SendMarkers
from minibroker.coordinators.transactions.metadata import ProducerIdAndEpoch, TopicPartition, TransactionEntry
from minibroker.coordinators.transactions.records import TransactionRecord
from minibroker.coordinators.transactions.shard import TransactionConfig, TransactionShard
from minibroker.coordinators.transactions.states import PREPARE_COMMIT, PREPARED
from minibroker.kernel.clock import TimerHandle
from minibroker.kernel.deferred import Deferred, mapped, spawn
from minibroker.kernel.logs import get_logger
from minibroker.metadata.image import TRANSACTION_STATE_TOPIC
from minibroker.partitions.partition import Partition
from minibroker.releases.features import TRANSACTION_VERSION
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.records import NO_SEQUENCE

log = get_logger(__name__)

TIMEOUT_INTERVAL: Final = "transaction.abort.timed.out.transaction.cleanup.interval.ms"
EXPIRATION_INTERVAL: Final = "transaction.remove.expired.transaction.cleanup.interval.ms"
_COMPLETION_RETRY_MS: Final = 20
_TOMBSTONES_PER_BATCH: Final = 100


class TransactionService:
    """Every method that takes a transactional id raises ApiError: NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, and
    INVALID_REQUEST for an empty id, beside what the decision itself raises. append_marker(marker, partition) ends a
    producer's transaction in a partition that this broker leads (`Coordinators.append_marker`)."""

    def __init__(
        self, broker: CoordinatingBroker, append_marker: Callable[[Marker, TopicPartition], Deferred[None]]
    ) -> None:
        self._broker = broker
        self.config = self._read_config()
        self.markers = MarkerSender(
            broker.transport,
            broker.timers,
            lambda topic, index: broker.image.partition(topic, index),
            broker.node_id,
            append_marker,
            self._marker_written,
            drop_without_leader=broker.semantics.marker_without_leader == "dropped",
        )
        self.host: CoordinatorHost[TransactionShard] = CoordinatorHost(
            TRANSACTION_STATE_TOPIC,
            partial(broker.partition_count, TRANSACTION_STATE_TOPIC, "transaction.state.log.num.partitions"),
            self._make_shard,
            broker.clock,
            broker.timers,
            self._perform,
            replay_on_append=False,
            base_sequence=NO_SEQUENCE,
            write_timeout_ms=self._write_timeout_ms,
            say_refused=broker.refused_appends.say,
        )
        self.effects = self.host.effects
        self._sweeps: dict[str, TimerHandle] = {}
        self._closed = False

    # -- life cycle ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the sweeps for timeouts and expiration."""
        self._schedule(
            TIMEOUT_INTERVAL,
            self.abort_timed_out,
            lambda: min((expiry.next_timeout_ms(shard) for _, shard in self.host.shards()), default=inf),
        )
        self._schedule(EXPIRATION_INTERVAL, self.forget_expired)

    def close(self) -> None:
        self._closed = True
        for handle in self._sweeps.values():
            handle.cancel()
        self.markers.close()
        self.host.close()

    def elected(self, partition: Partition, epoch: int) -> None:
        """This broker leads `partition` of ``__transaction_state`` now."""
        self.markers.cancel_shard(partition.index)
        self.host.elected(partition, epoch)

    def resigned(self, index: int) -> None:
        self.markers.cancel_shard(index)
        self.host.resigned(index)

    def reconfigure(self) -> None:
        """Settings or finalized features have changed."""
        self.config = self._read_config()
        for _, shard in self.host.shards():
            shard.config = self.config

    def topic_deleted(self, name: str) -> None:
        """A transaction keeps its partitions; `MarkerSender` leaves out those of deleted topics."""

    def _read_config(self) -> TransactionConfig:
        settings, broker = self._broker.settings, self._broker
        return TransactionConfig(
            semantics=broker.semantics,
            transaction_version=broker.image.features.get(TRANSACTION_VERSION, 0),
            max_timeout_ms=settings.get_int("transaction.max.timeout.ms"),
            id_expiration_ms=settings.get_int("transactional.id.expiration.ms"),
            two_phase_commit_enabled=settings.get_boolean("transaction.two.phase.commit.enable"),
        )

    def _make_shard(self, index: int, epoch: int) -> TransactionShard:
        self.config = self._read_config()
        return TransactionShard(index, epoch, self.config)

    def _write_timeout_ms(self, outcome: CoordinatorResult[Any]) -> int:
        """The transaction timeout of the state that is written (appendTransactionToLog); tombstones have none, and wait
        for request.timeout.ms (removeExpiredTransactionalIds)."""
        record = outcome.records[0]
        if isinstance(record, TransactionRecord) and record.metadata is not None:
            return record.metadata.timeout_ms
        return self._broker.settings.get_int("request.timeout.ms")

    # -- requests --------------------------------------------------------------------------------------------------

    def init_producer_id(
        self,
        transactional_id: str | None,
        timeout_ms: int,
        expected: ProducerIdAndEpoch | None,
        *,
        enable_two_phase_commit: bool = False,
        keep_prepared_transaction: bool = False,
    ) -> Deferred[ProducerIdAndEpoch]:
        """A producer id and epoch; `expected` is the pair that the caller has. Without a transactional id always a new
        producer id."""
        if transactional_id is None:
            producer_ids = self._broker.producer_ids
            return mapped(producer_ids.ready(), lambda _: ProducerIdAndEpoch(producer_ids.take(), 0))
        index, timeout_ms = self.checked_init(
            transactional_id,
            timeout_ms,
            enable_two_phase_commit=enable_two_phase_commit,
            keep_prepared_transaction=keep_prepared_transaction,
        )
        return mapped(spawn(self.claim(index, transactional_id, timeout_ms, expected)), _claimed)

    def checked_init(
        self,
        transactional_id: str,
        timeout_ms: int,
        *,
        enable_two_phase_commit: bool,
        keep_prepared_transaction: bool,
    ) -> tuple[int, int]:
        """(partition of the id, transaction timeout to use); raises what refuses an InitProducerId in every state of
        its id."""
        if not transactional_id:
            raise ApiError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
        timeout_ms = inits.checked_timeout_ms(
            self.config,
            timeout_ms,
            enable_two_phase_commit=enable_two_phase_commit,
            keep_prepared_transaction=keep_prepared_transaction,
        )
        return self.host.shard_for(transactional_id)[0], timeout_ms

    async def claim(
        self, index: int, transactional_id: str, timeout_ms: int, expected: ProducerIdAndEpoch | None = None
    ) -> inits.InitAnswer:
        """`init_producer_id` for an id of shard `index`, whose request was checked."""
        producer_ids = self._broker.producer_ids
        if not producer_ids.available:
            await producer_ids.ready()
        now_ms = self._broker.clock.now_ms()
        outcome = inits.init_producer_id(
            self.host.shard(index),
            transactional_id,
            timeout_ms=timeout_ms,
            expected=expected,
            producer_ids=producer_ids,
            now_ms=now_ms,
        )
        return await self.host.execute(index, outcome, now_ms)

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Iterable[TopicPartition],
        *,
        transaction_version: int,
    ) -> Deferred[None]:
        index, shard = self._shard_for(transactional_id)
        now_ms = self._broker.clock.now_ms()
        outcome = joins.add_partitions(
            shard,
            transactional_id,
            producer,
            partitions,
            transaction_version=transaction_version,
            now_ms=now_ms,
        )
        return self.host.execute(index, outcome, now_ms)

    def verify_partitions(
        self, transactional_id: str, producer: ProducerIdAndEpoch, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        _, shard = self._shard_for(transactional_id)
        return joins.verify_partitions(shard, transactional_id, producer, partitions)

    def end_txn(
        self, transactional_id: str, producer: ProducerIdAndEpoch, *, commit: bool, transaction_version: int
    ) -> Deferred[ProducerIdAndEpoch]:
        index, shard = self._shard_for(transactional_id)
        now_ms = self._broker.clock.now_ms()
        decision = ends.end_txn(
            shard,
            transactional_id,
            producer,
            commit=commit,
            transaction_version=transaction_version,
            producer_ids=self._broker.producer_ids,
            now_ms=now_ms,
        )
        return self.host.execute(index, decision, now_ms)

    def describe(self, transactional_id: str) -> TransactionEntry:
        """Raises ApiError(TRANSACTIONAL_ID_NOT_FOUND) too."""
        _, shard = self._shard_for(transactional_id)
        return queries.describe(shard, transactional_id)

    def entries(self) -> list[tuple[str, TransactionEntry]]:
        """Every transactional id as it is now; raises ApiError(COORDINATOR_LOAD_IN_PROGRESS) while any shard is being
        loaded."""
        if self.host.loading:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "part of the transaction state is being loaded")
        return [entry for _, shard in self.host.shards() for entry in shard.entries.items()]

    @property
    def is_new(self) -> bool:
        """Whether no transactional id was ever in a partition that this broker leads."""
        return self.host.never_written

    def _shard_for(self, transactional_id: str) -> tuple[int, TransactionShard]:
        if not transactional_id:
            raise ApiError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
        return self.host.shard_for(transactional_id)

    # -- effects -----------------------------------------------------------------------------------------------------

    def _perform(self, shard: TransactionShard, effect: Effect) -> None:
        if self._closed:
            return
        if isinstance(effect, SendMarkers):
            self._send_markers(shard, effect.transactional_id)
        elif isinstance(effect, Complete):
            self._complete(shard, effect)

    def _send_markers(self, shard: TransactionShard, transactional_id: str) -> None:
        entry = shard.entries[transactional_id]
        metadata = entry.metadata
        if not metadata.partitions:
            self.effects.add(shard, (Complete(transactional_id),))
            return
        marker = Marker(
            metadata.producer_id,
            metadata.producer_epoch,
            metadata.state is PREPARE_COMMIT,
            shard.coordinator_epoch,
            metadata.client_transaction_version,
        )
        self.markers.send(EndedTransaction(transactional_id, shard.index, marker, metadata.partitions))

    def _marker_written(self, job: EndedTransaction, partition: TopicPartition) -> None:
        shard = self.host.shard(job.shard_index)
        self.effects.add(shard, ends.marker_written(shard, job.transactional_id, partition))

    def _complete(self, shard: TransactionShard, effect: Complete) -> None:
        entry = shard.entries.get(effect.transactional_id)
        if entry is None or entry.metadata.state not in PREPARED:
            return  # tried again too late: the shard has resigned, or the id has gone on
        now_ms = self._broker.clock.now_ms()
        try:
            decision = ends.complete(shard, entry, now_ms=now_ms)
        except ApiError as error:
            log.error("the end of %s cannot be logged: %s", effect.transactional_id, error)
            return
        self.host.execute(shard.index, decision, now_ms).then(partial(self._completed, shard, effect))

    def _completed(self, shard: TransactionShard, effect: Complete, done: Deferred[None]) -> None:
        try:
            done.result()
        except ApiError as error:
            log.warning("the end of %s is not in the log yet: %s", effect.transactional_id, error)
            if error.code is ErrorCode.COORDINATOR_NOT_AVAILABLE:
                self._broker.timers.call_later(_COMPLETION_RETRY_MS, lambda: self.effects.add(shard, (effect,)))

    # -- sweeps ----------------------------------------------------------------------------------------------------

    def _schedule(
        self, interval_key: str, sweep: Callable[[], None], idle_until: Callable[[], float] | None = None
    ) -> None:
        def run() -> None:
            if self._closed:
                return
            try:
                sweep()
            finally:
                self._schedule(interval_key, sweep, idle_until)

        interval_ms = self._broker.settings.get_int(interval_key)
        self._sweeps[interval_key] = self._broker.clock.call_later(interval_ms, run, idle_until=idle_until)

    def abort_timed_out(self) -> None:
        """Abort every transaction that is open longer than its timeout."""
        now_ms = self._broker.clock.now_ms()
        for index, shard in self.host.shards():
            for transactional_id in expiry.timed_out(shard, now_ms):
                try:
                    outcome = expiry.abort_timed_out(
                        shard, transactional_id, producer_ids=self._broker.producer_ids, now_ms=now_ms
                    )
                except ApiError as error:
                    log.warning("cannot abort the timed-out transaction of %s: %s", transactional_id, error)
                    continue
                log.info("the transaction of %s has timed out and is aborted", transactional_id)
                self._run(index, outcome)

    def forget_expired(self) -> None:
        """Remove transactional ids that were idle for transactional.id.expiration.ms."""
        now_ms = self._broker.clock.now_ms()
        for index, shard in self.host.shards():
            ids = expiry.expired(shard, now_ms)
            for start in range(0, len(ids), _TOMBSTONES_PER_BATCH):
                batch = ids[start : start + _TOMBSTONES_PER_BATCH]
                log.info("%d transactional ids have expired", len(batch))
                self._run(index, expiry.forget(shard, batch))

    def _run(self, index: int, outcome: CoordinatorResult[None]) -> None:
        def done(result: Deferred[None]) -> None:
            try:
                result.result()
            except ApiError as error:
                log.warning("a sweep of %s-%d was refused: %s", TRANSACTION_STATE_TOPIC, index, error)

        self.host.execute(index, outcome).then(done)


def _claimed(answer: inits.InitAnswer) -> ProducerIdAndEpoch:
    if isinstance(answer, ApiError):
        raise answer
    return answer
