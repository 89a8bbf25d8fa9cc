"""Topics of a running cluster as something to audit: batches fetched whole, markers and aborted ones included."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from minibroker.client.cluster import ClusterClient
from minibroker.client.connection import BrokerFailed
from minibroker.client.security import PLAINTEXT, Security
from minibroker.rules.rows import COORDINATOR_TOPICS, Log, LogFacts
from minibroker_pipeline.files import EVERYTHING, Directory, NotReadable, Part
from minibroker_protocol import messages as m
from minibroker_protocol.errors import ApiError
from minibroker_protocol.records import iter_batches

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
EARLIEST, LATEST = -2, -1
TOPIC_RESOURCE = 2
FETCH_BYTES = 16 << 20
SPLIT_OFFSETS = 2_000_000


class Fetched(NamedTuple):
    """Whole batches, and what came with them. `aborted`: (producer id, first offset) of aborted transactions that
    overlap, with read_committed only."""

    data: memoryview
    log_start_offset: int
    high_watermark: int
    aborted: list[tuple[int, int]]


@contextmanager
def _readable() -> Iterator[None]:
    """What a cluster refuses, or does not answer, is not readable."""
    try:
        yield
    except ApiError as error:
        raise NotReadable(error.message) from None
    except BrokerFailed as error:
        raise NotReadable(str(error)) from None


class TopicClient(ClusterClient):
    """Reads topics with Kafka's oldest request versions that every cluster still serves. Raises NotReadable."""

    client_id = "minibroker-audit"

    @_readable()
    def partitions(self, topics: Collection[str] = ()) -> list[tuple[str, int]]:
        """(topic, partition) of these topics, of all when none is named."""
        return sorted(self.leaders(topics or None))

    @_readable()
    def offset(self, topic: str, partition: int, which: int, isolation: int = READ_UNCOMMITTED) -> int:
        """EARLIEST or LATEST (high watermark, or last stable offset with READ_COMMITTED)."""
        kind = m.ListOffsetsRequest
        entry = kind.ListOffsetsPartition(partition_index=partition, timestamp=which)
        request = kind(
            replica_id=-1, isolation_level=isolation, topics=[kind.ListOffsetsTopic(name=topic, partitions=[entry])]
        )
        answered = m.ListOffsetsResponse
        return int(self.ask_leader(topic, partition, request, answered, 5, lambda a: a.topics[0].partitions[0]).offset)

    @_readable()
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

    @_readable()
    def compacted(self, topics: Sequence[str]) -> set[str]:
        """Those of the topics whose cleanup.policy says compact; the broker's own when it will not tell."""
        kind = m.DescribeConfigsRequest
        wanted = [
            kind.DescribeConfigsResource(
                resource_type=TOPIC_RESOURCE, resource_name=topic, configuration_keys=["cleanup.policy"]
            )
            for topic in topics
        ]
        answer = self.ask_any(kind(resources=wanted), m.DescribeConfigsResponse, 1)
        found = {topic for topic in topics if topic in COORDINATOR_TOPICS}
        for result in answer.results:
            if any("compact" in (config.value or "") for config in result.configs):
                found.add(result.resource_name)
        return found


class Topics:
    """Topics in the place of files: a part is a range of offsets, read in pieces. Can be pickled."""

    def __init__(self, bootstrap: str, security: Security = PLAINTEXT, settings_file: str | None = None) -> None:
        self.uri = f"--bootstrap {bootstrap}"
        if settings_file is not None:
            self.uri += f" --command-config {shlex.quote(settings_file)}"
        self.client = TopicClient(bootstrap, security=security)

    def list(
        self,
        topics: Collection[str] = (),
        partitions: Collection[int] = (),
        compacted: Collection[str] = (),
        since: dict[Log, int] | None = None,
    ) -> Directory:
        """What is there now; `since`: only from these offsets on. NotReadable when there is nothing of the kind."""
        try:
            return self._list(topics, partitions, compacted, since)
        finally:
            self.client.close()

    def _list(
        self,
        topics: Collection[str],
        partitions: Collection[int],
        compacted: Collection[str],
        since: dict[Log, int] | None,
    ) -> Directory:
        client = self.client
        places = [place for place in client.partitions(topics) if not partitions or place[1] in partitions]
        if not places:
            raise NotReadable(f"{self.uri}: no partition to read")
        cleaned = {*compacted, *client.compacted(sorted({topic for topic, _ in places}))}
        facts, parts = [], []
        for topic, partition in places:
            log = Log("", topic, partition)
            start = client.offset(topic, partition, EARLIEST)
            end = client.offset(topic, partition, LATEST)
            fact = LogFacts(log, start, start, EVERYTHING if topic in cleaned else 0, indexed=False)
            facts.append(fact)
            at = start if since is None else max(start, since.get(log, start))
            while at < end:
                stop = min(end, at + SPLIT_OFFSETS)
                parts.append(Part(fact, f"{log}", at, stop))
                at = stop
        return Directory(facts, parts)

    def pieces(self, part: Part, isolation: int = READ_UNCOMMITTED) -> Iterator[tuple[memoryview, Fetched]]:
        """Batches that begin within the part's offsets, as they come in; the first one may begin before it."""
        try:
            yield from self._pieces(part, isolation)
        finally:
            self.client.close()

    def _pieces(self, part: Part, isolation: int) -> Iterator[tuple[memoryview, Fetched]]:
        log = part.facts.log
        offset = part.start
        first = part.start == part.facts.start_offset
        while offset < part.stop:
            fetched = self.client.fetch(log.topic, log.partition, offset, isolation)
            low, high, after = 0, 0, offset
            for position, header in iter_batches(fetched.data):
                if header.base_offset < part.start and not first:
                    low = high = position + header.size  # of the part before this one
                    after = max(after, header.next_offset)
                    continue
                if header.base_offset >= part.stop:
                    after = part.stop
                    break
                high = position + header.size
                after = header.next_offset
            if high > low:
                yield fetched.data[low:high], fetched
            if after <= offset:
                return  # compaction left nothing up to the end
            offset = after
