"""What a scan makes of single batches."""

from __future__ import annotations

import pytest

from minibroker.rules import rows as r
from minibroker.rules.scan import control_rows
from minibroker_protocol.records import end_txn_marker, parse_header, rewrite_header

LOG = r.Log("", "t", 0)
HEADER_SIZE = 61


@pytest.mark.parametrize(
    ("size", "count", "found"),
    [
        (None, 1, [r.ABORT]),
        (HEADER_SIZE, 0, [""]),  # as compaction leaves it
        (HEADER_SIZE, 1, ["record-count"]),  # the record that it counts is not there
        (HEADER_SIZE + 4, 1, ["record-count"]),
    ],
)
def test_a_marker_and_its_record(size: int | None, count: int, found: list[str]) -> None:
    data = bytearray(
        end_txn_marker(producer_id=7, producer_epoch=0, commit=False, coordinator_epoch=3, timestamp_ms=100)
    )[:size]
    header = parse_header(data)
    header.batch_length, header.record_count = len(data) - 12, count
    rewrite_header(data, 0, header)
    rows = list(control_rows(LOG, "f", 0, parse_header(data), memoryview(data)))
    assert [row.outcome if isinstance(row, r.Marker) else row.rule for row in rows] == found  # type: ignore[union-attr]
