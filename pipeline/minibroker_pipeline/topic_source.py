"""The Spark data source `kafka-topics`: records of topics, as a table or a stream, without any jar.

`spark.read.format("kafka-topics").option("bootstrap", "HOST:PORT").option("topics", "a,b").load()`, and the same with
`readStream`, whose offsets live in Spark's checkpoint. Columns: those of the table `records` in
`minibroker_pipeline.tables`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from minibroker.client.security import Security
from minibroker.client.topics import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED
from minibroker.rules.rows import ABORT, Log, LogFacts, Marker
from minibroker.rules.scan import control_rows
from minibroker_pipeline.files import Part
from minibroker_pipeline.headers import HeaderScan
from minibroker_pipeline.reading import PlainRecord, records_of
from minibroker_pipeline.source import wanted
from minibroker_pipeline.tables import TABLES, record_batches
from minibroker_pipeline.topics import Topics
from minibroker_protocol.records import BatchHeader

NAME = "kafka-topics"
_ISOLATION = {"read_committed": READ_COMMITTED, "read_uncommitted": READ_UNCOMMITTED}


class Range(InputPartition):
    """Offsets [start, stop) of a partition, which one task reads."""

    def __init__(self, topic: str, partition: int, start: int, stop: int) -> None:
        super().__init__(None)
        self.topic = topic
        self.partition = partition
        self.start = start
        self.stop = stop


class KafkaTopics(DataSource):
    """A schema given with `.schema(…)` chooses columns. Options: `bootstrap`, `topics` (separated by commas),
    `isolation` (read_committed or read_uncommitted), `startingOffsets` (earliest or latest, for a stream without a
    checkpoint), and for TLS and logins what `minibroker.client.security` knows with `kafka.` before it, as Spark's own
    connector has it."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> Any:
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(TABLES["records"])

    def _ranges(self, schema: Any = None) -> _Ranges:
        options = self.options
        bootstrap, topics = options.get("bootstrap"), options.get("topics")
        if not bootstrap or not topics:
            raise ValueError(f"{NAME}: the options bootstrap and topics are needed")
        isolation = options.get("isolation", "read_committed")
        starting = options.get("startingOffsets", "earliest")
        if isolation not in _ISOLATION:
            raise ValueError(f"{NAME}: isolation {isolation!r} is none of {', '.join(_ISOLATION)}")
        if starting not in ("earliest", "latest"):
            raise ValueError(f"{NAME}: startingOffsets {starting!r} is neither earliest nor latest")
        names = [name.strip() for name in topics.split(",") if name.strip()]
        settings = {name.removeprefix("kafka."): text for name, text in options.items() if name.startswith("kafka.")}
        cluster = Topics(bootstrap, Security.of(settings))
        first = EARLIEST if starting == "earliest" else LATEST
        return _Ranges(cluster, names, _ISOLATION[isolation], first, wanted(TABLES["records"], schema, NAME))

    def reader(self, schema: Any) -> TopicReader:
        return TopicReader(self._ranges(schema))

    def streamReader(self, schema: Any) -> TopicStreamReader:
        return TopicStreamReader(self._ranges(schema))


class _Ranges:
    """Lists offsets and reads records. Can be pickled."""

    def __init__(self, topics: Topics, names: list[str], isolation: int, starting: int, schema: Any) -> None:
        self.topics = topics
        self.schema = schema
        self.names = names
        self.isolation = isolation
        self.starting = starting

    def offsets(self, which: int) -> dict[str, int]:
        """ "TOPIC-PARTITION" -> offset."""
        client = self.topics.client
        try:
            isolation = self.isolation if which == LATEST else READ_UNCOMMITTED
            return {f"{t}-{p}": client.offset(t, p, which, isolation) for t, p in client.partitions(self.names)}
        finally:
            client.close()

    def between(self, start: dict[str, int], end: dict[str, int]) -> list[Range]:
        """The ranges between two offsets; a new partition begins at its first offset."""
        found = []
        for name, stop in sorted(end.items()):
            topic, _, partition = name.rpartition("-")
            first = start.get(name)
            if first is None:
                first = self.offsets(EARLIEST)[name]
            if stop > first:
                found.append(Range(topic, int(partition), first, stop))
        return found

    def read(self, chosen: Range) -> Iterator[Any]:
        return record_batches(self._records(chosen), self.schema)

    def _records(self, chosen: Range) -> Iterator[PlainRecord]:
        """The records that a consumer of this isolation level sees."""
        log = Log("", chosen.topic, chosen.partition)
        # A batch may begin before the range; records are cut to it.
        facts = LogFacts(log, start_offset=chosen.start)
        part = Part(facts, str(log), chosen.start, chosen.stop)
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
                            if chosen.start <= record.offset < chosen.stop or record.fault:
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

    def initialOffset(self) -> dict[str, int]:
        return self._ranges.offsets(self._ranges.starting)

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, int]:
        return self._ranges.offsets(LATEST)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return self._ranges.between(start, end)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, Range)
        return self._ranges.read(partition)


def register(spark: Any) -> None:
    """Makes the format `kafka-topics` known to a session."""
    spark.dataSource.register(KafkaTopics)
