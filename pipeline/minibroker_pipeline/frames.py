"""The audit's results as Spark DataFrames, which executors compute.

`audit(spark, "DATA_DIR").findings.show()`; docs/how-to/audit-on-spark.md has the columns.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.parquet as pq

from minibroker.client.security import Security
from minibroker.rules import rows as r
from minibroker.rules.catalogue import ERROR
from minibroker.rules.log_rules import LogVerdict
from minibroker.rules.scan import DEPTHS, RECORDS
from minibroker.rules.txn_rules import DEFAULT_TIMEOUT_MS
from minibroker_pipeline import tables
from minibroker_pipeline.engine import LOG_ROWS, SparkAudit, SpreadAudit, of_kind, runs_of, spread_on
from minibroker_pipeline.folder import Folder
from minibroker_pipeline.pieces import is_last
from minibroker_pipeline.planning import as_of as time_of
from minibroker_pipeline.planning import plan_for

TABLES: Final = ("findings", "transactions", "producers", "partitions")
_PLACE: Final = ("root", "topic", "partition")
_ENDS: Final = pa.schema(
    [
        ("root", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("start_offset", pa.int64()),
        ("end_offset", pa.int64()),
    ]
)
_AUDITS: Final = pa.schema(
    [
        ("source", pa.string()),
        ("as_of", pa.int64()),
        *((name, pa.int64()) for name in ("logs", "bytes", "batches", "records", "errors", "notices")),
    ]
)
_ROWS_WRITTEN: Final = "rows long"


class AuditFrames:
    """DataFrames of one audit, each with the columns `run_id` and `run_time` for tables that hold many audits.

    findings: `tables.FINDINGS`, transactions: `tables.TRANSACTIONS`, producers: a row each in a data directory,
    partitions: likewise. What the executors have read is kept until `close`, or the end of a `with`.
    """

    def __init__(self, spark: Any, source: str, spread: SpreadAudit, run_id: str) -> None:
        self._spark = spark
        self._source = source
        self._spread = spread
        self.run_id = run_id
        self.run_time = datetime.now(UTC)
        self._runs = self._frame(of_kind(spread.read, LOG_ROWS).flatMap(runs_of), tables.RUNS)
        self._findings = spread.findings.persist()
        self._judged = self._frame(self._findings, tables.FINDINGS)
        self._transactions = self._frame(spread.transactions, tables.TRANSACTIONS)
        self.findings = self._of_this_run(self._judged)
        self.transactions = self._of_this_run(self._transactions)
        self.producers = self._of_this_run(self._by_producer())
        self.partitions = self._of_this_run(self._by_partition())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release what the executors keep. The DataFrames read everything again after it."""
        self._findings.unpersist()
        self._spread.release()

    def write(self, uri: str) -> None:
        """Add this audit to Parquet tables in a directory: a path, or a URI as the audit reads from.

        Executors write, through pyarrow: Spark needs no jar for S3 or others. A table `audits` with one row for each
        audit is written last, so that a run that is named there is whole. Raises OSError, NotReadable; FileExistsError
        where the directory has an audit of this run_id.
        """
        folder = Folder(uri).check()
        if folder.has(_file(f"audits/{self.run_id}", 0)):
            raise FileExistsError(
                f"audit: {uri} has an audit with the run_id {self.run_id}, whose rows would be mixed with these; "
                "choose another one"
            )
        for name in TABLES:
            self._write(folder, name, getattr(self, name))
        self._write(folder, "audits", self._of_this_run(self._summary()))

    def _write(self, folder: Folder, name: str, frame: Any) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        # Task numbers name the files: a task that is tried again writes its own file again.
        schema = to_arrow_schema(frame.schema, timezone="UTC")
        write = partial(_write_rows, folder, f"{name}/{self.run_id}", schema)
        frame.mapInArrow(write, _ROWS_WRITTEN).count()

    def _frame(self, rows: Any, schema: Any) -> Any:
        from pyspark.sql.pandas.types import from_arrow_schema

        tuples = rows.mapPartitions(partial(_tuples, schema.names))
        return self._spark.createDataFrame(tuples, from_arrow_schema(schema), verifySchema=False)

    def _of_this_run(self, frame: Any) -> Any:
        from pyspark.sql import functions as F

        return frame.withColumns({"run_id": F.lit(self.run_id), "run_time": F.lit(self.run_time)})

    def _by_producer(self) -> Any:
        from pyspark.sql import functions as F

        which = ["root", "producer_id"]
        written = self._runs.where("producer_id >= 0").groupBy(which)
        states = self._frame(of_kind(self._spread.read, "TxnState"), tables.STATES)
        named = states.groupBy(which).agg(F.max_by("transactional_id", "offset").alias("transactional_id"))
        sums = written.agg(
            F.count_distinct("producer_epoch").alias("epochs"),
            F.max("producer_epoch").alias("last_epoch"),
            F.count_distinct("topic", "partition").alias("partitions"),
            *(F.sum(name).alias(name) for name in ("batches", "records", "bytes")),
            F.min("first_timestamp").alias("first_timestamp"),
            F.max("last_timestamp").alias("last_timestamp"),
        )
        return _counted(sums.join(self._outcomes(which), which, "left")).join(named, which, "left")

    def _by_partition(self) -> Any:
        from pyspark.sql import functions as F

        which = list(_PLACE)
        ends = self._frame(self._spread.verdicts.filter(is_last).map(_end_of), _ENDS)
        sums = self._runs.groupBy(which).agg(
            *(F.sum(name).alias(name) for name in ("batches", "records", "bytes")),
            F.count_distinct(F.when(F.col("producer_id") >= 0, F.col("producer_id"))).alias("producers"),
        )
        is_error = F.col("severity") == ERROR
        findings = self._judged.groupBy(which).agg(
            F.count_if(is_error).alias("errors"), F.count_if(~is_error).alias("notices")
        )
        joined = ends.join(sums, which, "left").join(self._outcomes(which), which, "left")
        return _counted(joined.join(findings, which, "left"))

    def _outcomes(self, which: list[str]) -> Any:
        """How many transactions with records ended how."""
        from pyspark.sql import functions as F

        ended, outcome = F.col("marker_offset") >= 0, F.col("outcome")
        return (
            self._transactions.where("first_offset >= 0")
            .groupBy(which)
            .agg(
                F.count_if(ended & (outcome == r.COMMIT)).alias("committed"),
                F.count_if(ended & (outcome == r.ABORT)).alias("aborted"),
                F.count_if(~ended & (outcome != r.LOST)).alias("open"),
            )
        )

    def _summary(self) -> Any:
        figures, counts = self._spread.figures, {row.severity: row["count"] for row in self._severities()}
        errors = counts.pop(ERROR, 0)
        row = {name: getattr(figures, name, None) for name in _AUDITS.names}
        row |= {
            "source": self._source,
            "as_of": self._spread.as_of_ms,
            "errors": errors,
            "notices": sum(counts.values()),
        }
        plain = [tuple(row[name] for name in _AUDITS.names)]
        from pyspark.sql.pandas.types import from_arrow_schema

        return self._spark.createDataFrame(plain, from_arrow_schema(_AUDITS)).coalesce(1)

    def _severities(self) -> list[Any]:
        rows: list[Any] = self._judged.groupBy("severity").count().collect()
        return rows


