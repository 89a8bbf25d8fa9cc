"""Topics of a running cluster as an input of the audit: batches fetched whole, markers and aborted ones included."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from minibroker.client.connection import BrokerFailed
from minibroker.client.security import PLAINTEXT, Security
from minibroker.client.topics import EARLIEST, LATEST, READ_UNCOMMITTED, Fetched, ReadingClient
from minibroker.rules.rows import COORDINATOR_TOPICS, EVERYTHING, Log, LogFacts
from minibroker_pipeline.files import NotReadable, Part
from minibroker_pipeline.listing import Directory
from minibroker_protocol import messages as m
from minibroker_protocol.errors import ApiError
from minibroker_protocol.records import iter_batches

TOPIC_RESOURCE = 2
SPLIT_OFFSETS = 2_000_000


@contextmanager
def _readable() -> Iterator[None]:
    """Raise NotReadable for requests that the cluster refuses or does not answer."""
    try:
        yield
    except (ApiError, BrokerFailed) as error:
        raise NotReadable(str(error)) from None


class TopicClient(ReadingClient):
    """Reads topics with Kafka's oldest request versions that every cluster still serves. Raises NotReadable."""

    client_id = "minibroker-audit"

    @_readable()
    def partitions(self, topics: Collection[str] = ()) -> list[tuple[str, int]]:
        """(topic, partition) of these topics, of all when none is named."""
        return sorted(self.leaders(topics or None))

    offset = _readable()(ReadingClient.offset)
    fetch = _readable()(ReadingClient.fetch)

    @_readable()
    def compacted(self, topics: Sequence[str]) -> set[str]:
        """The topics whose cleanup.policy contains compact; the broker's default when it does not tell."""
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
        """The partitions and their present ends; `since`: only from these offsets on. Raises NotReadable when there is
        none."""
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
