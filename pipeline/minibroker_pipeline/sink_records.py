"""Rows of Arrow batches as the records of a record batch, a column at a time.

numpy makes the variable-length numbers, Arrow joins the parts of all records. `minibroker_protocol.records.build`
writes the same bytes record by record; a test compares them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from minibroker_pipeline.sink import Place, SinkRefused
from minibroker_protocol.records.varints import encode_varint

Numbers = npt.NDArray[np.int64]

_OVERHEAD: Final = 24
"""Bytes of a record beside key, value and headers, at most for all but the largest."""
_VARINT_BYTES: Final = 10
_NOTHING: Final = pa.scalar(b"", pa.binary())


class Records(NamedTuple):
    """Records as they lie in a batch.

    size: how many.

    Timestamps are ms.
    """

    payload: bytes
    size: int
    base_timestamp: int
    max_timestamp: int


def by_partition(batch: Any, now_ms: int, topic: str, *, several: bool = False) -> Iterator[tuple[Place, Any]]:
    """(topic and partition, its rows in their order) of a record batch with the columns of `sink_options.COLUMNS`.

    The rows have the columns key, value (binary), timestamp (ms, `now_ms` where there is none) and headers (encoded).

    several: the column topic says where each row goes, and not `topic`.

    Raises SinkRefused for a row without a place.
    """
    if not batch.num_rows:
        return
    names = [topic]
    places = np.zeros(batch.num_rows, np.int64)
    if several:
        encoded = _without_nulls(batch, "topic").cast(pa.string()).dictionary_encode()
        names, places = encoded.dictionary.to_pylist(), np.asarray(encoded.indices).astype(np.int64) << 32
    places = places + np.asarray(_without_nulls(batch, "partition")).astype(np.int64)
    table = _columns(batch, now_ms)
    distinct = np.unique(places)
    for place in distinct.tolist():
        rows = table if len(distinct) == 1 else table.take(pa.array(np.flatnonzero(places == place)))
        partition = (place + (1 << 31)) % (1 << 32) - (1 << 31)
        yield (names[place - partition >> 32], partition), rows


def _without_nulls(batch: Any, name: str) -> Any:
    column = batch.column(name)
    if column.null_count:
        raise SinkRefused(f"the column {name} is null in a row")
    return column


def _columns(batch: Any, now_ms: int) -> Any:
    size, names = batch.num_rows, batch.schema.names
    times = np.full(size, now_ms, np.int64)
    if "timestamp" in names:
        micros = batch.column("timestamp").cast(pa.timestamp("us", tz="UTC"), safe=False).cast(pa.int64())
        times = np.where(np.asarray(micros.is_null()), times, np.asarray(micros.fill_null(0)) // 1000)
    headers = pa.repeat(pa.scalar(_headers(None), pa.binary()), size)
    if "headers" in names:
        headers = pa.array([_headers(row) for row in batch.column("headers").to_pylist()], pa.binary())
    columns = {
        "key": batch.column("key").cast(pa.binary()) if "key" in names else pa.nulls(size, pa.binary()),
        "value": batch.column("value").cast(pa.binary()),
        "timestamp": pa.array(times),
        "headers": headers,
    }
    return pa.RecordBatch.from_pydict(columns)


def _headers(row: list[dict[str, Any]] | None) -> bytes:
    parts = [encode_varint(len(row or ()))]
    for header in row or ():
        name, content = header["key"].encode(), header["value"]
        parts += (
            encode_varint(len(name)),
            name,
            encode_varint(-1 if content is None else len(content)),
            content or b"",
        )
    return b"".join(parts)


def blocks(rows: Any, most_bytes: int, first: int | None = None) -> Iterator[Any]:
    """Cut rows into blocks of at most `most_bytes`, but of at least one row.

    first: the most rows of the first block; None for no such limit.
    """
    sizes = np.zeros(rows.num_rows, np.int64)
    for name in ("key", "value", "headers"):
        sizes += np.asarray(pc.binary_length(rows.column(name)).fill_null(0))
    ends = np.cumsum(sizes + _OVERHEAD)
    start, before = 0, 0
    while start < rows.num_rows:
        end = max(start + 1, int(np.searchsorted(ends, before + most_bytes, side="right")))
        if first is not None and not start:
            end = min(end, first)
        yield rows.slice(start, end - start)
        start, before = end, int(ends[end - 1])


def encode(rows: Any) -> Records:
    """The rows as records with offset deltas 0, 1, 2, … Raises SinkRefused for one that no record can hold."""
    times = np.asarray(rows.column("timestamp"))
    base = int(times[0])
    key, value, headers = (rows.column(name) for name in ("key", "value", "headers"))
    key_length, value_length = (np.asarray(pc.binary_length(column).fill_null(-1), np.int64) for column in (key, value))
    numbers = [times - base, np.arange(len(times), dtype=np.int64), key_length, value_length]
    deltas, offsets, of_key, of_value = (_Varints(row_values) for row_values in numbers)
    body = 1 + deltas.sizes + offsets.sizes + of_key.sizes + of_value.sizes + np.asarray(pc.binary_length(headers))
    body += np.maximum(key_length, 0) + np.maximum(value_length, 0)
    parts = [_Varints(body).array, pa.scalar(b"\0"), deltas.array, offsets.array, of_key.array, key.fill_null(b"")]
    joined = pc.binary_join_element_wise(*parts, of_value.array, value.fill_null(b""), headers, _NOTHING)
    _, positions, data = joined.buffers()
    begin, end = np.frombuffer(positions, np.int32)[[joined.offset, joined.offset + len(joined)]]
    return Records(data[int(begin) : int(end)].to_pybytes(), len(times), base, int(times.max()))


class _Varints:
    """Numbers as zigzag varints.

    sizes: bytes of each.
    array: the bytes, a binary array.
    """

    def __init__(self, numbers: Numbers) -> None:
        zigzag = ((numbers << 1) ^ (numbers >> 63)).astype(np.uint64)
        self.sizes: Numbers = np.ones(len(numbers), np.int64)
        for more in range(1, _VARINT_BYTES):
            longer = zigzag >= np.uint64(1 << 7 * more)
            if not longer.any():
                break
            self.sizes += longer
        ends = np.cumsum(self.sizes)
        data = np.zeros(int(ends[-1]), np.uint8)
        at = ends - self.sizes
        for index in range(int(self.sizes.max())):
            there = self.sizes > index
            low = ((zigzag[there] >> np.uint64(7 * index)) & np.uint64(0x7F)).astype(np.uint8)
            data[at[there] + index] = np.where(self.sizes[there] > index + 1, low | 0x80, low)
        positions = np.concatenate(([0], ends)).astype(np.int32)
        self.array = pa.Array.from_buffers(
            pa.binary(), len(numbers), [None, pa.py_buffer(positions), pa.py_buffer(data)]
        )
