"""Codecs: round trips, the framings other clients use, bombs, and payloads that cannot be read."""

import contextlib
import gzip
import struct
import tracemalloc
import zlib

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker_protocol.records import (
    Compression,
    PayloadTooLarge,
    TakesLong,
    UndecodablePayload,
    compress,
    decompress,
)

CODECS = [Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD]
MIB = 1024 * 1024


@pytest.mark.parametrize("codec", list(Compression))
@given(data=st.binary(max_size=3000))
def test_round_trip(codec: Compression, data: bytes) -> None:
    assert decompress(codec, compress(codec, data), len(data)) == data


@pytest.mark.parametrize("codec", list(Compression))
@pytest.mark.parametrize("size", [32 * 1024 - 1, 32 * 1024, 64 * 1024, 64 * 1024 + 1, 300_000])
def test_round_trip_over_block_borders(codec: Compression, size: int) -> None:
    for data in (bytes(range(251)) * (size // 251 + 1), zlib.compress(bytes(size), 0)):
        data = data[:size]
        assert decompress(codec, memoryview(bytearray(compress(codec, data))), size) == data


@pytest.mark.parametrize("codec", CODECS)
def test_one_byte_more_than_allowed_is_refused(codec: Compression) -> None:
    data = bytes(100_000)
    packed = compress(codec, data)
    assert decompress(codec, packed, 100_000) == data
    with pytest.raises(PayloadTooLarge, match="99999"):
        decompress(codec, packed, 99_999)


@pytest.mark.parametrize("codec", CODECS)
def test_bomb_takes_no_memory(codec: Compression) -> None:
    packed = compress(codec, bytes(40 * MIB))
    tracemalloc.start()
    try:
        with pytest.raises(PayloadTooLarge):
            decompress(codec, packed, MIB)
        assert tracemalloc.get_traced_memory()[1] < 4 * MIB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", CODECS)
def test_every_truncation_is_refused(codec: Compression) -> None:
    packed = compress(codec, b"some text, some more text, and text again " * 5)
    for n in range(len(packed)):
        if codec == Compression.SNAPPY and n == 16:
            continue  # a xerial header with no block is an empty stream
        with pytest.raises(UndecodablePayload):
            decompress(codec, packed[:n], MIB)


@pytest.mark.parametrize("codec", CODECS)
@given(data=st.binary(max_size=200))
def test_any_bytes_give_bytes_or_one_error(codec: Compression, data: bytes) -> None:
    with contextlib.suppress(UndecodablePayload):
        assert len(decompress(codec, data, 5000)) <= 5000


@pytest.mark.parametrize("codec", CODECS)
@given(at=st.floats(0, 1, exclude_max=True), byte=st.integers(0, 255))
def test_flipped_byte_gives_bytes_or_one_error(codec: Compression, at: float, byte: int) -> None:
    packed = bytearray(compress(codec, b"abcdefgh" * 50))
    packed[int(at * len(packed))] = byte
    with contextlib.suppress(UndecodablePayload):
        assert len(decompress(codec, packed, 5000)) <= 5000


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unassigned_codec(codec: int) -> None:
    with pytest.raises(UndecodablePayload, match=str(codec)):
        decompress(codec, b"x", MIB)
    with pytest.raises(ValueError, match=str(codec)):
        compress(codec, b"x")


def test_snappy_bare_block_as_librdkafka_may_send_it() -> None:
    assert decompress(2, bytes(cramjam.snappy.compress_raw(b"abc" * 100)), MIB) == b"abc" * 100


def test_snappy_concatenated_xerial_streams() -> None:
    assert decompress(2, compress(2, b"one") + compress(2, b"two"), MIB) == b"onetwo"


def test_snappy_block_limit_counts_all_blocks() -> None:
    with pytest.raises(PayloadTooLarge):
        decompress(2, compress(2, bytes(40_000)), 39_999)


class Counting:
    """A pace that counts the steps and, after so many, ends the work."""

    most_bytes = None

    def __init__(self, most: int = 1 << 62) -> None:
        self.steps, self._most = 0, most

    def __call__(self, steps: int) -> None:
        self.steps += steps
        if self.steps > self._most:
            raise TakesLong


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.LZ4, Compression.ZSTD])
def test_a_long_payload_is_decompressed_in_pieces(codec: Compression) -> None:
    payload = bytes(9 * 1024 * 1024)
    packed = compress(codec, payload)
    pace = Counting()
    assert decompress(codec, packed, len(payload), pace) == payload
    assert 2 * 1024 * 1024 / 128 <= pace.steps <= len(payload) / 128
    with pytest.raises(TakesLong):
        decompress(codec, packed, len(payload), Counting(1000))
    with pytest.raises(PayloadTooLarge):
        decompress(codec, packed, len(payload) - 1)


