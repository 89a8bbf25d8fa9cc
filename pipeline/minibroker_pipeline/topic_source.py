"""The Spark data source `kafka-topics`: records of topics, as a table or a stream, without any jar.

`spark.read.format("kafka-topics").option("bootstrap", "HOST:PORT").option("subscribe", "a,b").load()`, and the same
with `readStream`, whose offsets live in Spark's checkpoint. Options: `topic_options`; columns: `tables.TOPIC_RECORDS`;
beside Spark's own connector: docs/how-to/topics-on-spark.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from minibroker.client.topics import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED, Position, Span, committed
from minibroker.output import say
from minibroker.rules.rows import Log, LogFacts
from minibroker_pipeline.files import NotReadable, Part
from minibroker_pipeline.reading import PlainRecord, records_of
from minibroker_pipeline.session import register_source
from minibroker_pipeline.source import pruned, wanted
from minibroker_pipeline.stream_offsets import (
    OLD_FORM,
    Changes,
    Offsets,
    TopicOffsets,
    end_of_batch,
    from_json,
    initial,
    is_initial,
    is_old_form,
    kept_where_equal,
    not_after,
    not_before,
    readable_topics,
    start_of_batch,
    to_json,
)
from minibroker_pipeline.tables import TOPIC_RECORDS, record_batches, topic_batch
from minibroker_pipeline.topic_limits import Delay, Place, limited, sizes, split
from minibroker_pipeline.topic_options import NAME, Bound, TopicOptions, topic_options
from minibroker_pipeline.topics import RecordsLost, Topics
from minibroker_protocol.errors import Malformed

_NEXT = (
    "To go on with the records that are there, set failOnDataLoss=false, which prints each loss, or start with a new "
    "checkpoint"
)
_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
_NEWEST = Bound("endingOffsets", LATEST)


class DataLost(NotReadable):
    """Records that the query was to read are gone."""


class Range(InputPartition):
    """Offsets of a partition, which one task reads.

    is_first: no other task of the batch reads lower ones.
    """

    def __init__(self, span: Span, *, is_first: bool = True) -> None:
        super().__init__(None)
        self.span = span
        self.is_first = is_first

    @property
    def start(self) -> int:
        """The first offset."""
        return self.span.start

    @property
    def stop(self) -> int:
        """The offset after the last."""
        return self.span.stop


class KafkaTopics(DataSource):
    """Columns as Spark's own connector has them; `.schema(…)` chooses among all of TOPIC_RECORDS. Options:
    `topic_options`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> Any:
        from pyspark.sql.pandas.types import from_arrow_schema

        headers = {name.lower(): text for name, text in self.options.items()}.get("includeheaders", "").lower()
        return from_arrow_schema(pruned(TOPIC_RECORDS, [*_COLUMNS, *(["headers"] if headers == "true" else [])]))

    def _ranges(self, schema: Any = None, *, streaming: bool = False) -> _Ranges:
        options = topic_options(self.options, streaming=streaming)
        return _Ranges(options, wanted(TOPIC_RECORDS, schema, NAME))

    def reader(self, schema: Any) -> TopicReader:
        return TopicReader(self._ranges(schema))

    def streamReader(self, schema: Any) -> TopicStreamReader:
        return TopicStreamReader(self._ranges(schema, streaming=True))