def audit(
    spark: Any,
    source: str | None = None,
    *,
    bootstrap: str | None = None,
    settings: Mapping[str, str] | None = None,
    topics: Sequence[str] = (),
    partitions: Sequence[int] = (),
    compacted: Sequence[str] = (),
    depth: str = RECORDS,
    as_of: str | None = None,
    max_timeout_ms: int = DEFAULT_TIMEOUT_MS,
    content: bool = False,
    lineage: Sequence[str] = (),
    lineage_key: str = "key",
    group: str | None = None,
    run_id: str | None = None,
) -> AuditFrames:
    """Audit data directories (`source`: a path or URI that every executor can read) or a running cluster (`bootstrap`,
    with client properties as `settings`) on a Spark session.

    The other arguments are the command's options.

    run_id: names this audit in tables of many; a random one by default.

    Raises NotReadable, ValueError.
    """
    if (source is None) == (bootstrap is None):
        raise ValueError("audit: give either a source or bootstrap")
    if depth not in DEPTHS:
        raise ValueError(f"audit: depth {depth!r} is none of {', '.join(DEPTHS)}")
    name = uuid.uuid4().hex if run_id is None else run_id
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise ValueError(f"audit: run_id {name!r}: expected at most 100 letters, digits, dots, hyphens and underscores")
    plan = plan_for(
        source,
        bootstrap=bootstrap,
        security=Security.of(settings or {}),
        topics=topics,
        partitions=partitions,
        compacted=compacted,
        lineage=lineage,
        lineage_key=lineage_key,
        group=group,
        depth=depth,
        as_of_ms=time_of(as_of),
        max_timeout_ms=max_timeout_ms,
        content=content,
        spread=spread_on(lambda: spark),
    )
    return AuditFrames(spark, plan.source, SparkAudit(spark, plan).judge(), name)


def _counted(frame: Any) -> Any:
    """Nothing to count is 0."""
    counts = {"batches", "records", "bytes", "producers", "committed", "aborted", "open", "errors", "notices"}
    return frame.fillna(0, subset=[name for name in frame.columns if name in counts])


# What runs inside tasks.


def _tuples(names: Sequence[str], rows: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    for row in rows:
        for plain in [row] if isinstance(row, dict) else tables.plain_rows(row):
            yield tuple(plain.get(name) for name in names)


def _end_of(verdict: LogVerdict) -> dict[str, Any]:
    facts = verdict.facts
    return {**facts.log._asdict(), "start_offset": facts.start_offset, "end_offset": verdict.end_offset}


def _file(stem: str, number: int) -> str:
    """Of a task's rows."""
    return f"{stem}-{number:06d}.parquet"


def _write_rows(folder: Folder, stem: str, schema: Any, batches: Iterable[Any]) -> Iterator[Any]:
    """One file of a task's rows; of the first task also without any, so that the table can be read."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    number, writer, count = context.partitionId(), None, 0
    file = _file(stem, number)
    for batch in batches:
        if writer is None and (batch.num_rows or not number):
            writer = _writer(folder, file, schema)
        if writer is not None:
            writer.write_batch(batch.cast(schema))
            count += batch.num_rows
    if writer is None and not number:
        writer = _writer(folder, file, schema)
    if writer is not None:
        writer.close()
        folder.publish(file)
    yield pa.RecordBatch.from_pydict({"rows": pa.array([count], pa.int64())})


def _writer(folder: Folder, file: str, schema: Any) -> Any:
    system, path = folder.target(file)
    return pq.ParquetWriter(path, schema, compression="zstd", filesystem=system)
