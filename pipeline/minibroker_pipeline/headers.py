"""The rules' rows from large log files: batch headers gathered by numpy and collapsed to runs.

Gives the same rows as `minibroker.rules.scan` with its runs merged (a test compares them). Checksums and the records
themselves are read only when asked for, because that is slow.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from minibroker.rules import rows as r
from minibroker.rules.runs import merge_runs, merge_spans
from minibroker.rules.scan import (
    CHECKSUMS,
    HEADERS,
    MAX_RELATIVE_OFFSET,
    RECORDS,
    Row,
    base_of,
    batch_fault,
    batch_rows,
    entry_rows,
    torn,
)
from minibroker_pipeline.lockstep import FEWEST, latest_deltas
from minibroker_protocol.records import (
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_OFFSET,
    MAX_SEQUENCE,
    BatchHeader,
    CorruptBatch,
    complete_header,
    parse_header,
)
from minibroker_protocol.records.batch import (
    ATTRIBUTES_OFFSET,
    COMPRESSION_MASK,
    DELETE_HORIZON_MASK,
    TIMESTAMP_TYPE_MASK,
    crc32c,
)
from minibroker_protocol.records.native import IS_NATIVE
from minibroker_storage.index_entries import EntryFault, IndexClaims

Array: TypeAlias = npt.NDArray[Any]

HEADER_TYPE = np.dtype(
    [
        ("base_offset", ">i8"),
        ("batch_length", ">i4"),
        ("partition_leader_epoch", ">i4"),
        ("magic", "i1"),
        ("crc", ">u4"),
        ("attributes", ">i2"),
        ("last_offset_delta", ">i4"),
        ("base_timestamp", ">i8"),
        ("max_timestamp", ">i8"),
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("base_sequence", ">i4"),
        ("record_count", ">i4"),
    ]
)
"""DefaultRecordBatch's header as it lies in the file, 61 bytes."""
BLOCK = 65_536
"""Batches gathered at once; it bounds memory."""
_TRANSACTIONAL = 0x10
_CONTROL = 0x20
_MARKER_BYTES = 17
_MARKER_TYPE = np.dtype([("head", "u1", 5), ("version", ">i2"), ("type", ">i2"), ("mid", "u1", 3), ("epoch", ">i4")])
_LENGTH = struct.Struct(">i")


class Block(NamedTuple):
    """Whole batches: where each begins (bytes), and their headers (HEADER_TYPE)."""

    positions: Array
    headers: Array

    @property
    def last_offsets(self) -> Array:
        last: Array = self.headers["base_offset"].astype(np.int64) + self.headers["last_offset_delta"]
        return last


