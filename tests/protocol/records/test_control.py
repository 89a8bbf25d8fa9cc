"""Transaction markers and other control records."""

from collections.abc import Callable

import pytest

from minibroker_protocol.records import (
    MARKERS,
    ControlRecord,
    ControlType,
    InvalidRecords,
    Record,
    build_batch,
    control_record,
    crc_ok,
    decode_records,
    end_txn_marker,
    parse_control,
    parse_header,
)


@pytest.mark.parametrize("commit", [True, False])
def test_marker_is_78_bytes_and_says_what_it_was_told(commit: bool) -> None:
    data = end_txn_marker(
        producer_id=2**40,
        producer_epoch=32767,
        commit=commit,
        coordinator_epoch=2**31 - 1,
        timestamp_ms=1_700_000_000_000,
        base_offset=12,
        leader_epoch=4,
    )
    header = parse_header(data)
    assert len(data) == 78
    assert crc_ok(data, 0, header)
    assert header.is_control
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (2**40, 32767, -1)
    assert (header.base_offset, header.partition_leader_epoch, header.last_offset) == (12, 4, 12)
    (record,) = decode_records(data, 0, header)
    assert record.offset == 12
    assert record.timestamp == 1_700_000_000_000
    said = parse_control(record)
    assert said == ControlRecord(ControlType.COMMIT if commit else ControlType.ABORT, 0, 2**31 - 1)
    assert said.type in MARKERS
    assert record.key == bytes([0, 0, 0, int(commit)])
    assert record.value == b"\0\0\x7f\xff\xff\xff"


@pytest.mark.parametrize("number", [2, 3, 4, 5, 6])
def test_other_control_records(number: int) -> None:
    said = parse_control(Record(key=bytes([0, 0, 0, number])))
    assert said == ControlRecord(ControlType(number), 0, None)
    assert said.type not in MARKERS


@pytest.mark.parametrize("number", [7, 500])
def test_unknown_type_is_no_error(number: int) -> None:
    assert parse_control(Record(key=b"\0\0" + number.to_bytes(2, "big"))).type is ControlType.UNKNOWN


def test_newer_marker_with_more_in_it() -> None:
    record = Record(key=b"\0\1\0\1more", value=b"\0\1\0\0\0\5more")
    assert parse_control(record) == ControlRecord(ControlType.COMMIT, 1, 5)


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        (None, b"", "key of no bytes"),
        (b"\0\0\0", b"", "key of 3 bytes"),
        (b"\xff\xff\0\1", b"\0\0\0\0\0\0", "key version -1"),
        (b"\0\0\0\1", None, "value of no bytes"),
        (b"\0\0\0\1", b"\0\0\0\0\0", "value of 5 bytes"),
        (b"\0\0\0\0", b"\xff\xff\0\0\0\0", "value version -1"),
    ],
)
def test_short_control_records(key: bytes | None, value: bytes | None, why: str) -> None:
    with pytest.raises(InvalidRecords, match=why):
        parse_control(Record(key=key, value=value))


def test_a_marker_that_is_read_where_it_lies_is_what_its_record_says() -> None:
    """Each byte of the record takes other values: the short way accepts nothing that the long one refuses."""

    def outcome(read: Callable[[], ControlRecord | None]) -> object:
        try:
            return read()
        except InvalidRecords as error:
            return type(error)

    marker = end_txn_marker(producer_id=1, producer_epoch=2, commit=True, coordinator_epoch=3, timestamp_ms=4)
    for position in range(61, len(marker)):
        for value in (*range(4), 8, 12, 32, 127, 128, 255):
            data = bytearray(5) + marker
            data[5 + position] = value
            header = parse_header(data, 5)
            short = outcome(lambda data=data, header=header: control_record(data, 5, header))
            long = outcome(lambda data=data, header=header: parse_control(decode_records(data, 5, header)[0]))
            assert short == long, (position, value)


@pytest.mark.parametrize(
    "records", [[], [Record(key=b"\0\0\0\2", value=b"")], [Record(key=b"\0\0\0\1", value=bytes(9))]]
)
def test_other_control_batches_are_decoded(records: list[Record]) -> None:
    data = build_batch(records, control=True)
    header = parse_header(data)
    assert control_record(data, 0, header) == (parse_control(records[0]) if records else None)
