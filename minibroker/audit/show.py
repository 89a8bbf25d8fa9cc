"""Prints the batches that a finding is about: `minibroker audit PATH --show TOPIC-PARTITION@FROM-TO`."""

from __future__ import annotations

from collections.abc import Iterator

from minibroker.audit.files import Files, NotReadable, list_directory
from minibroker.audit.headers import HeaderScan
from minibroker.audit.scan import partition_of
from minibroker_protocol.errors import Malformed
from minibroker_protocol.records import BatchHeader, crc_ok, decode_records, parse_control
from minibroker_storage.dump import as_text, batch_row

MOST = 1_000
"""Batches that are printed."""


def show(path: str, what: str) -> Iterator[str]:
    """The lines for `what`: [ROOT/]TOPIC-PARTITION[@FROM[-TO]]. Raises NotReadable and ValueError."""
    place, _, offsets = what.partition("@")
    root, _, name = place.rpartition("/")
    wanted = partition_of(name)
    first, _, last = offsets.partition("-")
    if wanted is None or not (first + last + "0").isdecimal():
        raise ValueError(f"--show {what}: expected TOPIC-PARTITION or TOPIC-PARTITION@FROM-TO")
    low = int(first) if first else 0
    high = int(last) if last else (low if first else 1 << 62)
    files = Files(path)
    listed = list_directory(files, topics=[wanted[0]], partitions=[wanted[1]])
    shown = 0
    for part in listed.parts:
        if part.facts.log.root != root or not part.path.endswith(".log"):
            continue
        with files.view(part) as (data, origin):
            scan = HeaderScan(data, part.start - origin, part.stop - origin)
            for block in scan.blocks():
                chosen = (block.headers["base_offset"] <= high) & (block.last_offsets >= low)
                for index in chosen.nonzero()[0].tolist():
                    header, position = BatchHeader(*block.headers[index].tolist()), int(block.positions[index])
                    yield _line(part.path, position, header, data[position : position + header.size])
                    shown += 1
                    if shown == MOST:
                        yield f"… the first {MOST:,} batches"
                        return
            if scan.reason:
                yield f"{part.path} position: {scan.end} is no batch: {scan.reason}"
    if not shown:
        raise NotReadable(f"{path}: no batch of {what}")


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
