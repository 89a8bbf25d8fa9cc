"""The rules on what a log's small files say of it: leader epochs, time indexes, checkpoints against its batches.

What one file or one batch shows by itself is found when it is read (`minibroker.rules.scan`).
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias, TypeGuard, get_args

from minibroker.rules import rows as r
from minibroker.rules.catalogue import NOTICE, finding, finding_at
from minibroker_storage.checkpoints import CLEANER_OFFSET
from minibroker_storage.leader_epochs import LeaderEpochCache


class LogRows(NamedTuple):
    """Everything known of one log, in any order."""

    facts: r.LogFacts
    runs: tuple[r.Run, ...] = ()
    markers: tuple[r.Marker, ...] = ()
    spans: tuple[r.Span, ...] = ()
    faults: tuple[r.LogFault, ...] = ()
    aborted: tuple[r.AbortedTxn, ...] = ()
    snapshots: tuple[r.Snapshot, ...] = ()
    epochs: tuple[r.EpochStart, ...] = ()
    times: tuple[r.TimeClaims, ...] = ()
    starts: tuple[r.LogStart, ...] = ()

    def from_start(self) -> LogRows:
        """The same without what was deleted while the log was read, if anything was."""
        if not self.starts:
            return self
        start = max(start.offset for start in self.starts)
        return self._replace(
            facts=self.facts._replace(start_offset=start, first_offset=start),
            runs=tuple(run for run in self.runs if run.last_offset >= start),
            markers=tuple(marker for marker in self.markers if marker.offset >= start),
            spans=tuple(span for span in self.spans if span.end_offset > start),
            faults=tuple(fault for fault in self.faults if fault.last_offset >= start),
            starts=(),
        )


LogRow: TypeAlias = (
    r.Run | r.Marker | r.Span | r.LogFault | r.AbortedTxn | r.Snapshot | r.EpochStart | r.TimeClaims | r.LogStart
)
LOG_ROWS: tuple[type, ...] = get_args(LogRow)
"""The rows that one log is judged by, in the order of the fields of `LogRows`."""


def is_log_row(row: object) -> TypeGuard[LogRow]:
    return isinstance(row, LOG_ROWS)


def judge_files(rows: LogRows, end: int, *, epochs_fall: bool) -> list[r.Finding]:
    """Where these files disagree with the log, which ends at offset `end`.

    epochs_fall: the leader epochs of the log's own batches fall, so they are not compared with the checkpoint.
    """
    if any(not fault.readable and fault.first_offset >= end for fault in rows.faults):
        end = r.EVERYTHING  # its end without the reported last batches is not known
    findings = _time_indexes(rows)
    if rows.epochs:
        findings += _epoch_checkpoint(rows, end, epochs_fall)
    cleaned = rows.facts.cleaner_offset
    if end < cleaned:
        reason = f"{CLEANER_OFFSET} says {cleaned}, the log ends at {end}"
        place = {"first_offset": cleaned, "file": CLEANER_OFFSET}
        findings.append(finding("checkpoint", rows.facts.log, reason, **place, severity=_late(rows.facts)))  # type: ignore[arg-type]
    return findings


def _late(facts: r.LogFacts) -> str | None:
    """Something past the end of a log that was not closed: opening the log removes it."""
    return None if facts.clean else NOTICE


def _time_indexes(rows: LogRows) -> list[r.Finding]:
    """Entries against parts of the file that were read apart from their own."""
    largest: dict[str, int] = {}
    findings = []
    for part in sorted(rows.times, key=lambda part: (part.file, part.position)):
        before = largest.get(part.file, r.NONE)
        if part.entry >= 0 and before > part.timestamp:
            reason = f"entry says {part.timestamp} is the largest timestamp up to here, it is {before}"
            findings.append(finding_at("time-index", part, reason, file=part.index_file, position=part.entry))
        largest[part.file] = max(before, part.largest)
    return findings


def _epoch_checkpoint(rows: LogRows, end: int, epochs_fall: bool) -> list[r.Finding]:
    facts, entries = rows.facts, rows.epochs
    cache = LeaderEpochCache()
    for entry in entries:
        cache.assign(entry.epoch, entry.offset)
    findings = []
    for span in () if epochs_fall else sorted(rows.spans, key=lambda span: span.first_offset):
        last = span.end_offset - 1
        wrong = span.epoch != r.NONE and cache.contradiction(span.first_offset, last, span.epoch)
        if wrong:
            place = {"last_offset": last, "file": entries[0].file, "position": r.NONE}
            findings.append(finding_at("epoch-checkpoint", span, f"leader epoch {span.epoch}, {wrong}", **place))
    for entry in entries:
        if entry.offset > end:
            reason = f"epoch {entry.epoch} begins after the log's end {end}"
            findings.append(finding_at("epoch-checkpoint", entry, reason, severity=_late(facts)))
    return findings
