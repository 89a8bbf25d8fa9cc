"""Runs of uneven records are seen as such, and never change what a walk one by one would say."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from unittest.mock import patch

import pytest

from minibroker_protocol.records import (
    BatchHeader,
    InvalidRecords,
    Record,
    Walk,
    build_batch,
    parse_header,
    records_payload,
    uneven,
    validate_records,
    walk,
)
from minibroker_protocol.records.uneven import uneven_run

TIME = 1_600_000_000_000
ANY = 1 << 64

Times = Callable[[random.Random, int], int]
Keys = Callable[[random.Random], bytes | None]
Verdict = tuple[object, ...]

TIMES: dict[str, Times] = {
    "one": lambda rng, i: 0,
    "growing": lambda rng, i: i // 9,
    "long": lambda rng, i: 100 + i,
    "any": lambda rng, i: rng.randint(-60, 60),
    "far": lambda rng, i: 9000,
    "widths": lambda rng, i: rng.choice((0, 0, 0, 0, 70)),
}
KEYS: dict[str, Keys] = {
    "null": lambda rng: None,
    "empty": lambda rng: b"",
    "fixed": lambda rng: b"key!",
    "two": lambda rng: rng.choice((b"k1", b"key2")),
    "some null": lambda rng: rng.choice((None, b"k")),
}


@pytest.fixture(autouse=True)
def at_once() -> Iterator[None]:
    """Expressions are compiled for whatever comes, and small."""
    with (
        patch.object(uneven, "WALKED_PER_BRANCH", 0),
        patch.object(uneven, "FEWEST", 64),
        patch.object(uneven, "_BANDS", (128, 256)),
    ):
        yield


def payload_of(records: list[Record]) -> tuple[bytes, BatchHeader]:
    for offset, record in enumerate(records):
        record.offset = offset
    data = build_batch(records)
    header = parse_header(data)
    return records_payload(data, 0, header), header


def uneven_records(rng: random.Random, count: int, time: Times, key: Keys, largest: int = 100) -> list[Record]:
    return [Record(0, TIME + time(rng, i), key(rng), rng.randbytes(rng.randint(0, largest))) for i in range(count)]


def verdict(payload: bytes, header: BatchHeader, low: int | None = None, high: int | None = None) -> Verdict:
    try:
        with patch.object(walk, "MOST_FAULTS", 1 << 31):  # where a walk that is refused anyway ends is up to the way
            found: Walk = validate_records(payload, header, want_keys=True, min_timestamp=low, max_timestamp=high)
    except InvalidRecords as error:
        return ("refused", str(error))
    return tuple(getattr(found, name) for name in Walk.__slots__)


def walked(payload: bytes, header: BatchHeader, low: int | None = None, high: int | None = None) -> Verdict:
    with (
        patch.object(walk, "equal_run", lambda *args, **bounds: None),
        patch.object(walk, "uneven_run", lambda *args, **bounds: None),
    ):
        return verdict(payload, header, low, high)


@pytest.mark.parametrize("time", TIMES)
@pytest.mark.parametrize("key", KEYS)
def test_the_same_is_found(time: str, key: str) -> None:
    rng = random.Random(f"{time} {key}")
    payload, header = payload_of(uneven_records(rng, 500, TIMES[time], KEYS[key]))
    assert verdict(payload, header) == walked(payload, header)
    for low, high in ((TIME, TIME + 5), (TIME - 61, TIME + 200), (TIME + 1, TIME + 10_000)):
        assert verdict(payload, header, low, high) == walked(payload, header, low, high)


@pytest.mark.parametrize(("time", "key"), [("growing", "null"), ("long", "fixed"), ("any", "two")])
def test_damage_is_found_alike(time: str, key: str) -> None:
    rng = random.Random(7)
    payload, header = payload_of(uneven_records(rng, 300, TIMES[time], KEYS[key]))
    for _ in range(300):
        damaged = bytearray(payload)
        for _ in range(rng.choice((1, 1, 2))):
            at = rng.randrange(len(damaged))
            damaged[at] = rng.choice((damaged[at] ^ 1, damaged[at] ^ 0x80, 0, 1, rng.randrange(256)))
        data = bytes(damaged)
        assert verdict(data, header) == walked(data, header)
    for cut in (1, 2, 50, 3000):
        assert verdict(payload[:-cut], header) == walked(payload[:-cut], header)
        assert verdict(payload + bytes(cut), header) == walked(payload + bytes(cut), header)


def positions(payload: bytes) -> Iterator[tuple[int, int]]:
    """(start, position after the size) of each record."""
    p = 0
    while p < len(payload):
        size, after = uneven.varint(payload, p)
        yield p, after
        p = after + size


@pytest.mark.parametrize("field", ["size", "value length", "key length", "headers", "offset"])
def test_each_field_of_a_record_in_the_middle_is_looked_at(field: str) -> None:
    rng = random.Random(3)
    records = [Record(0, TIME, b"key", rng.randbytes(rng.randint(70, 100))) for _ in range(300)]
    payload, header = payload_of(records)
    start, head = list(positions(payload))[200]
    stop = list(positions(payload))[201][0]
    at = {"size": start, "value length": head + 8, "key length": head + 4, "headers": stop - 1, "offset": head + 2}[
        field
    ]
    damaged = bytearray(payload)
    damaged[at] ^= 2
    found = verdict(bytes(damaged), header)
    assert found == walked(bytes(damaged), header)
    assert found != verdict(payload, header)


def test_a_run_goes_as_far_as_the_layout() -> None:
    rng = random.Random(5)
    records = uneven_records(rng, 400, TIMES["one"], KEYS["null"])
    records[300].headers = [("h", b"v")]
    payload, _ = payload_of(records)
    start = next(start for i, (start, _) in enumerate(positions(payload)) if i == 64)
    stop = next(start for i, (start, _) in enumerate(positions(payload)) if i == 300)
    run = uneven_run(payload, start, 64, 400, low=-ANY, high=ANY)
    assert run is not None
    assert (run.records, run.size, run.delta, run.delta_index, run.null_keys) == (236, stop - start, 0, 0, True)
    run = uneven_run(payload, start, 64, 200, low=-ANY, high=ANY)
    assert run is not None
    assert run.records == 136


def test_offsets_of_every_width_are_in_runs() -> None:
    rng = random.Random(6)
    payload, header = payload_of(uneven_records(rng, 9000, TIMES["growing"], KEYS["null"], largest=20))
    runs = []

    def watching(data: bytes, p: int, index: int, limit: int, *, low: int, high: int) -> uneven.Run | None:
        run = uneven_run(data, p, index, limit, low=low, high=high)
        if run is not None:
            runs.append((index, run.records))
        return run

    with patch.object(walk, "uneven_run", watching), patch.object(uneven, "AT_ONCE", 1000):
        assert verdict(payload, header) == walked(payload, header)
    assert max(records for _, records in runs) == 1000
    assert sum(records for _, records in runs) > 7000
    assert {index >= 8192 for index, _ in runs} == {True, False}


def test_an_expression_waits_until_it_is_worth_its_making() -> None:
    rng = random.Random(8)
    payload, _ = payload_of(uneven_records(rng, 400, TIMES["one"], KEYS["empty"]))
    start = list(positions(payload))[64][0]
    with patch.object(uneven, "WALKED_PER_BRANCH", 3), patch.object(uneven, "_walked", uneven.Counter()):
        found = [uneven_run(payload, start, 64, 400, low=-ANY, high=ANY) is not None for _ in range(4)]
        assert found == [False, False, True, True]


@pytest.mark.parametrize("key", [None, b"key"])
def test_a_size_is_what_the_fields_take(key: bytes | None) -> None:
    rng = random.Random(9)
    records = [Record(0, TIME, key, bytes(rng.randint(50, 80))) for _ in range(200)]
    for length in range(100):
        records[150].value = bytes(length)
        payload, header = payload_of(records)
        start, head = list(positions(payload))[150]
        size = head - start
        assert verdict(payload, header) == walked(payload, header)
        for wrong in (-2, 2):
            damaged = bytearray(payload)
            damaged[start] = (damaged[start] + wrong) & 0x7F | damaged[start] & 0x80
            found = verdict(bytes(damaged), header)
            assert found[0] == "refused", (length, size, wrong)
            assert found == walked(bytes(damaged), header)