class HeaderScan:
    """Goes through the batches in bytes [start, stop) of a file that is in memory or mapped.

    Afterwards `end` is where the last whole batch ends, and `reason` says why that is not `stop` (empty: it is).
    """

    def __init__(self, data: memoryview, start: int = 0, stop: int | None = None, most: int = BLOCK) -> None:
        self._data = data
        self._most = most
        self.end = start
        self._stop = len(data) if stop is None else stop
        self.reason = ""

    def blocks(self) -> Iterator[Block]:
        """Blocks of up to `most` batches, in order; ends at the first bytes that are no batch."""
        raw = np.frombuffer(self._data, np.uint8)
        while self.end < self._stop and not self.reason:
            if self._is_old(self.end):
                yield from self._old_block()
                continue
            positions = self._chase()
            if not positions:
                continue  # there is a reason, the end is reached, or an old message follows
            at = np.array(positions, np.int64)
            windows = np.lib.stride_tricks.sliding_window_view(raw, HEADER_SIZE)
            headers = np.ascontiguousarray(windows[at]).view(HEADER_TYPE)[:, 0]
            wrong = np.flatnonzero(headers["magic"] != MAGIC)
            if wrong.size:
                first = int(wrong[0])
                self.end = int(at[first])
                if not self._is_old(self.end):
                    self.reason = f"magic is {int(headers['magic'][first])}"
                at, headers = at[:first], headers[:first]
            if len(at):
                yield Block(at, headers)

    def _is_old(self, position: int) -> bool:
        """Whether a message of magic 0 or 1 begins there."""
        return position + MAGIC_OFFSET < self._stop and self._data[position + MAGIC_OFFSET] < MAGIC

    def _old_block(self) -> Iterator[Block]:
        """The messages of magic 0 and 1 that follow, read one by one: their sizes and fields vary."""
        positions: list[int] = []
        headers: list[tuple[int, ...]] = []
        while self._is_old(self.end) and len(positions) < self._most:
            remaining = self._stop - self.end
            try:
                header = parse_header(self._data[self.end : self._stop])
            except CorruptBatch as error:
                self.reason = str(error)
                break
            if header.size > remaining:
                self.reason = f"batch of {header.size} bytes with {remaining} left"
                break
            header = complete_header(self._data, self.end, header)
            positions.append(self.end)
            headers.append(astuple(header))
            self.end += header.size
        if positions:
            yield Block(np.array(positions, np.int64), np.array(headers, HEADER_TYPE))

    def _chase(self) -> list[int]:
        """Positions of the next batches, each found by the length of the one before it."""
        data, position, stop, unpack = self._data, self.end, self._stop, _LENGTH.unpack_from
        positions: list[int] = []
        append = positions.append
        last = stop - HEADER_SIZE
        room = self._most
        while position <= last and room:
            size = unpack(data, position + 8)[0] + LOG_OVERHEAD
            if size < HEADER_SIZE and self._is_old(position):
                break
            if size < HEADER_SIZE or position + size > stop:
                self.reason = f"batch of {size} bytes with {stop - position} left"
                break
            append(position)
            position += size
            room -= 1
        else:
            if position > last and position < stop and not self._is_old(position):
                self.reason = f"{stop - position} bytes left, a header has {HEADER_SIZE}"
        self.end = position
        return positions


class FileRows(NamedTuple):
    """The rows of a file or a part of it, and how much was read."""

    rows: list[Row]
    batches: int
    records: int
    bytes: int


def scan_bytes(
    facts: r.LogFacts,
    path: str,
    data: memoryview,
    *,
    depth: str = HEADERS,
    start: int = 0,
    stop: int | None = None,
    cuts: Sequence[int] = (),
    sink: Callable[[Block, Sequence[r.LogFault]], None] | None = None,
    indexes: Indexes | None = None,
    block: int = BLOCK,
    fewest: int = FEWEST,
) -> FileRows:
    """The rows of a log file's bytes [start, stop), runs collapsed.

    `cuts`: offsets of snapshots, at which runs end. `sink` gets every block, for callers that need the batches too.
    `indexes` are compared with the batches. `block`: batches gathered at once. `fewest`: so many are walked side by
    side.
    """
    scan = HeaderScan(data, start, stop, block)
    collapse = Collapse(facts, path, cuts)
    batches = records = 0
    end_offset = -1
    for gathered in scan.blocks():
        batches += len(gathered.positions)
        records += int(gathered.headers["record_count"].sum(dtype=np.int64))
        faults = _faults(facts, path, data, gathered, depth, fewest)
        collapse.add(data, gathered, faults)
        if indexes is not None:
            indexes.add(gathered)
        end_offset = int(gathered.last_offsets[-1]) + 1
        if sink is not None:
            sink(gathered, faults)
    if end_offset < 0:
        end_offset = base_of(path) if path.endswith(".log") else facts.first_offset
    rows = collapse.rows()
    if scan.reason:
        rest = bytes(data[scan.end : len(data) if stop is None else stop])
        where = f"{path}: at byte {scan.end} of {len(data)}: {scan.reason}"
        rows.append(torn(facts.log, path, scan.end, end_offset, rest, where))
    if indexes is not None:
        rows += entry_rows(facts, indexes.faults(whole=not scan.reason), end_offset)
        other_parts = indexes.row(facts.log, path)
        if other_parts is not None:
            rows.append(other_parts)
    return FileRows(rows, batches, records, scan.end - start)


