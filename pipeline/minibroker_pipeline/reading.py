"""One part of a file into rows, batches or records: what a task of a job does, and what runs without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from minibroker.rules.rows import Log, LogFacts, LogFault, LogStart
from minibroker.rules.scan import RECORDS, Row, base_of, epoch_rows, index_rows, snapshot_rows
from minibroker_pipeline.files import TXN_INDEX_SUFFIX, Files, Part
from minibroker_pipeline.headers import Block, FileRows, HeaderScan, scan_bytes
from minibroker_pipeline.index_match import IndexMatch
from minibroker_pipeline.topics import RecordsLost, Topics
from minibroker_protocol.errors import Malformed
from minibroker_protocol.records import BatchHeader, crc_ok, decode_records
from minibroker_storage.checkpoints import LEADER_EPOCH
from minibroker_storage.index_entries import INDEX_SUFFIX, TIME_INDEX_SUFFIX
from minibroker_storage.producer_snapshot import SNAPSHOT_SUFFIX

Headers = Sequence[tuple[str | bytes, bytes | None]]


class PlainRecord(NamedTuple):
    """A record with what its batch says of it; `fault` where the batch cannot be read, for which it then stands."""

    log: Log
    file: str
    offset: int
    timestamp: int
    producer_id: int
    producer_epoch: int
    transactional: bool
    key: bytes | None
    value: bytes | None
    headers: Headers
    fault: str | None = None
    timestamp_type: int = 0
    """As Kafka's TimestampType: 0 CreateTime, 1 LogAppendTime."""


Take = Callable[[Block, Sequence[LogFault], int], None]


def read_part(
    files: Files | Topics,
    part: Part,
    *,
    depth: str = RECORDS,
    take: Take | None = None,
) -> FileRows:
    """The rows of a part. `take` is given every block, its faults and the position in the file that its own positions
    count from."""
    if isinstance(files, Topics):
        return _fetched(files, part, depth, take)
    if part.is_log:
        with files.view(part) as (data, origin):
            read = scan_bytes(
                part.facts,
                part.path,
                data,
                depth=depth,
                start=part.start - origin,
                stop=part.stop - origin,
                cuts=part.cuts,
                sink=None if take is None else lambda block, faults: take(block, faults, origin),
                indexes=_indexes(files, part),
            )
        return read._replace(rows=[_moved(row, origin) for row in read.rows]) if origin else read
    content = files.read(part.path, part.start, part.stop)
    rows_of = next(rows_of for suffix, rows_of in _ROWS_OF.items() if part.path.endswith(suffix))
    rows: list[Row] = list(rows_of(part.facts, part.path, content))
    return FileRows(rows, 0, 0, len(content))


_ROWS_OF: dict[str, Callable[[LogFacts, str, bytes], Iterator[Any]]] = {
    TXN_INDEX_SUFFIX: index_rows,
    SNAPSHOT_SUFFIX: snapshot_rows,
    LEADER_EPOCH: epoch_rows,
}


def _indexes(files: Files, part: Part) -> IndexMatch | None:
    """The index claims about a part's file; None without indexes."""
    if max(part.indexes) < 0:
        return None
    stem = part.path.removesuffix(".log")
    index, times = (
        files.read_index(stem + suffix, size)
        for suffix, size in zip((INDEX_SUFFIX, TIME_INDEX_SUFFIX), part.indexes, strict=True)
    )
    return IndexMatch.of(stem, base_of(part.path), index, times, part.start, None if part.last else part.stop)


def _fetched(topics: Topics, part: Part, depth: str, take: Take | None) -> FileRows:
    """The rows of a part that is fetched. Where retention is faster, it is read again from where the log starts now,
    and a row says where that is."""
    log, starts = part.facts.log, list[Row]()
    while part.start < part.stop:
        try:
            read = _fetched_whole(topics, part, depth, take)
        except RecordsLost as error:
            if error.resume is None or not error.deleted:
                raise
            starts = [LogStart(log, error.resume)]
            facts = part.facts._replace(start_offset=error.resume, first_offset=error.resume)
            part = part._replace(facts=facts, start=min(error.resume, part.stop))
            continue
        return read._replace(rows=[*starts, *read.rows])
    return FileRows(starts, 0, 0, 0)


def _fetched_whole(topics: Topics, part: Part, depth: str, take: Take | None) -> FileRows:
    sink = None if take is None else lambda block, faults: take(block, faults, 0)
    rows: list[Row] = []
    batches = records = size = 0
    for data, _ in topics.pieces(part):
        read = scan_bytes(part.facts, part.path, data, depth=depth, sink=sink)
        rows += read.rows
        batches += read.batches
        records += read.records
        size += read.bytes
    return FileRows(rows, batches, records, size)


def _moved(row: Row, origin: int) -> Row:
    position = getattr(row, "position", -1)
    return row._replace(position=position + origin) if position >= 0 else row  # type: ignore[call-arg,unused-ignore]


def read_records(
    files: Files | Topics, part: Part, *, chosen: Callable[[Any], Any] | None = None
) -> Iterator[PlainRecord]:
    """The records of a part of a log, control records left out.

    chosen: headers (an array of HEADER_TYPE) -> which batches to look into.
    """
    if isinstance(files, Topics):
        for data, _ in files.pieces(part):
            yield from _scanned(part, data, HeaderScan(data), chosen)
        return
    with files.view(part) as (data, origin):
        yield from _scanned(part, data, HeaderScan(data, part.start - origin, part.stop - origin), chosen)


def _scanned(
    part: Part, data: memoryview, scan: HeaderScan, chosen: Callable[[Any], Any] | None
) -> Iterator[PlainRecord]:
    log = part.facts.log
    for block in scan.blocks():
        wanted = range(len(block.positions)) if chosen is None else chosen(block.headers).nonzero()[0].tolist()
        for index in wanted:
            header = BatchHeader(*block.headers[index].tolist())
            position = int(block.positions[index])
            yield from records_of(log, part.path, header, data[position : position + header.size])
    if scan.reason:
        yield PlainRecord(log, part.path, -1, -1, -1, -1, False, None, None, (), f"torn-batch: {scan.reason}")


def records_of(log: Log, path: str, header: BatchHeader, data: memoryview) -> Iterator[PlainRecord]:
    """The records of one batch; one row that says why where they cannot be read."""
    if header.is_control:
        return
    common = header.producer_id, header.producer_epoch, header.is_transactional
    try:
        if not crc_ok(data, 0, header):
            raise Malformed("checksum: the CRC-32C of the bytes is not the one in the header")
        for record in decode_records(data, 0, header):
            key = None if record.key is None else bytes(record.key)
            value = None if record.value is None else bytes(record.value)
            fields = record.offset, record.timestamp, *common, key, value, record.headers
            yield PlainRecord(log, path, *fields, timestamp_type=int(header.log_append_time))
    except Malformed as error:
        offset, timestamp = header.base_offset, header.max_timestamp
        yield PlainRecord(log, path, offset, timestamp, *common, None, None, (), str(error))
