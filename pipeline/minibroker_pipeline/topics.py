"""Topics of a running cluster as something to audit: batches fetched whole, markers and aborted ones included.

A small blocking client of Kafka's oldest request versions that every cluster still serves.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from minibroker.client.connection import Address, Connection, parse_address
from minibroker.client.security import PLAINTEXT, Security
from minibroker.conformance.failure import ScenarioFailed
from minibroker.rules.rows import COORDINATOR_TOPICS, Log, LogFacts
from minibroker_pipeline.files import EVERYTHING, Directory, NotReadable, Part
from minibroker_protocol.dsl import Request, Response
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.configs import DescribeConfigsRequest, DescribeConfigsResponse
from minibroker_protocol.messages.fetch import FetchRequest, FetchResponse
from minibroker_protocol.messages.headers import RequestHeader
from minibroker_protocol.messages.metadata import MetadataRequest, MetadataResponse
from minibroker_protocol.messages.offsets import ListOffsetsRequest, ListOffsetsResponse
from minibroker_protocol.records import iter_batches

_R = TypeVar("_R", bound=Response)

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
EARLIEST, LATEST = -2, -1
TOPIC_RESOURCE = 2
FETCH_BYTES = 16 << 20
SPLIT_OFFSETS = 2_000_000
_CLIENT_ID = "minibroker-audit"
_TIMEOUT = 30.0
_PATIENCE = 30.0
_TRANSIENT = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)


class Fetched(NamedTuple):
    """Whole batches, and what came with them. `aborted`: (producer id, first offset) of aborted transactions that
    overlap, with read_committed only."""

    data: memoryview
    log_start_offset: int
    high_watermark: int
    aborted: list[tuple[int, int]]


class TopicClient:
    """Asks the brokers of one cluster. Can be pickled, and used after `close`: connections are made as needed."""

    def __init__(self, bootstrap: str, security: Security = PLAINTEXT) -> None:
        self.bootstrap = bootstrap
        self._security = security
        self._addresses: list[Address] = [parse_address(one.strip()) for one in bootstrap.split(",")]
        self._connections: dict[Address, Connection] = {}
        self._leaders: dict[tuple[str, int], Address] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_connections": {}, "_leaders": {}}

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _ask(self, address: Address, request: Request, answer: type[_R], version: int) -> _R:
        """One request in a version without flexible fields; a dead connection is made anew once."""
        for attempt in (0, 1):
            try:
                connection = self._connections.get(address)
                if connection is None:
                    connection = self._connections[address] = self._security.connect(address, _TIMEOUT)
                connection.correlation_id += 1
                header = RequestHeader(
                    request_api_key=request.__api_key__,
                    request_api_version=version,
                    correlation_id=connection.correlation_id,
                    client_id=_CLIENT_ID,
                )
                connection.send_frame(header.encode(1) + request.encode(version))
                return answer.decode(memoryview(connection.receive(_TIMEOUT)), version, 4)
            except ScenarioFailed as error:
                dead = self._connections.pop(address, None)
                if dead is not None:
                    with suppress(OSError):
                        dead.close()
                if attempt:
                    raise NotReadable(f"{address[0]}:{address[1]}: {error}") from None
        raise AssertionError

    def _ask_any(self, request: Request, answer: type[_R], version: int) -> _R:
        failure = ""
        for address in self._addresses:
            try:
                return self._ask(address, request, answer, version)
            except NotReadable as error:
                failure = str(error)
        raise NotReadable(failure)

    def partitions(self, topics: Collection[str] = ()) -> list[tuple[str, int]]:
        """(topic, partition) of these topics, of all when none is named. NotReadable for a topic there is not."""
        wanted = [MetadataRequest.MetadataRequestTopic(name=name) for name in topics] if topics else None
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
        answer = self._ask_any(request, MetadataResponse, 5)
        brokers = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
        found = []
        for topic in answer.topics:
            if topic.error_code:
                raise NotReadable(f"topic {topic.name}: {ErrorCode(topic.error_code).name}")
            for partition in topic.partitions:
                place = topic.name or "", partition.partition_index
                found.append(place)
                if partition.leader_id in brokers:
                    self._leaders[place] = brokers[partition.leader_id]
        return sorted(found)

    def _leader(self, topic: str, partition: int) -> Address:
        place = topic, partition
        if place not in self._leaders:
            self.partitions([topic])
        if place not in self._leaders:
            raise NotReadable(f"{topic}-{partition}: no leader")
        return self._leaders[place]

    def offset(self, topic: str, partition: int, which: int, isolation: int = READ_UNCOMMITTED) -> int:
        """EARLIEST or LATEST (high watermark, or last stable offset with READ_COMMITTED)."""
        kind = ListOffsetsRequest
        entry = kind.ListOffsetsPartition(partition_index=partition, timestamp=which)
        request = kind(
            replica_id=-1, isolation_level=isolation, topics=[kind.ListOffsetsTopic(name=topic, partitions=[entry])]
        )
        deadline = time.monotonic() + _PATIENCE
        while True:
            answer = self._ask(self._leader(topic, partition), request, ListOffsetsResponse, 5)
            found = answer.topics[0].partitions[0]
            if not found.error_code:
                offset: int = found.offset
                return offset
            self._again(topic, partition, found.error_code, deadline)

    def _again(self, topic: str, partition: int, error: int, deadline: float) -> None:
        """Waits before a question is asked again. NotReadable when that makes no sense."""
        code = ErrorCode(error)
        if code not in _TRANSIENT or time.monotonic() > deadline:
            raise NotReadable(f"{topic}-{partition}: {code.name}")
        time.sleep(0.1)
        self._leaders.pop((topic, partition), None)

    def fetch(self, topic: str, partition: int, offset: int, isolation: int = READ_UNCOMMITTED) -> Fetched:
        """Whole batches from the one that holds `offset` on."""
        kind = FetchRequest
        entry = kind.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=FETCH_BYTES)
        request = kind(
            max_wait_ms=100,
            min_bytes=1,
            max_bytes=FETCH_BYTES,
            isolation_level=isolation,
            topics=[kind.FetchTopic(topic=topic, partitions=[entry])],
        )
        deadline = time.monotonic() + _PATIENCE
        while True:
            answer = self._ask(self._leader(topic, partition), request, FetchResponse, 11)
            found = answer.responses[0].partitions[0]
            if not found.error_code:
                break
            self._again(topic, partition, found.error_code, deadline)
        buffers = found.records if isinstance(found.records, list) else [found.records or b""]
        data = memoryview(b"".join(buffers))
        end = 0
        for position, header in iter_batches(data):
            end = position + header.size
        aborted = [(one.producer_id, one.first_offset) for one in found.aborted_transactions or []]
        return Fetched(data[:end], found.log_start_offset, found.high_watermark, aborted)

    def compacted(self, topics: Sequence[str]) -> set[str]:
        """Those of the topics whose cleanup.policy says compact; the broker's own when it will not tell."""
        kind = DescribeConfigsRequest
        wanted = [
            kind.DescribeConfigsResource(
                resource_type=TOPIC_RESOURCE, resource_name=topic, configuration_keys=["cleanup.policy"]
            )
            for topic in topics
        ]
        answer = self._ask_any(kind(resources=wanted), DescribeConfigsResponse, 1)
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
        self.client = TopicClient(bootstrap, security)

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
