"""The hash of Kafka's clients: numbers that Java's `Utils.murmur2` of kafka-clients 4.4.0 gave."""

from __future__ import annotations

import pytest

pa = pytest.importorskip("pyarrow")

from minibroker_pipeline.murmur2 import murmur2, positive_murmur2  # noqa: E402

OF_JAVA = {
    b"": 275646681,
    b"a": -1563381124,
    b"ab": 316155434,
    b"abc": 479470107,
    b"abcd": -1323649548,
    b"abcde": 461995741,
    b"key-17": 956945460,
    b"order-000123456": 565574391,
    bytes.fromhex("ff800001fe90c3"): 1212148667,
    "Grüße aus Köln".encode(): 2123417415,
}


def test_hashes_of_java() -> None:
    keys = pa.array(list(OF_JAVA))
    assert murmur2(keys).tolist() == list(OF_JAVA.values())
    assert murmur2(keys.slice(3, 4)).tolist() == list(OF_JAVA.values())[3:7]
    assert murmur2(pa.array(["abc", None])).tolist() == [OF_JAVA[b"abc"], OF_JAVA[b""]]
    assert murmur2(pa.array([], pa.binary())).tolist() == []


def test_partitions_of_java() -> None:
    """`Utils.toPositive(hash) % 7`."""
    hashes = positive_murmur2(pa.array(list(OF_JAVA)))
    assert [number.as_py() % 7 for number in hashes] == [2, 5, 0, 4, 5, 4, 2, 4, 2, 0]
