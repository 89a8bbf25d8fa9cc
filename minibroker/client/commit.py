"""Commits a transaction whose producer is gone: shows what would become visible, then sends EndTxn for the producer.

A producer that took part in a larger commit, such as a Flink sink whose checkpoint is complete, may die before its last
request. Its coordinator would abort the transaction after the timeout. An operator with the producer id and epoch
from the checkpoint can commit it (FLIP-572). The coordinator writes the markers: if a client wrote them with
WriteTxnMarkers, the coordinator would later abort on some partitions what was committed on others.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final, NamedTuple

from minibroker.client.cluster import PATIENCE
from minibroker.client.transactional import BUMPS_EPOCH, Producer
from minibroker.client.transactions import NO_OFFSET, TransactionsClient
from minibroker.rules.rows import CONSUMER_OFFSETS, CommittedOffset, Log
from minibroker.rules.scan import coordinator_rows
from minibroker_protocol.records import BatchHeader

ONGOING: Final = "Ongoing"
PREPARE_COMMIT: Final = "PrepareCommit"
COMPLETE_COMMIT: Final = "CompleteCommit"
_PAUSE: Final = 0.05


class Pending(NamedTuple):
    """What a partition has of an open transaction: offsets of its first and last record (-1: none is left) and how many
    records those are.

    group_offsets: offsets of groups that take effect with it, as GROUP:TOPIC-PARTITION@OFFSET.
    """

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    records: int
    group_offsets: tuple[str, ...]


def pending(
    client: TransactionsClient, transactional_id: str, producer_id: int, epoch: int
) -> tuple[str, list[Pending]]:
    """The transaction's state, and what each of its partitions would show to read_committed readers: nothing where the
    state is COMPLETE_COMMIT, because this transaction is committed already.

    Raises ValueError when its coordinator has another producer id, epoch, or a state that cannot become a commit.
    """
    if producer_id < 0 or epoch < 0:
        raise ValueError(f"producer id {producer_id}, epoch {epoch}: no transaction has an id or epoch below 0")
    _, described = client.describe(transactional_id)
    state = described.transaction_state
    if described.producer_id != producer_id:
        raise ValueError(f"{transactional_id} has producer id {described.producer_id}, not {producer_id} ({state})")
    # As for an EndTxn that is repeated: from transaction.version 2 on the epoch went up with the commit.
    bump = int(client.transaction_version() >= BUMPS_EPOCH)
    if (state, described.producer_epoch) == (COMPLETE_COMMIT, epoch + bump):
        return state, []
    if described.producer_epoch != epoch:
        raise ValueError(f"{transactional_id} has epoch {described.producer_epoch}, not {epoch} ({state})")
    if state not in (ONGOING, PREPARE_COMMIT):
        raise ValueError(
            f"{transactional_id} is in state {state}: only {ONGOING} and {PREPARE_COMMIT} can be committed"
        )
    places = [(topic.topic, index) for topic in described.topics for index in topic.partitions]
    return state, [_pending(client, topic, index, producer_id) for topic, index in sorted(places)]


def open_records(client: TransactionsClient, topic: str, partition: int, producer_id: int, start: int) -> list[Pending]:
    """A producer's records in a partition from `start` on, one entry for each range of offsets without other batches in
    it."""
    ranges: list[Pending] = []
    for header, data in _data(client, topic, partition, producer_id, start):
        offsets = tuple(_staged(topic, partition, header, data).values())
        if ranges and ranges[-1].last_offset + 1 == header.base_offset:
            last = ranges.pop()
            records, offsets = last.records + header.record_count, last.group_offsets + offsets
            ranges.append(last._replace(last_offset=header.last_offset, records=records, group_offsets=offsets))
        else:
            first = header.base_offset
            ranges.append(Pending(topic, partition, first, header.last_offset, header.record_count, offsets))
    return ranges


def _pending(client: TransactionsClient, topic: str, partition: int, producer_id: int) -> Pending:
    start = next(
        (p.current_txn_start_offset for p in client.producers(topic, partition) if p.producer_id == producer_id),
        NO_OFFSET,
    )
    first, last, records = NO_OFFSET, NO_OFFSET, 0
    offsets: dict[str, str] = {}
    if start != NO_OFFSET:
        for header, data in _data(client, topic, partition, producer_id, start):
            first = header.base_offset if first == NO_OFFSET else first
            last = header.last_offset
            records += header.record_count
            offsets |= _staged(topic, partition, header, data)
    return Pending(topic, partition, first, last, records, tuple(offsets.values()))


def _staged(topic: str, partition: int, header: BatchHeader, data: memoryview) -> dict[str, str]:
    """The offsets in a batch of a group coordinator: GROUP:TOPIC-PARTITION → the same with @OFFSET."""
    if topic != CONSUMER_OFFSETS:
        return {}
    rows = [
        row for row in coordinator_rows(Log("", topic, partition), header, data) if isinstance(row, CommittedOffset)
    ]
    places = [(f"{row.group}:{row.topic}-{row.partition}", row.committed) for row in rows]
    return {place: f"{place}@{committed}" for place, committed in places}


def _data(
    client: TransactionsClient, topic: str, partition: int, producer_id: int, start: int
) -> Iterator[tuple[BatchHeader, memoryview]]:
    """The producer's batches from `start` up to the partition's present end, without markers."""
    for header, data in client.batches(topic, partition, start):
        if header.producer_id == producer_id and not header.is_control and header.base_offset >= start:
            yield header, data


def commit(client: TransactionsClient, transactional_id: str, producer_id: int, epoch: int, state: str) -> str:
    """Commit a transaction as its producer would, wait for its markers, and return its state.

    Where transaction.version is 2 the epoch goes up (KIP-890): what the producer may still send is refused. Raises
    ApiError when the coordinator refuses.
    """
    deadline = time.monotonic() + PATIENCE
    if state == ONGOING:
        producer = Producer(transactional_id, producer_id, epoch, client.transaction_version())
        client.end(producer, commit=True, patience=PATIENCE)
    while True:
        state = client.describe(transactional_id)[1].transaction_state
        if state != PREPARE_COMMIT or time.monotonic() > deadline:
            return state
        time.sleep(_PAUSE)
