"""The Spark data source `kafka-topics`: records of topics, as a table or a stream, without any jar.

`spark.read.format("kafka-topics").option("bootstrap", "HOST:PORT").option("topics", "a,b").load()`, and the same with
`readStream`, whose offsets live in Spark's checkpoint. Columns: those of the table `records` in
`minibroker_pipeline.tables`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from minibroker.client.security import Security
from minibroker.client.topics import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED, Position, Span
from minibroker.output import say
from minibroker.rules.rows import ABORT, Log, LogFacts, Marker
from minibroker.rules.scan import control_rows
from minibroker_pipeline.files import NotReadable, Part
from minibroker_pipeline.headers import HeaderScan
from minibroker_pipeline.reading import PlainRecord, records_of
from minibroker_pipeline.source import wanted
from minibroker_pipeline.stream_offsets import (
    OLD_FORM,
    Changes,
    Offsets,
    TopicOffsets,
    from_json,
    is_old_form,
    kept_where_equal,
    readable_topics,
    to_json,
)
from minibroker_pipeline.tables import TABLES, record_batches
from minibroker_pipeline.topics import TIMEOUT_MS, RecordsLost, Topics
from minibroker_protocol.records import BatchHeader

NAME = "kafka-topics"
_ISOLATION = {"read_committed": READ_COMMITTED, "read_uncommitted": READ_UNCOMMITTED}


_KNOWN = frozenset({"bootstrap", "topics", "isolation", "startingoffsets", "failondataloss", "timeoutms"})
_NEXT = (
    "To go on with the records that are there, set failOnDataLoss=false, which prints each loss, or start with a new "
    "checkpoint"
)


class DataLost(NotReadable):
    """Records that the query was to read are gone."""


class Range(InputPartition):
    """Offsets of a partition, which one task reads."""

    def __init__(self, span: Span) -> None:
        super().__init__(None)
        self.span = span

    @property
    def start(self) -> int:
        """The first offset."""
        return self.span.start

    @property
    def stop(self) -> int:
        """The offset after the last."""
        return self.span.stop


class KafkaTopics(DataSource):
    """A schema given with `.schema(…)` chooses columns. Options: `bootstrap`, `topics` (separated by commas),
    `isolation` (read_committed or read_uncommitted), `startingOffsets` (earliest or latest, for a stream without a
    checkpoint), `failOnDataLoss` (true: records that are gone unread end the query; false: they are printed and passed
    over), `timeoutMs` (60000: how long a read waits without progress for a busy cluster), and for TLS and logins what
    `minibroker.client.security` knows with `kafka.` before it, as Spark's own connector has it."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> Any:
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(TABLES["records"])

    def _ranges(self, schema: Any = None) -> _Ranges:
        options = {name.lower(): text for name, text in self.options.items()}
        bootstrap, topics = options.get("bootstrap"), options.get("topics")
        if not bootstrap or not topics:
            raise ValueError(f"{NAME}: the options bootstrap and topics are needed")
        for name in sorted(options.keys() - _KNOWN):
            if not name.startswith("kafka."):
                raise ValueError(f"{NAME}: option {name}: there are only {', '.join(sorted(_KNOWN))} and kafka.…")
        isolation = _choice(options, "isolation", ("read_committed", "read_uncommitted"))
        starting = _choice(options, "startingOffsets", ("earliest", "latest"))
        fail = _choice(options, "failOnDataLoss", ("true", "false")) == "true"
        timeout = options.get("timeoutms", str(TIMEOUT_MS))
        if not timeout.isdecimal() or not int(timeout):
            raise ValueError(f"{NAME}: timeoutMs={timeout}: expected a whole number from 1")
        names = [name.strip() for name in topics.split(",") if name.strip()]
        settings = {name.removeprefix("kafka."): text for name, text in options.items() if name.startswith("kafka.")}
        cluster = Topics(bootstrap, Security.of(settings), timeout_ms=int(timeout))
        first = EARLIEST if starting == "earliest" else LATEST
        return _Ranges(cluster, names, _ISOLATION[isolation], first, wanted(TABLES["records"], schema, NAME), fail)

    def reader(self, schema: Any) -> TopicReader:
        return TopicReader(self._ranges(schema))

    def streamReader(self, schema: Any) -> TopicStreamReader:
        return TopicStreamReader(self._ranges(schema))


def _choice(options: Mapping[str, str], name: str, words: Sequence[str]) -> str:
    """The option's word in lower case, by default the first. Raises ValueError for one that is not among them."""
    text: str = options.get(name.lower(), words[0])
    if text.lower() not in words:
        raise ValueError(f"{NAME}: {name} {text!r} is none of {', '.join(words)}")
    return text.lower()


