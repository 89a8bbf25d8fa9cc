"""Which segments a log gives up, and the removal of their files after a delay (UnifiedLog.deleteOldSegments)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from minibroker_storage import indexes
from minibroker_storage.config import LogConfig
from minibroker_storage.disk import Disk
from minibroker_storage.recovery import DELETED_SUFFIX
from minibroker_storage.segment import Segment


class Expiring(Protocol):
    """A log, as far as retention looks at it."""

    config: LogConfig
    log_start_offset: int
    log_end_offset: int
    high_watermark: int

    @property
    def segments(self) -> list[Segment]:
        """The segments, oldest first."""


class Removals:
    """Files renamed to ``.deleted``, waiting for their time."""

    __slots__ = ("_disk", "_waiting")

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._waiting: list[tuple[int, str]] = []

    def later(self, paths: Sequence[str], at_ms: int) -> None:
        """Renames the files that are there and removes them once ``due`` is called at or after ``at_ms``."""
        for path in paths:
            if self._disk.exists(path):
                self._disk.rename(path, path + DELETED_SUFFIX)
                self._waiting.append((at_ms, path + DELETED_SUFFIX))

    def due(self, now_ms: int) -> None:
        for at_ms, path in self._waiting:
            if at_ms <= now_ms:
                indexes.remove(self._disk, path)
        self._waiting = [(at_ms, path) for at_ms, path in self._waiting if at_ms > now_ms]

    def finish(self) -> None:
        """Removes them all now."""
        for _, path in self._waiting:
            indexes.remove(self._disk, path)
        self._waiting = []


def expired_segments(log: Expiring, now_ms: int) -> list[Segment]:
    """The oldest segments that retention lets go of: by log start, then by size, then by time.

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


def _oldest(log: Expiring, segments: list[Segment], lets_go: Callable[[Segment, int | None], bool]) -> list[Segment]:
    """The segments from the start on for which ``lets_go(segment, base offset of the next)`` holds without a break."""
    found: list[Segment] = []
    for i, segment in enumerate(segments):
        following = segments[i + 1].base_offset if i + 1 < len(segments) else None
        end = log.log_end_offset if following is None else following
        empty_last = following is None and not segment.size
        if empty_last or end > log.high_watermark or not lets_go(segment, following):
            break
        found.append(segment)
    return found


def _youngest(segment: Segment) -> int:
    """The time retention counts from: the largest timestamp, or the file's when no record has one."""
    timestamp = segment.largest_timestamp
    return timestamp if timestamp >= 0 else segment.modified_ms()
