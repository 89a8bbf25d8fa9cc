"""Record batches as scenarios write and read them, including deliberately invalid ones."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Any

from minibroker_protocol.errors import Malformed
from minibroker_protocol.records import (
    DEFAULT_MAX_BYTES,
    MAGIC,
    BatchHeader,
    Compression,
    ControlType,
    CorruptBatch,
    Record,
    assemble,
    compress,
    crc_ok,
    decode_records,
    encode_varint,
    pack_header,
    parse_control,
    parse_header,
)

from .failure import ScenarioError
from .values import as_bytes, as_text

_CODECS = {"none": 0} | {codec.name.lower(): int(codec) for codec in Compression if codec}
_CODEC_NAMES = {number: name for name, number in _CODECS.items()}
_BAD_CRC = 0x5A5A5A5A
_RECORDS_KEYS = {"values", "records", "n", "payload"}
_HEADER_KEYS = {"baseOffset", "length", "leaderEpoch", "magic", "crc", "attributes", "lastOffsetDelta", "ts", "maxTs"}
_PRODUCER_KEYS = {"pid", "epoch", "seq", "count"}
_FLAG_KEYS = {"codec", "tsType", "txn", "control", "deleteHorizon"}
_RAW_KEYS = {"hex", "cut", "tail"}
BATCH_KEYS = frozenset(_RECORDS_KEYS | _HEADER_KEYS | _PRODUCER_KEYS | _FLAG_KEYS | _RAW_KEYS)
RECORD_KEYS = frozenset({"key", "value", "headers", "tsDelta", "offsetDelta", "attributes", "length"})


def batch_bytes(spec: dict[str, Any], now_ms: Callable[[], int]) -> bytes:
    """The bytes of one batch. Every field of the header can be set to anything; a field that is left out has its
    correct value. `crc: bad` is a wrong checksum, `cut` drops bytes from the end, `tail` (hex) adds some, `payload`
    (hex) stands in for the records' bytes before compression, `hex` for the whole batch.
    """
    _only(spec, BATCH_KEYS, "batch")
    if "hex" in spec:
        return bytes.fromhex(spec["hex"])
    records = _record_specs(spec)
    timestamp = spec["ts"] if "ts" in spec else now_ms()
    if spec.get("magic", 2) < 2:
        return b"".join(_old_message(record, index, timestamp, spec) for index, record in enumerate(records))
    payload = (
        bytes.fromhex(spec["payload"])
        if "payload" in spec
        else b"".join(_record(record, index) for index, record in enumerate(records))
    )
    payload = compress(_codec(spec), payload)
    latest = max((timestamp + record.get("tsDelta", 0) for record in records), default=-1)
    header = BatchHeader(
        spec.get("baseOffset", 0),
        0,
        spec.get("leaderEpoch", -1),
        spec.get("magic", 2),
        0,
        _attributes(spec),
        spec.get("lastOffsetDelta", len(records) - 1),
        timestamp,
        spec.get("maxTs", latest),
        spec.get("pid", -1),
        spec.get("epoch", -1),
        spec.get("seq", -1),
        spec.get("count", len(records)),
    )
    try:
        data = assemble(header, payload)
        crc = spec.get("crc", header.crc)
        header.crc = header.crc ^ _BAD_CRC if crc == "bad" else int(crc)
        header.batch_length = spec.get("length", header.batch_length)
        pack_header(data, 0, header)
    except struct.error as exc:
        raise ScenarioError(f"batch: {exc}") from None
    if spec.get("cut"):
        del data[-spec["cut"] :]
    return bytes(data) + bytes.fromhex(spec.get("tail", ""))


def _only(spec: dict[str, Any], known: frozenset[str], what: str) -> None:
    if odd := spec.keys() - known:
        raise ScenarioError(f"{what}: no such key: {', '.join(sorted(map(str, odd)))}")


def _record_specs(spec: dict[str, Any]) -> list[dict[str, Any]]:
    if "records" in spec:
        for record in spec["records"]:
            _only(record, RECORD_KEYS, "record")
        return list(spec["records"])
    if "n" in spec:
        return [{"value": f"v{index}"} for index in range(spec["n"])]
    return [{"value": value} for value in spec.get("values", ["v"])]


def _codec(spec: dict[str, Any]) -> int:
    name = spec.get("codec", "none")
    if name not in _CODECS:
        raise ScenarioError(f"batch: codec {name!r} is none of {', '.join(_CODECS)}")
    return _CODECS[name]


def _attributes(spec: dict[str, Any]) -> int:
    if "attributes" in spec:
        return int(spec["attributes"])
    flags = ("tsType", "txn", "control", "deleteHorizon")
    return _codec(spec) | sum(8 << bit for bit, flag in enumerate(flags) if spec.get(flag))


def _sized(raw: bytes | None) -> bytes:
    return encode_varint(-1) if raw is None else encode_varint(len(raw)) + raw


def _record(spec: dict[str, Any], index: int) -> bytes:
    headers = spec.get("headers") or {}
    body = (
        bytes([spec.get("attributes", 0)])
        + encode_varint(spec.get("tsDelta", 0))
        + encode_varint(spec.get("offsetDelta", index))
        + _sized(as_bytes(spec.get("key")))
        + _sized(as_bytes(spec.get("value")))
        + encode_varint(len(headers))
        + b"".join(_sized(str(name).encode()) + _sized(as_bytes(value)) for name, value in headers.items())
    )
    return encode_varint(spec.get("length", len(body))) + body


def _old_message(record: dict[str, Any], index: int, timestamp: int, spec: dict[str, Any]) -> bytes:
    """A message of magic 0 or 1, as before KIP-98."""
    magic = spec["magic"]
    body = bytes([magic, spec.get("attributes", 0)]) + (struct.pack(">q", timestamp) if magic == 1 else b"")
    for raw in (as_bytes(record.get("key")), as_bytes(record.get("value"))):
        body += struct.pack(">i", -1) if raw is None else struct.pack(">i", len(raw)) + raw
    body = struct.pack(">I", zlib.crc32(body) ^ (spec.get("crc") == "bad")) + body
    return struct.pack(">qi", spec.get("baseOffset", 0) + index, len(body)) + body


class ReceivedRecords:
    """The records field of a response, decoded only when a scenario asks for it."""

    def __init__(self, raw: bytes | None) -> None:
        self.raw = raw

    def batches(self, *, full: bool = False) -> list[dict[str, Any]] | None:
        """Short form: `{base, last, pid, epoch, seq, txn, codec, values}` without those that say nothing, and `{base,
        marker, pid, epoch, txn}`. The full form adds leaderEpoch, magic, crcOk, count, tsType, baseTs, maxTs, keys,
        offsets, timestamps, headers and a marker's coordinatorEpoch. A cut batch is `{partial: true}`."""
        if self.raw is None:
            return None
        batches: list[dict[str, Any]] = []
        raw, pos = self.raw, 0
        while pos < len(raw):
            length = int.from_bytes(raw[pos + 8 : pos + 12], "big", signed=True)
            end = pos + 12 + length
            if len(raw) - pos < 17 or length < 14 or end > len(raw):
                batches.append({"partial": True})
                break
            batches.append(_described(raw[pos:end], full))
            pos = end
        return batches


