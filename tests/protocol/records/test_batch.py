"""Headers, checksums, offsets: against bytes written down by hand and against generated batches."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker_protocol.records import (
    HEADER_SIZE,
    BatchHeader,
    CorruptBatch,
    Record,
    build_batch,
    crc_ok,
    decode_records,
    decrement_sequence,
    increment_sequence,
    iter_batches,
    pack_header,
    parse_header,
    patch_offsets,
    rewrite_header,
)

# Transactional batch of producer 4660 epoch 7, sequence 9, base offset 258, leader epoch 3, two records; every field
# of log-format has a value of its own so that a swapped field shows.
GOLDEN = bytes.fromhex(
    "0000000000000102"  # baseOffset
    "00000042"  # batchLength
    "00000003"  # partitionLeaderEpoch
    "02"  # magic
    "1c362454"  # crc
    "0010"  # attributes
    "00000001"  # lastOffsetDelta
    "00000174876f6400"  # baseTimestamp
    "00000174876f6405"  # maxTimestamp
    "0000000000001234"  # producerId
    "0007"  # producerEpoch
    "00000009"  # baseSequence
    "00000002"  # recordCount
    "10"
    "00"
    "00"
    "00"
    "02"
    "6b"
    "02"
    "76"
    "00"
    "0e"
    "00"
    "0a"
    "02"
    "01"
    "02"
    "77"
    "00"
)


def batch_of(n: int, **fields: object) -> bytearray:
    return build_batch([Record(0, 1000 + i, None, b"v%d" % i) for i in range(n)], **fields)  # type: ignore[arg-type]


def test_golden_header_reads_field_by_field() -> None:
    header = parse_header(GOLDEN)
    assert header == BatchHeader(258, 66, 3, 2, 0x1C362454, 0x10, 1, 1600000058368, 1600000058373, 4660, 7, 9, 2)
    assert (header.size, header.last_offset, header.next_offset, header.last_sequence) == (len(GOLDEN), 259, 260, 10)
    assert header.is_transactional
    assert not header.is_control
    assert not header.log_append_time
    assert not header.has_delete_horizon
    assert header.compression == 0
    assert crc_ok(GOLDEN, 0, header)


@pytest.mark.parametrize(
    "other", [{"offset": 2}, {"timestamp": 2}, {"key": b"l"}, {"value": None}, {"headers": [("i", b"")]}], ids=" ".join
)
def test_records_are_equal_when_each_field_is(other: dict[str, Any]) -> None:
    fields: Any = {"offset": 1, "timestamp": 1, "key": b"k", "value": b"v", "headers": [("h", b"")]}
    assert Record(**fields) == Record(**{**fields, "headers": (("h", b""),)})
    assert Record(**fields) != Record(**{**fields, **other})


def test_golden_batch_is_what_build_writes() -> None:
    records = [Record(258, 1600000058368, b"k", b"v"), Record(259, 1600000058373, None, b"w")]
    built = build_batch(
        records,
        base_offset=258,
        leader_epoch=3,
        producer_id=4660,
        producer_epoch=7,
        base_sequence=9,
        transactional=True,
    )
    assert bytes(built) == GOLDEN
    assert decode_records(GOLDEN, 0, parse_header(GOLDEN)) == records


@pytest.mark.parametrize(
    ("attributes", "name", "value"),
    [
        (0x04, "compression", 4),
        (0x08, "log_append_time", True),
        (0x10, "is_transactional", True),
        (0x20, "is_control", True),
        (0x40, "has_delete_horizon", True),
    ],
)
def test_attribute_bits(attributes: int, name: str, value: object) -> None:
    data = bytearray(GOLDEN)
    data[21:23] = attributes.to_bytes(2, "big")
    assert getattr(parse_header(data), name) == value
    data[21:23] = (0x7F & ~attributes & ~0x07 if name == "compression" else 0x7F & ~attributes).to_bytes(2, "big")
    assert getattr(parse_header(data), name) != value


def test_every_bit_after_the_crc_is_covered() -> None:
    for pos in range(21, len(GOLDEN)):
        for bit in range(8):
            data = bytearray(GOLDEN)
            data[pos] ^= 1 << bit
            assert not crc_ok(data, 0, parse_header(data)), (pos, bit)


def test_patch_offsets_needs_no_new_crc() -> None:
    data = bytearray(b"xx" + GOLDEN)
    patch_offsets(data, 2, 2**40 + 5, 17)
    header = parse_header(data, 2)
    assert (header.base_offset, header.partition_leader_epoch) == (2**40 + 5, 17)
    assert crc_ok(data, 2, header)


def test_log_append_time_is_every_records_time() -> None:
    data = batch_of(3)
    header = parse_header(data)
    header.attributes |= 0x08
    header.max_timestamp = 77
    rewrite_header(data, 0, header)
    assert header.log_append_time
    assert header.base_timestamp == 1000
    assert [record.timestamp for record in decode_records(data, 0, header)] == [77] * 3


def test_rewrite_header_gives_the_right_crc() -> None:
    data = bytearray(GOLDEN)
    header = parse_header(data)
    header.producer_epoch += 1
    pack_header(data, 0, header)
    assert not crc_ok(data, 0, header)
    rewrite_header(data, 0, header)
    assert crc_ok(data, 0, header)
    assert parse_header(data) == header


@pytest.mark.parametrize("n", range(HEADER_SIZE))
def test_fewer_bytes_than_a_header(n: int) -> None:
    for before in (0, 40):
        with pytest.raises(CorruptBatch):
            parse_header(b"x" * before + GOLDEN[:n], before)


@pytest.mark.parametrize("length", [-1, 0, 13, 48, -(2**31)])
def test_impossible_length(length: int) -> None:
    data = GOLDEN[:8] + length.to_bytes(4, "big", signed=True) + GOLDEN[12:]
    with pytest.raises(CorruptBatch, match="batch_length"):
        parse_header(data)
    with pytest.raises(CorruptBatch):
        list(iter_batches(data))


def test_unknown_magic_is_corrupt() -> None:
    with pytest.raises(CorruptBatch, match="magic is 3"):
        parse_header(GOLDEN[:16] + b"\x03" + GOLDEN[17:])


def test_iter_batches_leaves_out_a_cut_last_batch() -> None:
    one, two = batch_of(2), batch_of(3, base_offset=2)
    data = one + two
    assert [(pos, header.record_count) for pos, header in iter_batches(data)] == [(0, 2), (len(one), 3)]
    for cut in range(len(one), len(data)):
        assert [pos for pos, _ in iter_batches(data[:cut])] == [0], cut


@given(st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1))
def test_sequences_wrap_and_are_inverse(sequence: int, n: int) -> None:
    after = increment_sequence(sequence, n)
    assert 0 <= after < 2**31
    assert decrement_sequence(after, n) == sequence
    if sequence + n < 2**31:
        assert after == sequence + n


def test_sequence_after_the_largest_is_zero() -> None:
    assert increment_sequence(2**31 - 1, 1) == 0
    assert decrement_sequence(0, 1) == 2**31 - 1
    header = parse_header(batch_of(4, producer_id=1, producer_epoch=0, base_sequence=2**31 - 2))
    assert header.last_sequence == 1
    assert parse_header(batch_of(4)).last_sequence == -1
