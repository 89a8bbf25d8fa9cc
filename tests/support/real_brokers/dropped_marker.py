"""A transaction that ends while a partition of it has no leader, on any cluster of two brokers.

Kafka treats the partition as deleted and drops its marker (KRaftMetadataCache.getPartitionLeaderEndpoint).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from minibroker import Minibroker
from minibroker.client.cluster import require
from minibroker.client.topics import READ_COMMITTED
from minibroker.client.transactional import GROUP_KEY, Producer
from minibroker.client.transactions import TRANSACTION_KEY, TransactionsClient
from minibroker.rules.rows import CONSUMER_OFFSETS
from minibroker_protocol import messages as m
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.records import Record, build_batch, decode_records, iter_batches

TOPIC = "orders"
HERE, AWAY = 0, 1
"""Partitions of TOPIC: on broker 1, and on broker 2, which is stopped when the transaction ends."""
ALIVE, STOPPED = 1, 2
PATIENCE = 60.0
_ONE_REPLICA = {
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}


class Dropped(NamedTuple):
    """A transaction whose marker is missing on partition AWAY of TOPIC and for the offsets of `group`."""

    producer: Producer
    group: str
    offsets_partition: int

    @property
    def places(self) -> list[tuple[str, int]]:
        """The partitions without a marker."""
        return [(TOPIC, AWAY), (CONSUMER_OFFSETS, self.offsets_partition)]


def names_at(client: TransactionsClient, node: int, key_type: int, prefix: str) -> Iterator[str]:
    """Names whose coordinator is this broker."""
    number = 0
    while True:
        name = f"{prefix}-{number}"
        if client.patiently(lambda name=name: client.coordinator(name, key_type))[0] == node:  # type: ignore[misc]
            yield name
        number += 1


def create_topic(client: TransactionsClient) -> None:
    kind = m.CreateTopicsRequest
    places = [
        kind.CreatableReplicaAssignment(partition_index=index, broker_ids=[node])
        for index, node in ((HERE, ALIVE), (AWAY, STOPPED))
    ]
    topic = kind.CreatableTopic(name=TOPIC, num_partitions=-1, replication_factor=-1, assignments=places)
    (result,) = client.ask(
        client.controller(), kind(topics=[topic], timeout_ms=30_000), m.CreateTopicsResponse, 5
    ).topics
    require(result.error_code, TOPIC)


def produce(client: TransactionsClient, producer: Producer, partition: int, *values: bytes, sequence: int = 0) -> None:
    if producer.transaction_version < 2:
        client.add_partitions(producer, TOPIC, [partition])
    now = time.time_ns() // 1_000_000
    batch = build_batch(
        [Record(number, now, b"k", value) for number, value in enumerate(values)],
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=sequence,
        transactional=True,
    )
    client.produce(producer, TOPIC, partition, bytes(batch))


def drop_marker(bootstrap: str, stop: Callable[[], object], start: Callable[[], object], *, commit: bool) -> Dropped:
    """Records a and b on AWAY, c on HERE and an offset in a transaction that ends while broker 2 is stopped, and is
    complete for its coordinator on broker 1, which `bootstrap` names."""
    with TransactionsClient(bootstrap) as client:
        client.patiently(lambda: create_topic(client), PATIENCE)
        name = next(names_at(client, ALIVE, TRANSACTION_KEY, "checkout"))
        group = next(names_at(client, STOPPED, GROUP_KEY, "billing"))
        producer = client.init_producer_id(name, 60_000, transaction_version=client.transaction_version())
        produce(client, producer, AWAY, b"a", b"b")
        produce(client, producer, HERE, b"c")
        if producer.transaction_version < 2:
            client.add_group(producer, group)
        client.commit_offset(producer, group, TOPIC, HERE, 1, "")
        touched = {(topic.topic, i) for topic in client.describe(name)[1].topics for i in topic.partitions}
        (offsets_partition,) = [index for topic, index in touched if topic == CONSUMER_OFFSETS]
        dropped = Dropped(producer, group, offsets_partition)
        stop()
        client.patiently(lambda: _wait(_led(client, dropped) == [False, False]), PATIENCE)
        client.end(producer, commit=commit, patience=PATIENCE)
        wanted = "CompleteCommit" if commit else "CompleteAbort"
        client.patiently(lambda: _wait(client.describe(name)[1].transaction_state == wanted), PATIENCE)
        start()
        client.patiently(lambda: _wait(_led(client, dropped) == [True, True]), PATIENCE)
        for topic, partition in dropped.places:
            client.patiently(lambda place=(topic, partition): client.producers(*place), PATIENCE)  # type: ignore[misc]
    return dropped


def two_brokers(transaction_version: int = 2) -> Minibroker:
    return Minibroker(brokers=2, ephemeral=True, transaction_version=transaction_version, config=_ONE_REPLICA)


def drop_here(broker: Minibroker, *, commit: bool) -> Dropped:
    """`drop_marker` of a started `two_brokers`."""
    cluster = broker.cluster
    stop, start = (lambda: cluster.stop_broker(STOPPED)), (lambda: cluster.start_broker(STOPPED))
    return drop_marker(broker.bootstrap_servers, stop, start, commit=commit)


def _led(client: TransactionsClient, dropped: Dropped) -> list[bool]:
    leaders = client.leaders([TOPIC, CONSUMER_OFFSETS])
    return [leaders[place] is not None for place in dropped.places]


def _wait(ready: bool) -> None:
    """Have `patiently` ask again."""
    if not ready:
        raise ApiError(ErrorCode.LEADER_NOT_AVAILABLE)


def start_offset(client: TransactionsClient, dropped: Dropped, place: tuple[str, int]) -> int:
    """Where the transaction is open on a partition."""
    (offset,) = [
        producer.current_txn_start_offset
        for producer in client.producers(*place)
        if producer.producer_id == dropped.producer.producer_id
    ]
    return int(offset)


def committed_values(bootstrap: str, partition: int) -> list[bytes]:
    """The values below the last stable offset that no entry of aborted transactions covers."""
    values: list[bytes] = []
    with TransactionsClient(bootstrap) as client:
        fetched = client.fetch(TOPIC, partition, 0, READ_COMMITTED)
        aborted = dict(fetched.aborted)
        for position, header in iter_batches(fetched.data):
            if header.is_control:
                aborted.pop(header.producer_id, None)
            elif header.base_offset < aborted.get(header.producer_id, 1 << 62):
                data = fetched.data[position : position + header.size]
                values += [bytes(record.value or b"") for record in decode_records(data, 0, header)]
    return values
