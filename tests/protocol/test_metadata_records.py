"""Records of a KRaft controller's log, one at a time."""

from __future__ import annotations

import pytest

from minibroker_protocol.errors import Malformed
from minibroker_protocol.metadata_records import ConfigRecord, decode_metadata_record

CONFIG = ConfigRecord(resource_type=2, resource_name="t", name="a", value="b")


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"\1\4\0", None),
        (b"\0\4\0", "frame version 0, expected 1"),  # AbstractApiMessageSerde: Kafka 2.8's preview is not taken over
        (b"\2\4\0", "frame version 2, expected 1"),
        (b"\1\4", "a metadata record of 2 bytes ends within its frame"),
        (b"", "a metadata record of 0 bytes ends within its frame"),
    ],
)
def test_the_frame_of_a_record(frame: bytes, reason: str | None) -> None:
    value = frame + (bytes(CONFIG.encode(0)) if len(frame) == 3 else b"")
    if reason is None:
        assert decode_metadata_record(value) == CONFIG
        return
    with pytest.raises(Malformed, match=reason):
        decode_metadata_record(value)
