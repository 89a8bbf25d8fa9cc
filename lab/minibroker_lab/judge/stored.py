"""The final content of a data directory: every record of the clients' topics, and whether readers get it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from minibroker.rules.rows import COMMIT, COORDINATOR_TOPICS, Log, Transaction
from minibroker_protocol.records import Record, decode_records
from minibroker_storage.directory import partition_of
from minibroker_storage.disk import Disk, join
from minibroker_storage.log_scan import scan


class Stored(NamedTuple):
    """A record in a log.

    batch: the producer id, epoch and first sequence of its batch.
    committed: a read_committed reader is given it.
    """

    topic: str
    partition: int
    batch: tuple[int, int, int]
    record: Record
    committed: bool

    @property
    def content(self) -> tuple[object, ...]:
        """What two copies of one record have in common."""
        return content_of(self.record)


def content_of(record: Record) -> tuple[object, ...]:
    """Timestamp, key and value: what a retry sends again unchanged."""
    key, value = record.key, record.value
    return record.timestamp, None if key is None else bytes(key), None if value is None else bytes(value)


def read_stored(disk: Disk, transactions: Iterable[Transaction]) -> list[Stored]:
    """The records of all topics but the coordinators', in the order of their offsets.

    transactions: as `judge_log` found them.
    """
    ended: dict[tuple[Log, int], list[Transaction]] = {}
    for transaction in transactions:
        log = Log("", transaction.log.topic, transaction.log.partition)
        ended.setdefault((log, transaction.producer_id), []).append(transaction)
    rows = []
    for name in sorted(disk.list()):
        place = partition_of(name)
        if place is None or place[0] in COORDINATOR_TOPICS or not disk.is_dir(name):
            continue
        for file in sorted(file for file in disk.list(name) if file.endswith(".log")):
            opened = disk.open(join(name, file))
            try:
                for _, header, data in scan(opened, opened.size):
                    if header.is_control:
                        continue
                    own = ended.get((Log("", *place), header.producer_id), [])
                    committed = (
                        not header.is_transactional
                        or header.producer_id < 0
                        or any(
                            t.outcome == COMMIT and t.first_offset <= header.base_offset <= t.last_offset for t in own
                        )
                    )
                    batch = header.producer_id, header.producer_epoch, header.base_sequence
                    rows += [Stored(*place, batch, record, committed) for record in decode_records(data, 0, header)]
            finally:
                opened.close()
    return rows
