"""Snapshots of logs whose first records were deleted: a rebuild knows nothing of what is below the log start."""

from __future__ import annotations

import pytest
from logs import NOW, append, batch, end_transaction, open_log

from minibroker.rules.rules import ERROR, judge_logs
from minibroker.rules.scan import scan_directory
from minibroker_storage.checkpoints import LOG_START_OFFSET, encode_offsets
from minibroker_storage.memory_disk import MemoryDisk
from minibroker_storage.truncation import truncate_to


def found(disk: MemoryDisk, start: int) -> list[str]:
    disk.write_atomic(LOG_START_OFFSET, encode_offsets({("t", 0): start}))
    scan = scan_directory(disk, root="1")
    findings = judge_logs(scan.logs, scan.states, scan.commits, as_of_ms=NOW, max_timeout_ms=900_000)
    return [f"{one.rule}: {one.message}" for one in findings if one.severity == ERROR]


@pytest.mark.parametrize("deleted", [True, False])
def test_a_producer_of_which_only_a_marker_was_left(deleted: bool) -> None:
    """Truncation rebuilds producers from the log start on (ProducerStateManager.truncateAndReload); Kafka 4.3.1 shows
    such a producer with last sequence -1 after a kill and a start, too."""
    disk = MemoryDisk()
    log = open_log(disk)
    append(log, batch(b"a", pid=1, txn=True))
    end_transaction(log, 1, commit=True)
    for value in (b"b", b"c"):
        append(log, batch(value))
    log.delete_records(1)
    truncate_to(log, 3, now_ms=NOW)
    assert {p.producer_id: p.last_sequence for p in log.producers.active()} == {1: -1}
    log.flush()
    lost = "producer-snapshot: producer 1: last sequence 0 in the log, -1 here; last offset 0 in the log, -1 here"
    assert found(disk, 1 if deleted else 0) == ([] if deleted else [lost])
