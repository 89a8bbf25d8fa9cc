"""The Spark data source `kafka-segments`: `spark.read.format("kafka-segments").option("table", T).load(PATH)`.

Tables and their columns: `minibroker_pipeline.tables`. Conditions on topic, partition, time and producer id decide
which files and batches are read at all; those that are not wholly settled here are left to Spark as well.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from minibroker.rules import rows as r
from minibroker.rules.scan import CHECKSUMS, DEPTHS, HEADERS
from minibroker_pipeline.files import Files, Part, bins
from minibroker_pipeline.listing import SPLIT_BYTES, list_directory
from minibroker_pipeline.reading import read_part, read_records
from minibroker_pipeline.session import register_source
from minibroker_pipeline.tables import TABLES, batch_table, fault_batch, record_batches, table_of

NAME = "kafka-segments"
_COMPARED = (EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)
_COMPARISONS = {
    "EqualTo": operator.eq,
    "GreaterThan": operator.gt,
    "GreaterThanOrEqual": operator.ge,
    "LessThan": operator.lt,
    "LessThanOrEqual": operator.le,
}
_SUFFIX = {"producers": ".snapshot", "aborted": ".txnindex"}
_KINDS: dict[str, tuple[type, ...]] = {
    "markers": (r.Marker, r.LogFault),
    "producers": (r.Snapshot, r.LogFault),
    "aborted": (r.AbortedTxn, r.LogFault),
    "transactions": (r.TxnState,),
    "offsets": (r.CommittedOffset,),
}


class PartsInput(InputPartition):
    """The parts that one task reads."""

    def __init__(self, parts: Sequence[Part]) -> None:
        super().__init__(None)
        self.parts = parts


class KafkaSegments(DataSource):
    """Options: `path`; `table` (batches); `depth` of the table batches (headers, checksums, records); `splitBytes`;
    `columns`: the columns wanted, separated by commas. A schema given with `.schema(…)` chooses columns too. In the
    tables batches and records, columns that are not wanted are not built, and do not go through Spark."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def _table(self) -> str:
        table: str = self.options.get("table", "batches")
        if table not in TABLES:
            raise ValueError(f"{NAME}: table {table!r} is none of {', '.join(TABLES)}")
        return table

    def _columns(self) -> list[str] | None:
        text = self.options.get("columns")
        return None if text is None else [name.strip() for name in text.split(",") if name.strip()]

    def schema(self) -> Any:
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(pruned(TABLES[self._table()], self._columns()))

    def reader(self, schema: Any) -> SegmentReader:
        depth = self.options.get("depth", CHECKSUMS)
        if depth not in DEPTHS:
            raise ValueError(f"{NAME}: depth {depth!r} is none of {', '.join(DEPTHS)}")
        path = self.options.get("path")
        if not path:
            raise ValueError(f"{NAME}: load(PATH) with the path of a data directory")
        split_bytes = int(self.options.get("splitbytes", self.options.get("splitBytes", SPLIT_BYTES)))
        columns = wanted(pruned(TABLES[self._table()], self._columns()), schema, NAME)
        return SegmentReader(Files(path), self._table(), columns, depth, split_bytes)


def pruned(schema: Any, columns: Sequence[str] | None) -> Any:
    """The schema with these columns only. Raises ValueError for one it does not have."""
    if columns is None:
        return schema
    unknown = [name for name in columns if name not in schema.names]
    if unknown:
        raise ValueError(f"{NAME}: no column {', '.join(unknown)}; there are {', '.join(schema.names)}")
    return pa.schema([schema.field(name) for name in columns])


def wanted(schema: Any, schema_of_query: Any, source: str) -> Any:
    """The columns that a Spark schema, as given with `.schema(…)`, asks for; all when it is None.

    Raises ValueError for a column that is not there or is of another type.
    """
    if schema_of_query is None:
        return schema
    from pyspark.sql.pandas.types import from_arrow_type

    for column in schema_of_query.fields:
        if column.name not in schema.names:
            raise ValueError(f"{source}: no column {column.name}; there are {', '.join(schema.names)}")
        type_of = from_arrow_type(schema.field(column.name).type)
        if column.dataType != type_of:
            is_so, asked_for = type_of.simpleString(), column.dataType.simpleString()
            raise ValueError(f"{source}: column {column.name} is {is_so}, not {asked_for}")
    return pa.schema([schema.field(column.name) for column in schema_of_query.fields])