def _described(data: bytes, full: bool) -> dict[str, Any]:
    try:
        header = parse_header(data)
    except CorruptBatch as exc:
        return {"base": int.from_bytes(data[:8], "big", signed=True), "corrupt": str(exc)}
    if header.magic != MAGIC:
        return {"base": header.base_offset, "magic": header.magic}
    try:
        records = decode_records(data, 0, header, max_bytes=DEFAULT_MAX_BYTES)
    except Malformed:
        records = None
    said: dict[str, Any] = {"base": header.base_offset}
    if header.is_control:
        said |= _marker(header, records, full)
    else:
        said |= _data(header, records, full)
    if full:
        said |= {
            "leaderEpoch": header.partition_leader_epoch,
            "magic": header.magic,
            "crcOk": crc_ok(data, 0, header),
            "count": header.record_count,
            "tsType": int(header.log_append_time),
            "baseTs": header.base_timestamp,
            "maxTs": header.max_timestamp,
        }
        if records and not header.is_control:
            said |= _contents(header, records)
    return said


def _marker(header: BatchHeader, records: list[Record] | None, full: bool) -> dict[str, Any]:
    kind, coordinator_epoch = "?", None
    if records:
        try:
            control = parse_control(records[0])
        except Malformed:
            pass
        else:
            kind = control.type.name if control.type in (ControlType.ABORT, ControlType.COMMIT) else "other"
            coordinator_epoch = control.coordinator_epoch
    said = {
        "marker": kind,
        "pid": header.producer_id,
        "epoch": header.producer_epoch,
        "txn": header.is_transactional,
    }
    return said | ({"coordinatorEpoch": coordinator_epoch} if full else {})


def _data(header: BatchHeader, records: list[Record] | None, full: bool) -> dict[str, Any]:
    said: dict[str, Any] = {"last": header.last_offset}
    if full or header.producer_id != -1:
        said |= {"pid": header.producer_id, "epoch": header.producer_epoch, "seq": header.base_sequence}
    if full or header.is_transactional:
        said["txn"] = header.is_transactional
    if full or header.compression:
        said["codec"] = _CODEC_NAMES.get(header.compression, "?")
    said["values"] = None if records is None else [as_text(record.value) for record in records]
    return said


def _contents(header: BatchHeader, records: list[Record]) -> dict[str, Any]:
    return {
        "keys": [as_text(record.key) for record in records],
        "offsets": [record.offset for record in records],
        # what is stored, also where LogAppendTime makes every record's time max_timestamp
        "timestamps": [record.timestamp for record in records],
        "headers": [
            {(name if isinstance(name, str) else as_text(name)): as_text(value) for name, value in record.headers}
            for record in records
        ],
    }