class _Ranges:
    """Lists offsets and reads records. Can be pickled."""

    def __init__(self, options: TopicOptions, schema: Any) -> None:
        self.options = options
        self.topics = Topics(options.bootstrap, options.security, timeout_ms=options.timeout_ms)
        if options.client_id is not None:
            self.topics.client.client_id = options.client_id
        self.schema = schema
        self._said: set[str] = set()

    def lost(self, text: str) -> None:
        """Raises DataLost, or prints what is passed over, once."""
        if self.options.fail_on_data_loss:
            raise DataLost(f"{NAME}: {text}. {_NEXT}")
        if text in self._said:
            return
        self._said.add(text)
        say(f"{NAME}: {text}; going on, as failOnDataLoss=false", to=sys.stderr, flush=True)

    def starting(self) -> Offsets:
        """Where a table, or a stream without a checkpoint, begins."""
        return self._bounded(self.options.starting, None, self.options.isolation)

    def ending(self) -> Offsets:
        """Where a table is to stop; with read_committed some of it may not be readable yet."""
        return self._bounded(self.options.ending, None, READ_UNCOMMITTED)

    def newest(self, known: Offsets) -> Offsets:
        """The present ends of what is there.

        known: offsets of the last batch, whose topics may be missing.
        """
        return self._bounded(_NEWEST, known, self.options.isolation)

    def _bounded(self, bound: Bound, known: Offsets | None, isolation: int) -> Offsets:
        client, chosen = self.topics.client, self.options.subscription
        names = chosen.names()
        try:
            if names is None:
                present: list[str] = chosen.matching(client.public_topics())
            else:
                present = sorted(client.present(names))
            for name in names or ():
                if name not in present and (known is None or (self.options.fail_on_data_loss and name not in known)):
                    raise NotReadable(f"{NAME}: topic {name} is not in the cluster: it was deleted, or never created")
            if not present:
                bound.check(())
                return {}
            return client.steady(present, lambda places: self._positions(chosen.chosen(places), bound, isolation))
        except ValueError as error:
            raise NotReadable(str(error)) from None
        finally:
            client.close()

    def _positions(self, places: Sequence[Place], bound: Bound, isolation: int) -> Offsets:
        bound.check(places)
        positions: dict[str, dict[int, Position]] = {}
        for topic, partition in places:
            positions.setdefault(topic, {})[partition] = self._position(topic, partition, bound, isolation)
        return {topic: TopicOffsets(self.topics.client.topic_ids.get(topic), of) for topic, of in positions.items()}

    def _position(self, topic: str, partition: int, bound: Bound, isolation: int) -> Position:
        client = self.topics.client
        value = bound.at(topic, partition)
        if bound.by_time:
            # -1 for a partition without such a record. One in an open transaction is there all the same.
            offset = client.position(topic, partition, value, READ_UNCOMMITTED).offset
            if offset >= 0:
                return Position(offset)
            if not bound.or_latest:
                raise NotReadable(
                    f"{NAME}: {bound.option}: {topic}-{partition} has no record of {value} ms since 1970 or later; "
                    "with startingOffsetsByTimestampStrategy=latest it would be read from its end"
                )
            value = LATEST
        if value == LATEST:
            return client.position(topic, partition, LATEST, isolation)
        first = client.position(topic, partition, EARLIEST, READ_UNCOMMITTED).offset
        if value == EARLIEST:
            # What is not read yet cannot be truncated: the beginning needs no epoch.
            return Position(first)
        end = client.position(topic, partition, LATEST, READ_UNCOMMITTED).offset
        if not first <= value <= end:
            self.lost(f"{bound.option}: {topic}-{partition} has offsets {first} to {end}, and not {value}")
        return Position(min(max(first, value), end))

    def with_absent(self, known: Offsets, end: Offsets) -> Offsets:
        """`end`, and topics that are to be read but are not in it, where they were before: a topic that is away for a
        moment is read on from there. Raises DataLost before Spark writes the batch into its checkpoint."""
        client, subscription = self.topics.client, self.options.subscription
        present = {topic: of.topic_id for topic, of in end.items()}
        if absent := known.keys() - end.keys():
            try:
                present |= client.present(absent)
            finally:
                client.close()
        kept = {topic: known[topic] for topic in absent if subscription.includes(topic)}
        if self.options.fail_on_data_loss:
            kept = {topic: of for topic, of in kept.items() if topic in present}
            list(readable_topics(known, end | kept, present, self.lost))
        else:
            list(readable_topics(kept, kept, present, self.lost))
        return end | kept

    def begin(self, start: Offsets, end: Offsets) -> dict[Place, int]:
        """The offset to read each partition of `end` from. A new partition, or that of a recreated topic, is read from
        its start."""
        client = self.topics.client
        offsets: dict[Place, int] = {}
        try:
            for topic, of in end.items():
                known = start.get(topic)
                same = None if known is None or known.is_other(of.topic_id) else known
                for partition in of.partitions:
                    if same is not None and partition in same.partitions:
                        offsets[topic, partition] = same.partitions[partition].offset
                    else:
                        offsets[topic, partition] = client.position(topic, partition, EARLIEST).offset
        finally:
            client.close()
        return offsets

    def between(self, start: Offsets, end: Offsets) -> list[Range]:
        """The ranges between two offsets; a new partition begins at its first offset. Losses are reported."""
        client = self.topics.client
        try:
            changes = Changes(
                self.lost,
                lambda topic, partition: client.position(topic, partition, EARLIEST).offset,
                client.truncated,
            )
            spans = list(changes.spans(start, end, client.present({*start, *end})))
            options = self.options
            begins = {(span.topic, span.partition, span.start) for span in spans}
            return [
                Range(part, is_first=(part.topic, part.partition, part.start) in begins)
                for part in split(spans, options.min_partitions, options.max_records_per_partition)
            ]
        finally:
            client.close()

    def read(self, chosen: Range) -> Iterator[Any]:
        return record_batches(self._readable(chosen), self.schema, topic_batch)

    def _readable(self, chosen: Range) -> Iterator[PlainRecord]:
        """Raises NotReadable for a batch that cannot be read, unless the column that says so was chosen."""
        for record in self._records(chosen):
            if record.fault is not None and "fault" not in self.schema.names:
                raise NotReadable(f"{NAME}: {record.log}: the batch at offset {record.offset}: {record.fault}")
            yield record

    def _records(self, chosen: Range) -> Iterator[PlainRecord]:
        """The records that a consumer of this isolation level sees."""
        span: Span | None = chosen.span
        while span is not None:
            try:
                yield from self._records_of(span)
                return
            except RecordsLost as error:
                self.lost(str(error))
                resume = error.resume
                if resume is not None and not chosen.is_first:
                    # Offsets below, where a truncation leads, are read by the task before this one.
                    resume = max(resume, chosen.start)
                span = None if resume is None else self._rest(span, resume)

    def _rest(self, span: Span, resume: int) -> Span | None:
        """What is still to be read of a span after a loss."""
        client = self.topics.client
        try:
            end = client.position(span.topic, span.partition, LATEST, self.options.isolation)
        finally:
            client.close()
        rest = span._replace(start=resume, stop=min(span.stop, end.offset), leader_epoch=end.leader_epoch)
        return rest if rest.start < rest.stop else None

    def _records_of(self, span: Span) -> Iterator[PlainRecord]:
        log = Log("", span.topic, span.partition)
        # A batch may begin before the range; records are cut to it.
        facts = LogFacts(log, start_offset=span.start)
        part = Part(facts, str(log), span.start, span.stop, span=span)
        for data, fetched in self.topics.pieces(part, self.options.isolation):
            try:
                batches = list(committed(data, fetched.aborted))
            except Malformed as error:
                raise NotReadable(f"{NAME}: {log}: {error}") from None
            for header, batch in batches:
                for record in records_of(log, str(log), header, batch):
                    if span.start <= record.offset < span.stop or record.fault:
                        yield record