class SegmentReader(DataSourceReader):
    """Reads one table. `conditions`: (column, comparison, value) that hold for every row that is wanted."""

    def __init__(self, files: Files, table: str, columns: Any, depth: str, split_bytes: int) -> None:
        self._files = files
        self._table = table
        self._schema = columns
        self._depth = depth
        self._split_bytes = split_bytes
        self._topics: set[str] | None = None
        self._partitions: set[int] | None = None
        self._prefixes: list[str] = []
        self._bounds: list[Any] = []
        self._batch_conditions: list[tuple[str, str, int]] = []

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        for condition in filters:
            if len(condition.attribute) != 1 or not self._pushed(condition):
                yield condition

    def _pushed(self, condition: Any) -> bool:
        """Take over a condition; True when Spark need not check it again."""
        column = condition.attribute[0]
        if column == "topic" and isinstance(condition, (EqualTo, In)):
            self._topics = _narrowed(self._topics, _values(condition))
            return True
        if column == "partition" and isinstance(condition, (EqualTo, In)):
            self._partitions = _narrowed(self._partitions, _values(condition))
            return True
        if column == "topic" and isinstance(condition, StringStartsWith):
            self._prefixes.append(condition.value)
            return True
        if not isinstance(condition, _COMPARED) or isinstance(condition.value, bool):
            return False
        if column == "partition":
            self._bounds.append(condition)
            return True
        if self._table == "batches" and column in ("producer_id", "max_timestamp", "base_timestamp"):
            self._batch_conditions.append((column, type(condition).__name__, condition.value))
            return True
        if self._table == "records" and column == "producer_id":
            self._batch_conditions.append((column, type(condition).__name__, condition.value))
            return True
        if (
            self._table == "records"
            and column == "timestamp"
            and isinstance(condition, (GreaterThan, GreaterThanOrEqual))
        ):
            # A batch whose largest timestamp is too early has no record to return; of other batches Spark still
            # compares each record.
            self._batch_conditions.append(("max_timestamp", type(condition).__name__, condition.value))
        return False

    def partitions(self) -> Sequence[InputPartition]:
        listed = list_directory(self._files, split_bytes=self._split_bytes)
        return [PartsInput(parts) for parts in bins([part for part in listed.parts if self._wanted(part)])]

    def _wanted(self, part: Part) -> bool:
        log = part.facts.log
        if self._topics is not None and log.topic not in self._topics:
            return False
        if self._partitions is not None and log.partition not in self._partitions:
            return False
        if not all(log.topic.startswith(prefix) for prefix in self._prefixes):
            return False
        if not all(_holds(log.partition, type(bound).__name__, bound.value) for bound in self._bounds):
            return False
        if self._table == "transactions" and log.topic != r.TRANSACTION_STATE:
            return False
        if self._table == "offsets" and log.topic != r.CONSUMER_OFFSETS:
            return False
        return part.path.endswith(_SUFFIX.get(self._table, ".log"))

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        # Where there is nothing to read, Spark reads nothing at all: None.
        for part in partition.parts if isinstance(partition, PartsInput) else ():
            yield from self._read(part)

    def _read(self, part: Part) -> Iterator[Any]:
        if self._table == "batches":
            made = self._batches(part)
        elif self._table == "records":
            made = self._records(part)
        else:
            made = self._rows(part)
        for batch in made:
            yield batch if batch.schema is self._schema else batch.select(self._schema.names)

    def _chosen(self, headers: Any) -> Any:
        """The batches that meet the conditions."""
        chosen = np.ones(len(headers), bool)
        for column, comparison, value in self._batch_conditions:
            chosen &= _holds(headers[column], comparison, value)
        return chosen

    def _batches(self, part: Part) -> Iterator[Any]:
        made: list[Any] = []

        def take(block: Any, faults: Sequence[r.LogFault], origin: int) -> None:
            batch = batch_table(part.facts, part.path, block, faults, origin)
            made.append(batch.filter(pa.array(self._chosen(block.headers))) if self._batch_conditions else batch)

        read = read_part(self._files, part, depth=self._depth, take=take)
        yield from made
        for row in read.rows:
            if isinstance(row, r.LogFault) and row.rule == "torn-batch" and not self._batch_conditions:
                yield fault_batch(row)

    def _records(self, part: Part) -> Iterator[Any]:
        return record_batches(read_records(self._files, part, chosen=self._chosen), self._schema)

    def _rows(self, part: Part) -> Iterator[Any]:
        kinds = _KINDS[self._table]
        schema = TABLES[self._table]
        with_faults = "fault" in schema.names
        read = read_part(self._files, part, depth=HEADERS)
        rows: list[Any] = [
            row for row in read.rows if isinstance(row, kinds) and (with_faults or not isinstance(row, r.LogFault))
        ]
        if rows:
            yield table_of(rows, schema)


def _holds(actual: Any, comparison: str, value: Any) -> Any:
    """The comparison of a value, or of each value of an array."""
    return _COMPARISONS[comparison](actual, value)


def _values(condition: Any) -> set[Any]:
    return set(condition.value) if isinstance(condition, In) else {condition.value}


def _narrowed(known: set[Any] | None, values: set[Any]) -> set[Any]:
    return values if known is None else known & values


def register(spark: Any) -> None:
    """Makes the format `kafka-segments` known to a session."""
    register_source(spark, KafkaSegments)


__all__ = ["NAME", "KafkaSegments", "SegmentReader", "register"]
