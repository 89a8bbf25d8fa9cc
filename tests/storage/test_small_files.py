"""Offset checkpoints and partition.metadata, as Kafka writes them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker_storage.checkpoints import decode_offsets, encode_offsets
from minibroker_storage.file_errors import MalformedFile
from minibroker_storage.partition_metadata import (
    decode_partition_metadata,
    encode_partition_metadata,
    topic_id_from_text,
    topic_id_text,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "kafka-4.3.1" / "snapshots"


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*-offset-checkpoint")), ids=lambda path: path.name)
def test_kafka_offset_checkpoint(path: Path) -> None:
    offsets = decode_offsets(path.read_bytes(), str(path))
    assert offsets
    assert encode_offsets(offsets) == path.read_bytes()


def test_kafka_log_start_offset() -> None:
    path = GOLDEN / "log-start-offset-checkpoint"
    assert decode_offsets(path.read_bytes(), str(path)) == {("deleted", 0): 22}


def test_never_written_checkpoint_is_empty() -> None:
    assert decode_offsets(b"", "x") == {}


@pytest.mark.parametrize(
    ("data", "where"),
    [
        (b"\n", "line 1"),
        (b"7\n0\n", "line 1"),
        (b"0\n", "line 2"),
        (b"0\nx\n", "line 2"),
        (b"0\n2\na 0 5\n", "line 2"),
        (b"0\n0\na 0 5\n", "line 2"),
        (b"0\n1\na 0\n", "line 3"),
        (b"0\n2\na 0 1\na 0 -5\n", "line 4"),
        (b"0\n1\na b 5\n", "line 3"),
        (b"0\n\xff", "byte 2"),
    ],
)
def test_broken_checkpoint_is_one_clear_error(data: bytes, where: str) -> None:
    with pytest.raises(MalformedFile, match=f"^dir/recovery, {where}: expected"):
        decode_offsets(data, "dir/recovery")


@given(
    st.dictionaries(
        st.tuples(st.from_regex(r"[a-zA-Z0-9._-]{1,20}", fullmatch=True), st.integers(0, 99)), st.integers(0, 2**62 - 1)
    )
)
def test_offset_checkpoint_round_trip(offsets: dict[tuple[str, int], int]) -> None:
    assert decode_offsets(encode_offsets(offsets), "x") == offsets


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*/partition.metadata")), ids=lambda path: path.parent.name)
def test_kafka_partition_metadata(path: Path) -> None:
    topic_id = decode_partition_metadata(path.read_bytes())
    assert len(topic_id) == 16
    assert encode_partition_metadata(topic_id) == path.read_bytes()


@given(st.binary(min_size=16, max_size=16))
def test_topic_id_text_round_trip(topic_id: bytes) -> None:
    text = topic_id_text(topic_id)
    assert len(text) == 22
    assert topic_id_from_text(text) == topic_id


@pytest.mark.parametrize("text", ["", "A", "A" * 21, "A" * 23, "A" * 21 + "=", "!" * 22, "A" * 21 + "B"])
def test_what_is_no_topic_id(text: str) -> None:
    """The last: bits beyond the 16 bytes that are set."""
    with pytest.raises(ValueError, match="expected 22 characters"):
        topic_id_from_text(text)


@pytest.mark.parametrize(
    ("data", "line"), [(b"", 1), (b"version: 1\ntopic_id: x", 1), (b"version: 0\n", 2), (b"version: 0\ntopic_id: x", 2)]
)
def test_broken_partition_metadata(data: bytes, line: int) -> None:
    with pytest.raises(MalformedFile, match=f"line {line}: expected"):
        decode_partition_metadata(data, "pm")