class Indexes(Protocol):
    """The indexes of a log file: `minibroker_pipeline.index_match`."""

    def add(self, block: Block) -> None: ...

    def faults(self, *, whole: bool) -> Iterable[tuple[IndexClaims, EntryFault]]: ...

    def row(self, log: r.Log, path: str) -> r.TimeClaims | None: ...


def _faults(facts: r.LogFacts, path: str, data: memoryview, block: Block, depth: str, fewest: int) -> list[r.LogFault]:
    """Broken batches: found in bulk, described one by one."""
    headers = block.headers
    delta, count = headers["last_offset_delta"], headers["record_count"]
    suspect = (delta < 0) | (count < 0) | (count > delta + 1)
    if path.endswith(".log"):
        suspect |= block.last_offsets - base_of(path) > MAX_RELATIVE_OFFSET
    if depth == CHECKSUMS or (depth == RECORDS and not IS_NATIVE):
        suspect |= _checksums(data, block) != headers["crc"]
    if depth == RECORDS:
        suspect[:] = True if IS_NATIVE else suspect | ~_walked(data, block, fewest)
    faults = []
    for index in np.flatnonzero(suspect).tolist():
        header, position = BatchHeader(*headers[index].tolist()), int(block.positions[index])
        batch = data[position : position + header.size]
        fault = batch_fault(facts, path, position, header, batch, depth)
        if fault is not None:
            faults.append(fault)
    return faults


def _walked(data: memoryview, block: Block, fewest: int) -> Array:
    """Which batches hold what their header says, as far as that can be told of many at once."""
    headers, attributes = block.headers, block.headers["attributes"]
    walked: Array = (headers["magic"] == MAGIC) & (((attributes & _CONTROL) != 0) | (headers["record_count"] == 0))
    uncompressed = (headers["magic"] == MAGIC) & ((attributes & COMPRESSION_MASK) == 0)
    chosen = np.flatnonzero(uncompressed & (headers["record_count"] > 0) & ~walked)
    if len(chosen) >= fewest:
        headers, at = headers[chosen], block.positions[chosen]
        ends = at + headers["batch_length"] + LOG_OVERHEAD
        sound, delta = latest_deltas(
            np.frombuffer(data, np.uint8), at + HEADER_SIZE, ends, headers["record_count"], fewest
        )
        latest = headers["base_timestamp"].astype(np.int64) + delta
        free = (headers["attributes"] & (TIMESTAMP_TYPE_MASK | DELETE_HORIZON_MASK)) != 0
        walked[chosen] = sound & (free | (latest == headers["max_timestamp"]))
    return walked


def _checksums(data: memoryview, block: Block) -> Array:
    ends = block.positions + block.headers["batch_length"] + LOG_OVERHEAD
    old = block.headers["magic"] != MAGIC
    starts = block.positions + np.where(old, MAGIC_OFFSET, ATTRIBUTES_OFFSET)
    places = zip(starts.tolist(), ends.tolist(), old.tolist(), strict=True)
    return np.array([(zlib.crc32 if old else crc32c)(data[start:end]) for start, end, old in places], np.uint32)


