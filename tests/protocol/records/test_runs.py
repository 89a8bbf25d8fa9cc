"""Runs of alike records are seen as such, and never change what a walk one by one would say."""

import random
from unittest.mock import patch

import pytest
from calls import Calls
from hypothesis import example, given
from hypothesis import strategies as st
from sampling import search, thinned

from minibroker_protocol.records import (
    BatchHeader,
    InvalidRecords,
    Record,
    Walk,
    build_batch,
    parse_header,
    records_payload,
    validate_records,
    walk,
)
from minibroker_protocol.records.runs import Run, equal_run

TIME = 1_600_000_000_000
ANY = 1 << 64

Verdict = tuple[object, ...]


def batch(records: list[Record]) -> tuple[bytes, BatchHeader]:
    for offset, record in enumerate(records):
        record.offset = offset
    data = build_batch(records)
    header = parse_header(data)
    return records_payload(data, 0, header), header


def verdict(payload: bytes, header: BatchHeader, low: int | None = None, high: int | None = None) -> Verdict:
    try:
        with patch.object(walk, "MOST_FAULTS", 1 << 31):  # where a walk that is refused anyway ends is up to the way
            found: Walk = validate_records(payload, header, want_keys=True, min_timestamp=low, max_timestamp=high)
    except InvalidRecords as error:
        return ("refused", str(error))
    return tuple(getattr(found, name) for name in Walk.__slots__)


def one_by_one(payload: bytes, header: BatchHeader, low: int | None = None, high: int | None = None) -> Verdict:
    with (
        patch.object(walk, "equal_run", lambda *args, **bounds: None),
        patch.object(walk, "native_run", lambda *args, **bounds: None),
    ):
        return verdict(payload, header, low, high)


HEADERS = st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2)
TIMES = st.sampled_from(
    [
        lambda rng, i: 0,
        lambda rng, i: i // 5,
        lambda rng, i: 60 + i // 9,
        lambda rng, i: 100 + 7 * i,
        lambda rng, i: 9000,
        lambda rng, i: rng.randint(0, 63),
        lambda rng, i: rng.randint(-64, 63),
        lambda rng, i: rng.randint(64, 8191),
        lambda rng, i: rng.choice((64, 200, 8000, 8001)),
        lambda rng, i: rng.randint(-300, 9000),
        lambda rng, i: -TIME - 1,
    ]
)


