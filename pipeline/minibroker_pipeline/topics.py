"""Topics of a running cluster as an input of the audit: batches fetched whole, markers and aborted ones included."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from minibroker.client.cluster import DEFAULT_TIMEOUT
from minibroker.client.connection import BrokerFailed
from minibroker.client.security import PLAINTEXT, Security
from minibroker.client.topics import (
    EARLIEST,
    LATEST,
    READ_UNCOMMITTED,
    Fetched,
    Position,
    ReadingClient,
    RecordsGone,
    Span,
)
from minibroker.rules.compaction import may_miss
from minibroker.rules.rows import (
    CONSUMER_OFFSETS,
    COORDINATOR_TOPICS,
    EVERYTHING,
    TRANSACTION_STATE,
    Log,
    LogFacts,
)
from minibroker_pipeline.files import NotReadable, Part
from minibroker_pipeline.listing import Directory
from minibroker_protocol import messages as m
from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.fields import NO_ID
from minibroker_protocol.records import CorruptBatch, iter_batches

SPLIT_OFFSETS = 2_000_000
_ORDER = {CONSUMER_OFFSETS: 0, TRANSACTION_STATE: 2}
"""Topics whose end offsets are requested before (0) or after (2) those of all others (1)."""
TIMEOUT_MS = 60_000
"""How long reading waits for a busy cluster before it gives up; as default.api.timeout.ms of Kafka's consumer."""
_LISTINGS = 3
"""Tries to list topics while one of them is made again."""

_T = TypeVar("_T")


class RecordsLost(NotReadable):
    """Offsets that were to be read are not in the log any more.

    resume, deleted: as of `RecordsGone`.
    """

    def __init__(self, text: str, resume: int | None, *, deleted: bool = False) -> None:
        super().__init__(text, resume)
        self.resume = resume
        self.deleted = deleted

    def __str__(self) -> str:
        return str(self.args[0])


@contextmanager
def _readable() -> Iterator[None]:
    """Raise NotReadable for requests that the cluster refuses or does not answer, and for bytes that are no batch."""
    try:
        yield
    except RecordsGone as error:
        raise RecordsLost(str(error), error.resume, deleted=error.deleted) from None
    except (ApiError, BrokerFailed, CorruptBatch) as error:
        raise NotReadable(str(error)) from None


class Seen(NamedTuple):
    """Up to where the log of the topic with this id was read."""

    topic_id: bytes | None
    position: Position


class TopicClient(ReadingClient):
    """Reads topics with Kafka's oldest request versions that every cluster still serves. Raises NotReadable."""

    client_id = "minibroker-audit"

    @_readable()
    def partitions(self, topics: Collection[str] = ()) -> list[tuple[str, int]]:
        """(topic, partition) of these topics, of all when none is named."""
        return sorted(self.leaders(topics or None))

    @_readable()
    def present(self, topics: Collection[str]) -> dict[str, bytes | None]:
        """Those of these topics that the cluster has → their ids, None where it has no ids."""
        answer = self.metadata(topics) if topics else m.MetadataResponse(brokers=[], topics=[])
        return {
            topic.name or "": bytes(topic.topic_id) if bytes(topic.topic_id) != NO_ID else None
            for topic in answer.topics
            if topic.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        }

    @_readable()
    def public_topics(self) -> list[str]:
        """All topics but Kafka's own, as a consumer's pattern sees them."""
        answer = self.metadata(None)
        return sorted(topic.name or "" for topic in answer.topics if not topic.is_internal)

    position = _readable()(ReadingClient.position)
    truncated = _readable()(ReadingClient.truncated)

    def steady(self, topics: Collection[str], ask: Callable[[list[tuple[str, int]]], _T]) -> _T:
        """What `ask` returns for the partitions of these topics; asked again if one was recreated meanwhile, as topic
        ids and offsets come from different requests."""
        for _ in range(_LISTINGS):
            places = self.partitions(topics)
            before = dict(self.topic_ids)
            answered = ask(places)
            self.partitions(topics)
            if all(self.topic_ids.get(topic) == before.get(topic) for topic, _ in places):
                return answered
        raise NotReadable(f"topics are deleted and made again while they are listed: {', '.join(topics) or 'all'}")

    @_readable()
    def compacted(self, topics: Sequence[str]) -> set[str]:
        """The topics whose cleanup.policy contains compact; the broker's default when it does not tell."""
        policies = self.cleanup_policies(topics)
        return {topic for topic in topics if topic in COORDINATOR_TOPICS or "compact" in (policies[topic] or "")}


