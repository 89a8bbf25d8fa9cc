"""The bytes of `<offset>.snapshot` (Kafka's ProducerStateManager, version 1) and of its side file.

Kafka's file holds one batch per producer. When the rules keep the whole duplicate window, the other batches go to
`<offset>.remembered` beside it. Kafka ignores files of that name; it names the checksum of the snapshot it completes,
so that a stale one is never mixed with another snapshot.
"""

import struct
from collections.abc import Iterable

from minibroker_protocol.records import batch
from minibroker_storage.file_errors import MalformedFile
from minibroker_storage.producer_entry import NO_OFFSET, NO_TIMESTAMP, BatchMetadata, ProducerEntry

SNAPSHOT_SUFFIX = ".snapshot"
REMEMBERED_SUFFIX = ".remembered"
SNAPSHOT_VERSION = 1
REMEMBERED_VERSION = 1

_HEAD = struct.Struct(">hIi")  # version, CRC-32C of all bytes from the count on, number of entries
_COUNT_AT = 6
_ENTRY = struct.Struct(">qhiqiqiq")
"""producer id, epoch, last sequence, last offset, offset delta, timestamp, coordinator epoch, open transaction"""

_SIDE_HEAD = struct.Struct(">hIIi")  # version, CRC-32C of what follows it, CRC of the snapshot, number of entries
_SIDE_CRC_FROM = 6
_SIDE_ENTRY = struct.Struct(">qhqb")  # producer id, epoch, arrival (ms, broker clock), batches
_SIDE_BATCH = struct.Struct(">iqiq")  # last sequence, last offset, offset delta, timestamp


def encode_snapshot(entries: Iterable[ProducerEntry]) -> bytes:
    rows = []
    for e in entries:
        delta = e.batches[-1].offset_delta if e.batches else 0
        newest = (e.last_sequence, e.last_data_offset, delta, e.last_timestamp)
        rows.append(_ENTRY.pack(e.producer_id, e.epoch, *newest, e.coordinator_epoch, e.current_txn_first_offset))
    body = struct.pack(">i", len(rows)) + b"".join(rows)
    return struct.pack(">hI", SNAPSHOT_VERSION, batch.crc32c(body)) + body


def decode_snapshot(data: bytes, path: str = "snapshot") -> list[ProducerEntry]:
    """The entries of a `.snapshot` file. Raises MalformedFile on a wrong version, checksum or length."""
    if len(data) < _HEAD.size:
        raise MalformedFile(path, len(data), f"expected a snapshot of at least {_HEAD.size} bytes, the file ends here")
    version, crc, count = _HEAD.unpack_from(data)
    if version != SNAPSHOT_VERSION:
        raise MalformedFile(path, 0, f"expected snapshot version {SNAPSHOT_VERSION}, got {version}")
    actual = batch.crc32c(memoryview(data)[_COUNT_AT:])
    if crc != actual:
        raise MalformedFile(path, 2, f"expected CRC-32C {actual:#010x}, the file says {crc:#010x}")
    expected = _HEAD.size + count * _ENTRY.size
    if count < 0 or len(data) != expected:
        raise MalformedFile(path, _COUNT_AT, f"{count} entries take {expected} bytes, the file has {len(data)}")
    return [_entry(*row) for row in _ENTRY.iter_unpack(memoryview(data)[_HEAD.size :])]


def _entry(
    producer_id: int, epoch: int, sequence: int, offset: int, delta: int, timestamp: int, coordinator: int, txn: int
) -> ProducerEntry:
    entry = ProducerEntry(producer_id)
    entry.epoch = epoch
    entry.last_timestamp = timestamp
    entry.coordinator_epoch = coordinator
    entry.current_txn_first_offset = txn if txn >= 0 else NO_OFFSET
    if offset >= 0:
        entry.batches.append(BatchMetadata(sequence, offset, delta, timestamp))
    return entry


def encode_remembered(entries: Iterable[ProducerEntry], snapshot: bytes) -> bytes:
    """The side file: every remembered batch and the arrival time of each producer."""
    parts = []
    count = 0
    for e in entries:
        count += 1
        parts.append(_SIDE_ENTRY.pack(e.producer_id, e.epoch, e.arrival_ms, len(e.batches)))
        parts.extend(_SIDE_BATCH.pack(b.last_sequence, b.last_offset, b.offset_delta, b.timestamp) for b in e.batches)
    (snapshot_crc,) = struct.unpack_from(">I", snapshot, 2)
    body = struct.pack(">Ii", snapshot_crc, count) + b"".join(parts)
    return struct.pack(">hI", REMEMBERED_VERSION, batch.crc32c(body)) + body


def decode_remembered(data: bytes, snapshot: bytes, entries: list[ProducerEntry]) -> bool:
    """Complete `entries`, decoded from `snapshot`, with its side file; False when the file is broken or belongs to
    another snapshot."""
    if len(data) < _SIDE_HEAD.size:
        return False
    version, crc, snapshot_crc, count = _SIDE_HEAD.unpack_from(data)
    (wanted,) = struct.unpack_from(">I", snapshot, 2)
    if (
        version != REMEMBERED_VERSION
        or snapshot_crc != wanted
        or crc != batch.crc32c(memoryview(data)[_SIDE_CRC_FROM:])
    ):
        return False
    by_id = {entry.producer_id: entry for entry in entries}
    position = _SIDE_HEAD.size
    for _ in range(count):
        producer_id, epoch, arrival_ms, batches = _SIDE_ENTRY.unpack_from(data, position)
        position += _SIDE_ENTRY.size
        entry = by_id.get(producer_id)
        if entry is not None and entry.epoch == epoch:
            entry.arrival_ms = arrival_ms if arrival_ms >= 0 else NO_TIMESTAMP
            entry.batches.clear()
            for index in range(batches):
                row = _SIDE_BATCH.unpack_from(data, position + index * _SIDE_BATCH.size)
                entry.batches.append(BatchMetadata(*row))
        position += batches * _SIDE_BATCH.size
    return True
