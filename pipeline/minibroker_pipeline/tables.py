"""The tables: Arrow schemas, and rows and batches as Arrow data for Parquet and Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from minibroker.rules import rows as r
from minibroker_pipeline.headers import Block
from minibroker_pipeline.reading import PlainRecord
from minibroker_protocol.records import LOG_OVERHEAD, MAX_SEQUENCE

ROWS_AT_ONCE = 16_384
CODECS = ("none", "gzip", "snappy", "lz4", "zstd", "5", "6", "7")
_STR, _I32 = pa.string(), pa.int32()
_COLUMNS = {
    _STR: "root topic file codec fault outcome transactional_id state group committed_topic rule severity message",
    pa.int16(): "producer_epoch marker_epoch",
    _I32: "partition size leader_epoch base_sequence first_sequence last_sequence record_count coordinator_epoch "
    "offset_delta timeout_ms committed_partition",
    pa.bool_(): "log_append_time transactional control",
    pa.binary(): "key value",
    pa.list_(pa.struct([("name", _STR), ("value", pa.binary())])): "headers",
    pa.list_(pa.struct([("topic", _STR), ("partition", _I32)])): "partitions",
}
_TYPES = {name: kind for kind, names in _COLUMNS.items() for name in names.split()}
"""Columns that are no int64."""


def _schema(columns: str) -> Any:
    return pa.schema([(name, _TYPES.get(name, pa.int64())) for name in columns.split()])


BATCHES = _schema(
    "root topic partition file position size base_offset last_offset leader_epoch codec log_append_time transactional "
    "control base_timestamp max_timestamp producer_id producer_epoch base_sequence last_sequence record_count fault"
)
RECORDS = _schema(
    "root topic partition file offset timestamp producer_id producer_epoch transactional key value headers fault"
)
RUNS = _schema(
    "root topic partition file position first_offset last_offset producer_id producer_epoch first_sequence "
    "last_sequence transactional batches records first_timestamp last_timestamp last_base_offset bytes"
)
MARKERS = _schema(
    "root topic partition file position offset producer_id producer_epoch outcome coordinator_epoch timestamp"
)
PRODUCERS = _schema(
    "root topic partition file snapshot_offset producer_id producer_epoch last_sequence last_offset offset_delta "
    "timestamp coordinator_epoch current_txn_first_offset fault"
)
ABORTED = _schema("root topic partition file producer_id first_offset last_offset last_stable_offset fault")
STATES = _schema(
    "root topic partition offset leader_epoch transactional_id producer_id producer_epoch timeout_ms state partitions "
    "start_timestamp update_timestamp"
)
OFFSETS = _schema(
    "root topic partition offset producer_id producer_epoch group committed_topic committed_partition committed"
)
TRANSACTIONS = _schema(
    "root topic partition file producer_id producer_epoch first_offset last_offset marker_offset marker_epoch outcome "
    "coordinator_epoch start_timestamp end_timestamp"
)
FINDINGS = _schema(
    "rule severity root topic partition producer_id producer_epoch first_offset last_offset file position "
    "transactional_id message"
)

TOPIC_RECORDS = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", _STR),
        ("partition", _I32),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", _I32),
        ("headers", pa.list_(pa.struct([("key", _STR), ("value", pa.binary())]))),
        ("producer_id", pa.int64()),
        ("producer_epoch", pa.int16()),
        ("transactional", pa.bool_()),
        ("fault", _STR),
    ]
)
"""Columns of the Spark data source `kafka-topics`; the first eight as Spark's own connector has them."""

TABLES: dict[str, Any] = {
    "batches": BATCHES,
    "records": RECORDS,
    "markers": MARKERS,
    "producers": PRODUCERS,
    "aborted": ABORTED,
    "transactions": STATES,
    "offsets": OFFSETS,
}
"""What the Spark data source `kafka-segments` gives, by the name of its option `table`."""


def batch_table(facts: r.LogFacts, path: str, block: Block, faults: Iterable[r.LogFault], origin: int = 0) -> Any:
    """A block as a record batch of BATCHES; `origin` is added to positions."""
    headers, count = block.headers, len(block.positions)
    faults_at = {fault.position: f"{fault.rule}: {fault.message}" for fault in faults}
    attributes = headers["attributes"]
    sequence = _native(headers["base_sequence"])
    reached = (sequence.astype(np.int64) + headers["last_offset_delta"]) & MAX_SEQUENCE
    codecs = pa.DictionaryArray.from_arrays(pa.array((attributes & 7).astype(np.int8)), pa.array(CODECS))
    arrays = [
        _constant(facts.log.root, count),
        _constant(facts.log.topic, count),
        pa.array(np.full(count, facts.log.partition, np.int32)),
        _constant(path, count),
        pa.array(block.positions + origin),
        pa.array((headers["batch_length"] + LOG_OVERHEAD).astype(np.int32)),
        pa.array(_native(headers["base_offset"])),
        pa.array(block.last_offsets),
        pa.array(_native(headers["partition_leader_epoch"])),
        codecs.cast(_STR),
        *(pa.array((attributes & bit) != 0) for bit in (0x08, 0x10, 0x20)),
        *(
            pa.array(_native(headers[name]))
            for name in ("base_timestamp", "max_timestamp", "producer_id", "producer_epoch")
        ),
        pa.array(sequence),
        pa.array(np.where(sequence < 0, sequence, reached).astype(np.int32)),
        pa.array(_native(headers["record_count"])),
        pa.array([faults_at.get(position) for position in block.positions.tolist()], _STR)
        if faults_at
        else pa.nulls(count, _STR),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=BATCHES)


