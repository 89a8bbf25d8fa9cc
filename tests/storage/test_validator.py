"""Every refusal that Kafka 4.3.1 was recorded to give for a batch, and what it writes into those it takes."""

import dataclasses
from typing import Any

import cramjam
import pytest

from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_protocol.records import (
    BatchHeader,
    Record,
    assemble,
    build_batch,
    crc_ok,
    decode_records,
    end_txn_marker,
    parse_header,
    records_payload,
    rewrite_header,
)
from minibroker_storage.config import LogConfig
from minibroker_storage.origin import Origin
from minibroker_storage.validator import ValidatedBatches, check_client_batch, client_batch, validate_and_assign

NOW = 1_700_000_000_000
HOUR = 3_600_000
COMPACTED = LogConfig(cleanup_policy=frozenset({"compact"}))
APPEND_TIME = LogConfig(message_timestamp_type="LogAppendTime")


def batch(*values: bytes, timestamp: int = NOW, **fields: Any) -> bytearray:
    return build_batch([Record(0, timestamp, None, value) for value in values or (b"a", b"b")], **fields)


def altered(data: bytearray, **fields: int) -> bytearray:
    """The batch with other header fields and the right CRC for them."""
    data = bytearray(data)
    header = parse_header(data)
    for name, value in fields.items():
        setattr(header, name, value)
    rewrite_header(data, 0, header)
    return data


def run(records: Any, config: LogConfig = LogConfig(), **more: Any) -> ValidatedBatches:  # noqa: B008  # frozen
    arguments: dict[str, Any] = {
        "base_offset": 100,
        "now_ms": NOW,
        "leader_epoch": 3,
        "origin": Origin.CLIENT,
        "api_version": 9,
    } | more
    check = {name: arguments.pop(name) for name in ("strict", "compacted", "max_decompressed") if name in arguments}
    if check:
        now = {name: arguments[name] for name in ("now_ms", "api_version")}
        arguments["checked"] = check_client_batch(records, config=config, **now, **check)
    return validate_and_assign(records, config=config, **arguments)


def refusal(records: Any, config: LogConfig = LogConfig(), **more: Any) -> ApiError:  # noqa: B008  # frozen
    before = bytes(records) if records is not None else None
    with pytest.raises(ApiError) as info:
        run(records, config, **more)
    assert info.value.message
    if records is not None:
        assert bytes(records) == before, "a refused batch was changed"
    return info.value


def stored(result: ValidatedBatches) -> tuple[bytes, BatchHeader]:
    data = b"".join(result.buffers)
    header = parse_header(data)
    assert crc_ok(data, 0, header)
    assert len(data) == header.size == result.size
    assert result.headers == [header]
    return data, header


@pytest.mark.parametrize("writable", [True, False])
@pytest.mark.parametrize("strict", [True, False])
def test_offsets_and_leader_epoch_are_set_and_nothing_else(writable: bool, strict: bool) -> None:
    sent = batch(b"x", b"y", b"z", leader_epoch=9, producer_id=7, producer_epoch=1, base_sequence=5)
    result = run(sent if writable else bytes(sent), strict=strict)
    data, header = stored(result)
    assert (header.base_offset, header.partition_leader_epoch, header.last_offset) == (100, 3, 102)
    assert data[:8] + data[16:] == (100).to_bytes(8, "big") + bytes(sent[16:])
    assert (result.max_timestamp, result.log_append_time_ms) == (NOW, -1)
    assert result.last_offset == 102


def test_a_writable_buffer_is_patched_in_place() -> None:
    sent = batch()
    (buffer,) = run(sent).buffers
    assert isinstance(buffer, memoryview)
    assert buffer.obj is sent
    assert parse_header(sent).base_offset == 100


def test_a_read_only_buffer_is_left_alone_and_its_records_not_copied() -> None:
    sent = bytes(batch(b"x" * 5000))
    before = bytes(bytearray(sent))
    _, records = run(sent).buffers
    assert sent == before
    assert isinstance(records, memoryview)
    assert records.obj is sent


# ProduceRequest.validateRecords


