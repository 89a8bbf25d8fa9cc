"""Prints the batches that a finding is about: `minibroker audit PATH --show TOPIC-PARTITION@FROM-TO`."""

from __future__ import annotations

from collections.abc import Iterator

from minibroker.audit.files import NotReadable, Part
from minibroker.audit.headers import HeaderScan
from minibroker.audit.plan import Plan
from minibroker.audit.scan import partition_of
from minibroker.audit.topics import Topics
from minibroker_protocol.errors import Malformed
from minibroker_protocol.records import BatchHeader, crc_ok, decode_records, parse_control
from minibroker_storage.dump import as_text, batch_row

MOST = 1_000
"""Batches that are printed."""


def show(plan: Plan, what: str) -> Iterator[str]:
    """The lines for `what`: [ROOT/]TOPIC-PARTITION[@FROM[-TO]]. Raises NotReadable and ValueError."""
    place, _, offsets = what.partition("@")
    root, _, name = place.rpartition("/")
    wanted = partition_of(name)
    first, _, last = offsets.partition("-")
    if wanted is None or not (first + last + "0").isdecimal():
        raise ValueError(f"--show {what}: expected TOPIC-PARTITION or TOPIC-PARTITION@FROM-TO")
    low = int(first) if first else 0
    high = int(last) if last else (low if first else 1 << 62)
    shown = 0
    for part in plan.parts:
        if part.facts.log != (root, *wanted) or not part.is_log:
            continue
        for line in _lines(plan, part, low, high):
            yield line
            shown += 1
            if shown == MOST:
                yield f"… the first {MOST:,} batches"
                return
    if not shown:
        raise NotReadable(f"{plan.source}: no batch of {what}")


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