@st.composite
def stretches(draw: st.DrawFn) -> list[Record]:
    """Records of which many in a row are alike in all that runs look at."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    records: list[Record] = []
    for _ in range(draw(st.integers(1, 4))):
        time = draw(TIMES)
        key, value, headers = draw(st.none() | st.binary(max_size=3)), draw(st.sampled_from((None, 0, 30, 70))), []
        if draw(st.integers(0, 3)) == 0:
            headers = draw(HEADERS)
        for _ in range(draw(st.sampled_from((1, 30, 70)))):
            body = None if value is None else rng.randbytes(value)
            records.append(Record(0, TIME + time(rng, len(records)), key, body, headers))
    return records


@given(records=stretches(), bounds=st.none() | st.tuples(st.integers(-70, 1), st.integers(40, 9000)))
@search(80)
def test_a_valid_batch_has_the_same_verdict(records: list[Record], bounds: tuple[int, int] | None) -> None:
    payload, header = batch(records)
    low, high = (None, None) if bounds is None else (TIME + bounds[0], TIME + bounds[1])
    expected = one_by_one(payload, header, low, high)
    assert expected[0] != "refused"
    assert verdict(payload, header, low, high) == expected


@given(
    records=stretches(),
    flips=st.lists(st.tuples(st.floats(0, 0.999), st.integers(0, 255)), min_size=1, max_size=3),
    cut=st.none() | st.floats(0, 1),
    more=st.integers(-2, 2),
)
@example([Record(0, TIME, None, b"v" * 30) for _ in range(40)], [(0.5, 0)], None, 0)
@search(250)
def test_a_damaged_batch_has_the_same_verdict(
    records: list[Record], flips: list[tuple[float, int]], cut: float | None, more: int
) -> None:
    payload, header = batch(records)
    damaged = bytearray(payload)
    for where, byte in flips:
        damaged[int(where * len(damaged))] = byte
    if cut is not None:
        del damaged[int(cut * len(damaged)) :]
    header.record_count = max(0, header.record_count + more)
    assert verdict(bytes(damaged), header) == one_by_one(bytes(damaged), header)


HEADED = [[("name", b"v"), ("null", None)], []]


BITS = (0x01, 0x02, 0x80)


def assert_each_byte_counts(records: list[Record], begin: int = 0, at_once: int = 3) -> None:
    """`at_once` of the `BITS` of each byte, in turn."""
    payload, header = batch(records)
    for at in range(begin % len(payload), len(payload)):
        for change in (BITS[(at + number) % 3] for number in range(at_once)):
            damaged = bytearray(payload)
            damaged[at] ^= change
            assert verdict(bytes(damaged), header) == one_by_one(bytes(damaged), header), at


@pytest.mark.parametrize(
    ("headers", "at_once"), thinned([(HEADED[0], 1), (HEADED[0], 3), (HEADED[1], 3)], 3, several=True)
)
def test_every_structural_byte_of_every_record_counts(headers: list[tuple[str, bytes | None]], at_once: int) -> None:
    records = [Record(0, TIME + i % 50, b"key", b"v" * 70, headers) for i in range(32)]
    assert_each_byte_counts(records, at_once=at_once)


@pytest.mark.parametrize("headers", HEADED)
def test_also_in_a_run_that_begins_within_a_batch(headers: list[tuple[str, bytes | None]]) -> None:
    records = [Record(0, TIME, b"another"), *(Record(0, TIME, b"key", b"v" * 7, headers) for _ in range(63))]
    assert_each_byte_counts(records, begin=-2 * len(batch(records[-1:])[0]))


def test_offsets_of_every_width_are_followed() -> None:
    payload, header = batch([Record(0, TIME, None, b"x") for _ in range(17_000)])
    assert verdict(payload, header) == one_by_one(payload, header)
    with Calls() as calls:
        assert verdict(payload, header)[0] == []
    assert calls.count < 1000  # record by record it is thousands


@pytest.mark.parametrize("index", [3, 63, 64, 100, 8191, 8192, 8300, 16_383, 16_384])
def test_an_offset_out_of_place_is_seen(index: int) -> None:
    records = [Record(i, TIME, None, b"x") for i in range(16_500)]
    records[index].offset += 64
    data = build_batch(records, keep_offsets=True)
    header = parse_header(data)
    header.last_offset_delta = header.record_count - 1
    assert not validate_records(records_payload(data, 0, header), header).consecutive


@pytest.mark.parametrize(
    ("times", "delta"),
    [
        ([5] * 30, 5),
        ([0, *range(29)], 28),
        ([0, 63, 2, 63] * 8, 63),
        ([-3, -1, -2, -9] * 8, -1),
        ([100, 8191, 64, 8191] * 8, 8191),
        ([8128, 70, 8191, 127] * 8, 8191),
        ([8129, 8130, 127, 8129] * 8, 8130),
        ([200_000] * 30, 200_000),
    ],
)
def test_the_largest_timestamp(times: list[int], delta: int) -> None:
    records = [Record(i, TIME + time, None, b"x") for i, time in enumerate(times)]
    data = build_batch(records)
    header = parse_header(data)
    shift = TIME - header.base_timestamp  # the first record's time is the base
    if shift:
        records = [Record(0, TIME, None, b"first of another shape"), *records]
        payload, _ = batch(records)
        start = payload.index(b"shape") + len(b"shape") + 1
        run = equal_run(payload, start, 1, len(records), low=-ANY, high=ANY)
    else:
        run = equal_run(records_payload(data, 0, header), 0, 0, len(records), low=-ANY, high=ANY)
    assert run is not None
    assert (run.records, run.delta) == (len(times), delta)


def test_a_run_ends_where_the_layout_changes() -> None:
    records = [Record(0, TIME, b"k", b"x" * 10) for _ in range(30)] + [Record(0, TIME, b"kk", b"x" * 9)]
    payload, _ = batch(records)
    assert equal_run(payload, 0, 0, 31, low=-ANY, high=ANY) == Run(30, 30 * 18, 0, False)


def test_timestamps_out_of_bounds_are_left_to_the_walk() -> None:
    payload, _ = batch([Record(0, TIME + i, b"k", b"x") for i in range(30)])
    assert equal_run(payload, 0, 0, 30, low=-ANY, high=29) is not None
    assert equal_run(payload, 0, 0, 30, low=-ANY, high=28) is None
    assert equal_run(payload, 0, 0, 30, low=-63, high=ANY) is None
    payload, _ = batch([Record(0, TIME, b"first"), *(Record(0, TIME + 64 + i, b"k", b"x") for i in range(40))])
    start = payload.index(b"first") + len(b"first") + 2
    assert equal_run(payload, start, 1, 41, low=0, high=ANY) is not None
    assert equal_run(payload, start, 1, 41, low=1, high=ANY) is None


def test_records_that_are_wrong_in_the_same_way_are_no_run() -> None:
    payload, header = batch([Record(0, TIME, b"k", b"xy\0") for _ in range(40)])
    size = len(payload) // 40
    alike = bytearray(payload)
    alike[6::size] = bytes([4]) * 40  # values of two bytes, the third is taken for the count of headers
    assert verdict(bytes(alike), header) == one_by_one(bytes(alike), header)
    assert verdict(bytes(alike), header)[0] == "refused"