class Topics:
    """Topics in the place of files: a part is a range of offsets, read in pieces. Can be pickled.

    timeout_ms: how long a read waits without progress, for a quota, an election or a dead leader.
    """

    def __init__(
        self,
        bootstrap: str,
        security: Security = PLAINTEXT,
        settings_file: str | None = None,
        timeout_ms: int = TIMEOUT_MS,
        split_offsets: int = SPLIT_OFFSETS,
    ) -> None:
        self._split_offsets = split_offsets
        self.uri = f"--bootstrap {bootstrap}"
        if settings_file is not None:
            self.uri += f" --command-config {shlex.quote(settings_file)}"
        self.client = TopicClient(bootstrap, timeout=min(DEFAULT_TIMEOUT, timeout_ms / 1000), security=security)
        self.client.leader_patience = timeout_ms / 1000

    def list(
        self,
        topics: Collection[str] = (),
        partitions: Collection[int] = (),
        compacted: Collection[str] = (),
        order: Mapping[str, int] | None = None,
    ) -> Directory:
        """The partitions and their present ends.

        order: the order in which the ends of these topics are requested.

        Raises NotReadable when there is none.
        """
        try:
            return self._listed(topics, partitions, compacted, {}, order or {})[0]
        finally:
            self.client.close()

    def news(
        self,
        topics: Collection[str],
        partitions: Collection[int],
        compacted: Collection[str],
        seen: Mapping[Log, Seen],
    ) -> tuple[Directory, dict[Log, str]]:
        """What has come since the logs were read up to `seen`; and logs that are to be read from their start again,
        because what was read before is not there any more, with the reason. Raises NotReadable when there is none."""
        try:
            return self._listed(self._present(topics), partitions, compacted, seen, {})
        finally:
            self.client.close()

    def _present(self, topics: Collection[str]) -> Collection[str]:
        """Those of the topics that are still there. Raises NotReadable for none."""
        present = self.client.present(topics)
        if topics and not present:
            raise NotReadable(f"{self.uri}: not in the cluster: {', '.join(topics)}")
        return sorted(present)

    def _listed(
        self,
        topics: Collection[str],
        partitions: Collection[int],
        compacted: Collection[str],
        seen: Mapping[Log, Seen],
        order: Mapping[str, int],
    ) -> tuple[Directory, dict[Log, str]]:
        def ask(places: list[tuple[str, int]]) -> tuple[Directory, dict[Log, str]]:
            chosen = [place for place in places if not partitions or place[1] in partitions]
            chosen.sort(key=lambda place: (_ORDER.get(place[0], 1), order.get(place[0], 0)))
            return self._compared(chosen, compacted, seen)

        return self.client.steady(topics, ask)

    def _compared(
        self, places: Sequence[tuple[str, int]], compacted: Collection[str], seen: Mapping[Log, Seen]
    ) -> tuple[Directory, dict[Log, str]]:
        client = self.client
        if not places:
            raise NotReadable(f"{self.uri}: no partition to read")
        cleaned = {*compacted, *client.compacted(sorted({topic for topic, _ in places}))}
        # What was decided before the other logs' ends are known has its markers there, and markers have a decision in
        # what was decided up to after that. Groups' offsets are of records that are there a moment later.
        decisions = [place for place in places if place[0] == TRANSACTION_STATE]
        settled = {place: client.position(*place, LATEST).offset for place in decisions}
        facts, parts, anew = [], [], {}
        for topic, partition in places:
            log = Log("", topic, partition)
            start = client.position(topic, partition, EARLIEST).offset
            end = client.position(topic, partition, LATEST)
            topic_id = client.topic_ids.get(topic)
            before = settled.get((topic, partition), EVERYTHING)
            compaction = may_miss(topic, {topic: topic in cleaned})
            fact = LogFacts(log, start, start, indexed=False, settled_offset=before, **compaction)
            facts.append(fact)
            at = start
            if (known := seen.get(log)) is not None:
                at = known.position.offset
                if reason := self._broken(log, known, Seen(topic_id, end), start):
                    anew[log], at = reason, start
            while at < end.offset:
                stop = min(end.offset, at + self._split_offsets)
                span = Span(topic, partition, at, stop, end.leader_epoch, topic_id)
                parts.append(Part(fact, f"{log}", at, stop, span=span))
                at = stop
        return Directory(facts, parts), anew

    def _broken(self, log: Log, known: Seen, now: Seen, start: int) -> str:
        """Why a log cannot be read on from where it was read to; empty if it can."""
        offset, end = known.position.offset, now.position.offset
        if None not in (known.topic_id, now.topic_id) and known.topic_id != now.topic_id:
            return f"the topic was deleted and made again after offset {offset}"
        if offset < start:
            return f"offsets {offset} to {start} were deleted before they were read"
        cut = None
        if known.position.leader_epoch != now.position.leader_epoch:
            cut = self.client.truncated(log.topic, log.partition, known.position)
        if cut is None and end < offset:
            cut = end
        return "" if cut is None else f"the log was truncated to offset {cut} after it was read up to {offset}"

    def pieces(self, part: Part, isolation: int = READ_UNCOMMITTED) -> Iterator[tuple[memoryview, Fetched]]:
        """Batches that begin within the part's offsets, as they come in; the first one may begin before it."""
        try:
            yield from self._pieces(part, isolation)
        finally:
            self.client.close()

    def _pieces(self, part: Part, isolation: int) -> Iterator[tuple[memoryview, Fetched]]:
        log = part.facts.log
        first = part.start == part.facts.start_offset
        planned = part.span or Span(log.topic, log.partition, part.start, part.stop)
        span = planned._replace(start=part.start, stop=part.stop)
        with _readable():
            for fetched in self.client.read(span, isolation):
                low, high = 0, 0
                for position, header in iter_batches(fetched.data):
                    if header.base_offset < part.start and not first:
                        low = high = position + header.size  # of the part before this one
                        continue
                    if header.base_offset >= part.stop:
                        break
                    high = position + header.size
                if high > low:
                    yield fetched.data[low:high], fetched