@pytest.mark.parametrize(
    ("records", "code"),
    [
        (None, ErrorCode.INVALID_RECORD),
        (b"", ErrorCode.INVALID_RECORD),
        (bytes(11), ErrorCode.INVALID_RECORD),
        (bytes(batch())[:-1], ErrorCode.INVALID_RECORD),
        (bytes(batch())[:61], ErrorCode.INVALID_RECORD),
        (bytes(batch())[:16], ErrorCode.INVALID_RECORD),
        (bytes(batch() + batch()), ErrorCode.INVALID_RECORD),
        (bytes(batch())[:16] + b"\1" + bytes(batch())[17:], ErrorCode.INVALID_RECORD),
        (bytes(8) + b"\0\0\0\x16" + bytes(22), ErrorCode.INVALID_RECORD),
        (bytes(batch())[:16] + b"\3" + bytes(batch())[17:], ErrorCode.CORRUPT_MESSAGE),
        (bytes(8) + b"\0\0\0\x0d" + bytes(100), ErrorCode.CORRUPT_MESSAGE),
        (bytes(8) + b"\xff\xff\xff\xff" + bytes(100), ErrorCode.CORRUPT_MESSAGE),
        (bytes(8) + b"\0\0\0\x20" + b"\0\0\0\0\2" + bytes(100), ErrorCode.CORRUPT_MESSAGE),
        (bytes(8) + b"\0\0\0\x20" + b"\0\0\0\0\2" + bytes(27), ErrorCode.CORRUPT_MESSAGE),
        (bytes(batch()) + bytes(8) + b"\0\0\0\1", ErrorCode.CORRUPT_MESSAGE),
    ],
)
def test_bytes_that_are_not_one_batch(records: bytes | None, code: ErrorCode) -> None:
    assert refusal(records).code == code


@pytest.mark.parametrize("tail", [b"x", bytes(11), bytes(8) + b"\0\0\0\x30" + bytes(4), bytes(batch())[:-1]])
def test_an_incomplete_rest_is_cut_off(tail: bytes) -> None:
    sent = batch()
    data, _ = stored(run(sent + tail))
    assert len(data) == len(sent)


def test_zstd_needs_produce_v7() -> None:
    sent = batch(compression=4)
    assert refusal(sent, api_version=6).code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    stored(run(sent, api_version=7))
    stored(run(batch(compression=3), api_version=3))


def test_the_handler_can_ask_before_the_log_does() -> None:
    assert client_batch(batch(producer_id=5, producer_epoch=0, base_sequence=0), 9).producer_id == 5