def test_a_long_payload_is_packed_in_pieces_by_gzip() -> None:
    payload = bytes(5 * MIB)
    pace = Counting()
    assert gzip.decompress(compress(Compression.GZIP, payload, None, pace)) == payload
    assert pace.steps == 6 * MIB / 16
    with pytest.raises(TakesLong):
        compress(Compression.GZIP, payload, None, Counting(1000))


def test_gzip_that_is_cut_off_behind_a_piece_is_undecodable() -> None:
    packed = gzip.compress(bytes(3 * 1024 * 1024))
    for cut in (1, 8, 9, 100, len(packed) - 20):
        with pytest.raises(UndecodablePayload, match="truncated"):
            decompress(1, packed[:-cut], 4 * 1024 * 1024)


MEMBER = gzip.compress(b"two", mtime=0)
NAMED = MEMBER[:3] + b"\x1e" + MEMBER[4:10] + b"\2\0ex" + b"name\0" + b"comment\0"
NAMED += (zlib.crc32(NAMED) & 0xFFFF).to_bytes(2, "little") + MEMBER[10:]


@pytest.mark.parametrize(
    ("after", "more"),
    [
        (b"x", b""),
        (b"\0" * 5, b""),
        (b"garbage" * 9, b""),
        (b"\0" * 40, b""),
        (MEMBER[:9], b""),
        (gzip.compress(b"")[:18], b""),
        (MEMBER[:2] + b"\x07" + MEMBER[3:], b""),
        (NAMED[:-len(MEMBER[10:]) - 3] + b"x" * 40, b""),
        (NAMED[:26] + b"x" * 30, b""),
        (MEMBER, b"two"),
        (NAMED, b"two"),
        (MEMBER + b"garbage", b"two"),
    ],
    ids=["a byte", "zeros", "text", "many zeros", "half a header", "too few", "another method", "a wrong checksum",
         "an endless name", "a member", "a member with a name", "a member and text"],
)  # fmt: skip
def test_bytes_after_gzip_are_ignored_unless_they_are_a_member(after: bytes, more: bytes) -> None:
    """As a live Kafka 4.4.0 takes such batches, and java.util.zip.GZIPInputStream reads them."""
    assert decompress(1, gzip.compress(b"one") + after, 10) == b"one" + more


def test_a_second_member_that_is_broken_is_an_error() -> None:
    with pytest.raises(UndecodablePayload):
        decompress(1, gzip.compress(b"one") + MEMBER[:10] + b"\xff" * 20, 10)
    with pytest.raises(UndecodablePayload):
        decompress(1, gzip.compress(b"one") + gzip.compress(bytes(range(256)), mtime=0)[:40], 1000)


def test_gzip_of_several_members() -> None:
    assert decompress(1, gzip.compress(b"one") + gzip.compress(b"two"), 6) == b"onetwo"
    with pytest.raises(PayloadTooLarge):
        decompress(1, gzip.compress(b"one") + gzip.compress(b"two"), 5)


def test_lz4_of_linked_blocks_is_refused_as_kafka_refuses_it() -> None:
    linked = bytes(cramjam.lz4.compress(b"abc" * 100))
    assert not linked[4] & 0x20
    with pytest.raises(UndecodablePayload, match="earlier blocks"):
        decompress(3, linked, MIB)


@pytest.mark.parametrize("after", [b"\0", b"one more", b"\x04\x22\x4d\x18", compress(3, b"another frame")])
@pytest.mark.parametrize(("flags", "checksum"), [(0x60, 0x82), (0x64, 0xA7), (0x70, 0xAD), (0x68, 0x6D), (0x7C, 0xF0)])
def test_bytes_after_an_lz4_frame_are_ignored(flags: int, checksum: int, after: bytes) -> None:
    """As Kafka's Lz4BlockInputStream ignores them."""
    data = b"abc" * 3
    hashed = struct.pack("<I", 0xA6AC54C1)  # xxHash32
    descriptor = bytes([flags, 0x40]) + (struct.pack("<Q", len(data)) if flags & 8 else b"")
    frame = b"\x04\x22\x4d\x18" + descriptor + bytes([checksum])
    frame += struct.pack("<I", len(data) | 1 << 31) + data + (hashed if flags & 16 else b"")
    frame += bytes(4) + (hashed if flags & 4 else b"")
    assert bytes(cramjam.lz4.decompress(frame)) == data
    assert decompress(3, frame, MIB) == data
    assert decompress(3, frame + after, MIB) == data
    with pytest.raises(UndecodablePayload):
        decompress(3, frame[:-5], MIB)


def test_lz4_is_written_in_independent_blocks() -> None:
    packed = compress(3, bytes(200_000))
    assert packed[4] & 0x20
    assert bytes(cramjam.lz4.decompress(packed)) == bytes(200_000)
    (first,) = struct.unpack_from("<I", packed, 7)
    assert first < 64 * 1024


def test_level_is_used() -> None:
    data = b" ".join(b"%d" % (i * i % 9973) for i in range(20_000))
    for codec, low, high in ((1, 1, 9), (4, 1, 19)):
        assert compress(codec, data, high) != compress(codec, data, low)
