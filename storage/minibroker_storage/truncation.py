"""Truncating a log, and rebuilding producers from the rest of it (UnifiedLog.truncateTo, LogTruncation).

The log's four offsets, and what can go wrong: `minibroker_storage.log`.
"""

from __future__ import annotations

from minibroker_storage import recovery
from minibroker_storage.append_info import storage_errors
from minibroker_storage.log import PartitionLog


def truncate_to(log: PartitionLog, offset: int, *, now_ms: int) -> bool:
    """Drops every batch that reaches `offset` or past it; False when the log already ends there or before.

    If the disk fails half-way, the log refuses writes until it is opened again.
    """
    if offset >= log.log_end_offset:
        # A leader that is replaced before its first append has an epoch that no other replica has. If it stayed,
        # follower and leader would never find their last common offset.
        if log.leader_epochs.truncate_from_end(log.log_end_offset):
            log.save_epochs()
        return False
    first = log.segments[0].base_offset
    if offset <= first:
        # Below its first segment nothing of the log is left; one that began at 0 begins there again.
        truncate_fully_and_start_at(log, offset if first else 0, now_ms=now_ms)
        return True
    # Checkpoints first: a kill in between must not leave one that is ahead of the log.
    with log.all_or_offline():
        log.before_truncation(offset)
        log.files.truncate_to(offset)
        log.ends_at(offset)
        if log.leader_epochs.truncate_from_end(offset):
            log.save_epochs()
        _rebuild_producers(log, now_ms)
    log.producers.on_high_watermark(log.high_watermark)
    return True


def truncate_fully_and_start_at(log: PartitionLog, offset: int, *, now_ms: int) -> None:
    """Empties the log, producer state and snapshots included; it then begins at `offset`."""
    with log.all_or_offline():
        log.before_truncation(offset)
        log.files.truncate_fully_and_start_at(offset, log.config, now_ms)
        log.producers.clear(offset)
        log.ends_at(offset)
        log.log_start_offset = log.high_watermark = offset
        if log.leader_epochs.clear():
            log.save_epochs()


def rebuild_producers_from_log(log: PartitionLog, *, now_ms: int) -> None:
    """Removes every snapshot and keeps only producers with records in the log, as on a replica created by reassignment
    (KIP-360)."""
    with storage_errors():
        log.files.remove_snapshots()
        log.producers.clear(log.log_start_offset)
        _rebuild_producers(log, now_ms, as_new_replica=True)
    log.producers.on_high_watermark(log.high_watermark)


def _rebuild_producers(log: PartitionLog, now_ms: int, *, as_new_replica: bool = False) -> None:
    files = log.files
    recovery.rebuild_producers(
        log.producers,
        files.segments,
        files.snapshots,
        log.log_start_offset,
        log.log_end_offset,
        now_ms=now_ms,
        clean=False,
        warn=log.warnings.append,
        as_new_replica=as_new_replica,
    )
