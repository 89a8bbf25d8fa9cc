"""What readers with read_committed see of the batches that `sink_job.py` writes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from sink_job import PARTITIONS, ROWS

from minibroker.client.topics import EARLIEST, LATEST, READ_COMMITTED, ReadingClient
from minibroker_protocol.records import decode_records, iter_batches

PROGRAM = Path(__file__).parent / "sink_job.py"
BATCH = PARTITIONS * ROWS
"""Records of a batch."""


def job(directory: Path, bootstrap: str, topic: str, batches: int, *armed: str) -> list[str]:
    """Command line of the driver, with a checkpoint in `directory`."""
    place = str(directory / f"{topic}.checkpoint")
    return [sys.executable, str(PROGRAM), bootstrap, topic, f"sink-{topic}", place, str(batches), *armed]


def visible(bootstrap: str, topic: str, positions: dict[int, int] | None = None) -> Iterator[tuple[int, str]]:
    """(partition, value) of each committed record. positions: where to go on in each partition, moved by reading."""
    positions = {} if positions is None else positions
    with ReadingClient(bootstrap) as client:
        for partition in range(PARTITIONS):
            for _, value in committed_records(client, topic, partition, positions):
                yield partition, value


def committed_records(
    client: ReadingClient, topic: str, partition: int, positions: dict[int, int]
) -> Iterator[tuple[int, str]]:
    """(offset, value) of each committed record of a partition; `positions` as in `visible`."""
    start = positions.setdefault(partition, client.offset(topic, partition, EARLIEST))
    end = client.offset(topic, partition, LATEST, READ_COMMITTED)
    while positions[partition] < end:
        fetched = client.fetch(topic, partition, positions[partition], READ_COMMITTED)
        aborted = sorted(fetched.aborted, key=lambda txn: txn[1])
        for position, header in iter_batches(fetched.data):
            if header.base_offset >= end:
                break
            after = positions[partition] = header.next_offset
            if header.is_control:
                aborted = [txn for txn in aborted if not (txn[0] == header.producer_id and txn[1] < after)]
            elif not any(txn[0] == header.producer_id and txn[1] <= header.base_offset for txn in aborted):
                for record in decode_records(fetched.data, position, header):
                    if record.offset >= start:
                        yield record.offset, bytes(record.value or b"").decode()
