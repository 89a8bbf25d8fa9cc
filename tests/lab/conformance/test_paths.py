"""Paths into responses."""

from typing import Any

import pytest

from minibroker_lab.conformance.batches import ReceivedRecords
from minibroker_lab.conformance.paths import error_names, lookup
from minibroker_protocol.records import Record, build_batch, end_txn_marker

RECORDS = ReceivedRecords(
    bytes(
        build_batch(
            [Record(0, 1000, b"k", b"v", [("h", b"1")]), Record(1, 1005, None, None)],
            base_offset=5,
            leader_epoch=2,
            producer_id=9,
            producer_epoch=1,
            base_sequence=4,
            transactional=True,
            compression=1,
        )
        + end_txn_marker(
            producer_id=9, producer_epoch=1, commit=False, coordinator_epoch=3, timestamp_ms=1010, base_offset=7
        )
    )
)
RESPONSE: dict[str, Any] = {
    "errorCode": "NONE",
    "topics": [
        {"name": "mb-t", "partitions": [{"index": 0, "errorCode": "A"}, {"index": 1, "errorCode": "B"}]},
        {"name": "u", "partitions": [{"index": 7, "errorCode": "C"}], "only": {"deep": [1, 2]}},
    ],
    "none": None,
    "names": ["b", "a"],
    "raw": b"xy",
    "responses": [{"records": RECORDS}],
    "nested": {"again": {"again": 1}},
}
SHORT = [
    {"base": 5, "last": 6, "pid": 9, "epoch": 1, "seq": 4, "txn": True, "codec": "gzip", "values": ["v", None]},
    {"base": 7, "marker": "ABORT", "pid": 9, "epoch": 1, "txn": True},
]


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("errorCode", "NONE"),
        ("none", None),
        ("nosuch", "<absent>"),
        ("nosuch.deeper[0]", "<absent>"),
        ("errorCode.deeper", "<absent>"),
        ("topics[1].name", "u"),
        ("topics[-1].name", "u"),
        ("topics[2].name", "<absent>"),
        ("topics[-3].name", "<absent>"),
        ("errorCode[0]", "<absent>"),
        ("topics[name=u].partitions[0].index", 7),
        ("topics[name=$t].partitions[1].errorCode", "B"),
        ("topics[name=${t}].partitions[index=1].errorCode", "B"),
        ("topics[name=x].partitions", "<absent>"),
        ("..index", [0, 1, 7]),
        ("..errorCode", ["NONE", "A", "B", "C"]),
        ("topics..errorCode", ["A", "B", "C"]),
        ("topics[1]..errorCode", "C"),
        ("..only.deep[1]", 2),
        ("..only..deep", [1, 2]),
        ("..again", {"again": 1}),
        ("..nosuch", "<absent>"),
        ("topics..nosuch", "<absent>"),
        ("nosuch..errorCode", "<absent>"),
        ("..index[0]", [0, 1, 7]),
        ("#topics", 2),
        ("#topics[0].partitions", 2),
        ("#errorCode", 4),
        ("#nosuch", "<absent>"),
        ("#..deep", 2),
        ("#topics[0].partitions[1].index", 1),
        ("sorted names", ["a", "b"]),
        ("sorted topics[0].partitions", [{"errorCode": "A", "index": 0}, {"errorCode": "B", "index": 1}]),
        ("raw", b"xy"),
        ("..records", SHORT),
        ("..records[1].marker", "ABORT"),
        ("responses[0].records[0].values[0]", "v"),
        ("#..records", 2),
        ("responses", [{"records": SHORT}]),
        ("..recordsFull[0].keys", ["k", None]),
        ("..recordsFull[0].offsets", [5, 6]),
        ("..recordsFull[0].timestamps", [1000, 1005]),
        ("..recordsFull[0].headers", [{"h": "1"}, {}]),
        ("..recordsFull[1].coordinatorEpoch", 3),
        ("..recordsFull[1].keys", "<absent>"),
        ("responses..recordsFull[0].crcOk", True),
    ],
)
def test_lookup(path: str, found: Any) -> None:
    assert lookup(RESPONSE, path, {"t": "mb-t"}) == found


def test_error_names() -> None:
    response = {"errorCode": "X", "a": [{"partitionErrorCode": 7}, {"errorCodes": "no"}], "errorMessage": "no"}
    assert error_names(response) == ["X", 7]
