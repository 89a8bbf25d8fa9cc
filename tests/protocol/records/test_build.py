"""The short way to a batch of one record gives what the long way gives."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from minibroker_protocol.records import Record, build_batch, crc_ok, decode_records, lone_batch, parse_header

PARTS = st.none() | st.binary(max_size=80) | st.binary(min_size=1000, max_size=1100)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "producer_id": st.integers(-1, 2**63 - 1),
        "producer_epoch": st.integers(-1, 32767),
        "base_sequence": st.integers(-1, 2**31 - 1),
        "transactional": st.booleans(),
        "control": st.booleans(),
        "base_offset": st.integers(0, 2**63 - 1),
        "leader_epoch": st.integers(-1, 2**31 - 1),
    },
)


@given(key=PARTS, value=PARTS, timestamp=st.integers(-1, 2**63 - 1), fields=FIELDS)
def test_a_lone_record(key: bytes | None, value: bytes | None, timestamp: int, fields: dict[str, Any]) -> None:
    built = lone_batch(key, value, timestamp, **fields)
    assert type(built) is bytearray
    assert built == build_batch([Record(0, timestamp, key, value)], **fields)
    header = parse_header(built)
    assert crc_ok(built, 0, header)
    assert decode_records(built, 0, header) == [Record(header.base_offset, timestamp, key, value)]
