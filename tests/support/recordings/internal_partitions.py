"""Which partition of its internal topics Kafka itself puts an id into.

    python tests/support internal_partitions tests/golden/kafka-4.3.1/internal-partitions.json

starts a fresh Apache Kafka 4.3.1, commits an offset in a group of each name and takes each name as a transactional id,
with plain requests; stops it; and reads in the logs that it left which partition holds the record of which id. Nothing
of ours computes a partition on the way.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from real_kafka import RealKafka

from minibroker.client.transactions import TransactionsClient
from minibroker.metadata.image import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from minibroker_protocol import messages as m
from minibroker_protocol.coordinator_records import OffsetCommitKey, TransactionLogKey
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.records import decode_records, iter_batches
from minibroker_storage.directory import DataDirectory
from minibroker_storage.disk import Disk
from minibroker_storage.os_disk import OsDisk

PARTITIONS = {CONSUMER_OFFSETS_TOPIC: 4, TRANSACTION_STATE_TOPIC: 50}
_KEY_TYPES = {CONSUMER_OFFSETS_TOPIC: 1, TRANSACTION_STATE_TOPIC: 0}
PARTITIONS_AT_MOST = 50
_SECONDS = 60.0

NAMES = (
    *("orders", "payments", "my-group", "group-1", "console-consumer"),
    "polygenelubricants",  # its hash is the smallest int
    *("", " ", "\t", ".", "-", "_", "0", "a", "A", "~", "\x7f"),
    *("aa", "Aa", "BB", "zz", "tx", "tx-1", "tx-2", "tx-3", "tx-4", "txn", "test", "events", "inventory", "checkout"),
    *("shipping", "consumers", "tx-complete", "tx-open", "tx-fenced", "tx-prepared", "tx-joined", "tx-announced"),
    *("tx-zero", "tx-running", "tx-near", "tx-next", "tx-open-here"),
    *(f"tenant-{number}.service" for number in range(24)),
    *(f"group-{number}" for number in range(2, 22)),
    *(f"app-{number}-producer-0_{number % 7}" for number in range(20)),
    *("x" * 100, "x" * 101, "long." * 200, "0123456789" * 40, "é" * 99),
    *("é", "ü", "ß", "naïve", "größe", "Ελλάδα", "привет", "заказы", "注文", "主题", "주문", "طلبات", "הזמנות", "ไทย"),
    *("\u0080", "\u07ff", "\u0800", "\ud7ff", "\ue000", "\uffff"),
    *("😀", "𝒳", "𐀀", "\U0010ffff", "a😀b", "😀😀", "group-😀", "𠜎𠜱𠝹", "👩‍👩‍👧", "é😀é"),
    *("e\u0301", "null\u0000inside", "new\nline", "comma,separated", "a b c", "UPPER", "MiXeD"),
)


def left_by_kafka() -> dict[str, dict[str, int]]:
    """By internal topic: the partition of each name."""
    settings = (
        f"offsets.topic.num.partitions={PARTITIONS[CONSUMER_OFFSETS_TOPIC]}\n"
        f"transaction.state.log.num.partitions={PARTITIONS[TRANSACTION_STATE_TOPIC]}\n"
    )
    kafka = RealKafka(settings, release="4.3.1")
    try:
        kafka.start()
        kafka.wait()
        with TransactionsClient(kafka.bootstrap) as client:
            _use(client)
        kafka.stop()
        disk = OsDisk(str(kafka.directory / "data"), read_only=True)
        return {topic: dict(sorted(ids_of(disk, topic))) for topic in PARTITIONS}
    finally:
        kafka.close()


def _use(client: TransactionsClient) -> None:
    topic = m.CreateTopicsRequest.CreatableTopic(
        name="t", num_partitions=1, replication_factor=1, assignments=[], configs=[]
    )
    client.ask_any(m.CreateTopicsRequest(topics=[topic], timeout_ms=10_000), m.CreateTopicsResponse, 7)
    for name in NAMES:
        _until_taken(name, lambda name=name: _commit(client, name))
        if name:  # an empty transactional id is none
            _until_taken(name, lambda name=name: _init(client, name))


def _commit(client: TransactionsClient, group: str) -> int:
    client.ask_any(m.FindCoordinatorRequest(key=group, key_type=0), m.FindCoordinatorResponse, 2)
    partition = m.OffsetCommitRequest.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=3, committed_metadata=""
    )
    topic = m.OffsetCommitRequest.OffsetCommitRequestTopic(name="t", partitions=[partition])
    request = m.OffsetCommitRequest(group_id=group, member_id="", topics=[topic])
    return client.ask_any(request, m.OffsetCommitResponse, 8).topics[0].partitions[0].error_code


def _init(client: TransactionsClient, name: str) -> int:
    client.ask_any(m.FindCoordinatorRequest(key=name, key_type=1), m.FindCoordinatorResponse, 2)
    request = m.InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
    return client.ask_any(request, m.InitProducerIdResponse, 4).error_code


def _until_taken(name: str, ask: Callable[[], int]) -> None:
    deadline = time.monotonic() + _SECONDS
    while (code := ask()) != ErrorCode.NONE:
        assert time.monotonic() < deadline, f"{name!r}: {ErrorCode(code).name}"
        time.sleep(0.1)


def ids_of(disk: Disk, topic: str) -> Iterator[tuple[str, int]]:
    """(id, partition) of every id with a record that no tombstone has followed in that partition."""
    for index in range(PARTITIONS_AT_MOST):
        path = DataDirectory.partition_path(topic, index)
        alive: dict[bytes, bool] = {}
        for name in disk.list(path) if disk.exists(path) else ():
            if not name.endswith(".log"):
                continue
            data = disk.read_bytes(f"{path}/{name}")
            for position, header in iter_batches(data):
                if not header.is_control:
                    for record in decode_records(data, position, header):
                        alive[bytes(record.key or b"")] = record.value is not None
        for key, there in alive.items():
            if there and int.from_bytes(key[:2], "big") == _KEY_TYPES[topic]:
                yield _id(topic, key), index


def _id(topic: str, key: bytes) -> str:
    if topic == TRANSACTION_STATE_TOPIC:
        return TransactionLogKey.decode(key, 0, 2).transactional_id
    return OffsetCommitKey.decode(key, 0, 2).group


if __name__ == "__main__":
    counts = {topic: {"partitions": PARTITIONS[topic], "of": of} for topic, of in left_by_kafka().items()}
    Path(sys.argv[1]).write_text(json.dumps(counts, indent=1) + "\n")
