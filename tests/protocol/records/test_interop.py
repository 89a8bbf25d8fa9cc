"""Batches of three other implementations read here, and ours read there."""

import datetime
import io
import warnings
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AioBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder
from kio.records import readers, schema, writers

from minibroker_protocol.records import (
    Record,
    build_batch,
    crc_ok,
    decode_records,
    parse_header,
    records_payload,
    validate_records,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python reads its schemas by a deprecated function
    from kafka import codec
    from kafka.record.default_records import DefaultRecordBatch as KpBatch
    from kafka.record.default_records import DefaultRecordBatchBuilder as KpBuilder

kio: Any = schema  # its number types are its own
TIME = 1_600_000_000_000
RECORDS = [
    Record(i, TIME + i * 7 % 50, b"k%d" % i if i % 3 else None, b"v" * (i * 37 % 300), [("h", b"x")] if i % 4 else [])
    for i in range(150)
]
PRODUCER: dict[str, Any] = {"producer_id": 2**33, "producer_epoch": 11, "base_sequence": 2**31 - 3}


HAS = [lambda: True, codec.has_gzip, codec.has_snappy, codec.has_lz4, codec.has_zstd]


def skip_without_library(cls: type, number: int) -> None:
    if cls.__module__.startswith("kafka.") and not HAS[number]():
        pytest.skip("kafka-python needs a library of its own for this codec")


def read_here(data: bytes) -> list[Record]:
    header = parse_header(data)
    assert crc_ok(data, 0, header)
    assert header.size == len(data)
    walk = validate_records(records_payload(data, 0, header), header)
    assert walk.consecutive
    assert walk.max_timestamp == header.max_timestamp
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == tuple(PRODUCER.values())
    assert header.is_transactional
    return decode_records(data, 0, header)


@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("cls", [AioBuilder, KpBuilder])
def test_python_clients_batches_read_here(cls: type, number: int) -> None:
    skip_without_library(cls, number)
    theirs = cls(magic=2, compression_type=number, is_transactional=True, batch_size=1 << 20, **PRODUCER)
    for i, r in enumerate(RECORDS):
        theirs.append(i, r.timestamp, r.key, r.value, list(r.headers))
    assert read_here(bytes(theirs.build())) == RECORDS


@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("cls", [AioBatch, KpBatch])
def test_our_batches_read_by_python_clients(cls: type, number: int) -> None:
    skip_without_library(cls, number)
    data = build_batch(RECORDS, compression=number, transactional=True, **PRODUCER)
    theirs = cls(bytes(data))
    assert theirs.validate_crc()
    assert theirs.is_transactional
    assert [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in theirs] == [
        (r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in RECORDS
    ]


def as_kio(record: Record) -> Any:
    at = datetime.datetime.fromtimestamp(record.timestamp // 1000, datetime.UTC)
    return kio.Record(
        attributes=0,
        timestamp=at,
        offset=record.offset,
        key=record.key,
        value=record.value,
        headers=tuple(kio.RecordHeader(key=str(name).encode(), value=value) for name, value in record.headers),
    )


# kio keeps whole seconds, so its records get such times.
SECONDS = [Record(r.offset, TIME + 1000 * (i % 9), r.key, r.value, r.headers) for i, r in enumerate(RECORDS)]


def test_ours_and_kios_bytes_are_equal() -> None:
    ours = build_batch(SECONDS, transactional=True, leader_epoch=0, **PRODUCER)
    batch = kio.NewRecordBatch(records=tuple(map(as_kio, SECONDS)), attributes=0x10, **PRODUCER)
    with io.BytesIO() as out:
        writers.write_batch(out, batch)
        theirs = out.getvalue()
    assert bytes(ours) == theirs
    assert read_here(theirs) == SECONDS
    back, _ = readers.read_batch(bytes(ours), 0)
    assert list(back.records) == list(map(as_kio, SECONDS))