class Collapse:
    """Makes runs, markers and spans of one log out of blocks that follow one another."""

    def __init__(self, facts: r.LogFacts, path: str, cuts: Sequence[int] = ()) -> None:
        self._facts = facts
        self._path = path
        self._cuts = np.array(sorted(cuts), np.int64)
        self._decoded = facts.log.topic in (r.TRANSACTION_STATE, r.CONSUMER_OFFSETS)
        self._runs: list[r.Run] = []
        self._markers: list[r.Marker] = []
        self._spans: list[r.Span] = []
        self._others: list[Row] = []

    def add(self, data: memoryview, block: Block, faults: Sequence[r.LogFault]) -> None:
        self._others += faults
        unreadable = [fault.position for fault in faults if not fault.readable]
        if unreadable:
            keep = ~np.isin(block.positions, unreadable)
            block = Block(block.positions[keep], block.headers[keep])
            if not len(block.positions):
                return
        self._spans += self._spans_of(block)
        if self._decoded:
            self._plain(data, block, np.arange(len(block.positions)))
            return
        attributes = block.headers["attributes"]
        control = (attributes & _CONTROL) != 0
        markers = self._markers_of(data, block, np.flatnonzero(control))
        self._markers += markers
        of_producer = ((block.headers["producer_id"] >= 0) | ((attributes & _TRANSACTIONAL) != 0)) & ~control
        chosen = np.flatnonzero(of_producer)
        if chosen.size:
            self._runs += self._runs_of(Block(block.positions[chosen], block.headers[chosen]), markers)

    def rows(self) -> list[Row]:
        """What was found so far, runs merged across blocks."""
        runs = merge_runs(self._runs, self._markers, self._facts, self._cuts.tolist())
        spans = merge_spans(self._spans, self._facts)
        return [*runs, *self._markers, *spans, *self._others]

    def _plain(self, data: memoryview, block: Block, indexes: Array) -> None:
        """Add batches whose records must be read."""
        for index in indexes.tolist():
            header, position = BatchHeader(*block.headers[index].tolist()), int(block.positions[index])
            for row in batch_rows(
                self._facts.log, self._path, position, header, data[position : position + header.size]
            ):
                if isinstance(row, r.Run):
                    self._runs.append(row)
                elif isinstance(row, r.Marker):
                    self._markers.append(row)
                else:
                    self._others.append(row)

    def _spans_of(self, block: Block) -> list[r.Span]:
        first = block.headers["base_offset"].astype(np.int64)
        end = block.last_offsets + 1
        breaks = first[1:] != end[:-1]
        if self._facts.cleaned_offset:
            breaks &= ~((first[1:] > end[:-1]) & (end[:-1] < self._facts.cleaned_offset))
        epoch = block.headers["partition_leader_epoch"]
        breaks |= epoch[1:] != epoch[:-1]
        starts = np.concatenate(([0], np.flatnonzero(breaks) + 1))
        ends = np.concatenate((starts[1:] - 1, [len(first) - 1]))
        before = np.concatenate((first[:1], end[:-1]))
        before[starts] = first[starts]  # what is missing before a span is not in it
        holed = np.flatnonzero(first > before)
        holes = [*map(r.Hole._make, np.stack((before, first, first - before), 1)[holed].tolist())]
        edges = [*np.searchsorted(holed, starts).tolist(), len(holes)]
        count = block.headers["record_count"]
        thinned = (count >= 0) & (count <= block.headers["last_offset_delta"])
        first_thinned = np.minimum.reduceat(np.where(thinned, first, r.EVERYTHING), starts)
        columns = zip(
            block.positions[starts].tolist(),
            first[starts].tolist(),
            end[ends].tolist(),
            epoch[starts].tolist(),
            np.add.reduceat(thinned.astype(np.int64), starts).tolist(),
            np.where(first_thinned == r.EVERYTHING, r.NONE, first_thinned).tolist(),
            np.maximum.reduceat(np.where(thinned, end, r.NONE), starts).tolist(),
            (r.fewer_holes(tuple(holes[at:stop])) for at, stop in pairwise(edges)),
            strict=True,
        )
        return [r.Span(self._facts.log, self._path, *row) for row in columns]

    def _markers_of(self, data: memoryview, block: Block, control: Array) -> list[r.Marker]:
        if not control.size:
            return []
        headers = block.headers[control]
        usual = (headers["batch_length"] == HEADER_SIZE - LOG_OVERHEAD + _MARKER_BYTES) & (headers["record_count"] == 1)
        rare = control[~usual]
        before = len(self._markers)
        self._plain(data, block, rare)
        markers = self._markers[before:]
        del self._markers[before:]
        at = block.positions[control[usual]]
        if not at.size:
            return markers
        raw = np.frombuffer(data, np.uint8)
        windows = np.lib.stride_tricks.sliding_window_view(raw, _MARKER_BYTES - 1)
        bodies = np.ascontiguousarray(windows[at + HEADER_SIZE]).view(_MARKER_TYPE)[:, 0]
        known = (bodies["version"] == 0) & (bodies["type"] >= 0) & (bodies["type"] <= 1) & (bodies["head"][:, 4] == 8)
        self._plain(data, block, control[usual][~known])
        markers += self._markers[before:]
        del self._markers[before:]
        headers, at, bodies = headers[usual][known], at[known], bodies[known]
        columns = zip(
            at.tolist(),
            headers["base_offset"].tolist(),
            headers["producer_id"].tolist(),
            headers["producer_epoch"].tolist(),
            [r.COMMIT if kind else r.ABORT for kind in bodies["type"].tolist()],
            bodies["epoch"].tolist(),
            headers["max_timestamp"].tolist(),
            strict=True,
        )
        return markers + [r.Marker(self._facts.log, self._path, *row) for row in columns]

    def _runs_of(self, block: Block, markers: Sequence[r.Marker]) -> list[r.Run]:
        order = np.argsort(block.headers["producer_id"], kind="stable")
        headers, positions = block.headers[order], block.positions[order]
        producer = headers["producer_id"].astype(np.int64)
        offset = headers["base_offset"].astype(np.int64)
        last_offset = offset + headers["last_offset_delta"]
        sequence = headers["base_sequence"].astype(np.int64)
        reached = np.where(sequence < 0, sequence, (sequence + headers["last_offset_delta"]) & MAX_SEQUENCE)
        transactional = (headers["attributes"] & _TRANSACTIONAL) != 0
        breaks = (
            (producer[1:] != producer[:-1])
            | (headers["producer_epoch"][1:] != headers["producer_epoch"][:-1])
            | (transactional[1:] != transactional[:-1])
            | self._sequence_breaks(producer, sequence, reached, offset, last_offset)
        )
        if self._cuts.size:
            part = np.searchsorted(self._cuts, offset, "right")
            breaks |= part[1:] != part[:-1]
        if markers:
            breaks |= _marked_between(producer, offset, markers)
        starts = np.concatenate(([0], np.flatnonzero(breaks) + 1))
        ends = np.concatenate((starts[1:] - 1, [len(producer) - 1]))
        sizes = headers["batch_length"].astype(np.int64) + LOG_OVERHEAD
        columns = zip(
            positions[starts].tolist(),
            offset[starts].tolist(),
            last_offset[ends].tolist(),
            producer[starts].tolist(),
            headers["producer_epoch"][starts].tolist(),
            sequence[starts].tolist(),
            reached[ends].tolist(),
            transactional[starts].tolist(),
            (ends - starts + 1).tolist(),
            np.add.reduceat(headers["record_count"].astype(np.int64), starts).tolist(),
            headers["max_timestamp"][starts].tolist(),
            headers["max_timestamp"][ends].tolist(),
            offset[ends].tolist(),
            np.add.reduceat(sizes, starts).tolist(),
            strict=True,
        )
        return [r.Run(self._facts.log, self._path, *row) for row in columns]

    def _sequence_breaks(
        self, producer: Array, sequence: Array, reached: Array, offset: Array, last_offset: Array
    ) -> Array:
        if self._facts.log.topic in r.COORDINATOR_TOPICS:
            return np.zeros(len(producer) - 1, bool)
        ahead = (sequence[1:] - reached[:-1] - 1) & MAX_SEQUENCE
        wrong: Array = (ahead != 0) & (producer[1:] >= 0)
        if self._facts.cleaned_offset:
            room = offset[1:] - last_offset[:-1] - 1
            wrong &= ~((ahead <= room) & (last_offset[:-1] + 1 < self._facts.cleaned_offset))
        return wrong


def _marked_between(producer: Array, offset: Array, markers: Sequence[r.Marker]) -> Array:
    """Whether a marker of the producer stands between a batch and the next one, both ordered by producer and offset."""
    numbers = np.array([(marker.producer_id, marker.offset) for marker in markers], np.int64)
    keys = np.empty(len(numbers), [("producer", np.int64), ("offset", np.int64)])
    keys["producer"], keys["offset"] = numbers[:, 0], numbers[:, 1]
    keys.sort()
    places = np.empty(len(producer), keys.dtype)
    places["producer"], places["offset"] = producer, offset
    passed = np.searchsorted(keys, places, "left")
    between: Array = passed[1:] != passed[:-1]
    return between
