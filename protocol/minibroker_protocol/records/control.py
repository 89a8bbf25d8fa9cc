"""Control records: transaction markers and the log's own notes, one record to a batch (KIP-98)."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from .batch import COMPRESSION_MASK, HEADER_SIZE, LOG_OVERHEAD, BatchHeader, Buffer
from .build import lone_batch
from .varints import InvalidRecords
from .walk import Record, decode_records

_KEY = struct.Struct(">hh")
_MARKER_VALUE = struct.Struct(">hi")
_VERSION = 0
_MARKER = struct.Struct(">5shhBhiB")
"""The record of a marker: sizes and deltas up to the key, the key, the size of the value, the value, no headers."""
_MARKER_LENGTH = HEADER_SIZE - LOG_OVERHEAD + _MARKER.size
_BEFORE_KEY, _VALUE_SIZE = b"\x20\0\0\0\x08", 12


class ControlType(IntEnum):
    """Kafka's ControlRecordType."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6
    UNKNOWN = -1
    """A type not known here; readers skip it."""


MARKERS = frozenset({ControlType.ABORT, ControlType.COMMIT})
_TYPES = {int(kind): kind for kind in ControlType}


class ControlRecord(NamedTuple):
    """A control record's key, and of a marker's value the epoch of the coordinator that wrote it."""

    type: ControlType
    version: int
    coordinator_epoch: int | None


def end_txn_marker(
    *,
    producer_id: int,
    producer_epoch: int,
    commit: bool,
    coordinator_epoch: int,
    timestamp_ms: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytearray:
    """The batch (78 bytes) that ends a transaction on a partition."""
    kind = ControlType.COMMIT if commit else ControlType.ABORT
    return lone_batch(
        _KEY.pack(_VERSION, kind),
        _MARKER_VALUE.pack(_VERSION, coordinator_epoch),
        timestamp_ms,
        producer_id,
        producer_epoch,
        transactional=True,
        control=True,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
    )


def parse_control(record: Record) -> ControlRecord:
    """Decode a record of a control batch. Raises InvalidRecords when key or marker value are too short."""
    key, value = record.key, record.value
    if key is None or len(key) < _KEY.size:
        raise InvalidRecords(f"control record: key of {'no' if key is None else len(key)} bytes")
    version, number = _KEY.unpack_from(key)
    if version < 0:
        raise InvalidRecords(f"control record: key version {version}")
    kind = _TYPES.get(number, ControlType.UNKNOWN)
    if kind not in MARKERS:
        return ControlRecord(kind, version, None)
    if value is None or len(value) < _MARKER_VALUE.size:
        raise InvalidRecords(f"control record: marker value of {'no' if value is None else len(value)} bytes")
    value_version, coordinator_epoch = _MARKER_VALUE.unpack_from(value)
    if value_version < 0:
        raise InvalidRecords(f"control record: marker value version {value_version}")
    return ControlRecord(kind, version, coordinator_epoch)


def control_record(records: Buffer, position: int, header: BatchHeader) -> ControlRecord | None:
    """The record of the control batch at `position`; None when compaction took it.

    A marker as every broker writes it is read where it lies, for a fifth of the cost. Raises what `decode_records`
    raises.
    """
    if header.batch_length == _MARKER_LENGTH and header.record_count == 1 and not header.attributes & COMPRESSION_MASK:
        before, version, kind, size, value_version, epoch, headers = _MARKER.unpack_from(
            records, position + HEADER_SIZE
        )
        usual = before == _BEFORE_KEY and size == _VALUE_SIZE and not headers
        if usual and version >= 0 and value_version >= 0 and kind in MARKERS:
            return ControlRecord(_TYPES[kind], version, epoch)
    decoded = decode_records(records, position, header)
    return parse_control(decoded[0]) if decoded else None
