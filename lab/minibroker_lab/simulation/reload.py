"""Rows of brokers' memory, compared before and after a restart."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Set
from itertools import zip_longest
from typing import TYPE_CHECKING

from minibroker.coordinators.transactions.metadata import TransactionMetadata
from minibroker.coordinators.transactions.shard import durable_state
from minibroker.rules.rows import CONSUMER_OFFSETS, TRANSACTION_STATE, Log
from minibroker_lab.simulation.evidence import TopicPartition

if TYPE_CHECKING:
    from minibroker.broker.broker import Broker
    from minibroker_storage.log import PartitionLog

COORDINATOR = "coordinator"
States = dict[Log, dict[Hashable, object]]


def _kept(metadata: TransactionMetadata, transaction_version: int) -> TransactionMetadata:
    """The part of the state that the log holds: never why a transaction was aborted, and in version 0 of the message no
    tagged fields."""
    metadata = metadata._replace(timed_out=False)
    if transaction_version:
        return metadata
    return metadata._replace(previous_producer_id=-1, next_producer_id=-1, last_producer_epoch=-1)


def in_memory(brokers: dict[int, Broker], transaction_version: int) -> States:
    """Per replica its ends and producers; per coordinator partition its ids and offsets."""
    states: States = {}
    for node, broker in brokers.items():
        for partition in broker.partitions():
            if partition.has_log:
                log = partition.log
                state: dict[Hashable, object] = {"log end offset": log.log_end_offset}
                state.update({f"producer {p.producer_id}": p for p in log.producers.active()})
                states[Log(str(node), partition.topic, partition.index)] = state
        for index, transactions in broker.coordinators.transactions.host.shards():
            ids = durable_state(transactions.entries.values())
            states[Log(COORDINATOR, TRANSACTION_STATE, index)] = {
                name: _kept(metadata, transaction_version) for name, metadata in ids.items()
            }
        for index, groups in broker.coordinators.groups.host.shards():
            committed, pending = groups.offsets.snapshot()
            states[Log(COORDINATOR, CONSUMER_OFFSETS, index)] = {"offsets": committed, "pending": pending}
    return states


def deleted_producers(brokers: dict[int, Broker], *, clean: bool) -> dict[tuple[int, TopicPartition], set[int]]:
    """Per replica the producers that the next start forgets, because their records were deleted.

    It takes no snapshot at or below the log start. After an orderly stop, `clean`, there is one at the log's end; else
    it reads the last segment, after the snapshot of where that begins (LogLoader, ProducerStateManager).
    """
    return {replica: _deleted(log, clean=clean) for replica, log in _logs(brokers)}


def producers_below_start(brokers: dict[int, Broker], started: Set[int]) -> dict[tuple[int, TopicPartition], set[int]]:
    """Per replica the producers it has forgotten, and finds again when it starts after a kill.

    A truncation rebuilds them from the log start on, and so does an orderly start, as those of the nodes `started`; a
    start after a kill reads the segments past the recovery point from their beginning (UnifiedLog.truncateTo,
    LogLoader.recoverSegment).
    """
    return {replica: _below_start(log) for replica, log in _logs(brokers) if log.truncations or replica[0] in started}


def _below_start(log: PartitionLog) -> set[int]:
    producer_ids = set()
    for segment, after in zip_longest(log.segments, log.segments[1:]):
        if after is None or after.base_offset > log.recovery_point:
            producer_ids |= {h.producer_id for _, h in segment.headers() if h.base_offset < log.log_start_offset}
    return {producer_id for producer_id in producer_ids if producer_id >= 0 and not log.producers.knows(producer_id)}


def ends_inside_batches(brokers: dict[int, Broker]) -> dict[tuple[int, TopicPartition], tuple[int, int]]:
    """Per replica that was truncated inside a batch: where its log ends, and where the last batch it kept does, which
    is where it ends after a start (LocalLog.truncateTo, LogSegment.readNextOffset)."""
    cut = {replica: (log.log_end_offset, _batches_end(log)) for replica, log in _logs(brokers) if log.truncations}
    return {replica: (end, kept) for replica, (end, kept) in cut.items() if kept < end}


def _batches_end(log: PartitionLog) -> int:
    last = log.segments[-1]
    return max((header.next_offset for _, header in last.headers()), default=last.base_offset)


def _logs(brokers: dict[int, Broker]) -> Iterator[tuple[tuple[int, TopicPartition], PartitionLog]]:
    for node, broker in brokers.items():
        for partition in broker.partitions():
            if partition.has_log:
                yield (node, (partition.topic, partition.index)), partition.log


def _deleted(log: PartitionLog, *, clean: bool) -> set[int]:
    start, first, last = log.log_start_offset, log.segments[0].base_offset, log.segments[-1].base_offset
    gone_below = last if not clean and first < last <= start else 0
    if start == log.log_end_offset:
        gone_below = start
    entries = [log.producers.entry(known.producer_id) for known in log.producers.active()]
    return {entry.producer_id for entry in entries if entry is not None and entry.last_data_offset < gone_below}
