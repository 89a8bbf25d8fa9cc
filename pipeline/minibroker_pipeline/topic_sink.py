"""The Spark data sink `kafka-exactly-once`: each batch of a query in one transaction, and each batch once.

`exactly_once(df, "orders", bootstrap="HOST:PORT", sink="orders-job")` prepares a table or a stream and returns its
writer. What is promised and what is not: docs/how-to/exactly-once-sink.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakKeyDictionary

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.streaming import StreamingQueryListener

from minibroker_pipeline.murmur2 import positive_murmur2
from minibroker_pipeline.session import register_source
from minibroker_pipeline.sink import MURMUR2, SPARKS_HASH, Attempt, MicroBatch, Sink, SinkDriver, SinkRefused, Written
from minibroker_pipeline.sink_keeper import Keeper
from minibroker_pipeline.sink_options import COLUMNS, NAME, check_columns, sink_of
from minibroker_pipeline.sink_task import write_task

_BATCH_ID = "streaming.sql.batchId"
_QUERY_ID = "sql.streaming.queryId"


@dataclass
class SinkMessage(WriterCommitMessage):
    """The message of a task to the committing process."""

    written: Written


class ExactlyOnce(DataSource):
    """Columns: `value`, `partition` (int), `topic` where there are several, and if wanted `key`, `headers` and
    `timestamp`. Options: `sink_options`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def streamWriter(self, schema: Any, overwrite: bool) -> StreamWriter:
        if overwrite:
            raise SinkRefused(f"{NAME}: a topic cannot be overwritten: use the output mode append or update")
        return StreamWriter(self._sink(schema, streaming=True))

    def writer(self, schema: Any, overwrite: bool) -> TableWriter:
        if overwrite:
            raise SinkRefused(f"{NAME}: a topic cannot be overwritten: use the mode append")
        return TableWriter(self._sink(schema, streaming=False))

    def _sink(self, schema: Any, *, streaming: bool) -> Sink:
        sink = sink_of(self.options, streaming=streaming)
        check_columns({field.name: field.dataType.simpleString() for field in schema.fields}, len(sink.counts))
        return sink


class _Writer:
    """The common part of both writers. An attempt begins when Spark first pickles the planned writer for its tasks.

    Spark makes a stream's writer again for each commit and abort, and pickles only the planned one; an attempt begun by
    `__init__` would fence itself there.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._attempt: Attempt | None = None

    def __getstate__(self) -> dict[str, Any]:
        if self._attempt is None:  # it is pickled twice
            self._attempt = SinkDriver(self._sink).begin()
        return self.__dict__

    def _write(self, batch: MicroBatch, context: Any, iterator: Iterator[Any]) -> SinkMessage:
        assert self._attempt is not None
        number, task = context.attemptNumber(), context.taskAttemptId()
        return SinkMessage(write_task(self._sink, self._attempt, batch, number, task, iterator))


def _written(messages: Sequence[Any]) -> list[Written]:
    """Reports of the tasks that ended; None stands for one that did not."""
    return [message.written for message in messages if message is not None]


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Batches numbered by the query."""

    def write(self, iterator: Iterator[Any]) -> SinkMessage:
        context = TaskContext.get()
        assert context is not None
        query, number = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
        if query is None or number is None:
            raise SinkRefused(f"{NAME}: Spark gave neither query nor batch id: only micro-batches can be written")
        return self._write(MicroBatch(query, int(number)), context, iterator)

    def commit(self, messages: Sequence[Any], batchId: int) -> None:
        SinkDriver(self._sink).commit(_written(messages), batchId)

    def abort(self, messages: Sequence[Any], batchId: int) -> None:
        SinkDriver(self._sink).abort(_written(messages))


class TableWriter(_Writer, DataSourceArrowWriter):
    """One batch, number 0 of its job."""

    def write(self, iterator: Iterator[Any]) -> SinkMessage:
        context = TaskContext.get()
        assert context is not None
        return self._write(MicroBatch(self._sink.job or "", 0), context, iterator)

    def commit(self, messages: Sequence[Any]) -> None:
        SinkDriver(self._sink).commit(_written(messages), 0)

    def abort(self, messages: Sequence[Any]) -> None:
        SinkDriver(self._sink).abort(_written(messages))


