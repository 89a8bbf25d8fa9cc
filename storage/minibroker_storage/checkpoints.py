"""Kafka's text checkpoint files (CheckpointFile, OffsetCheckpointFile): version, number of lines, lines."""

from collections.abc import Iterable, Iterator, Mapping

from minibroker_storage.file_errors import MalformedFile

VERSION = 0
_MOST_DIGITS = 20
RECOVERY_POINT = "recovery-point-offset-checkpoint"
LOG_START_OFFSET = "log-start-offset-checkpoint"
HIGH_WATERMARK = "replication-offset-checkpoint"
INT32_MAX = (1 << 31) - 1
LARGEST_OFFSET = (1 << 62) - 1
"""No log reaches it, so a larger number in a file or a file's name is damage."""
CLEANER_OFFSET = "cleaner-offset-checkpoint"
LEADER_EPOCH = "leader-epoch-checkpoint"


def whole_number(text: str) -> int | None:
    """The number that `text` is; None for any other text, and for more digits than a number in these files has."""
    return int(text) if len(text) <= _MOST_DIGITS and text.isdecimal() else None


def encode_lines(lines: Iterable[str]) -> bytes:
    rows = list(lines)
    return "".join([f"{VERSION}\n{len(rows)}\n", *(row + "\n" for row in rows)]).encode()


def decode_lines(data: bytes, path: str, fields: int) -> Iterator[tuple[int, list[str]]]:
    """(line number, its fields) of a checkpoint; an empty file, never written, has none. Raises MalformedFile."""
    if not data:
        return
    try:
        rows = data.decode().split("\n")
    except UnicodeDecodeError as error:
        raise MalformedFile(path, error.start, "expected text") from None
    if rows[-1] == "":
        rows.pop()
    if not rows or rows[0].strip() != str(VERSION):
        raise MalformedFile(path, 1, f"expected version {VERSION}, got {rows[0] if rows else ''!r}", unit="line")
    count = whole_number(rows[1].strip()) if len(rows) > 1 else None
    if count is None:
        raise MalformedFile(path, 2, f"expected a number of entries, got {rows[1:2]}"[:120], unit="line")
    if count != len(rows) - 2:
        raise MalformedFile(path, 2, f"expected {count} entries, the file has {len(rows) - 2}", unit="line")
    for number, row in enumerate(rows[2:], start=3):
        parts = row.split()
        if len(parts) != fields:
            raise MalformedFile(path, number, f"expected {fields} fields, got {row!r}", unit="line")
        yield number, parts


def encode_offsets(offsets: Mapping[tuple[str, int], int]) -> bytes:
    """An offset checkpoint: (topic, partition) -> offset."""
    return encode_lines(f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items())


def decode_offsets(data: bytes, path: str) -> dict[tuple[str, int], int]:
    """Raises MalformedFile, also on a negative number."""
    offsets: dict[tuple[str, int], int] = {}
    for number, (topic, partition, offset) in decode_lines(data, path, 3):
        index, end = whole_number(partition), whole_number(offset)
        if index is None or end is None or index > INT32_MAX or end > LARGEST_OFFSET:
            said = f"{partition:.40} {offset:.40}"
            raise MalformedFile(path, number, f"expected a partition and an offset, got {said}", unit="line")
        offsets[topic, index] = end
    return offsets
