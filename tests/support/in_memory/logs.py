"""Partition logs for tests: opening, filling and reading them back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.records import (
    BatchHeader,
    ControlType,
    Record,
    build_batch,
    decode_records,
    end_txn_marker,
    iter_batches,
    parse_control,
)
from minibroker_storage.config import LogConfig
from minibroker_storage.disk import Disk, join
from minibroker_storage.log import AppendInfo, PartitionLog
from minibroker_storage.origin import Origin
from minibroker_storage.producer_state import ProducerRules

NOW = 1_700_000_000_000
TOPIC_ID = bytes(range(16))
#: No verification: these tests have no coordinator.
RULES = ProducerRules(verification_enabled=False, producer_id_expiration_ms=1 << 60)


def open_log(
    disk: Disk, path: str = "t-0", *, now_ms: int = NOW, config: LogConfig | None = None, **more: Any
) -> PartitionLog:
    settings: dict[str, Any] = {"topic": "t", "partition": 0, "topic_id": TOPIC_ID, "rules": RULES}
    settings.update(more)
    return PartitionLog.open(disk, path, now_ms=now_ms, config=config or LogConfig(), **settings)


def batch(
    *values: bytes,
    timestamp: int = NOW,
    pid: int = -1,
    epoch: int = 0,
    seq: int = 0,
    txn: bool = False,
    compression: int = 0,
    **more: Any,
) -> bytearray:
    records = [Record(i, timestamp, b"k%d" % i, value) for i, value in enumerate(values or (b"v",))]
    producer = {"producer_id": pid, "producer_epoch": epoch, "base_sequence": seq} if pid >= 0 else {}
    return build_batch(records, compression=compression, transactional=txn, **producer, **more)


def append(
    log: PartitionLog, data: bytes | bytearray, *, now_ms: int = NOW, leader_epoch: int = 0, **more: Any
) -> AppendInfo:
    """As a producer does; the high watermark follows."""
    info = log.append_as_leader(
        data, origin=Origin.CLIENT, leader_epoch=leader_epoch, now_ms=now_ms, api_version=12, **more
    )
    log.update_high_watermark(log.log_end_offset)
    return info


def end_transaction(
    log: PartitionLog, pid: int, epoch: int = 0, *, commit: bool, coordinator_epoch: int = 0, replicated: bool = True
) -> AppendInfo:
    marker = end_txn_marker(
        producer_id=pid, producer_epoch=epoch, commit=commit, coordinator_epoch=coordinator_epoch, timestamp_ms=NOW
    )
    info = log.append_as_leader(marker, origin=Origin.COORDINATOR, leader_epoch=0, now_ms=NOW)
    if replicated:
        log.update_high_watermark(log.log_end_offset)
    return info


def batches(
    log: PartitionLog, start: int | None = None, *, bound: int | None = None
) -> Iterator[tuple[bytes, BatchHeader]]:
    """Every batch from ``start`` (default: log start) on, read as a consumer reads."""
    offset = log.log_start_offset if start is None else start
    end = log.log_end_offset if bound is None else bound
    while offset < end:
        result = log.read(offset, 1 << 20, bound=end)
        headers = list(iter_batches(result.records))
        if not headers:
            return
        for position, header in headers:
            yield bytes(result.records[position : position + header.size]), header
        offset = headers[-1][1].next_offset


def values(log: PartitionLog, *, committed: bool = False) -> list[tuple[bytes | None, bytes | None]]:
    """(key, value) of every record a consumer gets, by Kafka's consumer algorithm when ``committed``."""
    out: list[tuple[bytes | None, bytes | None]] = []
    offset = log.log_start_offset
    bound = log.last_stable_offset if committed else log.high_watermark
    aborting: set[int] = set()
    while offset < bound:
        result = log.read(offset, 1 << 16, bound=bound)
        aborted = sorted(log.aborted_transactions(result), key=lambda txn: txn.first_offset)
        if not len(result):
            break
        for position, header in iter_batches(result.records):
            offset = header.next_offset
            records = decode_records(result.records, position, header)
            while aborted and aborted[0].first_offset <= header.last_offset:
                aborting.add(aborted.pop(0).producer_id)
            if header.is_control:
                if records and parse_control(records[0]).type is ControlType.ABORT:
                    aborting.discard(header.producer_id)
            elif not (committed and header.is_transactional and header.producer_id in aborting):
                out += [
                    (_bytes(record.key), _bytes(record.value))
                    for record in records
                    if record.offset >= log.log_start_offset
                ]
    return out


def _bytes(value: bytes | bytearray | memoryview | None) -> bytes | None:
    return None if value is None else bytes(value)


def tree(disk: Disk, path: str) -> dict[str, bytes]:
    """Every file of a directory."""
    return {name: disk.read_bytes(join(path, name)) for name in disk.list(path)}


@contextmanager
def refused(code: ErrorCode) -> Iterator[None]:
    """Expects an ApiError with this code and a reason."""
    with pytest.raises(ApiError) as refusal:
        yield
    assert refusal.value.code is code, refusal.value
    assert refusal.value.message