class KeepingListener(StreamingQueryListener):
    """Passes the events of a session's queries to a Keeper. Spark calls no writer while there is nothing to write."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper

    def onQueryStarted(self, event: Any) -> None:
        """Spark waits for it before the first batch."""
        self._keeper.started(str(event.id))

    def onQueryProgress(self, event: Any) -> None:
        self._keeper.wrote(str(event.progress.id))

    def onQueryIdle(self, event: Any) -> None:
        self._keeper.idle(str(event.id))

    def onQueryTerminated(self, event: Any) -> None:
        """Nothing to do: the marker is as old as the last commit."""


_KEEPERS: Final[WeakKeyDictionary[Any, Keeper]] = WeakKeyDictionary()


def keep_marker(spark: Any, options: Mapping[str, str]) -> None:
    """Keep the marker of a query with these options from expiring while the session runs it without anything to write.
    `exactly_once` does it; the bare format needs it. Raises SinkRefused."""
    if spark not in _KEEPERS:
        keeper = _KEEPERS[spark] = Keeper()
        spark.streams.addListener(KeepingListener(keeper))
    _KEEPERS[spark].add(sink_of(options, streaming=True))


def register(spark: Any) -> None:
    """Makes the format `kafka-exactly-once` known to a session."""
    register_source(spark, ExactlyOnce)


def exactly_once(df: Any, topic: str | Sequence[str], *, bootstrap: str, sink: str, **options: Any) -> Any:
    """A writer of `df` to `topic`: of a stream a DataStreamWriter, for `.option("checkpointLocation", …).start()`; of a
    table a DataFrameWriter, for `.save()`.

    Columns: `value`, and if wanted `key`, `headers`, `timestamp`, `partition`; others are an error.

    topic: with several topics the column `topic` names the topic of each row; with one topic the column has no effect,
        as with Spark's own sink.
    partitioner (among the options): how the partition of a row is chosen where there is no column `partition`:
        "murmur2", the default, by the hash of the key as with Kafka's clients, or "hash", by Spark's `hash` of the key.
        A row without a key goes by Spark's `hash` of its value.
    sink: the name of the transactional id and of the group that holds the marker, one for each query.
    options: as of the format; a dot in a name is `**{"kafka.…": …}`.

    Raises SinkRefused.
    """
    if df.sparkSession.conf.get("spark.speculation", "false") == "true":
        raise SinkRefused(f"{NAME}: spark.speculation is on: a second copy of a task would fail the batch; turn it off")
    partitioner = str(options.pop("partitioner", MURMUR2))
    chooses = "partition" not in df.columns
    named = {
        **{key: str(value) for key, value in options.items()},
        "bootstrap": bootstrap,
        "topic": topic if isinstance(topic, str) else ",".join(topic),
        "sink": sink,
        **({"partitioner": partitioner} if chooses else {}),
    }
    counts = sink_of(named, streaming=df.isStreaming).counts
    if chooses:
        df = df.withColumn("partition", _partition_of(df.columns, counts, partitioner))
    columns = {field.name: field.dataType.simpleString() for field in df.schema.fields}
    check_columns(columns, len(counts))
    place = ["topic", "partition"] if len(counts) > 1 else ["partition"]
    # The number keeps adaptive execution from making one task of it.
    shared = df.select([name for name in COLUMNS if name in columns]).repartition(sum(counts.values()), *place)
    register(df.sparkSession)
    named["partitions"] = ",".join(map(str, counts.values()))
    if df.isStreaming:
        keep_marker(df.sparkSession, named)
        return shared.writeStream.format(NAME).options(**named)
    return shared.write.format(NAME).options(**named).mode("append")


def _partition_of(columns: Sequence[str], counts: Mapping[str, int], partitioner: str) -> Any:
    """The column `partition` from key, value and topic."""
    from pyspark.sql import functions as F

    count = F.lit(next(iter(counts.values())))
    if len(counts) > 1 and "topic" in columns:
        of_topic = F.create_map(*(F.lit(item) for pair in counts.items() for item in pair))
        # A row of an unknown topic is refused where it is written, with the topic's name.
        count = F.coalesce(of_topic[F.col("topic")], F.lit(1))
    value = F.col("value").cast("binary")
    if "key" not in columns:
        return F.pmod(F.hash(value), count).cast("int")
    key = F.col("key").cast("binary")
    if partitioner == SPARKS_HASH:
        return F.pmod(F.hash(F.coalesce(key, value)), count).cast("int")
    hashed = F.arrow_udf(positive_murmur2, "int")(key)
    return F.when(key.isNull(), F.pmod(F.hash(value), count)).otherwise(hashed % count).cast("int")
