"""Runs that compiled code walks never change what a walk one by one in Python says."""

from __future__ import annotations

import random
from unittest.mock import patch

import pytest

from minibroker_protocol.records import (
    BatchHeader,
    InvalidRecords,
    Record,
    Walk,
    build_batch,
    native,
    parse_header,
    records_payload,
    validate_records,
    walk,
)
from minibroker_protocol.records.native import native_run
from minibroker_protocol.records.varints import encode_varint

TIME = 1_600_000_000_000
ANY = 1 << 64

built = pytest.mark.skipif(
    not native.IS_NATIVE, reason="the compiled walk is not built: MINIBROKER_COMPILE=1 pip install -e ."
)

Verdict = tuple[object, ...]


def payload_of(records: list[Record]) -> tuple[bytes, BatchHeader]:
    for offset, record in enumerate(records):
        record.offset = offset
    data = build_batch(records)
    header = parse_header(data)
    return records_payload(data, 0, header), header


def random_records(rng: random.Random) -> list[Record]:
    key = rng.choice(
        (lambda: None, lambda: b"", lambda: rng.randbytes(rng.randint(0, 20)), lambda: rng.choice((None, b"k")))
    )
    time = rng.choice((lambda i: i, lambda i: rng.choice((0, i, rng.randint(-70, 9000), -TIME - 1))))
    headers = rng.choice((list, lambda: [("h" * rng.randint(0, 3), b"v")] * rng.choice((0, 1, 2, 17))))
    count = rng.choice((1, 2, 5, 24, 30, 70, 130))
    return [
        Record(0, TIME + time(i), key(), rng.choice((None, rng.randbytes(rng.randint(0, 90)))), headers())
        for i in range(count)
    ]


def damaged(rng: random.Random, payload: bytes) -> bytes:
    data = bytearray(payload)
    for _ in range(rng.randint(0, 3)):
        at = rng.randrange(len(data))
        data[at] = rng.choice((data[at] ^ 1, data[at] ^ 2, data[at] ^ 0x80, 0, 1, 0x80, rng.randrange(256)))
    if rng.random() < 0.2:
        at = rng.randrange(len(data))
        number = rng.choice((b"\xff" * 11, b"\x80" * rng.randint(1, 10) + b"\0", encode_varint(rng.getrandbits(63))))
        data[at : at + rng.randint(0, 9)] = number
    return bytes(data[: rng.randrange(len(data) + 1)] if rng.random() < 0.1 else data)


def verdict(payload: bytes, header: BatchHeader, times: tuple[int | None, int | None], keys: bool) -> Verdict:
    try:
        with patch.object(walk, "MOST_FAULTS", 1 << 31):  # where a walk that is refused anyway ends is up to the way
            walked: Walk = validate_records(
                payload, header, want_keys=keys, min_timestamp=times[0], max_timestamp=times[1]
            )
    except InvalidRecords as error:
        return ("refused", str(error))
    return tuple(getattr(walked, name) for name in Walk.__slots__)


@built
@pytest.mark.parametrize("seed", range(4))
def test_a_walk_in_python_says_the_same(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(60):
        payload, header = payload_of(random_records(rng))
        for _ in range(8):
            data, keys = damaged(rng, payload), rng.random() < 0.5
            times = rng.choice(((None, None), (TIME, TIME + 50), (TIME - 61, TIME + 9000), (2**63 - 1, 2**63 - 1)))
            compiled = verdict(data, header, times, keys)
            with (
                patch.object(walk, "IS_NATIVE", False),
                patch.object(walk, "native_run", lambda *args, **bounds: None),
                patch.object(walk, "equal_run", lambda *args, **bounds: None),
            ):
                assert compiled == verdict(data, header, times, keys)


@built
def test_a_run_ends_before_the_first_record_that_it_does_not_take() -> None:
    rng = random.Random(1)

    def made(**changed: object) -> list[Record]:
        records = [Record(0, TIME + i, b"key", rng.randbytes(i % 90), [("h", b"v")]) for i in range(200)]
        for name, value in changed.items():
            setattr(records[150], name, value)
        return records

    def run(payload: bytes, *, limit: int = 200, low: int = -ANY, high: int = ANY) -> tuple[int, int, int, bool]:
        taken = native_run(payload, 0, 0, limit, low=low, high=high)
        assert taken is not None
        return taken.records, taken.delta, taken.delta_index, taken.null_keys

    payload, _ = payload_of(made())
    assert run(payload) == (200, 199, 199, False)
    assert run(payload, limit=10) == (10, 9, 9, False)
    assert run(payload, high=120) == (121, 120, 120, False)
    assert native_run(payload, 0, 0, 200, low=1, high=ANY) is None
    assert native_run(payload, 0, 0, 200, low=ANY, high=ANY) is None
    assert native_run(payload, 0, 1, 200, low=-ANY, high=ANY) is None
    assert native_run(payload, len(payload), 0, 200, low=-ANY, high=ANY) is None
    assert run(payload[:-1])[0] == 199
    for changed in ({"key": None}, {"headers": [("h", b"v")] * 17}):
        assert run(payload_of(made(**changed))[0])[0] == 150
    assert run(payload_of(made(headers=[("h", b"v")] * 16))[0])[0] == 200
    assert native_run(payload_of(made(key=None))[0], 0, 0, 200, low=-ANY, high=ANY, alike=False)[0] == 200  # type: ignore[index]
    early, _ = payload_of(made(timestamp=TIME + 5000))
    assert run(early) == (200, 5000, 150, False)


@built
def test_a_large_batch_is_walked_in_a_few_calls() -> None:
    rng = random.Random(2)
    payload, header = payload_of(
        [Record(0, TIME + i, rng.randbytes(i % 20), rng.randbytes(i % 90), [("h", b"v")]) for i in range(20_000)]
    )
    with patch.object(walk._Walking, "one_by_one", side_effect=AssertionError("walked in Python")):
        found = validate_records(payload, header)
    assert (found.max_timestamp, found.consecutive) == (TIME + 19_999, True)


@built
@pytest.mark.parametrize("place", [(-1, 0, 9), (99, 0, 9), (0, -1, 9), (0, 0, -9), (2**62, 2**62, 2**62)])
def test_positions_outside_of_the_bytes_are_no_run(place: tuple[int, int, int]) -> None:
    payload, _ = payload_of([Record(0, TIME, b"k", b"v")] * 3)
    assert native._native.run(payload, *place, -1, 1, False)[0] == 0


def test_without_compiled_code_there_is_no_run() -> None:
    payload, _ = payload_of([Record(0, TIME, b"k", b"v") for _ in range(30)])
    with patch.object(native, "_native", None):
        assert native_run(payload, 0, 0, 30, low=-ANY, high=ANY) is None
