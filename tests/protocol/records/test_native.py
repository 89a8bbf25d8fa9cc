"""Runs that compiled code walks never change what a walk one by one in Python says."""

from __future__ import annotations

import random
from unittest.mock import patch

import pytest
from broken_records import TIME, broken_payload, shortest_runs, verdict, walked_in_python
from calls import Calls

from minibroker_protocol.records import (
    BatchHeader,
    Record,
    build_batch,
    native,
    parse_header,
    records_payload,
    validate_records,
)
from minibroker_protocol.records.native import native_run

ANY = 1 << 64

built = pytest.mark.skipif(
    not native.IS_NATIVE, reason="the compiled walk is not built: MINIBROKER_COMPILE=1 pip install -e ."
)


def payload_of(records: list[Record]) -> tuple[bytes, BatchHeader]:
    for offset, record in enumerate(records):
        record.offset = offset
    data = build_batch(records)
    header = parse_header(data)
    return records_payload(data, 0, header), header


@built
@pytest.mark.parametrize("seed", range(2))
def test_a_walk_in_python_says_the_same(seed: int) -> None:
    rng = random.Random(seed)
    payloads = [broken_payload(rng) for _ in range(1000)]
    with shortest_runs():
        compiled = [verdict(payload) for payload in payloads]
    with walked_in_python():
        assert compiled == [verdict(payload) for payload in payloads]
    assert sum(found[0] == "refused" for found in compiled) > 200


@built
def test_a_run_ends_before_the_first_record_that_it_does_not_take() -> None:
    rng = random.Random(1)

    def made(**changed: object) -> list[Record]:
        records = [Record(0, TIME + i, b"key", rng.randbytes(i % 90), [("h", b"v")]) for i in range(200)]
        for name, value in changed.items():
            setattr(records[150], name, value)
        return records

    def run(payload: bytes, *, limit: int = 200, low: int = -ANY, high: int = ANY) -> tuple[int, int, bool]:
        taken = native_run(payload, 0, 0, limit, low=low, high=high)
        assert taken is not None
        return taken.records, taken.delta, taken.null_keys

    payload, _ = payload_of(made())
    assert run(payload) == (200, 199, False)
    assert run(payload, limit=10) == (10, 9, False)
    assert run(payload, high=120) == (121, 120, False)
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
    assert run(early) == (200, 5000, False)


@built
def test_a_large_batch_is_walked_in_a_few_calls() -> None:
    rng = random.Random(2)
    payload, header = payload_of(
        [Record(0, TIME + i, rng.randbytes(i % 20), rng.randbytes(i % 90), [("h", b"v")]) for i in range(20_000)]
    )
    with Calls() as calls:
        found = validate_records(payload, header)
    assert calls.count < 200  # in Python it is several for each record
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
