"""At the first start on a directory of minibroker 0.1.0: ids go to the partitions where Kafka has them.

Before any broker serves, and with every data directory at hand:

1. The internal topics are read where their leaders are, and `coordinators.placement` says what must move.
2. The journal gets, durably, where every log ends that will grow, and a new epoch of its partition with the leader as
   the only replica in sync: no other can be elected before it has fetched what is appended now. The partitions that
   exchange ids get the same epoch, above both: markers carry it, and must not be older than those of before.
3. Records are appended to the leaders' logs and synced: copies where the ids belong, tombstones where they were.
4. The journal says, durably, that ids are placed, and later starts look no further.

A crash before 2 is done leaves the directory as it was; one between 2 and 4 has the next start cut the logs back to the
ends noted in 2 and begin again, so that nothing is there twice. New directories, and those that a Kafka wrote, have
the entry of step 4 from their first start on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from minibroker.broker.broker import Broker
from minibroker.controller.state import ControllerState, PartitionChange
from minibroker.coordinators.hashing import counterpart
from minibroker.coordinators.id_migration import Appends, StoredRecord, StoredState, batches, migrations
from minibroker.coordinators.transactions.metadata import ProducerIdAndEpoch
from minibroker.kernel.logs import get_logger
from minibroker.metadata.image import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, PartitionImage
from minibroker.releases.semantics import TransactionStateLayout
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.records import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    ControlType,
    Record,
    build_batch,
    decode_records,
    iter_batches,
    parse_control,
)
from minibroker_storage.log import PartitionLog
from minibroker_storage.origin import Origin
from minibroker_storage.truncation import truncate_to

log = get_logger(__name__)

_READ_BYTES = 1 << 20
_BATCH_BYTES = 64 * 1024
_MAX_RECORDS_BYTES = 1 << 30
_BASE_SEQUENCE = 0
"""As in every batch of a coordinator (`CoordinatorHost`)."""
_Key = tuple[str, int]


def migrate_ids(
    state: ControllerState, brokers: Mapping[int, Broker], *, layout: TransactionStateLayout, now_ms: int
) -> None:
    """Brokers are prepared and not started. Raises ApiError KAFKA_STORAGE_ERROR when the leader of a partition is not
    among them, and as logs do."""
    _Placing(state, brokers, now_ms).run(layout)


class _Placing:
    def __init__(self, state: ControllerState, brokers: Mapping[int, Broker], now_ms: int) -> None:
        self._state = state
        self._brokers = brokers
        self._now_ms = now_ms
        self._logs: dict[_Key, PartitionLog] = {}

    def run(self, layout: TransactionStateLayout) -> None:
        for (topic, index), end in self._state.placing_from.items():
            if self._leader(topic, index).stores(topic, index):
                truncate_to(self._log(topic, index), end, now_ms=self._now_ms)
        transactions, groups = migrations(
            self._read(TRANSACTION_STATE_TOPIC),
            self._count(TRANSACTION_STATE_TOPIC),
            self._read(CONSUMER_OFFSETS_TOPIC),
            self._count(CONSUMER_OFFSETS_TOPIC),
            offsets_topic=CONSUMER_OFFSETS_TOPIC,
            layout=layout,
        )
        plan = {TRANSACTION_STATE_TOPIC: transactions, CONSUMER_OFFSETS_TOPIC: groups}
        grown = [(topic, index) for topic, appends in plan.items() for index in sorted(appends.partitions)]
        if grown:
            self._begin(grown)
            for topic, appends in plan.items():
                self._append(topic, appends)
            for key in grown:
                self._logs[key].flush()
            log.info(
                "%d group(s) and %d transactional id(s) that an earlier version had kept in other partitions than Kafka"
                " are in Kafka's now",
                groups.ids,
                transactions.ids,
            )
        self._state.finish_placing()

    # -- what there is -----------------------------------------------------------------------------------------------

    def _count(self, topic: str) -> int:
        image = self._state.image.topics.get(topic)
        return 0 if image is None else len(image.partitions)

    def _partition(self, topic: str, index: int) -> PartitionImage:
        return self._state.image.topics[topic].partitions[index]

    def _leader(self, topic: str, index: int) -> Broker:
        found = self._brokers.get(self._partition(topic, index).leader)
        if found is None:
            raise ApiError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{topic}-{index} has no leader among the brokers of this start, which must bring every group and"
                " transactional id to the partition where Kafka has it: start once with every broker of the cluster",
            )
        return found

    def _log(self, topic: str, index: int) -> PartitionLog:
        key = (topic, index)
        if key not in self._logs:
            self._logs[key] = self._leader(topic, index).log_ahead(topic, index)
        return self._logs[key]

    def _read(self, topic: str) -> dict[int, StoredState]:
        return {
            index: _read(self._log(topic, index))
            for index in range(self._count(topic))
            if self._leader(topic, index).stores(topic, index)
        }

    # -- what is done ------------------------------------------------------------------------------------------------

    def _begin(self, grown: Iterable[_Key]) -> None:
        changes, ends = [], {}
        for topic, index in grown:
            ends[topic, index] = self._log(topic, index).log_end_offset
            partition = self._partition(topic, index)
            other = self._partition(topic, counterpart(index, self._count(topic)))
            alone = replace(
                partition,
                isr=(partition.leader,),
                elr=(),
                leader_epoch=max(partition.leader_epoch, other.leader_epoch) + 1,
                partition_epoch=partition.partition_epoch + 1,
            )
            changes.append(PartitionChange(topic, alone))
        self._state.begin_placing(changes, ends)

    def _append(self, topic: str, appends: Appends) -> None:
        for index, arriving in sorted(appends.arriving.items()):
            for batch in batches(arriving, _BATCH_BYTES):
                self._append_batch(topic, index, batch)
        for index, keys in sorted(appends.leaving.items()):
            for batch in batches([StoredRecord(0, self._now_ms, key, None) for key in keys], _BATCH_BYTES):
                self._append_batch(topic, index, batch)

    def _append_batch(self, topic: str, index: int, batch: list[StoredRecord]) -> None:
        producer = batch[0].producer
        producer_id, epoch = producer or (NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
        data = build_batch(
            [Record(i, stored.timestamp, stored.key, stored.value, []) for i, stored in enumerate(batch)],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=_BASE_SEQUENCE,
            transactional=producer is not None,
        )
        held = self._log(topic, index)
        leader_epoch = self._partition(topic, index).leader_epoch
        try:
            guard = None
            if producer is not None:
                # The verification that a first batch needs (KIP-890): the transactions themselves were read just now.
                guard = held.producers.start_verification(producer_id, epoch, _BASE_SEQUENCE, False, self._now_ms)
            held.append_as_leader(
                data, origin=Origin.COORDINATOR, leader_epoch=leader_epoch, now_ms=self._now_ms, guard=guard
            )
        except ApiError as error:
            if error.code != ErrorCode.INVALID_PRODUCER_EPOCH:
                raise
            # A transaction that its coordinator forgot, of an epoch that is over: no marker can ever commit it here.
            log.warning("offsets that no transaction will commit are left out of %s-%d: %s", topic, index, error)


def _read(held: PartitionLog) -> StoredState:
    state = StoredState()
    offset, end = held.log_start_offset, held.log_end_offset
    while offset < end:
        chunk = held.read(offset, _READ_BYTES, bound=end).records
        after = offset
        for position, header in iter_batches(chunk):
            producer = None
            if header.is_transactional:
                producer = ProducerIdAndEpoch(header.producer_id, header.producer_epoch)
            for record in decode_records(chunk, position, header, max_bytes=_MAX_RECORDS_BYTES):
                if header.is_control:
                    kind = parse_control(record).type
                    if kind in (ControlType.ABORT, ControlType.COMMIT):
                        state.end(header.producer_id, committed=kind is ControlType.COMMIT)
                elif record.key is not None:
                    value = None if record.value is None else bytes(record.value)
                    state.record(StoredRecord(record.offset, record.timestamp, bytes(record.key), value, producer))
            after = max(after, header.next_offset)
        if after == offset:
            break
        offset = after
    return state
