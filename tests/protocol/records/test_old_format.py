"""Messages of magic 0 and 1: their headers, checksums and records, and that no bytes raise anything but Malformed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from old_messages import GZIP, LZ4, SNAPPY, message, wrapper

from minibroker_protocol.errors import Malformed
from minibroker_protocol.records import (
    Brief,
    Compression,
    CorruptBatch,
    InvalidRecords,
    Record,
    TakesLong,
    build_batch,
    complete_header,
    crc_ok,
    decode_records,
    each_timestamp,
    iter_batches,
    parse_header,
)

ROWS = [(n, 1000 + n, b"k" if n % 2 else None, b"v%d" % n) for n in range(3, 8)]


def told(data: bytes, pos: int = 0) -> tuple[int, int, int, int, bool]:
    header = complete_header(data, pos, parse_header(data, pos))
    return header.base_offset, header.last_offset, header.record_count, header.max_timestamp, crc_ok(data, pos, header)


@pytest.mark.parametrize(("magic", "timestamp"), [(0, -1), (1, 77)])
def test_a_message_is_a_batch_of_one_record(magic: int, timestamp: int) -> None:
    data = message(magic, 5, b"key", None, 77)
    assert told(data) == (5, 5, 1, timestamp, True)
    header = parse_header(data)
    assert (header.producer_id, header.base_sequence, header.last_sequence, header.partition_leader_epoch) == (-1,) * 4
    assert decode_records(data, 0, header) == [Record(5, timestamp, b"key", None)]
    assert told(data[:-1] + b"x") == (5, 5, 1, timestamp, False)


def test_attribute_bits_of_later_formats_mean_nothing() -> None:
    header = parse_header(message(1, 5, b"key", None, 77, 0x70))
    assert (header.is_transactional, header.is_control, header.has_delete_horizon) == (False,) * 3


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4])
def test_a_wrapper_holds_records_up_to_its_offset(magic: int, codec: Compression) -> None:
    data = wrapper(magic, codec, ROWS)
    assert parse_header(data).last_offset == 7
    assert told(data) == (3, 7, 5, 1007 if magic else -1, True)
    records = [Record(offset, at if magic else -1, key, value) for offset, at, key, value in ROWS]
    assert decode_records(data, 0, parse_header(data)) == records
    assert [*each_timestamp(data, 0, parse_header(data))] == [(record.offset, record.timestamp) for record in records]


def test_with_log_append_time_every_record_has_the_wrappers_time() -> None:
    data = wrapper(1, GZIP, ROWS, append_time=5000)
    assert {at for _, at in each_timestamp(data, 0, parse_header(data))} == {5000}


def test_a_search_that_would_decompress_much_says_so() -> None:
    data = wrapper(1, GZIP, [(0, 1, b"k", b"v" * 100_000)])
    with pytest.raises(TakesLong):
        list(each_timestamp(data, 0, parse_header(data), Brief(most_bytes=4096)))


def test_messages_and_batches_follow_one_another() -> None:
    parts = [message(0, 0, None, b""), wrapper(1, LZ4, [(1, 9, b"k", b"v"), (2, 8, b"k", b"v")]), bytes(batch(3))]
    data = b"".join(parts)
    assert [(header.magic, header.last_offset) for _, header in iter_batches(data)] == [(0, 0), (1, 2), (2, 3)]
    for cut in range(len(data)):
        whole = [sum(map(len, parts[:n])) <= cut for n in (1, 2, 3)]
        assert len([*iter_batches(data[:cut])]) == sum(whole), cut


def batch(offset: int) -> bytearray:
    return build_batch([Record(offset, 5, b"k", b"v")], base_offset=offset)


@pytest.mark.parametrize("magic", [0, 1])
def test_a_message_too_short_for_its_fields_is_corrupt(magic: int) -> None:
    smallest = message(magic, 5, None, None)
    assert parse_header(smallest).size == len(smallest)
    with pytest.raises(CorruptBatch, match="the smallest has"):
        parse_header(smallest[:-1])
    with pytest.raises(CorruptBatch, match="its length is"):
        parse_header(smallest[:11] + bytes((smallest[11] - 1,)) + smallest[12:] + bytes(40))


@pytest.mark.parametrize(
    "data",
    [
        message(1, 5, None, None, 0, GZIP),
        message(1, 5, None, wrapper(1, GZIP, ROWS)[34:], 0, Compression.ZSTD),
        message(1, 2, None, wrapper(1, GZIP, ROWS)[34:], 0, GZIP),
        message(1, 5, b"key", b"")[:-5] + (100).to_bytes(4, "big") + b"v",
    ],
    ids=["null value", "zstd", "an offset below those in it", "a size beyond the message"],
)
def test_wrappers_that_do_not_add_up(data: bytes) -> None:
    with pytest.raises((InvalidRecords, CorruptBatch)):
        decode_records(data, 0, parse_header(data))
    assert complete_header(data, 0, parse_header(data)) == parse_header(data)


@given(
    st.sampled_from([message(0, 5, b"key", b"value"), wrapper(1, GZIP, ROWS), wrapper(0, LZ4, ROWS)]),
    st.lists(st.tuples(st.integers(0, 120), st.integers(0, 255)), max_size=4),
    st.integers(0, 200),
)
def test_no_bytes_raise_anything_but_malformed(data: bytes, changes: list[tuple[int, int]], cut: int) -> None:
    damaged = bytearray(data)
    for at, byte in changes:
        damaged[at % len(damaged)] = byte
    try:
        for position, header in iter_batches(damaged[:cut]):
            complete_header(damaged, position, header)
            crc_ok(damaged, position, header)
            decode_records(damaged, position, header)
    except Malformed:
        pass
