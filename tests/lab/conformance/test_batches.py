"""Batches out of specifications, right and wrong ones, and the short form of what comes back."""

from typing import Any

import pytest

from minibroker_lab.conformance.batches import ReceivedRecords, batch_bytes
from minibroker_lab.conformance.failure import ScenarioError
from minibroker_protocol.records import crc_ok, decode_records, iter_batches, parse_header

NOW = 1_700_000_000_000


def made(**spec: Any) -> bytes:
    return batch_bytes(spec, lambda: NOW)


def test_a_batch_is_right_unless_told_otherwise() -> None:
    data = made(values=["a", None, 3])
    header = parse_header(data)
    assert crc_ok(data, 0, header)
    assert header.size == len(data)
    assert (header.record_count, header.last_offset_delta, header.magic, header.attributes) == (3, 2, 2, 0)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
    assert (header.base_timestamp, header.max_timestamp, header.partition_leader_epoch) == (NOW, NOW, -1)
    assert [record.value for record in decode_records(data, 0, header)] == [b"a", None, b"3"]


def test_what_is_left_out_is_one_record() -> None:
    assert parse_header(made()).record_count == 1
    assert [record.value for record in decode_records(made(n=2), 0, parse_header(made(n=2)))] == [b"v0", b"v1"]


@pytest.mark.parametrize(
    ("spec", "name", "value"),
    [
        ({"pid": 7}, "producer_id", 7),
        ({"epoch": 8}, "producer_epoch", 8),
        ({"seq": 9}, "base_sequence", 9),
        ({"ts": 5}, "base_timestamp", 5),
        ({"ts": 5}, "max_timestamp", 5),
        ({"maxTs": 6}, "max_timestamp", 6),
        ({"baseOffset": 10}, "base_offset", 10),
        ({"leaderEpoch": 11}, "partition_leader_epoch", 11),
        ({"count": 12}, "record_count", 12),
        ({"lastOffsetDelta": 13}, "last_offset_delta", 13),
        ({"attributes": 5}, "attributes", 5),
        ({"txn": True}, "attributes", 0x10),
        ({"control": True}, "attributes", 0x20),
        ({"tsType": 1}, "attributes", 0x08),
        ({"deleteHorizon": True}, "attributes", 0x40),
        ({"codec": "zstd", "txn": True}, "attributes", 0x14),
    ],
)
def test_header_fields(spec: dict[str, Any], name: str, value: int) -> None:
    data = made(**spec)
    header = parse_header(data)
    assert getattr(header, name) == value
    assert crc_ok(data, 0, header)


def test_records_in_full() -> None:
    spec = {"key": "k", "value": {"hex": "ff"}, "headers": {"h": "1", "n": None}, "tsDelta": 5, "offsetDelta": 3}
    data = made(ts=100, records=[spec])
    header = parse_header(data)
    assert header.max_timestamp == 105
    (record,) = decode_records(data, 0, header)
    assert (record.offset, record.timestamp, record.key, record.value) == (3, 105, b"k", b"\xff")
    assert record.headers == [("h", b"1"), ("n", None)]


def test_wrong_on_purpose() -> None:
    bad = made(crc="bad")
    assert not crc_ok(bad, 0, parse_header(bad))
    assert parse_header(made(crc=0)).crc == 0
    assert made(ts=1, cut=2) == made(ts=1)[:-2]
    assert made(ts=1, tail="0102") == made(ts=1) + b"\1\2"
    assert parse_header(made(length=500)).batch_length == 500
    assert made(magic=3)[16] == 3
    assert made(hex="00 01") == b"\0\1"
    assert made(payload="0102")[61:] == b"\1\2"
    assert made(records=[{"length": 99}])[61:63] == b"\xc6\x01"


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_from_before_batches(magic: int) -> None:
    data = made(magic=magic, values=["a", "b"])
    assert data[16] == magic
    half = len(data) // 2
    assert int.from_bytes(data[8:12], "big") == half - 12
    assert [data[7], data[half + 7]] == [0, 1]
    assert ReceivedRecords(data).batches() == [{"base": 0, "magic": magic}, {"base": 1, "magic": magic}]


@pytest.mark.parametrize(
    "spec", [{"pidd": 1}, {"records": [{"ky": 1}]}, {"codec": "brotli"}, {"pid": 2**70}, {"magic": 300}]
)
def test_impossible_specifications(spec: dict[str, Any]) -> None:
    with pytest.raises(ScenarioError):
        made(**spec)


def test_short_form_leaves_out_what_says_nothing() -> None:
    data = made(values=["a"]) + made(values=["b"], pid=1, epoch=0, seq=0, codec="lz4", txn=True)
    assert ReceivedRecords(data).batches() == [
        {"base": 0, "last": 0, "values": ["a"]},
        {"base": 0, "last": 0, "pid": 1, "epoch": 0, "seq": 0, "txn": True, "codec": "lz4", "values": ["b"]},
    ]
    assert len(list(iter_batches(data))) == 2


def test_cut_undecodable_and_absent_records() -> None:
    data = made(values=["a"])
    assert ReceivedRecords(None).batches() is None
    assert ReceivedRecords(b"").batches() == []
    assert ReceivedRecords(data + data[:-1]).batches() == [{"base": 0, "last": 0, "values": ["a"]}, {"partial": True}]
    assert ReceivedRecords(data[:10]).batches() == [{"partial": True}]
    undecodable = ReceivedRecords(made(values=["a"], attributes=1)).batches()
    assert undecodable == [{"base": 0, "last": 0, "codec": "gzip", "values": None}]
    full = ReceivedRecords(made(values=["a"], crc="bad")).batches(full=True)
    assert full is not None
    assert full[0]["crcOk"] is False


@pytest.mark.parametrize(
    ("key", "said"), [({"i16": [0, 1]}, "COMMIT"), ({"i16": [0, 0]}, "ABORT"), ({"i16": [0, 2]}, "other"), ("x", "?")]
)
def test_markers(key: Any, said: str) -> None:
    data = made(pid=5, epoch=0, control=True, txn=True, records=[{"key": key, "value": {"hex": "000000000004"}}])
    assert ReceivedRecords(data).batches() == [{"base": 0, "marker": said, "pid": 5, "epoch": 0, "txn": True}]
