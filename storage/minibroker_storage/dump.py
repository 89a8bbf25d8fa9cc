"""Prints the files of a data directory, Kafka's or ours: rows for JSON, lines for people (Kafka's DumpLogSegments).

Reads only. A broken file gives the rows before the fault and an `error` row with position and reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from minibroker_protocol.errors import Malformed
from minibroker_protocol.records import (
    BatchHeader,
    Buffer,
    Compression,
    Record,
    crc_ok,
    decode_records,
    increment_sequence,
    parse_control,
)
from minibroker_storage.checkpoints import decode_offsets
from minibroker_storage.directory import CLUSTER_METADATA, topic_of
from minibroker_storage.disk import Disk
from minibroker_storage.dump_decoders import DECODED_TOPICS, decode_coordinator_record, decode_metadata
from minibroker_storage.file_errors import MalformedFile
from minibroker_storage.indexes import OFFSET_ENTRY, TIME_ENTRY
from minibroker_storage.leader_epochs import LeaderEpochCache
from minibroker_storage.log_scan import scan
from minibroker_storage.partition_metadata import decode_partition_metadata, topic_id_text
from minibroker_storage.producer_entry import ProducerEntry
from minibroker_storage.producer_snapshot import REMEMBERED_SUFFIX, SNAPSHOT_SUFFIX, decode_remembered, decode_snapshot
from minibroker_storage.txn_index import TxnIndex

Row = dict[str, Any]
"""A `kind` and its fields; every value fits into JSON."""

METADATA_SNAPSHOT = ".checkpoint"
"""Ending of the controller's `OFFSET-EPOCH.checkpoint` and of `bootstrap.checkpoint`, which formatting makes. They have
batches, as a log has (KIP-630)."""
_PENDING = re.compile(r"\.(deleted|cleaned|swap|tmp|part)$")


def dump(disk: Disk, path: str, *, records: bool = False, topic: str | None = None) -> Iterator[Row]:
    """The rows of one file.

    records: also the records in the batches of a log. `topic` (default: from the directory's name) decides how the
        records of the coordinators' topics and of the metadata are decoded.

    Raises MalformedFile for a name of no known kind, StorageError when the file cannot be read.
    """
    folder, _, name = path.rpartition("/")
    name = _PENDING.sub("", name)
    if name.endswith(METADATA_SNAPSHOT):
        topic = CLUSTER_METADATA
    elif topic is None:
        topic = topic_of(folder.rpartition("/")[2])
    if name.endswith((".log", METADATA_SNAPSHOT)):
        rows = _log(disk, path, records, topic)
    else:
        rows = _reader_of(path, name)(disk, path)
    try:
        yield from rows
    except Malformed as error:
        position = {"position": error.position} if isinstance(error, MalformedFile) else {}
        yield {"kind": "error", "path": path, **position, "message": str(error)}


def as_text(row: Row) -> str:
    """One row as one line."""
    return str(row["kind"]) + "".join(f" {key}: {_plain(value)}" for key, value in row.items() if key != "kind")


def _plain(value: object) -> str:
    if isinstance(value, str):
        return value if value and value.isprintable() and " " not in value else json.dumps(value, ensure_ascii=False)
    return json.dumps(value, ensure_ascii=False)


def _reader_of(path: str, name: str) -> Callable[[Disk, str], Iterator[Row]]:
    for ending, reader in _READERS:
        if name.endswith(ending):
            return reader
    raise MalformedFile(
        path, 0, f"expected a name ending in {', '.join(('.log', METADATA_SNAPSHOT, *(end for end, _ in _READERS)))}"
    )


# Logs


def _log(disk: Disk, path: str, records: bool, topic: str) -> Iterator[Row]:
    file = disk.open(path)
    try:
        for position, header, data in scan(file, file.size):
            valid = crc_ok(data, 0, header)
            yield batch_row(position, header, valid)
            if records:
                yield from _records(header, data, topic)
    finally:
        file.close()


def batch_row(position: int, header: BatchHeader, valid: bool) -> Row:
    """A batch's header: offsets and sequences inclusive, times in ms, sizes in bytes.

    valid: by its checksum.
    """
    codec = header.compression
    return {
        "kind": "batch",
        "position": position,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "count": header.record_count,
        "base_sequence": header.base_sequence,
        "last_sequence": header.last_sequence,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "partition_leader_epoch": header.partition_leader_epoch,
        "is_transactional": header.is_transactional,
        "is_control": header.is_control,
        "delete_horizon_ms": header.base_timestamp if header.has_delete_horizon else None,
        "max_timestamp": header.max_timestamp,
        "timestamp_type": _timestamp_type(header),
        "compression": Compression(codec).name.lower() if codec in _CODECS else codec,
        "size": header.size,
        "magic": header.magic,
        "crc": header.crc,
        "valid": valid,
    }


def _timestamp_type(header: BatchHeader) -> str:
    if header.magic == 0:
        return "NoTimestampType"
    return "LogAppendTime" if header.log_append_time else "CreateTime"


_CODECS = frozenset(int(codec) for codec in Compression)


def _records(header: BatchHeader, data: Buffer, topic: str) -> Iterator[Row]:
    try:
        for index, record in enumerate(decode_records(data, 0, header)):
            yield _control_row(record) if header.is_control else _record_row(header, index, record, topic)
    except Malformed as error:
        yield {"kind": "error", "offset": header.base_offset, "message": str(error)}


def _control_row(record: Record) -> Row:
    control = parse_control(record)
    row: Row = {"kind": "control", "offset": record.offset, "timestamp": record.timestamp, "type": control.type.name}
    if control.coordinator_epoch is not None:
        row["coordinator_epoch"] = control.coordinator_epoch
    return row


def _record_row(header: BatchHeader, index: int, record: Record, topic: str) -> Row:
    row: Row = {"kind": "record", "offset": record.offset, "timestamp": record.timestamp}
    if header.base_sequence >= 0:
        row["sequence"] = increment_sequence(header.base_sequence, record.offset - header.base_offset)
    decoded = None
    if topic in DECODED_TOPICS:
        decoded = decode_coordinator_record(topic, _bytes(record.key), _bytes(record.value))
    elif topic == CLUSTER_METADATA:
        decoded = decode_metadata(_bytes(record.value))
    if decoded is not None:
        row.update(decoded)
    else:
        row["key"], row["value"] = shown(_bytes(record.key)), shown(_bytes(record.value))
    if record.headers:
        row["headers"] = [
            [name if isinstance(name, str) else shown(name), shown(value)] for name, value in record.headers
        ]
    return row


def _bytes(value: Buffer | None) -> bytes | None:
    return None if value is None else bytes(value)


def shown(data: bytes | None) -> str | dict[str, str] | None:
    """Bytes for JSON: text when they are UTF-8, else `{"hex": …}`."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"hex": data.hex()}


# Small files


def _base_offset(path: str) -> int:
    stem = path.rpartition("/")[2][:20]
    if not stem.isdecimal():
        raise MalformedFile(path, 0, "expected a name that begins with 20 digits")
    return int(stem)


def _used(data: bytes, entry: int) -> bytes:
    """Without the zeros with which an active index is preallocated; a single entry of zeros is an entry."""
    return data if len(data) <= entry else data[: -(-len(data.rstrip(b"\0")) // entry) * entry]


def _index(disk: Disk, path: str) -> Iterator[Row]:
    base, data = _base_offset(path), disk.read_bytes(path)
    used = _used(data, OFFSET_ENTRY.size)
    for relative, position in OFFSET_ENTRY.iter_unpack(used[: len(used) // 8 * 8]):
        yield {"kind": "offset_index", "offset": base + relative, "position": position}
    _refuse_rest(path, data, OFFSET_ENTRY.size)


def _time_index(disk: Disk, path: str) -> Iterator[Row]:
    base, data = _base_offset(path), disk.read_bytes(path)
    used = _used(data, TIME_ENTRY.size)
    for timestamp, relative in TIME_ENTRY.iter_unpack(used[: len(used) // 12 * 12]):
        yield {"kind": "time_index", "timestamp": timestamp, "offset": base + relative}
    _refuse_rest(path, data, TIME_ENTRY.size)


def _refuse_rest(path: str, data: bytes, entry: int) -> None:
    if len(data) % entry:
        raise MalformedFile(path, len(data) - len(data) % entry, f"expected an entry of {entry} bytes")


def _txn_index(disk: Disk, path: str) -> Iterator[Row]:
    for txn in TxnIndex.decode(disk.read_bytes(path), _base_offset(path), path):
        yield {
            "kind": "aborted_txn",
            "producer_id": txn.producer_id,
            "first_offset": txn.first_offset,
            "last_offset": txn.last_offset,
            "last_stable_offset": txn.last_stable_offset,
        }


def _snapshot(disk: Disk, path: str) -> Iterator[Row]:
    yield from map(_producer_row, decode_snapshot(disk.read_bytes(path), path))


def _remembered(disk: Disk, path: str) -> Iterator[Row]:
    snapshot_path = path.replace(REMEMBERED_SUFFIX, SNAPSHOT_SUFFIX)
    snapshot = disk.read_bytes(snapshot_path)
    entries = decode_snapshot(snapshot, snapshot_path)
    if not decode_remembered(disk.read_bytes(path), snapshot, entries):
        raise MalformedFile(path, 0, f"expected the batches that belong to {snapshot_path}")
    for entry in entries:
        batches = [[b.first_sequence, b.last_sequence, b.first_offset, b.last_offset] for b in entry.batches]
        yield {**_producer_row(entry), "arrival_ms": entry.arrival_ms, "batches": batches}


def _producer_row(entry: ProducerEntry) -> Row:
    row: Row = {
        "kind": "producer",
        "producer_id": entry.producer_id,
        "producer_epoch": entry.epoch,
        "coordinator_epoch": entry.coordinator_epoch,
        "current_txn_first_offset": entry.current_txn_first_offset,
        "last_timestamp": entry.last_timestamp,
    }
    if entry.batches:
        newest = entry.batches[-1]
        row["first_sequence"], row["last_sequence"] = newest.first_sequence, newest.last_sequence
        row["last_offset"], row["offset_delta"] = newest.last_offset, newest.offset_delta
        row["timestamp"] = newest.timestamp
    return row


def _leader_epochs(disk: Disk, path: str) -> Iterator[Row]:
    for epoch, start in LeaderEpochCache.decode(disk.read_bytes(path), path).entries:
        yield {"kind": "leader_epoch", "epoch": epoch, "start_offset": start}


def _offsets(disk: Disk, path: str) -> Iterator[Row]:
    for (topic, partition), offset in decode_offsets(disk.read_bytes(path), path).items():
        yield {"kind": "offset", "topic": topic, "partition": partition, "offset": offset}


def _partition_metadata(disk: Disk, path: str) -> Iterator[Row]:
    yield {
        "kind": "partition_metadata",
        "topic_id": topic_id_text(decode_partition_metadata(disk.read_bytes(path), path)),
    }


def _properties(disk: Disk, path: str) -> Iterator[Row]:
    for line in disk.read_bytes(path).decode("latin-1").splitlines():
        key, _, value = line.partition("=")
        if key.strip() and not key.lstrip().startswith(("#", "!")):
            yield {"kind": "property", "name": key.strip(), "value": value.strip()}


def _json(disk: Disk, path: str) -> Iterator[Row]:
    data = disk.read_bytes(path)
    try:
        content = json.loads(data or b"{}")
    except ValueError as error:
        raise MalformedFile(path, getattr(error, "pos", 0), "expected JSON") from None
    yield {"kind": "json", "content": content}


_READERS: tuple[tuple[str, Callable[[Disk, str], Iterator[Row]]], ...] = (
    (".timeindex", _time_index),
    (".txnindex", _txn_index),
    (".index", _index),
    (SNAPSHOT_SUFFIX, _snapshot),
    (REMEMBERED_SUFFIX, _remembered),
    ("leader-epoch-checkpoint", _leader_epochs),
    ("-offset-checkpoint", _offsets),
    ("partition.metadata", _partition_metadata),
    ("meta.properties", _properties),
    (".kafka_cleanshutdown", _json),
    ("quorum-state", _json),
)
