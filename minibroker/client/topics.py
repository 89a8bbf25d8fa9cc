"""Batches and offsets of topics, read over a blocking connection with the oldest requests that every cluster serves."""

from __future__ import annotations

from typing import Final, NamedTuple

from minibroker.client.cluster import ClusterClient
from minibroker_protocol import messages as m
from minibroker_protocol.records import iter_batches

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
EARLIEST, LATEST = -2, -1
FETCH_BYTES: Final = 16 << 20


class Fetched(NamedTuple):
    """Whole batches, and what came with them. `aborted`: (producer id, first offset) of aborted transactions that
    overlap, with read_committed only."""

    data: memoryview
    log_start_offset: int
    high_watermark: int
    aborted: list[tuple[int, int]]


class ReadingClient(ClusterClient):
    """Reads partitions. Raises BrokerFailed when no broker answers, ApiError when one refuses."""

    def offset(self, topic: str, partition: int, which: int, isolation: int = READ_UNCOMMITTED) -> int:
        """EARLIEST or LATEST (high watermark, or last stable offset with READ_COMMITTED)."""
        kind = m.ListOffsetsRequest
        entry = kind.ListOffsetsPartition(partition_index=partition, timestamp=which)
        request = kind(
            replica_id=-1, isolation_level=isolation, topics=[kind.ListOffsetsTopic(name=topic, partitions=[entry])]
        )
        answered, version = m.ListOffsetsResponse, self.version(kind, 5)
        found = self.ask_leader(topic, partition, request, answered, version, lambda a: a.topics[0].partitions[0])
        return int(found.offset)

    def fetch(self, topic: str, partition: int, offset: int, isolation: int = READ_UNCOMMITTED) -> Fetched:
        """Whole batches from the one that holds `offset` on."""
        kind = m.FetchRequest
        entry = kind.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=FETCH_BYTES)
        request = kind(
            max_wait_ms=100,
            min_bytes=1,
            max_bytes=FETCH_BYTES,
            isolation_level=isolation,
            topics=[kind.FetchTopic(topic=topic, partitions=[entry])],
        )
        found = self.ask_leader(topic, partition, request, m.FetchResponse, 11, lambda a: a.responses[0].partitions[0])
        buffers = found.records if isinstance(found.records, list) else [found.records or b""]
        data = memoryview(b"".join(buffers))
        end = 0
        for position, header in iter_batches(data):
            end = position + header.size
        aborted = [(one.producer_id, one.first_offset) for one in found.aborted_transactions or []]
        return Fetched(data[:end], found.log_start_offset, found.high_watermark, aborted)
