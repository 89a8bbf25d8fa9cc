"""`partition.metadata`: the topic id a partition directory belongs to (KIP-516; Kafka's PartitionMetadataFile)."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error

from minibroker_protocol.errors import ApiError, ErrorCode
from minibroker_storage.disk import Disk, join
from minibroker_storage.file_errors import MalformedFile

FILE_NAME = "partition.metadata"
NO_TOPIC_ID = bytes(16)
VERSION = 0


def topic_id_text(topic_id: bytes) -> str:
    """Kafka's text form of a 16-byte id: URL-safe base64 without padding, 22 characters."""
    return urlsafe_b64encode(topic_id).rstrip(b"=").decode()


def topic_id_from_text(text: str) -> bytes:
    """Raises ValueError when `text` is not the text form of 16 bytes."""
    try:
        topic_id = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (Base64Error, ValueError):
        topic_id = b""
    if len(topic_id) != 16 or topic_id_text(topic_id) != text:
        raise ValueError(f"expected 22 characters of URL-safe base64, got {text!r}")
    return topic_id


def encode_partition_metadata(topic_id: bytes) -> bytes:
    return f"version: {VERSION}\ntopic_id: {topic_id_text(topic_id)}".encode()


def decode_partition_metadata(data: bytes, path: str = FILE_NAME) -> bytes:
    """The topic id. Raises MalformedFile."""
    lines = data.decode("utf-8", "replace").split("\n")
    if lines[0].strip() != f"version: {VERSION}":
        raise MalformedFile(path, 1, f"expected 'version: {VERSION}', got {lines[0]!r}", unit="line")
    name, _, value = lines[1].partition(":") if len(lines) > 1 else ("", "", "")
    if name != "topic_id":
        raise MalformedFile(path, 2, f"expected 'topic_id: …', got {lines[1:2]}", unit="line")
    try:
        return topic_id_from_text(value.strip())
    except ValueError as error:
        raise MalformedFile(path, 2, str(error), unit="line") from None


def claim(disk: Disk, path: str, topic_id: bytes, clean: bool, warnings: list[str]) -> bytes:
    """The topic id of the directory at `path`; writes the given one if there is none.

    Raises ApiError INCONSISTENT_TOPIC_ID when the directory is another topic's, MalformedFile after a clean stop.
    """
    file = join(path, FILE_NAME)
    if disk.exists(file):
        try:
            stored = decode_partition_metadata(disk.read_bytes(file), file)
        except MalformedFile as error:
            if clean or topic_id == NO_TOPIC_ID:
                raise
            warnings.append(f"{error}; written anew, as the file was not synced before the crash")
        else:
            if topic_id not in (NO_TOPIC_ID, stored):
                raise ApiError(
                    ErrorCode.INCONSISTENT_TOPIC_ID, f"{file} holds topic id {stored.hex()}, expected {topic_id.hex()}"
                )
            return stored
    if topic_id != NO_TOPIC_ID:
        disk.write_atomic(file, encode_partition_metadata(topic_id), sync=False)
    return topic_id