class _Ranges:
    """Lists offsets and reads records. Can be pickled. fail: whether records that are gone unread are an error."""

    def __init__(
        self, topics: Topics, names: list[str], isolation: int, starting: int, schema: Any, fail: bool
    ) -> None:
        self.topics = topics
        self.schema = schema
        self.names = names
        self.isolation = isolation
        self.starting = starting
        self.fail = fail

    def lost(self, text: str) -> None:
        """Raises DataLost, or prints what is passed over."""
        if self.fail:
            raise DataLost(f"{NAME}: {text}. {_NEXT}")
        say(f"{NAME}: {text}; going on, as failOnDataLoss=false", to=sys.stderr, flush=True)

    def offsets(self, which: int, known: Offsets | None = None) -> Offsets:
        """The present ones. known: those of the last batch; a topic may be missing then if losses are no error."""
        client = self.topics.client
        try:
            present = client.present(self.names)
            for name in self.names:
                if name not in present and (self.fail or known is None):
                    if known and name in known:
                        self.lost(f"topic {name}, which was read before, is not in the cluster: it was deleted")
                    raise NotReadable(f"{NAME}: topic {name} is not in the cluster: it was deleted, or never created")
            return client.steady(sorted(present), lambda places: self._offsets(places, which)) if present else {}
        finally:
            client.close()

    def _offsets(self, places: Sequence[tuple[str, int]], which: int) -> Offsets:
        client = self.topics.client
        isolation = self.isolation if which == LATEST else READ_UNCOMMITTED
        found: dict[str, dict[int, Position]] = {}
        for topic, partition in places:
            at = client.position(topic, partition, which, isolation)
            # What is not read yet cannot be truncated: the beginning needs no epoch.
            found.setdefault(topic, {})[partition] = at if which == LATEST else Position(at.offset)
        return {topic: TopicOffsets(client.topic_ids.get(topic), of) for topic, of in found.items()}

    def between(self, start: Offsets, end: Offsets) -> list[Range]:
        """The ranges between two offsets; a new partition begins at its first offset. Losses are reported."""
        client = self.topics.client
        try:
            changes = Changes(
                self.lost,
                lambda topic, partition: client.position(topic, partition, EARLIEST).offset,
                client.truncated,
            )
            return [Range(span) for span in changes.spans(start, end, client.present({*start, *end}))]
        finally:
            client.close()

    def read(self, chosen: Range) -> Iterator[Any]:
        return record_batches(self._records(chosen.span), self.schema)

    def _records(self, span: Span | None) -> Iterator[PlainRecord]:
        """The records that a consumer of this isolation level sees."""
        while span is not None:
            try:
                yield from self._records_of(span)
                return
            except RecordsLost as error:
                self.lost(str(error))
                span = self._rest(span, error.resume)

    def _rest(self, span: Span, resume: int | None) -> Span | None:
        """What is still to be read of a span after a loss."""
        if resume is None:
            return None
        client = self.topics.client
        try:
            end = client.position(span.topic, span.partition, LATEST, self.isolation)
        finally:
            client.close()
        rest = span._replace(start=resume, stop=min(span.stop, end.offset), leader_epoch=end.leader_epoch)
        return rest if rest.start < rest.stop else None

    def _records_of(self, span: Span) -> Iterator[PlainRecord]:
        log = Log("", span.topic, span.partition)
        # A batch may begin before the range; records are cut to it.
        facts = LogFacts(log, start_offset=span.start)
        part = Part(facts, str(log), span.start, span.stop, span=span)
        aborting: set[int] = set()
        for data, fetched in self.topics.pieces(part, self.isolation):
            waiting = sorted(fetched.aborted, key=lambda one: -one[1])
            for block in HeaderScan(data).blocks():
                for index, position in enumerate(block.positions.tolist()):
                    header = BatchHeader(*block.headers[index].tolist())
                    batch = data[position : position + header.size]
                    while waiting and waiting[-1][1] <= header.last_offset:
                        aborting.add(waiting.pop()[0])
                    if header.is_control:
                        aborting.difference_update(_aborted_by(log, header, batch))
                    elif not (header.is_transactional and header.producer_id in aborting):
                        for record in records_of(log, str(log), header, batch):
                            if span.start <= record.offset < span.stop or record.fault:
                                yield record


def _aborted_by(log: Log, header: BatchHeader, batch: memoryview) -> set[int]:
    rows = control_rows(log, "", 0, header, batch)
    return {row.producer_id for row in rows if isinstance(row, Marker) and row.outcome == ABORT}


class TopicReader(DataSourceReader):
    """A batch read: the offsets at the time when the query is planned."""

    def __init__(self, ranges: _Ranges) -> None:
        self._ranges = ranges

    def partitions(self) -> Sequence[InputPartition]:
        return self._ranges.between(self._ranges.offsets(EARLIEST), self._ranges.offsets(LATEST))

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        # Where there is nothing to read, Spark reads nothing at all: None.
        return self._ranges.read(partition) if isinstance(partition, Range) else iter(())


class TopicStreamReader(DataSourceStreamReader):
    """Reads new records; with read_committed up to the last stable offset."""

    def __init__(self, ranges: _Ranges) -> None:
        self._ranges = ranges

    def initialOffset(self) -> dict[str, Any]:
        return to_json(self._ranges.offsets(self._ranges.starting))

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:
        """Raises DataLost for a topic that was deleted, before Spark writes the batch into its checkpoint."""
        known = from_json(start) if start else {}
        end = self._ranges.offsets(LATEST, known)
        if self._ranges.fail:
            others = {topic: None for topic in known if topic not in self._ranges.names}
            now = others | {topic: of.topic_id for topic, of in end.items()}
            list(readable_topics(known, end, now, self._ranges.lost))
        return to_json(kept_where_equal(known, end))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if is_old_form(start):
            say(f"{NAME}: {OLD_FORM}", to=sys.stderr, flush=True)
        return self._ranges.between(from_json(start), from_json(end))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, Range)
        return self._ranges.read(partition)


def register(spark: Any) -> None:
    """Makes the format `kafka-topics` known to a session."""
    spark.dataSource.register(KafkaTopics)
