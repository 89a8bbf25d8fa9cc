"""Rows of an Arrow batch as records for the sink."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from minibroker_pipeline.sink import SinkRefused
from minibroker_protocol.records import Record


def rows_of(batch: Any) -> Iterator[tuple[int, Record]]:
    """(partition, record) of each row; without a timestamp now. Raises SinkRefused for a row without partition."""
    import pyarrow as pa

    names, size = batch.schema.names, batch.num_rows
    now = time.time_ns() // 1_000_000

    def column(name: str, kind: Any = None) -> list[Any]:
        if name not in names:
            return [None] * size
        values = batch.column(names.index(name))
        found: list[Any] = (values if kind is None else values.cast(kind)).to_pylist()
        return found

    keys, values = column("key", pa.large_binary()), column("value", pa.large_binary())
    # Spark's timestamps are microseconds.
    times = [None] * size
    if "timestamp" in names:
        times = [None if one is None else one // 1000 for one in column("timestamp", pa.int64())]
    columns = zip(column("partition"), keys, values, times, column("headers"), strict=True)
    for partition, key, value, timestamp, headers in columns:
        if partition is None:
            raise SinkRefused("the column partition is null in a row")
        named = [(one["key"], one["value"]) for one in headers or ()]
        yield partition, Record(0, now if timestamp is None else timestamp, key, value, named)
