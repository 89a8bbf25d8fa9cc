"""What a broker serves of a topic, asked for with requests as clients send them."""

from __future__ import annotations

import hashlib
from typing import Any

from memory_cluster import MemoryCluster

from minibroker_protocol.messages.fetch import FetchRequest, FetchResponse
from minibroker_protocol.messages.offsets import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from minibroker_protocol.records import ControlType, decode_records, iter_batches, parse_control


def split(name: str) -> tuple[str, int]:
    topic, _, index = name.rpartition("-")
    return topic, int(index)


def offset(cluster: MemoryCluster, name: str, timestamp: int, isolation: int = 0) -> int:
    topic, index = split(name)
    partition = ListOffsetsRequest.ListOffsetsPartition(partition_index=index, timestamp=timestamp)
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation,
        topics=[ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[partition])],
    )
    result = cluster.call(request, ListOffsetsResponse, 7).topics[0].partitions[0]
    assert result.error_code == 0
    return result.offset


def fetched(cluster: MemoryCluster, name: str, isolation: int) -> list[tuple[bytes | None, bytes | None]]:
    """Keys and values as a consumer of this isolation level gets them."""
    topic, index = split(name)
    start = position = offset(cluster, name, -2)
    values: list[tuple[bytes | None, bytes | None]] = []
    while True:
        partition = FetchRequest.FetchPartition(partition=index, fetch_offset=position, partition_max_bytes=1 << 20)
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1 << 20,
            isolation_level=isolation,
            topics=[FetchRequest.FetchTopic(topic=topic, partitions=[partition])],
        )
        answer = cluster.call(request, FetchResponse, 11).responses[0].partitions[0]
        assert answer.error_code == 0
        records = b"".join(bytes(buffer) for buffer in _buffers(answer.records))
        if not records:
            return values
        aborted = sorted((t.first_offset, t.producer_id) for t in answer.aborted_transactions or ())
        skipped: set[int] = set()
        for at, header in iter_batches(records):
            while aborted and aborted[0][0] <= header.last_offset:
                skipped.add(aborted.pop(0)[1])
            decoded = decode_records(records, at, header)
            if header.is_control:
                if decoded and parse_control(decoded[0]).type is ControlType.ABORT:
                    skipped.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in skipped):
                values += [
                    (None if r.key is None else bytes(r.key), None if r.value is None else bytes(r.value))
                    for r in decoded
                    if r.offset >= max(start, position)
                ]
            position = max(position, header.next_offset)


def _buffers(records: Any) -> list[Any]:
    if records is None:
        return []
    return [records] if isinstance(records, (bytes, bytearray, memoryview)) else list(records)


def record_hash(records: list[tuple[bytes | None, bytes | None]]) -> str:
    return hashlib.sha256(b"\n".join((key or b"") + b"\0" + (value or b"") for key, value in records)).hexdigest()


def group_offsets(cluster: MemoryCluster, group: str) -> dict[str, list[Any]]:
    """``topic-partition`` → [offset, metadata] of everything the group has committed."""
    request = OffsetFetchRequest(groups=[OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=None)])
    (answer,) = cluster.call(request, OffsetFetchResponse, 8).groups
    assert answer.error_code == 0
    return {
        f"{topic.name}-{partition.partition_index}": [partition.committed_offset, partition.metadata]
        for topic in answer.topics
        for partition in topic.partitions
    }


def partition_state(cluster: MemoryCluster, name: str) -> dict[str, Any]:
    """Offsets of ``topic-partition``, and number and hash of its records under both isolation levels."""
    state: dict[str, Any] = {"log_start_offset": offset(cluster, name, -2)}
    for isolation, end, level in ((0, "high_watermark", "uncommitted"), (1, "last_stable_offset", "committed")):
        values = fetched(cluster, name, isolation)
        state[end] = offset(cluster, name, -1, isolation)
        state[f"records_read_{level}"] = len(values)
        state[f"sha256_read_{level}"] = record_hash(values)
    return state
