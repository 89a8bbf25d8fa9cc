"""Prints what a finding is about, batches and entries of index and snapshot files: `--show TOPIC-PARTITION@FROM-TO`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from minibroker.rules.rows import AbortedTxn, LogFault
from minibroker.rules.scan import base_of, index_rows, snapshot_rows
from minibroker_pipeline.files import TXN_INDEX_SUFFIX, FileDisk, Files, FilesReader, NotReadable, Part
from minibroker_pipeline.headers import HeaderScan
from minibroker_pipeline.plan import Plan
from minibroker_pipeline.topics import Topics
from minibroker_protocol.errors import Malformed
from minibroker_protocol.records import BatchHeader, crc_ok, decode_records, parse_control
from minibroker_storage.directory import partition_of
from minibroker_storage.dump import as_text, batch_row, dump
from minibroker_storage.lost import DIRECTORY
from minibroker_storage.producer_snapshot import SNAPSHOT_SUFFIX

MOST = 1_000
"""Lines that are printed."""
_EVERYTHING = 1 << 62


def show(plan: Plan, what: str) -> Iterator[str]:
    """The lines for `what`: [ROOT/]TOPIC-PARTITION[@FROM[-TO]], or a file in place of the partition. Raises NotReadable
    and ValueError."""
    place, _, offsets = what.partition("@")
    root, _, name = place.rpartition("/")
    wanted = partition_of(name)
    first, _, last = offsets.partition("-")
    if not (first + last + "0").isdecimal():
        raise ValueError(f"--show {what}: expected TOPIC-PARTITION or TOPIC-PARTITION@FROM-TO")
    low = int(first) if first else 0
    high = int(last) if last else (low if first else _EVERYTHING)
    parts = [] if wanted is None else [part for part in plan.parts if part.facts.log == (root, *wanted)]
    if not parts and isinstance(plan.files, Files) and (wanted or "." in name or "-checkpoint" in name):
        yield from show_file(plan.files, place, low, high)
        return
    if wanted is None:
        raise ValueError(f"--show {what}: expected TOPIC-PARTITION or TOPIC-PARTITION@FROM-TO")
    shown = 0
    for line in _batches_at(plan, parts, low, high):
        yield line
        shown += 1
        if shown == MOST:
            yield f"… the first {MOST:,} lines"
            return
    if not shown:
        raise NotReadable(f"{plan.source}: no batch of {what}")


def show_file(files: Files, path: str, low: int = 0, high: int = _EVERYTHING) -> Iterator[str]:
    """The entries of a small file; of an index those at these offsets. One line says so where there is no such file."""
    folder, _, name = path.rpartition("/")
    reader = FilesReader(files)
    size = reader.sizes(folder).get(name)
    if size is None:
        yield f"{path} no such file"
    elif size == DIRECTORY:
        yield from (f"{path} {entry}" for entry in sorted(reader.sizes(path)))
    else:
        try:
            for row in dump(FileDisk(reader, path), path):
                if "offset" not in row or not name.endswith("index") or low <= row["offset"] <= high:
                    yield f"{path} {as_text(row)}"
        except Malformed:
            for number, line in enumerate(reader.read(path).splitlines(), start=1):
                yield f"{path} line {number}: {line!r}"


def _batches_at(plan: Plan, parts: Sequence[Part], low: int, high: int) -> Iterator[str]:
    """The batches at these offsets, or those around the hole there; then what index and snapshot files say."""
    logs = [part for part in parts if part.is_log]
    any_batch = False
    for part in logs:
        for line in _lines(plan, part, low, high):
            any_batch = True
            yield line
    if not any_batch and isinstance(plan.files, Files):
        yield from _around(plan, logs, low, high)
    for part in parts:
        if part.path.endswith(TXN_INDEX_SUFFIX):
            yield from _aborted(plan, part, low, high)
        elif part.path.endswith(SNAPSHOT_SUFFIX) and low == high == base_of(part.path):
            yield from _producers(plan, part)


def _around(plan: Plan, logs: Sequence[Part], low: int, high: int) -> Iterator[str]:
    """The last batch before the offsets and the first one after them; nothing where there are not both."""
    nearest: dict[str, tuple[int, str]] = {}
    assert isinstance(plan.files, Files)
    for part in logs:
        with plan.files.view(part) as (data, origin):
            for block in HeaderScan(data, part.start - origin, part.stop - origin).blocks():
                bases = block.headers["base_offset"].astype("i8")
                for name, beyond, sign in (("before", block.last_offsets < low, -1), ("after", bases > high, 1)):
                    if not beyond.any():
                        continue
                    index = int((bases * sign + ~beyond * _EVERYTHING).argmin())
                    distance = int(bases[index]) * sign
                    if name not in nearest or distance < nearest[name][0]:
                        header, position = BatchHeader(*block.headers[index].tolist()), int(block.positions[index])
                        line = _line(part.path, position, header, data[position : position + header.size])
                        nearest[name] = distance, line
    for name, (_, line) in sorted(nearest.items(), reverse=True) if len(nearest) == 2 else ():
        yield f"nothing at these offsets; {name} them: {line}"


def _aborted(plan: Plan, part: Part, low: int, high: int) -> Iterator[str]:
    assert not isinstance(plan.files, Topics)
    for row in index_rows(part.facts, part.path, plan.files.read(part.path)):
        if isinstance(row, AbortedTxn) and row.first_offset <= high and row.last_offset >= low:
            yield (
                f"{part.path} aborted: {row.first_offset}-{row.last_offset} producer_id: {row.producer_id} "
                f"last_stable_offset: {row.last_stable_offset}"
            )


def _producers(plan: Plan, part: Part) -> Iterator[str]:
    assert not isinstance(plan.files, Topics)
    for row in snapshot_rows(part.facts, part.path, plan.files.read(part.path)):
        if isinstance(row, LogFault):
            yield f"{part.path} {row.message}"
        else:
            for entry in row.entries:
                yield f"{part.path} {' '.join(f'{name}: {value}' for name, value in entry._asdict().items())}"


def _lines(plan: Plan, part: Part, low: int, high: int) -> Iterator[str]:
    if isinstance(plan.files, Topics):
        nearer = part._replace(start=max(low, part.start), stop=min(high + 1, part.stop))
        nearer = nearer._replace(facts=part.facts._replace(start_offset=nearer.start))
        for data, _ in plan.files.pieces(nearer):
            yield from _scanned(part.path, data, HeaderScan(data), low, high)
        return
    with plan.files.view(part) as (data, origin):
        yield from _scanned(part.path, data, HeaderScan(data, part.start - origin, part.stop - origin), low, high)


def _scanned(path: str, data: memoryview, scan: HeaderScan, low: int, high: int) -> Iterator[str]:
    for block in scan.blocks():
        chosen = (block.headers["base_offset"] <= high) & (block.last_offsets >= low)
        for index in chosen.nonzero()[0].tolist():
            header, position = BatchHeader(*block.headers[index].tolist()), int(block.positions[index])
            yield _line(path, position, header, data[position : position + header.size])
    if scan.reason:
        yield f"{path} position: {scan.end} is no batch: {scan.reason}"


def _line(path: str, position: int, header: BatchHeader, data: memoryview) -> str:
    valid = crc_ok(data, 0, header)
    line = f"{path} {as_text(batch_row(position, header, valid))}"
    if header.is_control and valid and header.record_count:
        try:
            control = parse_control(decode_records(data, 0, header)[0])
        except Malformed as error:
            return f"{line} control: {error}"
        line += f" control: {control.type.name} coordinator_epoch: {control.coordinator_epoch}"
    return line
