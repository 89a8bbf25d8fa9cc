"""Batches walked side by side: what adds up does so in a walk one by one, with the same latest time."""

import random
import struct

import pytest
from broken_records import BOUNDS, TIME, Payload, broken_payload, header_of, verdict, walked_in_python

np = pytest.importorskip("numpy")

from minibroker.rules.rows import Log, LogFacts  # noqa: E402
from minibroker.rules.scan import RECORDS  # noqa: E402
from minibroker_pipeline import headers, lockstep  # noqa: E402
from minibroker_protocol.fields import as_int64  # noqa: E402
from minibroker_protocol.records import Record, build_batch  # noqa: E402
from minibroker_protocol.records.batch import crc32c  # noqa: E402
from minibroker_protocol.records.walk import decode_payload  # noqa: E402

FACTS = LogFacts(Log("", "t", 0), 0, 0)


def sound_and_latest(payloads: list[Payload]) -> list[tuple[bool, int]]:
    ends = np.cumsum([len(payload.data) for payload in payloads])
    begins = np.concatenate(([0], ends[:-1]))
    raw = np.frombuffer(b"".join(payload.data for payload in payloads), np.uint8)
    sound, latest = lockstep.latest_deltas(raw, begins, ends, np.array([payload.count for payload in payloads]), 1)
    return list(zip(sound.tolist(), latest.tolist(), strict=True))


@pytest.mark.parametrize("seed", range(2))
def test_a_walk_one_by_one_says_the_same(seed: int) -> None:
    rng = random.Random(seed)
    payloads = [broken_payload(rng)._replace(bounds=BOUNDS[0]) for _ in range(1000)]
    payloads = [payload for payload in payloads if payload.count]
    refused = 0
    with walked_in_python():
        for payload, (sound, latest) in zip(payloads, sound_and_latest(payloads), strict=True):
            walked = verdict(payload)
            refused += walked[0] == "refused"
            if sound:
                assert walked[3:4] == (as_int64(TIME + latest),)
            elif walked[0] != "refused":
                records = decode_payload(payload.data, header_of(payload.count))
                assert max(len(record.headers) for record in records) > 16
    assert refused > 150


def test_a_header_without_a_name_is_walked_one_by_one() -> None:
    null = b"\1"  # the length -1
    named, nameless = b"\x10\0\0\0" + null + null + b"\2\0" + null, b"\x10\0\0\0" + null + null + b"\2" + null + null
    payloads = [Payload(data, 1, BOUNDS[0], want_keys=False) for data in (named, nameless)]
    assert [sound for sound, _ in sound_and_latest(payloads)] == [True, False]
    assert ["refused" in verdict(payload) for payload in payloads] == [False, True]


def uneven_log(batches: int, rng: random.Random, **header: int) -> bytearray:
    log = bytearray()
    for offset in range(0, 5 * batches, 5):
        records = [Record(offset + i, TIME + i, rng.randbytes(i), rng.randbytes(rng.randint(0, 99))) for i in range(5)]
        log += build_batch(records, **header)
    return log


def test_batches_that_add_up_are_not_walked_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headers, "IS_NATIVE", False)
    log = uneven_log(lockstep.FEWEST, random.Random(1))
    walked: list[int] = []

    def batch_fault(facts: object, path: str, position: int, *others: object) -> None:
        walked.append(position)

    monkeypatch.setattr(headers, "batch_fault", batch_fault)

    def walked_of(last: bytes) -> list[int]:
        walked.clear()
        headers.scan_bytes(FACTS, f"{0:020d}.log", memoryview(bytes(log) + last), depth=RECORDS)
        return [position - len(log) for position in walked]

    last = uneven_log(1, random.Random(2))
    assert walked_of(last) == []
    assert walked_of(uneven_log(1, random.Random(2), compression=1)) == [0]
    last[-2] ^= 1
    assert walked_of(last) == [0]
    last[-2] ^= 1
    struct.pack_into(">q", last, 35, TIME + 5)  # the latest time, of the header
    struct.pack_into(">I", last, 17, crc32c(memoryview(last)[21:]))
    assert walked_of(last) == [0]