def fault_batch(fault: r.LogFault) -> Any:
    """A row of BATCHES for bytes that are no batch."""
    row: dict[str, Any] = dict.fromkeys(BATCHES.names)
    row |= fault.log._asdict() | {"file": fault.file, "position": fault.position, "base_offset": fault.first_offset}
    row["fault"] = f"{fault.rule}: {fault.message}"
    return pa.RecordBatch.from_pylist([row], schema=BATCHES)


def record_batch(records: Sequence[PlainRecord], schema: Any) -> Any:
    """Records as a record batch with those columns of RECORDS that the schema has; others cost nothing."""
    arrays = []
    for field in schema:
        values: list[Any]
        if field.name in r.Log._fields:
            values = [getattr(record.log, field.name) for record in records]
        elif field.name == "headers":
            values = [[_header(*header) for header in record.headers] for record in records]
        else:
            values = [getattr(record, field.name) for record in records]
        arrays.append(pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def record_batches(
    records: Iterator[PlainRecord],
    schema: Any,
    make: Callable[[Sequence[PlainRecord], Any], Any] = record_batch,
) -> Iterator[Any]:
    """`make` of so many records at a time."""
    while rows := list(islice(records, ROWS_AT_ONCE)):
        yield make(rows, schema)


def topic_batch(records: Sequence[PlainRecord], schema: Any) -> Any:
    """Records as a record batch with those columns of TOPIC_RECORDS that the schema has; others cost nothing."""
    return pa.RecordBatch.from_arrays([_topic_column(records, field) for field in schema], schema=schema)


def _topic_column(records: Sequence[PlainRecord], field: Any) -> Any:
    values: list[Any]
    if field.name in ("topic", "partition"):
        values = [getattr(record.log, field.name) for record in records]
    elif field.name == "headers":
        # None where there are none, as with Spark's own connector.
        values = [[{"key": _text(name), "value": v} for name, v in record.headers] or None for record in records]
    elif field.name == "timestamp":
        # A record may have any 64-bit number; what is no timestamp of Spark's is null.
        times = (record.timestamp for record in records)
        values = [time * 1000 if abs(time) <= _LATEST_MS else None for time in times]
        return pa.array(values, pa.int64()).cast(field.type)
    else:
        values = [getattr(record, _NAMED.get(field.name, field.name)) for record in records]
    return pa.array(values, field.type)


_NAMED = {"timestampType": "timestamp_type"}
_LATEST_MS = (2**63 - 1) // 1000


def _header(name: str | bytes, value: bytes | None) -> dict[str, Any]:
    return {"name": _text(name), "value": value}


def _text(name: str | bytes) -> str:
    return name if isinstance(name, str) else name.decode(errors="replace")


def _native(column: Any) -> Any:
    return column.astype(column.dtype.newbyteorder("="))


def _constant(value: str, count: int) -> Any:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int8)), pa.array([value])).cast(_STR)


Named = (
    r.Run
    | r.Marker
    | r.AbortedTxn
    | r.TxnState
    | r.CommittedOffset
    | r.Transaction
    | r.Finding
    | r.LogFault
    | r.Snapshot
)


def table_of(rows: Sequence[Named], schema: Any) -> Any:
    """Rows of one kind as a record batch."""
    return pa.RecordBatch.from_pylist([plain for row in rows for plain in plain_rows(row)], schema=schema)


def plain_rows(row: Named) -> list[dict[str, Any]]:
    """A row as dicts with the columns of its table; a snapshot has one for each producer."""
    if isinstance(row, r.Snapshot):
        common = {**row.log._asdict(), "file": row.file, "snapshot_offset": row.offset}
        return [{**common, **entry._asdict()} for entry in row.entries]
    plain = {**row.log._asdict(), **row._asdict()}
    del plain["log"]
    if isinstance(row, r.TxnState):
        plain["partitions"] = [{"topic": topic, "partition": partition} for topic, partition in row.partitions]
    elif isinstance(row, r.CommittedOffset):
        plain = {**plain, **row.log._asdict(), "committed_topic": row.topic, "committed_partition": row.partition}
    elif isinstance(row, r.LogFault):
        plain["fault"] = f"{row.rule}: {row.message}"
    return [plain]
