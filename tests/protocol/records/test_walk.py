"""The records inside a batch: both readers agree with the writer and with each other on any bytes."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sampling import search, thinned

from minibroker_protocol.records import (
    BatchHeader,
    CorruptBatch,
    InvalidRecords,
    PayloadTooLarge,
    Record,
    build_batch,
    crc_ok,
    decode_payload,
    decode_records,
    encode_varint,
    parse_header,
    records_payload,
    validate_records,
)
from minibroker_protocol.records.varints import varlong
from minibroker_protocol.records.walk import STEP, each_delta

TIME = 1_600_000_000_000
INT64 = st.integers(-(2**63), 2**63 - 1)
HEADERS = st.lists(st.tuples(st.text(max_size=8) | st.just("n" * 90), st.none() | st.binary(max_size=8)), max_size=3)
RECORDS = st.lists(
    st.builds(
        Record,
        timestamp=st.integers(TIME - 200, TIME + 20_000_000) | INT64,
        key=st.none() | st.binary(max_size=20) | st.just(b"k" * 9000),
        value=st.none() | st.binary(max_size=80) | st.just(b"v" * 8200),
        headers=HEADERS,
    ),
    min_size=1,
    max_size=70,
)


def numbered(records: list[Record], base: int = 0) -> list[Record]:
    for i, record in enumerate(records):
        record.offset = base + i
    return records


def header_of(payload: bytes, count: int, **fields: int) -> BatchHeader:
    values = {"attributes": 0, "base_timestamp": 0, "max_timestamp": 0, "base_offset": 0} | fields
    return BatchHeader(
        values["base_offset"],
        49 + len(payload),
        0,
        2,
        0,
        values["attributes"],
        count - 1,
        values["base_timestamp"],
        values["max_timestamp"],
        -1,
        -1,
        -1,
        count,
    )


@given(records=RECORDS, compression=st.integers(0, 4), base=st.integers(0, 2**40))
@search(60)
def test_round_trip(records: list[Record], compression: int, base: int) -> None:
    numbered(records, base)
    data = build_batch(records, base_offset=base, compression=compression)
    header = parse_header(data)
    assert crc_ok(data, 0, header)
    assert decode_records(data, 0, header) == records
    walk = validate_records(records_payload(data, 0, header), header, want_keys=True)
    assert walk.consecutive
    assert walk.null_keys == [i for i, record in enumerate(records) if record.key is None]
    times = [record.timestamp for record in records]
    assert header.max_timestamp == max(times)
    if max(times) - min(times) < 2**62:
        assert walk.max_timestamp == max(times)


@given(
    records=RECORDS,
    low=st.integers(TIME - 100, TIME + 1000),
    high=st.integers(TIME + 1000, TIME + 10_000_000),
)
@search(60)
def test_timestamp_bounds_name_each_bad_record(records: list[Record], low: int, high: int) -> None:
    for record in records:
        record.timestamp = min(max(record.timestamp, -1), 2 * TIME)
    data = build_batch(records)
    header = parse_header(data)
    walk = validate_records(records_payload(data, 0, header), header, min_timestamp=low, max_timestamp=high)
    assert walk.bad_timestamps == [
        (i, record.timestamp)
        for i, record in enumerate(records)
        if record.timestamp != -1 and not low <= record.timestamp <= high
    ]


def test_log_append_time_replaces_the_deltas() -> None:
    data = build_batch([Record(0, 5), Record(1, 9)], timestamp_type=1, max_timestamp=100)
    header = parse_header(data)
    walk = validate_records(records_payload(data, 0, header), header, min_timestamp=50, max_timestamp=60)
    assert (walk.max_timestamp, walk.bad_timestamps) == (100, [])


def test_gaps_in_offsets_are_reported_and_kept() -> None:
    records = [Record(10, TIME, b"a"), Record(13, TIME, b"b")]
    data = build_batch(records, base_offset=10, keep_offsets=True, last_offset_delta=7)
    header = parse_header(data)
    assert header.last_offset == 17
    assert decode_records(data, 0, header) == records
    assert not validate_records(records_payload(data, 0, header), header).consecutive
    assert parse_header(build_batch(records, base_offset=10, keep_offsets=True)).last_offset == 13


def test_offsets_that_do_not_rise_are_reported() -> None:
    data = build_batch([Record(0, TIME), Record(0, TIME)], keep_offsets=True)
    header = parse_header(data)
    assert not validate_records(records_payload(data, 0, header), header).consecutive


def test_empty_batch_keeps_its_header() -> None:
    data = build_batch([], base_offset=5, last_offset_delta=4, compression=2, producer_id=3, max_timestamp=TIME)
    header = parse_header(data)
    assert (len(data), header.record_count, header.last_offset, header.max_timestamp) == (61, 0, 9, TIME)
    assert crc_ok(data, 0, header)


def test_delete_horizon_takes_the_base_timestamps_place() -> None:
    records = [Record(0, TIME, b"k", None)]
    data = build_batch(records, delete_horizon_ms=TIME + 5000)
    header = parse_header(data)
    assert header.has_delete_horizon
    assert header.base_timestamp == TIME + 5000
    assert header.max_timestamp == TIME
    assert decode_records(data, 0, header) == records


def test_header_names_that_are_not_text_stay_bytes() -> None:
    records = [Record(0, TIME, None, b"", [(b"\xff\xfe", b"1"), ("ü", None), ("", b"")])]
    data = build_batch(records)
    assert decode_records(data, 0, parse_header(data)) == records


def test_limit_on_decompressed_bytes() -> None:
    data = build_batch([Record(0, TIME, None, bytes(50_000))], compression=4)
    header = parse_header(data)
    with pytest.raises(PayloadTooLarge):
        decode_records(data, 0, header, max_bytes=50_000)
    assert len(decode_records(data, 0, header, max_bytes=50_100)) == 1


def test_batch_that_ends_after_the_buffer() -> None:
    data = build_batch([Record(0, TIME, None, b"x")])
    with pytest.raises(CorruptBatch):
        decode_records(data[:-1], 0, parse_header(data))
    assert not crc_ok(data[:-1], 0, parse_header(data))


def both(payload: bytes, count: int) -> str | None:
    """What the two readers say; they must agree, and the reader of deltas refuse nothing else."""
    header = header_of(payload, count)
    said: list[str | None] = []
    for reader in (validate_records, decode_payload):
        try:
            reader(payload, header)
            said.append(None)
        except InvalidRecords as exc:
            said.append(str(exc))
    assert (said[0] is None) == (said[1] is None), said
    try:
        deltas = [offset for _, offset, _, _ in each_delta(payload, header)]
    except InvalidRecords:
        assert said[0] is not None
    else:  # it does not look at what follows the deltas
        assert said[0] is not None or deltas == [r.offset - header.base_offset for r in decode_payload(payload, header)]
    return said[0]


def body(*parts: bytes) -> bytes:
    joined = b"".join(parts)
    return encode_varint(len(joined)) + joined


GOOD = body(b"\0\0\0\2k\2v\0")
LONG = body(b"\0\0\0\2k", encode_varint(92), b"v" * 92, b"\0")  # of 100 bytes: its size takes two


@pytest.mark.parametrize(
    ("payload", "count", "why"),
    [
        (b"", 1, "end within record 0 of 1"),
        (GOOD, 2, "end within record 1 of 2"),
        (GOOD + GOOD, 1, "9 bytes left after 1"),
        (encode_varint(-1) + b"\0" * 9, 1, "size -1"),
        (encode_varint(100) + b"\0" * 9, 1, "size 100 with 9"),
        (encode_varint(2**31 - 1) + b"\0" * 9, 1, "size 2147483647"),
        (encode_varint(-101) + LONG[2:], 1, "size -101"),
        (body(b"\0\0\0", encode_varint(50), b"k\2v\0"), 1, "end within record 0"),
        (body(b"\0\0\0\2k", encode_varint(2**31 - 1), b"v\0"), 1, "end within record 0"),
        (body(b"\0\0\0\2k\2v\0", b"x"), 1, "fields end -1 bytes"),
        (encode_varint(7) + GOOD[1:], 1, "fields end [+]1 bytes"),
        (body(b"\0\0\0\2k\2v", encode_varint(-1)), 1, "-1 headers"),
        (body(b"\0\0\0\2k\2v", encode_varint(2**30)), 1, "1073741824 headers"),
        (body(b"\0\0\0\2k\2v\2", encode_varint(-1), b"\0"), 1, "header name of -1"),
        (body(b"\0\0\xff\xff\xff\xff\xff\xff\0"), 1, "varint of more than 5"),
        (body(b"\0" + b"\xff" * 11 + b"\0\2k\2v\0"), 1, "varint of more than 10"),
    ],
)
def test_structure_errors(payload: bytes, count: int, why: str) -> None:
    said = both(payload, count)
    assert said is not None
    with pytest.raises(InvalidRecords, match=why):
        validate_records(payload, header_of(payload, count))


def test_any_negative_size_is_null() -> None:
    payload = body(b"\0\0\0", encode_varint(-5), encode_varint(-300), b"\0")
    assert both(payload, 1) is None
    (record,) = decode_payload(payload, header_of(payload, 1))
    assert (record.key, record.value) == (None, None)
    assert validate_records(payload, header_of(payload, 1), want_keys=True).null_keys == [0]


MANY = records_payload(
    data := build_batch(
        [Record(i, TIME + 70 * i, b"key" * (i % 40), b"v" * (i * 3), [("h", b"x"), ("n", None)]) for i in range(80)]
    ),
    0,
    parse_header(data),
)


@pytest.mark.parametrize("first", thinned(range(16), 16))
def test_every_truncation_is_refused_by_both(first: int) -> None:
    for n in range(first, len(MANY), 16):
        assert both(MANY[:n], 80) is not None, n


@given(at=st.integers(0, len(MANY) - 1), junk=st.binary(min_size=1, max_size=6))
@search(400)
def test_mutations_are_seen_alike_by_both(at: int, junk: bytes) -> None:
    both(MANY[:at] + junk + MANY[at + len(junk) :], 80)


@given(payload=st.binary(max_size=60), count=st.integers(-2, 6))
@search(400)
def test_any_bytes(payload: bytes, count: int) -> None:
    both(payload, count)


@given(n=INT64)
@example(0x7F << 13)  # its last seven bits are set, and none is above them
def test_varint_of_any_size_reads_back(n: int) -> None:
    encoded = encode_varint(n)
    assert len(encoded) == max(1, -(-(n << 1 ^ n >> 63).bit_length() // 7))
    payload = body(b"\0", encoded, b"\0\2k\2v\0")
    (record,) = decode_payload(payload, header_of(payload, 1))
    assert record.timestamp == n
    assert validate_records(payload, header_of(payload, 1)).max_timestamp == n


def test_bits_above_32_are_dropped_as_by_java() -> None:
    """The size of a record in five bytes, the last of which says more than fits (ByteUtils.readVarint)."""
    for last in (b"\x00", b"\x10", b"\x70"):
        assert both(b"\x90\x80\x80\x80" + last + GOOD[1:], 1) is None


@pytest.mark.parametrize(("last", "value"), [(b"\x01", -(1 << 63)), (b"\x7f", -(1 << 63)), (b"\x00", -(1 << 62))])
def test_bits_above_64_are_dropped_as_by_java(last: bytes, value: int) -> None:
    assert varlong(b"\xff" * 9 + last + b"!", 0) == (value, 10)


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_long_batch_is_walked_in_steps(steps: int) -> None:
    data = build_batch([Record(0, TIME, None, b"v") for _ in range(STEP * steps + STEP - 1)])
    header, paces = parse_header(data), list[int]()
    payload = records_payload(data, 0, header)
    assert len(list(each_delta(bytes(payload), header, paces.append))) == STEP * steps + STEP - 1
    assert paces == [STEP] * steps
