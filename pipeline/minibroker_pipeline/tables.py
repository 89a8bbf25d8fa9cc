"""The tables: Arrow schemas, and rows and batches as Arrow data for Parquet and Spark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from minibroker.rules.rows import (
    AbortedTxn,
    CommittedOffset,
    Fault,
    Finding,
    Log,
    LogFacts,
    Marker,
    Run,
    Snapshot,
    Transaction,
    TxnState,
)
from minibroker_pipeline.headers import Block
from minibroker_pipeline.reading import PlainRecord
from minibroker_protocol.records import LOG_OVERHEAD, MAX_SEQUENCE

CODECS = ("none", "gzip", "snappy", "lz4", "zstd", "5", "6", "7")
_LOG = [("root", pa.string()), ("topic", pa.string()), ("partition", pa.int32())]
_I16, _I32, _I64, _STR, _BOOL, _BIN = pa.int16(), pa.int32(), pa.int64(), pa.string(), pa.bool_(), pa.binary()


def _schema(*fields: tuple[str, Any]) -> Any:
    return pa.schema([*_LOG, *fields])


BATCHES = _schema(
    ("file", _STR),
    ("position", _I64),
    ("size", _I32),
    ("base_offset", _I64),
    ("last_offset", _I64),
    ("leader_epoch", _I32),
    ("codec", _STR),
    ("log_append_time", _BOOL),
    ("transactional", _BOOL),
    ("control", _BOOL),
    ("base_timestamp", _I64),
    ("max_timestamp", _I64),
    ("producer_id", _I64),
    ("producer_epoch", _I16),
    ("base_sequence", _I32),
    ("last_sequence", _I32),
    ("record_count", _I32),
    ("fault", _STR),
)
RECORDS = _schema(
    ("file", _STR),
    ("offset", _I64),
    ("timestamp", _I64),
    ("producer_id", _I64),
    ("producer_epoch", _I16),
    ("transactional", _BOOL),
    ("key", _BIN),
    ("value", _BIN),
    ("headers", pa.list_(pa.struct([("name", _STR), ("value", _BIN)]))),
    ("fault", _STR),
)
RUNS = _schema(
    ("file", _STR),
    ("position", _I64),
    ("first_offset", _I64),
    ("last_offset", _I64),
    ("producer_id", _I64),
    ("producer_epoch", _I16),
    ("first_sequence", _I32),
    ("last_sequence", _I32),
    ("transactional", _BOOL),
    ("batches", _I64),
    ("records", _I64),
    ("first_timestamp", _I64),
    ("last_timestamp", _I64),
    ("last_base_offset", _I64),
    ("bytes", _I64),
)
MARKERS = _schema(
    ("file", _STR),
    ("position", _I64),
    ("offset", _I64),
    ("producer_id", _I64),
    ("producer_epoch", _I16),
    ("outcome", _STR),
    ("coordinator_epoch", _I32),
    ("timestamp", _I64),
)
PRODUCERS = _schema(
    ("file", _STR),
    ("snapshot_offset", _I64),
    ("producer_id", _I64),
    ("producer_epoch", _I16),
    ("last_sequence", _I32),
    ("last_offset", _I64),
    ("offset_delta", _I32),
    ("timestamp", _I64),
    ("coordinator_epoch", _I32),
    ("current_txn_first_offset", _I64),
    ("fault", _STR),
)
ABORTED = _schema(
    ("file", _STR),
    ("producer_id", _I64),
    ("first_offset", _I64),
    ("last_offset", _I64),
    ("last_stable_offset", _I64),
    ("fault", _STR),
)
STATES = _schema(
    ("offset", _I64),
    ("leader_epoch", _I32),
    ("transactional_id", _STR),
    ("producer_id", _I64),
    ("producer_epoch", _I16),
    ("timeout_ms", _I32),
    ("state", _STR),
    ("partitions", pa.list_(pa.struct([("topic", _STR), ("partition", _I32)]))),
    ("start_timestamp", _I64),
    ("update_timestamp", _I64),
)
OFFSETS = _schema(
    ("offset", _I64),
    ("producer_id", _I64),
    ("producer_epoch", _I16),
    ("group", _STR),
    ("committed_topic", _STR),
    ("committed_partition", _I32),
    ("committed", _I64),
)
TRANSACTIONS = _schema(
    ("file", _STR),
    ("producer_id", _I64),
    ("producer_epoch", _I16),
    ("first_offset", _I64),
    ("last_offset", _I64),
    ("marker_offset", _I64),
    ("marker_epoch", _I16),
    ("outcome", _STR),
    ("coordinator_epoch", _I32),
    ("start_timestamp", _I64),
    ("end_timestamp", _I64),
)
FINDINGS = pa.schema(
    [
        ("rule", _STR),
        ("severity", _STR),
        *_LOG,
        ("producer_id", _I64),
        ("producer_epoch", _I16),
        ("first_offset", _I64),
        ("last_offset", _I64),
        ("file", _STR),
        ("position", _I64),
        ("transactional_id", _STR),
        ("message", _STR),
    ]
)

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


def batch_table(facts: LogFacts, path: str, block: Block, faults: Iterable[Fault], origin: int = 0) -> Any:
    """A block as a record batch of BATCHES; `origin` is added to positions."""
    headers, count = block.headers, len(block.positions)
    told = {fault.position: f"{fault.rule}: {fault.message}" for fault in faults}
    attributes = headers["attributes"]
    sequence = _native(headers["base_sequence"])
    reached = (sequence.astype(np.int64) + headers["last_offset_delta"]) & MAX_SEQUENCE
    codecs = pa.DictionaryArray.from_arrays(pa.array((attributes & 7).astype(np.int8)), pa.array(CODECS))
    arrays = [
        *_constants(facts, count),
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
        pa.array([told.get(position) for position in block.positions.tolist()], _STR)
        if told
        else pa.nulls(count, _STR),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=BATCHES)


def fault_batch(fault: Fault) -> Any:
    """Bytes that are no batch, as a row of BATCHES that says so."""
    row: dict[str, Any] = dict.fromkeys(BATCHES.names)
    row |= fault.log._asdict() | {"file": fault.file, "position": fault.position, "base_offset": fault.first_offset}
    row["fault"] = f"{fault.rule}: {fault.message}"
    return pa.RecordBatch.from_pylist([row], schema=BATCHES)


def record_batch(records: Sequence[PlainRecord], schema: Any) -> Any:
    """Records as a record batch with those columns of RECORDS that the schema has; others cost nothing."""
    arrays = []
    for field in schema:
        values: list[Any]
        if field.name in Log._fields:
            values = [getattr(record.log, field.name) for record in records]
        elif field.name == "headers":
            values = [[_header(*header) for header in record.headers] for record in records]
        else:
            values = [getattr(record, field.name) for record in records]
        arrays.append(pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _header(name: str | bytes, value: bytes | None) -> dict[str, Any]:
    return {"name": name if isinstance(name, str) else name.decode(errors="replace"), "value": value}


def _native(column: Any) -> Any:
    return column.astype(column.dtype.newbyteorder("="))


def _constant(value: str, count: int) -> Any:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int8)), pa.array([value])).cast(_STR)


def _constants(facts: LogFacts, count: int) -> list[Any]:
    root, topic, partition = facts.log
    return [_constant(root, count), _constant(topic, count), pa.array(np.full(count, partition, np.int32))]


Named = Run | Marker | AbortedTxn | TxnState | CommittedOffset | Transaction | Finding | Fault | Snapshot


def table_of(rows: Sequence[Named], schema: Any) -> Any:
    """Rows of one kind as a record batch."""
    return pa.RecordBatch.from_pylist([plain for row in rows for plain in plain_rows(row)], schema=schema)


def plain_rows(row: Named) -> list[dict[str, Any]]:
    """A row as dicts with the columns of its table; a snapshot has one for each producer."""
    if isinstance(row, Snapshot):
        common = {**row.log._asdict(), "file": row.file, "snapshot_offset": row.offset}
        return [{**common, **entry._asdict()} for entry in row.entries]
    plain = {**row.log._asdict(), **row._asdict()}
    del plain["log"]
    if isinstance(row, TxnState):
        plain["partitions"] = [{"topic": topic, "partition": partition} for topic, partition in row.partitions]
    elif isinstance(row, CommittedOffset):
        plain = {**plain, **row.log._asdict(), "committed_topic": row.topic, "committed_partition": row.partition}
    elif isinstance(row, Fault):
        plain["fault"] = f"{row.rule}: {row.message}"
    return [plain]