class TopicReader(DataSourceReader):
    """A table: the offsets at the time when the query is planned, or those of the options."""

    def __init__(self, ranges: _Ranges) -> None:
        self._ranges = ranges

    def partitions(self) -> Sequence[InputPartition]:
        start, end = self._ranges.starting(), self._ranges.ending()
        stops = _flat(end)
        for (topic, partition), first in _flat(start).items():
            if first > stops.get((topic, partition), first):
                raise NotReadable(
                    f"{NAME}: {topic}-{partition} is to be read from offset {first} up to {stops[topic, partition]}"
                )
        if self._ranges.options.isolation == READ_COMMITTED:
            end = not_before(start, not_after(end, self._ranges.newest({})), begins=True)
        return self._ranges.between(start, end)

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        # Where there is nothing to read, Spark reads nothing at all: None.
        return self._ranges.read(partition) if isinstance(partition, Range) else iter(())


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads new records; with read_committed up to the last stable offset."""

    def __init__(self, ranges: _Ranges) -> None:
        self._ranges = ranges
        options = ranges.options
        self._delay = None if options.min_offsets is None else Delay(options.min_offsets, options.max_delay_ms)
        self._initial: dict[str, Any] | None = None
        self._target: Offsets | None = None
        self._newest: Offsets | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Spark asks twice; `latest` must be the same offsets."""
        if self._initial is None:
            self._initial = initial(self._ranges.starting())
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        # Spark has no limit of both kinds for Python: `latestOffset` applies the other one.
        options = self._ranges.options
        if options.max_offsets is not None:
            return ReadMaxRows(options.max_offsets)
        return ReadAllAvailable() if options.min_offsets is None else ReadMinRows(options.min_offsets)

    def prepareForTriggerAvailableNow(self) -> None:
        """What is there now is read by this run, all of it, and nothing that comes later."""
        self._target = self._ranges.newest({})

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Raises DataLost as `with_absent` does."""
        ranges = self._ranges
        known = from_json(start)
        end = self._newest = ranges.newest(known) if self._target is None else self._target
        end = ranges.with_absent(known, end)
        # Spark asks for the target of a run that ends before it asks where the stream begins.
        end = not_before(known, end, begins=is_initial(start))
        return end_of_batch(start, kept_where_equal(known, self._limited(known, end, limit)))

    def _limited(self, known: Offsets, end: Offsets, limit: ReadLimit) -> Offsets:
        """How much of what is there the next batch reads. Spark asks for all of it with Trigger.Once."""
        most = self._ranges.options.max_offsets
        if isinstance(limit, ReadAllAvailable) or (most is None and self._delay is None):
            return end
        first, stops = self._ranges.begin(known, end), _flat(end)
        # A run that ends must not wait for more.
        if self._delay is not None and self._target is None and self._delay.holds(sum(sizes(first, stops).values())):
            return known
        return end if most is None else _moved(end, limited(first, stops, most))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """For the query's progress; `topic_limits.behind` reads the lag from it."""
        return None if self._newest is None else to_json(self._newest)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        start = dict(start_of_batch(start, end))
        if is_old_form(start):
            say(f"{NAME}: {OLD_FORM}", to=sys.stderr, flush=True)
        return self._ranges.between(from_json(start), from_json(end))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, Range)
        return self._ranges.read(partition)

    def stop(self) -> None:
        self._ranges.topics.client.close()


def _flat(offsets: Offsets) -> dict[Place, int]:
    return {(topic, number): at.offset for topic, of in offsets.items() for number, at in of.partitions.items()}


def _moved(offsets: Offsets, to: dict[Place, int]) -> Offsets:
    return {
        topic: TopicOffsets(
            of.topic_id, {number: at._replace(offset=to[topic, number]) for number, at in of.partitions.items()}
        )
        for topic, of in offsets.items()
    }


def register(spark: Any) -> None:
    """Makes the format `kafka-topics` known to a session."""
    register_source(spark, KafkaTopics)