# UnifiedLog.analyzeAndValidateRecords, LogValidator.validateBatch


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (batch(base_offset=77), ErrorCode.INVALID_RECORD),
        (altered(batch(), record_count=3), ErrorCode.INVALID_RECORD),
        (altered(batch(), record_count=1), ErrorCode.INVALID_RECORD),
        (altered(batch(), last_offset_delta=4), ErrorCode.INVALID_RECORD),
        (altered(batch(), last_offset_delta=0), ErrorCode.INVALID_RECORD),
        (altered(batch(), record_count=3, last_offset_delta=2), ErrorCode.INVALID_RECORD),
        (altered(batch(), record_count=1, last_offset_delta=0), ErrorCode.INVALID_RECORD),
        (build_batch([]), ErrorCode.INVALID_RECORD),
        (build_batch([], last_offset_delta=-1), ErrorCode.INVALID_RECORD),
        (batch(control=True), ErrorCode.INVALID_RECORD),
        (batch(producer_id=0, producer_epoch=0, base_sequence=-1), ErrorCode.INVALID_RECORD),
        (altered(batch(), attributes=5), ErrorCode.UNKNOWN_SERVER_ERROR),
        (altered(batch(), attributes=1), ErrorCode.UNKNOWN_SERVER_ERROR),
        (altered(batch(compression=2), attributes=3), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_batches_that_contradict_themselves(sent: bytearray, code: ErrorCode) -> None:
    assert refusal(sent).code == code


def test_bad_crc() -> None:
    sent = batch()
    sent[-1] ^= 1
    assert refusal(sent).code == ErrorCode.CORRUPT_MESSAGE
    assert refusal(sent, strict=False).code == ErrorCode.CORRUPT_MESSAGE


def test_lz4_of_linked_blocks() -> None:
    plain = batch()
    header = parse_header(plain)
    header.attributes = 3
    linked = assemble(header, bytes(cramjam.lz4.compress(bytes(plain[61:]))))
    assert refusal(linked).code == ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize("pid", [-2, -1])
def test_a_negative_producer_id_is_none(pid: int) -> None:
    stored(run(batch(producer_id=pid, producer_epoch=0, base_sequence=-1)))


def test_size_limits() -> None:
    sent = batch(b"x" * 500)
    assert refusal(sent, LogConfig(max_message_bytes=len(sent) - 1)).code == ErrorCode.MESSAGE_TOO_LARGE
    # the size is looked at before the checksum, the base offset before the size
    broken = bytearray(sent)
    broken[-1] ^= 1
    assert refusal(broken, LogConfig(max_message_bytes=100)).code == ErrorCode.MESSAGE_TOO_LARGE
    broken[7] = 1
    assert refusal(broken, LogConfig(max_message_bytes=100)).code == ErrorCode.INVALID_RECORD
    assert refusal(sent, LogConfig(segment_bytes=len(sent) - 1)).code == ErrorCode.RECORD_LIST_TOO_LARGE
    stored(run(sent, LogConfig(max_message_bytes=len(sent), segment_bytes=len(sent))))


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("compression", [0, 1, 2, 3, 4])
def test_a_record_is_measured_by_the_size_it_says_of_itself(compression: int, strict: bool) -> None:
    """As a live Kafka 4.4.0 took a value of 993 bytes and refused one of 994, and only in compressed batches."""
    config = LogConfig(max_decompressed_message_bytes=1000)
    stored(run(batch(b"a", bytes(993), bytes(993), compression=compression), config, strict=strict))
    sent = batch(b"a", bytes(994), compression=compression)
    if compression == 0:
        stored(run(sent, config, strict=strict))
    else:
        assert refusal(sent, config, strict=strict).code == ErrorCode.INVALID_RECORD


def test_a_bomb_is_too_large() -> None:
    sent = batch(bytes(5_000_000), compression=4)
    assert len(sent) < 5000
    assert refusal(sent, max_decompressed=1_000_000).code == ErrorCode.MESSAGE_TOO_LARGE


# records: keys and timestamps


@pytest.mark.parametrize("compression", [0, 1])
def test_a_compacted_topic_names_the_records_without_a_key(compression: int) -> None:
    records = [Record(0, NOW, b"k", b"1"), Record(0, NOW, None, b"2"), Record(0, NOW, None, b"3")]
    sent = build_batch(records, compression=compression)
    for strict in (True, False):
        said = refusal(sent, COMPACTED, strict=strict)
        assert said.code == ErrorCode.INVALID_RECORD
        assert [index for index, _ in said.record_errors] == [1, 2]
    assert refusal(sent, compacted=True).record_errors == said.record_errors
    stored(run(build_batch(records[:1], compression=compression), COMPACTED))


@pytest.mark.parametrize("compression", [0, 4])
@pytest.mark.parametrize(
    ("timestamp", "before", "after", "good"),
    [
        (NOW + HOUR, None, None, True),
        (NOW + HOUR + 1, None, None, False),
        (-1, None, None, True),
        (-1, 1000, None, True),
        (0, None, None, True),
        (NOW - 1000, 1000, None, True),
        (NOW - 1001, 1000, None, False),
        (NOW + 5, None, 5, True),
        (NOW + 6, None, 5, False),
    ],
)
def test_create_time_bounds(
    compression: int, timestamp: int, before: int | None, after: int | None, good: bool
) -> None:
    config = LogConfig()
    if before is not None:
        config = dataclasses.replace(config, message_timestamp_before_max_ms=before)
    if after is not None:
        config = dataclasses.replace(config, message_timestamp_after_max_ms=after)
    sent = build_batch([Record(0, NOW), Record(0, timestamp), Record(0, NOW)], compression=compression)
    if good:
        stored(run(bytes(sent), config))
    else:
        said = refusal(sent, config)
        assert said.code == ErrorCode.INVALID_TIMESTAMP
        assert [index for index, _ in said.record_errors] == [1]
        assert str(timestamp) in said.record_errors[0][1]
    stored(run(bytes(sent), dataclasses.replace(config, message_timestamp_type="LogAppendTime")))


def test_a_bad_timestamp_decides_the_code_over_a_null_key() -> None:
    sent = build_batch([Record(0, NOW, None), Record(0, NOW + 2 * HOUR, b"k"), Record(0, NOW + 2 * HOUR, None)])
    said = refusal(sent, COMPACTED)
    assert said.code == ErrorCode.INVALID_TIMESTAMP
    assert [index for index, _ in said.record_errors] == [0, 1, 2]
    assert said.record_errors[0][1] == said.record_errors[2][1] != said.record_errors[1][1]


def test_light_looks_at_the_headers_timestamp_only() -> None:
    assert refusal(batch(timestamp=NOW + HOUR + 1), strict=False).code == ErrorCode.INVALID_TIMESTAMP
    lying = altered(batch(timestamp=NOW + HOUR + 1), max_timestamp=NOW)
    stored(run(bytes(lying), strict=False))
    assert refusal(lying).code == ErrorCode.INVALID_TIMESTAMP


@pytest.mark.parametrize("compression", [0, 3])
@pytest.mark.parametrize("writable", [True, False])
def test_max_timestamp_is_corrected(compression: int, writable: bool) -> None:
    records = [Record(0, NOW - 5, None, b"a"), Record(0, NOW - 2, None, b"b"), Record(0, NOW - 2, None, b"c")]
    sent = altered(build_batch(records, compression=compression), max_timestamp=NOW - 500)
    result = run(sent if writable else bytes(sent))
    _, header = stored(result)
    assert header.max_timestamp == result.max_timestamp == NOW - 2


# timestamp types


@pytest.mark.parametrize("compression", [0, 2])
@pytest.mark.parametrize("writable", [True, False])
def test_log_append_time(compression: int, writable: bool) -> None:
    sent = batch(b"a", b"b", timestamp=1000, compression=compression)
    result = run(sent if writable else bytes(sent), APPEND_TIME)
    data, header = stored(result)
    assert header.log_append_time
    assert header.base_timestamp == 1000
    assert [record.timestamp for record in decode_records(data, 0, header)] == [NOW, NOW]
    assert (result.log_append_time_ms, result.max_timestamp) == (NOW, NOW)


def test_a_producer_may_not_say_log_append_time() -> None:
    sent = batch(b"a", b"b", timestamp_type=1)
    said = refusal(sent, APPEND_TIME)
    assert said.code == ErrorCode.INVALID_TIMESTAMP
    assert [index for index, _ in said.record_errors] == [0, 1]


def test_on_a_create_time_topic_the_flag_is_cleared() -> None:
    result = run(batch(b"a", timestamp=NOW - 9, timestamp_type=1, max_timestamp=NOW - 4))
    _, header = stored(result)
    assert not header.log_append_time
    assert header.max_timestamp == NOW - 4
    assert refusal(batch(b"a", timestamp=-1, timestamp_type=1)).code == ErrorCode.INVALID_TIMESTAMP
    assert refusal(batch(b"a", timestamp=NOW + 2 * HOUR, timestamp_type=1)).code == ErrorCode.INVALID_TIMESTAMP


# building anew


@pytest.mark.parametrize("source", range(5))
@pytest.mark.parametrize("target", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_the_topics_codec(source: int, target: str) -> None:
    number = ["uncompressed", "gzip", "snappy", "lz4", "zstd"].index(target)
    records = [Record(i, NOW + i, b"k%d" % i, b"v" * 50, [("h", b"1")]) for i in range(20)]
    fields = {"producer_id": 9, "producer_epoch": 4, "base_sequence": 33, "transactional": True}
    sent = build_batch(records, compression=source, **fields)  # type: ignore[arg-type]
    result = run(sent, LogConfig(compression_type=target))
    data, header = stored(result)
    assert (data[61:] == sent[61:]) == (source == number)
    assert header.compression == number
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 4, 33)
    assert header.is_transactional
    assert (header.base_offset, header.last_offset, header.partition_leader_epoch) == (100, 119, 3)
    assert result.max_timestamp == NOW + 19
    for i, record in enumerate(records):
        record.offset = 100 + i
    assert decode_records(data, 0, header) == records


@pytest.mark.parametrize(("codec", "low", "high"), [("gzip", 1, 9), ("zstd", 1, 19)])
def test_the_topics_level_of_compression(codec: str, low: int, high: int) -> None:
    text = b" ".join(str(number * number).encode() for number in range(5000))
    sizes = []
    for level in (low, high):
        config = dataclasses.replace(LogConfig(compression_type=codec), **{f"compression_{codec}_level": level})
        sizes.append(stored(run(batch(text), config))[1].size)
    assert sizes[0] > sizes[1]


def test_log_append_time_with_another_codec() -> None:
    result = run(batch(compression=1), dataclasses.replace(APPEND_TIME, compression_type="uncompressed"))
    _, header = stored(result)
    assert header.log_append_time
    assert (header.compression, header.max_timestamp, result.log_append_time_ms) == (0, NOW, NOW)


@pytest.mark.parametrize(
    ("compression", "config", "offsets"),
    [(0, "producer", [100, 105]), (1, "zstd", [100, 101]), (0, "gzip", [100, 101])],
)
def test_offset_deltas_with_gaps(compression: int, config: str, offsets: list[int]) -> None:
    """Kafka numbers records anew when it changes the codec, and leaves those of a plain batch as they are."""
    records = [Record(0, NOW, b"a"), Record(5, NOW, b"b")]
    sent = build_batch(records, compression=compression, keep_offsets=True, last_offset_delta=1)
    result = run(sent, LogConfig(compression_type=config))
    data, header = stored(result)
    assert [r.offset for r in decode_records(data, 0, header)] == offsets


def test_offset_deltas_with_gaps_in_a_compressed_batch() -> None:
    """Kafka 4.3.1 answers -1 to such a batch, gzip, deltas 0, 2, 4, and to one with deltas 0, 0, 0 alike."""
    for deltas in ((0, 2, 4), (0, 0, 0)):
        records = [Record(delta, NOW, b"a") for delta in deltas]
        sent = build_batch(records, compression=1, keep_offsets=True, last_offset_delta=2)
        assert refusal(sent).code == ErrorCode.UNKNOWN_SERVER_ERROR


def test_what_recompression_makes_too_large() -> None:
    sent = batch(bytes(5000), compression=1)
    limits = LogConfig(compression_type="uncompressed", max_message_bytes=1000)
    assert len(sent) < 1000
    assert refusal(sent, limits).code == ErrorCode.MESSAGE_TOO_LARGE


# what this broker wrote itself


def test_a_coordinators_batches_are_numbered_one_after_the_other() -> None:
    marker = end_txn_marker(producer_id=1, producer_epoch=0, commit=True, coordinator_epoch=0, timestamp_ms=NOW - 1)
    sent = batch(b"a", b"b") + marker
    result = run(sent, COMPACTED, origin=Origin.COORDINATOR)
    assert [(header.base_offset, header.last_offset) for header in result.headers] == [(100, 101), (102, 102)]
    assert (result.max_timestamp, result.last_offset) == (NOW, 102)
    data = b"".join(result.buffers)
    pos = 0
    for header in result.headers:
        assert parse_header(data, pos) == header
        assert crc_ok(data, pos, header)
        assert records_payload(data, pos, header)
        pos += header.size


def test_a_coordinators_batches_get_the_append_time_too() -> None:
    result = run(batch(timestamp=5), APPEND_TIME, origin=Origin.COORDINATOR)
    _, header = stored(result)
    assert (header.log_append_time, header.max_timestamp, result.log_append_time_ms) == (True, NOW, NOW)


@pytest.mark.parametrize("records", [b"", b"x", bytes(batch()) + b"x"])
def test_a_coordinators_batches_must_be_whole(records: bytes) -> None:
    assert refusal(records, origin=Origin.COORDINATOR).code == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("copy", [bytes, bytearray])
def test_a_coordinators_batches_keep_to_the_limits(copy: type[bytes] | type[bytearray]) -> None:
    sent = copy(batch())
    assert run(sent, LogConfig(max_message_bytes=len(sent), segment_bytes=len(sent)), origin=Origin.COORDINATOR).headers
    small = LogConfig(max_message_bytes=len(sent) - 1)
    assert refusal(sent, small, origin=Origin.COORDINATOR).code == ErrorCode.MESSAGE_TOO_LARGE
    small = LogConfig(segment_bytes=len(sent) - 1)
    assert refusal(sent, small, origin=Origin.COORDINATOR).code == ErrorCode.RECORD_LIST_TOO_LARGE


def test_a_coordinators_batch_is_numbered_alike_in_a_buffer_of_its_own() -> None:
    sent = batch(b"a", b"b", b"c", timestamp=-1)
    assert type(sent) is bytearray
    alone, copied = (run(one, origin=Origin.COORDINATOR) for one in (sent, bytes(sent)))
    assert b"".join(alone.buffers) == b"".join(copied.buffers)
    assert alone.headers == copied.headers
    for field in ("max_timestamp", "log_append_time_ms", "last_offset"):
        assert getattr(alone, field) == getattr(copied, field), field
