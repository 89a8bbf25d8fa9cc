"""Every message, byte for byte against kio, a codec nobody here wrote."""

from __future__ import annotations

import io
import re
from random import Random
from typing import Any
from zlib import crc32

import pytest
from kio.serial import entity_reader, entity_writer
from kio_bridge import Bridge, kio_class
from samples import message_versions, sample

from minibroker_protocol.dsl import Message
from minibroker_protocol.shapes import Shapes

# kio knows neither coordinators' nor the controller's records, and no API that is not Kafka's.
UNKNOWN_TO_KIO = re.compile(r"(TransactionLog|OffsetCommit|GroupMetadata|ConsumerGroup\w*)(Key|Value)$|[a-z]Record$")
AFTER_KIO = {"ApiVersions": 5, "DeleteGroups": 3, "TxnOffsetCommit": 6}
"""Versions that came with Kafka 4.4, after the kio that is installed; tests/jvm/test_codec.py has them."""


def cases() -> list[tuple[type[Message], int]]:
    found = []
    for message, version in message_versions():
        if AFTER_KIO.get(re.sub("(Request|Response)$", "", message.__name__)) == version:
            continue
        if not UNKNOWN_TO_KIO.search(message.__name__) and not getattr(message, "__private__", False):
            found.append((message, version))
    return found


def newest_first() -> list[Any]:
    """The default tests take the newest version of each message, which has the most fields."""
    newest = dict(cases())
    return [
        pytest.param((message, version), marks=[] if newest[message] == version else [pytest.mark.matrix])
        for message, version in cases()
    ]


@pytest.mark.parametrize("case", newest_first(), ids=lambda case: f"{case[0].__name__}-v{case[1]}")
def test_same_bytes_and_same_values(case: tuple[type[Message], int]) -> None:
    message, version = case
    theirs = kio_class(message, version)
    read, write = entity_reader(theirs), entity_writer(theirs)
    rng = Random(crc32(f"{message.__name__}{version}".encode()))
    for _ in range(3):
        ours = sample(message, version, rng)
        expected = Bridge(Shapes(message, version)).struct(ours, theirs)
        buffer = io.BytesIO()
        write(buffer, expected)
        wire = buffer.getvalue()
        assert ours.encode(version) == wire
        assert message.decode_from(wire, version) == (ours, len(wire))
        decoded, size = read(wire, 0)
        assert (decoded, size) == (expected, len(wire))
