"""Deleting the oldest segments of a log (UnifiedLog.deleteOldSegments).

The log's four offsets, and what can go wrong: `minibroker_storage.log`.
"""

from __future__ import annotations

from collections.abc import Callable

from minibroker_storage.append_info import storage_errors
from minibroker_storage.log import PartitionLog
from minibroker_storage.segment import Segment


def delete_old_segments(log: PartitionLog, now_ms: int) -> int:
    """Applies retention (log start, size, time, in this order) and returns the number of deleted segments. Their files
    are renamed at once and removed by a call that is ``file.delete.delay.ms`` later.
    """
    with storage_errors():
        log.files.removals.due(now_ms)
        gone = expired_segments(log, now_ms)
        if not gone:
            return 0
        # Appends need an active segment, so the last one goes only once there is another.
        if gone[-1] is log.segments[-1]:
            log.roll(now_ms)
        log.advance_log_start(log.segments[len(gone)].base_offset)
        log.files.retire(gone, now_ms + log.config.file_delete_delay_ms)
    return len(gone)


def expired_segments(log: PartitionLog, now_ms: int) -> list[Segment]:
    """The oldest segments that retention deletes: by log start, then by size, then by time.

    Never one that reaches past the high watermark, nor an empty last one.
    """
    config = log.config
    rest = log.segments
    gone = _oldest(log, rest, lambda segment, following: following is not None and following <= log.log_start_offset)
    if not config.deletes:
        return gone
    rest = rest[len(gone) :]
    if config.retention_bytes >= 0:
        excess = sum(segment.size for segment in rest) - config.retention_bytes

        # A segment goes only if retention.bytes are left (UnifiedLog.deleteRetentionSizeBreachedSegments).
        def too_much(segment: Segment, _: int | None) -> bool:
            nonlocal excess
            excess -= segment.size
            return excess >= 0

        by_size = _oldest(log, rest, too_much)
        gone += by_size
        rest = rest[len(by_size) :]
    if config.retention_ms >= 0:
        gone += _oldest(log, rest, lambda segment, _: now_ms - _youngest(segment) > config.retention_ms)
    return gone


def _oldest(
    log: PartitionLog, segments: list[Segment], lets_go: Callable[[Segment, int | None], bool]
) -> list[Segment]:
    """The segments at the start of the log, up to the first for which ``lets_go(segment, base offset of the next)`` is
    False."""
    oldest: list[Segment] = []
    for i, segment in enumerate(segments):
        following = segments[i + 1].base_offset if i + 1 < len(segments) else None
        end = log.log_end_offset if following is None else following
        # Another empty one would take its place, round after round.
        empty_last = following is None and not segment.size
        if empty_last or end > log.high_watermark or not lets_go(segment, following):
            break
        oldest.append(segment)
    return oldest


def _youngest(segment: Segment) -> int:
    """The time from which retention counts: the largest timestamp, or the file's if no record has one."""
    timestamp = segment.largest_timestamp
    return timestamp if timestamp >= 0 else segment.modified_ms()
