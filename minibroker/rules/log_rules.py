"""The rules that one log can break, judged in one pass over its runs and markers in the order of their offsets."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate, islice
from typing import NamedTuple

from minibroker.rules import rows as r
from minibroker.rules.catalogue import NOTICE, finding_at
from minibroker.rules.file_rules import LOG_ROWS, LogRow, LogRows, judge_files
from minibroker.rules.runs import goes_on
from minibroker_protocol.records import MAX_SEQUENCE, increment_sequence

PRODUCER_EXPIRATION_MS = 86_400_000
"""Kafka's default of producer.id.expiration.ms."""
_UNKNOWN = -2
"""Last sequence of a producer whose earlier batches were deleted."""


class LogVerdict(NamedTuple):
    """The findings, and the log's transactions (open ones too) for the rules that compare partitions.

    plain: each producer's first run outside a transaction and without the transactional bit.
    """

    facts: r.LogFacts
    end_offset: int
    findings: list[r.Finding]
    transactions: list[r.Transaction]
    plain: list[r.Run]


@dataclass(slots=True, eq=False)
class Producer:
    """A producer as Kafka's replay has it, with further fields for the rules."""

    epoch: int
    last_sequence: int
    last_offset: int = r.NONE
    delta: int = 0
    timestamp: int = r.NONE
    coordinator_epoch: int = r.NONE
    seen: int = r.NONE  # offset from which on batches may be missing before the next one
    fenced_at: int = r.NONE  # offset of the marker that raised the epoch
    marked_at: int = r.NONE  # offset of its last marker
    txn: r.Run | None = None  # the run that opened the transaction
    last: tuple[int, int] = (r.NONE, r.NONE)  # offset and timestamp of the transaction's last data
    marked_ms: int = r.NONE  # when the last marker before the transaction was written, of any producer
    doubtful: bool = False  # the log alone does not give this state
    alive_ms: int = r.NONE  # as of when it was last judged


@dataclass(slots=True, eq=False)
class LogState:
    """What is kept of a log's rows so that those that follow can be judged without them. Grows with producers.

    plain: as of `LogVerdict`.
    broken: each producer's last run, if a rule is broken in it.
    expired: producers were forgotten.
    """

    producers: dict[int, Producer] = field(default_factory=dict)
    plain: dict[int, r.Run] = field(default_factory=dict)
    broken: dict[int, r.Run] = field(default_factory=dict)
    marked_ms: int = r.NONE
    expired: bool = False

    def expire(self, before_ms: int) -> None:
        """Forget producers that wrote nothing since, as brokers do. One with an open transaction is kept."""
        gone = [number for number, known in self.producers.items() if known.txn is None and known.alive_ms < before_ms]
        for number in gone:
            del self.producers[number]
            self.plain.pop(number, None)
        self.expired = self.expired or bool(gone)


def judge_log(
    rows: LogRows, *, as_of_ms: int | None = None, state: LogState | None = None, until: int = r.EVERYTHING
) -> LogVerdict:
    """Judges one log. `as_of_ms` is when it was last alive: before that a producer may have expired from a snapshot.

    `state`: the state after the rows before these, which need not be here; it is brought up to date. The verdict then
    has the findings of these rows and the transactions that they end, and all that are open.

    `until`: the log is judged up to this offset in this call and then in others, all of which have its spans and
    faults. What these show, and what is open, is told with the last."""
    if state is not None and rows.starts:
        state.producers.clear()  # of deleted records
    return _LogJudge(rows.from_start(), as_of_ms, state or LogState()).run(until)


class _LogJudge:
    def __init__(self, rows: LogRows, as_of_ms: int | None, state: LogState) -> None:
        self._rows = rows
        self._facts = rows.facts
        self._log: r.Log = rows.facts.log
        self._as_of = as_of_ms
        self._sequences = self._log.topic not in r.COORDINATOR_TOPICS
        self._state = state
        self._producers = state.producers
        self._repeated = False  # the run goes on a run of earlier rows, of which the same was said
        self._findings: list[r.Finding] = []
        self._transactions: list[r.Transaction] = []
        self._unreadable = [_unreadable(fault, rows.spans) for fault in rows.faults if not fault.readable]
        self._holes: list[r.Hole] = []
        self._compaction()
        self._hole_ends = [*accumulate((hole.end_offset for hole in self._holes), max)]
        self._begins: list[tuple[int, int]] | None = None
        self._aborted = {(a.last_offset, a.producer_id): a for a in rows.aborted}

    def run(self, until: int) -> LogVerdict:
        end = self._offsets()
        for fault in self._rows.faults:
            self._fault(fault, end)
        events: list[tuple[int, int, r.Run | r.Marker | r.Snapshot]] = []
        events.extend((run.first_offset, 1, run) for run in self._rows.runs)
        events.extend((marker.offset, 1, marker) for marker in self._rows.markers)
        events.extend((snapshot.offset, 0, snapshot) for snapshot in self._rows.snapshots)
        events.sort(key=lambda event: event[:2])
        if until < r.EVERYTHING:
            self._findings.clear()
            del events[bisect_left(events, (until,)) :]
        for _, _, event in events:
            if type(event) is r.Run:
                self._run(event)
            elif type(event) is r.Marker:
                self._marker(event)
            elif type(event) is r.Snapshot:
                self._snapshot(event, end)
        self._index_leftovers(end)
        if until == r.EVERYTHING:
            self._open_transactions(end)
            self._findings += judge_files(
                self._rows, end, epochs_fall=any(finding.rule == "leader-epoch" for finding in self._findings)
            )
        facts = self._facts._replace(marked_ms=self._state.marked_ms)
        return LogVerdict(facts, end, self._findings, self._transactions, [*self._state.plain.values()])

    def _report(self, rule: str, row: r.Run | r.Marker, message: str) -> None:
        if isinstance(row, r.Run):
            self._state.broken[row.producer_id] = row
            if self._repeated:
                return
        self._findings.append(finding_at(rule, row, message))

    # -- offsets ---------------------------------------------------------------------------------------------------

    def _offsets(self) -> int:
        """Holes, overlaps and leader epochs; returns where the log ends."""
        end: int | None = None
        epoch = r.NONE
        self._falling()
        for span in sorted(self._rows.spans, key=lambda s: (s.first_offset, s.end_offset)):
            if end is not None and span.first_offset > end and not self._excused(end, span.first_offset):
                self._hole(span, f"no batch from offset {end} to {span.first_offset - 1}", end, span.first_offset - 1)
            elif end is not None and span.first_offset < end:
                last = min(end, span.end_offset) - 1
                self._hole(span, f"offsets {span.first_offset}-{last} come twice", span.first_offset, last)
            elif r.NONE < span.epoch < epoch:
                reason = f"leader epoch {span.epoch} after {epoch}"
                self._findings.append(finding_at("leader-epoch", span, reason))
            epoch = span.epoch if span.epoch > r.NONE else epoch
            end = span.end_offset if end is None else max(end, span.end_offset)
        return end if end is not None else self._facts.first_offset

    def _falling(self) -> None:
        """Batches with lower offsets than those before them in their file, though not the same ones. In data that was
        fetched, a position counts from the beginning of the answer."""
        if not self._facts.indexed:
            return
        reached: dict[str, int] = {}
        falling = []
        for span in sorted(self._rows.spans, key=lambda s: (s.file, s.position)):
            before = reached.get(span.file, r.NONE)
            if span.end_offset <= before:
                falling.append((span, before))
            reached[span.file] = max(before, span.end_offset)
        by_offset = sorted(self._rows.spans, key=lambda s: (s.first_offset, s.end_offset))
        ends = [*accumulate((span.end_offset for span in by_offset), max)]
        for span, before in falling:
            first = span.first_offset
            at = bisect_left(by_offset, first, key=lambda s: s.first_offset)
            twice = (at > 0 and ends[at - 1] > first) or (
                at + 1 < len(by_offset) and by_offset[at + 1].first_offset < span.end_offset
            )
            if not twice:
                self._hole(span, f"offset {first} after {before - 1}", first, span.end_offset - 1)

    def _compaction(self) -> None:
        """Finds where batches and records are missing. If compaction may have taken them, `cleaned_offset` becomes the
        end of the last of these places; what it left of a log that is not known to be compacted is worth a notice."""
        spans = sorted(self._rows.spans, key=lambda s: (s.first_offset, s.end_offset))
        thinned = sum(span.thinned for span in spans)
        facts = self._facts
        self._compacted = facts.compacts or thinned > 0
        if max((span.thinned_end for span in spans), default=0) > facts.cleaned_offset:
            facts = facts._replace(cleaned_offset=r.EVERYTHING)
        end = facts.first_offset
        for span in spans:
            if span.first_offset > end and not self._not_read(end, span.first_offset):
                self._holes.append(r.Hole(end, span.first_offset, span.first_offset - end))
            self._holes += span.holes
            end = max(end, span.end_offset)
        self._holes = sorted(hole for hole in self._holes if hole.first_offset < facts.cleaned_offset)
        thin = [r.Hole(span.first_thinned, span.thinned_end, 0) for span in spans if span.thinned]
        places = [*self._holes, *(place for place in thin if place.first_offset < facts.cleaned_offset)]
        facts = facts._replace(hole_end=max((place.end_offset for place in places), default=0))
        if facts.indexed:  # of a running cluster the logs are of different moments
            facts = facts._replace(cleaned_offset=min(facts.cleaned_offset, facts.hole_end))
        self._facts = facts
        # A hole with a batch that could not be read has a finding of its own.
        missing = sum(hole.missing for hole in self._holes if not self._not_read(hole.first_offset, hole.end_offset))
        if facts.compacts or not (missing or thinned):
            return
        place = {"first_offset": min(places).first_offset, "last_offset": facts.hole_end - 1}
        reason = "as compaction leaves them, but cleanup.policy is not known to have been compact"
        rule, what = (
            ("offset-hole", f"{missing} offsets are of no batch")
            if missing
            else ("record-count", f"{thinned} batches have fewer records than offsets")
        )
        self._findings.append(
            finding_at(rule, spans[0], f"{what}, {reason}", **place, file="", position=r.NONE, severity=NOTICE)
        )

    def _hole(self, span: r.Span, message: str, first: int, last: int) -> None:
        self._findings.append(finding_at("offset-hole", span, message, first_offset=first, last_offset=last))

    def _not_read(self, first: int, end: int) -> bool:
        """Whether a batch of [first, end) could not be read, which is a finding of its own."""
        return any(low < end and first <= high for low, high in self._unreadable)

    def _excused(self, first: int, end: int) -> bool:
        """Whether [first, end) may be missing for a legal reason, or one that is reported already."""
        return first < self._facts.cleaned_offset or self._not_read(first, end)

    def _taken(self, first: int, end: int) -> Iterator[r.Hole]:
        """What compaction may have taken of the offsets [first, end)."""
        if first >= self._facts.cleaned_offset:
            return
        for at in range(bisect_right(self._hole_ends, first), len(self._holes)):
            hole = self._holes[at]
            if hole.first_offset >= end:
                return
            low, high = max(first, hole.first_offset), min(end, hole.end_offset)
            if low < high:
                yield r.Hole(low, high, min(hole.missing, high - low))

    def _gone(self, first: int, end: int) -> bool:
        """Whether batches between these offsets are missing for a legal reason, or one that is reported already."""
        return any(self._taken(first, end)) or self._not_read(first, end)

    def _fault(self, fault: r.LogFault, end: int) -> None:
        torn_tail = fault.rule in ("torn-batch", "checksum") and not self._facts.clean and fault.first_offset >= end
        message = fault.message + (" (the log was not closed; opening it cuts it here)" if torn_tail else "")
        self._findings.append(
            finding_at(fault.rule, fault, message, severity=NOTICE if torn_tail or fault.mended else None)
        )

    # -- data ------------------------------------------------------------------------------------------------------

    def _run(self, run: r.Run) -> None:
        broken = self._state.broken.pop(run.producer_id, None)
        self._repeated = broken is not None and goes_on(broken, run, self._facts)
        if run.producer_id < 0:
            if run.transactional:
                self._report("no-producer-id", run, f"{run.batches} transactional batches without producer id")
            return
        known = self._producers.get(run.producer_id)
        if known is None:
            known = self._producers[run.producer_id] = Producer(run.producer_epoch, _UNKNOWN)
        elif run.producer_epoch < known.epoch:
            self._stale(run, known)
            return
        elif run.producer_epoch > known.epoch:
            if run.first_sequence and self._sequences and not self._gone(known.seen + 1, run.first_offset):
                reason = (
                    f"epoch {run.producer_epoch} after {known.epoch} begins with sequence {run.first_sequence}, not 0"
                )
                self._report("sequence-gap", run, reason)
            known.epoch = run.producer_epoch
            known.last_sequence = _UNKNOWN
        elif self._sequences and known.last_sequence != _UNKNOWN:
            self._sequence(run, known)
        self._transactional(run, known)
        if not (self._sequences and self._behind(run.last_sequence, known.last_sequence)):
            known.last_sequence = run.last_sequence
        known.last_offset = known.seen = run.last_offset
        known.delta = run.last_offset - run.last_base_offset
        known.timestamp = run.last_timestamp
        known.alive_ms = self._as_of or r.NONE

    def _stale(self, run: r.Run, known: Producer) -> None:
        known.doubtful = True
        if known.fenced_at >= 0:
            reason = (
                f"epoch {run.producer_epoch}, but the marker at offset {known.fenced_at} raised it to {known.epoch}"
            )
            self._report("write-after-fencing", run, reason)
        else:
            self._report("epoch-back", run, f"epoch {run.producer_epoch} after {known.epoch}")

    @staticmethod
    def _behind(sequence: int, last: int) -> bool:
        """Whether a sequence is at or before the last one, around the wrap at 2^31-1 too."""
        return last >= 0 and (last - sequence) & MAX_SEQUENCE < 1 << 30

    def _sequence(self, run: r.Run, known: Producer) -> None:
        last = known.last_sequence
        expected = increment_sequence(last, 1) if last >= 0 else 0
        if run.first_sequence == expected:
            return
        if self._behind(run.first_sequence, last):
            known.doubtful = True
            reason = (
                f"sequences {run.first_sequence}-{run.last_sequence} of epoch {run.producer_epoch} again: "
                f"{last} was reached at offset {known.last_offset}"
            )
            self._report("duplicate", run, reason)
            return
        ahead, taken = (run.first_sequence - expected) & MAX_SEQUENCE, self._taken(known.seen + 1, run.first_offset)
        enough = any(missing >= ahead for missing in accumulate(hole.missing for hole in taken))  # mostly the first is
        if not enough and not self._not_read(known.seen + 1, run.first_offset):
            reason = f"expected sequence {expected} after offset {known.seen}, got {run.first_sequence}"
            self._report("sequence-gap", run, reason)

    def _lost_its_end(self, known: Producer, opened: r.Run, end: int) -> bool:
        """Whether the marker of the producer's open transaction was taken before offset `end`; worth a notice.

        Compaction takes nothing from the first record of an open transaction on (LogCleanerManager.cleanableOffsets),
        and no marker before the records (Cleaner.checkBatchRetention). So the replica was down after them while its
        leader's cleaner took both: the first hole from the first record on is behind the last one. A hole of one offset
        is rather a marker that was taken alone, and one of a log that may never have been compacted a lost file.
        """
        hole = next(self._taken(opened.first_offset, end), None)
        if hole is None or hole.first_offset <= known.last[0] or hole.missing < 2 or not self._compacted:
            return False
        if self._not_read(*hole[:2]):
            return False
        self._lose_end(known, opened, f"offsets {hole.first_offset}-{hole.end_offset - 1} are missing behind it")
        return True

    def _lose_end(self, known: Producer, opened: r.Run, behind: str) -> None:
        reason = (
            f"no marker of the transaction of epoch {opened.producer_epoch}: {behind}, as in a replica that was down "
            "while its leader was compacted; as a leader it holds readers back from here to the producer's next marker"
        )
        notice = finding_at("torn-transaction", opened, reason, last_offset=known.last[0], severity=NOTICE)
        self._findings.append(notice)
        self._unended(known, opened, r.LOST)
        known.txn, known.last = None, (r.NONE, r.NONE)

    def _transactional(self, run: r.Run, known: Producer) -> None:
        if known.txn is not None and run.producer_epoch != known.txn.producer_epoch and run.transactional:
            self._lost_its_end(known, known.txn, run.first_offset)
        if known.txn is None:
            if run.transactional:
                known.txn, known.marked_ms = run, self._state.marked_ms
            else:
                self._state.plain.setdefault(run.producer_id, run)
        elif not run.transactional:
            reason = f"not transactional, while the transaction from offset {known.txn.first_offset} is open"
            self._report("outside-transaction", run, reason)
            return
        elif run.producer_epoch != known.txn.producer_epoch:
            reason = (
                f"epoch {run.producer_epoch} within the transaction that epoch {known.txn.producer_epoch} "
                f"began at offset {known.txn.first_offset}"
            )
            self._report("outside-transaction", run, reason)
        if run.transactional:
            known.last = (run.last_offset, run.last_timestamp)

    # -- markers ---------------------------------------------------------------------------------------------------

    def _marker(self, marker: r.Marker) -> None:
        self._state.broken.pop(marker.producer_id, None)
        known = self._producers.get(marker.producer_id)
        if known is None:
            whole = self._facts.whole and not self._state.expired
            blank = r.NONE if whole and not self._gone(0, marker.offset) else _UNKNOWN
            known = self._producers[marker.producer_id] = Producer(marker.producer_epoch, blank)
            known.seen = marker.offset
        opened = known.txn
        if not marker.outcome:
            known.doubtful = True  # a rebuild from this log does not see it
            if opened is not None and marker.producer_epoch >= opened.producer_epoch and self._facts.cleaned_offset:
                # It is left over from a transaction whose records are all gone (Cleaner.checkBatchRetention).
                self._lose_end(known, opened, f"compaction emptied the one at offset {marker.offset}")
            return
        if opened is not None and marker.producer_epoch > opened.producer_epoch + 1:
            self._lost_its_end(known, opened, marker.offset)
            opened = known.txn
        if marker.producer_epoch < known.epoch:
            known.doubtful = True
            reason = f"epoch {marker.producer_epoch} after {known.epoch}"
            self._report("marker-epoch", marker, reason)
        elif opened is not None and marker.producer_epoch > opened.producer_epoch + 1:
            reason = (
                f"epoch {marker.producer_epoch} ends a transaction of epoch {opened.producer_epoch}, "
                f"which began at offset {opened.first_offset}"
            )
            self._report("marker-epoch", marker, reason)
        if marker.coordinator_epoch < known.coordinator_epoch:
            reason = f"coordinator epoch {marker.coordinator_epoch} after {known.coordinator_epoch}"
            self._report("coordinator-epoch", marker, reason)
        self._completed(marker, known)
        self._state.marked_ms = marker.timestamp
        known.marked_at = marker.offset
        known.alive_ms = self._as_of or r.NONE
        if marker.producer_epoch > known.epoch:
            known.fenced_at = marker.offset
        if marker.producer_epoch != known.epoch:
            # A marker without its data, which is gone: it may have been of this epoch (as below transaction.version 2).
            unknown = opened is None and self._gone(known.seen + 1, marker.offset)
            known.last_sequence, known.last_offset, known.delta = _UNKNOWN if unknown else r.NONE, r.NONE, 0
            known.seen = marker.offset
        known.epoch = max(known.epoch, marker.producer_epoch)
        known.coordinator_epoch = max(known.coordinator_epoch, marker.coordinator_epoch)
        known.timestamp = marker.timestamp
        known.txn = None

    def _completed(self, marker: r.Marker, known: Producer) -> None:
        opened, last = known.txn, known.last[0]
        known.last = (r.NONE, r.NONE)
        first, began, epoch = r.NONE, r.NONE, marker.producer_epoch
        if opened is not None:
            first, began, epoch = opened.first_offset, opened.first_timestamp, opened.producer_epoch
        end = marker.offset, marker.producer_epoch, marker.outcome, marker.coordinator_epoch, began, marker.timestamp
        self._transactions.append(r.Transaction(self._log, marker.file, marker.producer_id, epoch, first, last, *end))
        if self._facts.indexed and marker.outcome == r.ABORT:
            self._compare_aborted(marker, first, known.marked_at)

    def _open_transactions(self, end: int) -> None:
        for known in self._producers.values():
            if known.txn is not None and not self._lost_its_end(known, known.txn, end):
                self._unended(known, known.txn)

    def _unended(self, known: Producer, opened: r.Run, outcome: str = "") -> None:
        last, timestamp = known.last
        # A client writes what time it likes; a broker wrote the marker before.
        began = max(opened.first_timestamp, known.marked_ms)
        data = opened.file, opened.producer_id, opened.producer_epoch, opened.first_offset, last
        self._transactions.append(r.Transaction(self._log, *data, r.NONE, r.NONE, outcome, r.NONE, began, timestamp))

    # -- index of aborted transactions -------------------------------------------------------------------------------

    def _compare_aborted(self, marker: r.Marker, first: int, marked_at: int) -> None:
        """The index entry of an ABORT marker. Where records are gone, the log shows less than the index once saw: its
        entry may begin before them, but not before the producer's marker before, at `marked_at`."""
        listed = self._aborted.pop((marker.offset, marker.producer_id), None)
        if marker.offset < self._facts.start_offset:
            return
        if listed is None:
            if first >= 0:
                reason = (
                    f"no entry for the aborted transaction {first}-{marker.offset} of producer {marker.producer_id}"
                )
                # The entry is written after the batch, and opening a log that was not closed writes it anew.
                mended = not self._facts.clean and marker.offset >= self._facts.recovery_point
                self._findings.append(finding_at("abort-index", marker, reason, severity=NOTICE if mended else None))
            return
        if self._unreadable:
            return
        others = (
            known.txn.first_offset
            for producer_id, known in self._producers.items()
            if known.txn is not None and producer_id != marker.producer_id
        )
        expected = (first, min(others, default=marker.offset + 1))
        said = (listed.first_offset, listed.last_stable_offset)
        if said == (first, self._begun_after(marker)) and expected[1] == marker.offset + 1:
            said = expected
        if (self._facts.whole and said != expected) or (first >= 0 and listed.first_offset > first):
            reason = f"first offset and last stable offset are {expected} in the log, {said} in the index"
            self._report("abort-index", marker._replace(file=listed.file, position=r.NONE), reason)
        elif listed.first_offset <= marked_at:
            reason = f"the entry begins at {listed.first_offset}, the transaction before it ended at {marked_at}"
            self._report("abort-index", marker._replace(file=listed.file, position=r.NONE), reason)

    def _begun_after(self, marker: r.Marker) -> int:
        """Where the next transaction of another producer begins. A follower writes the entries of what it has fetched
        after all of it, and takes that for the last stable offset where no transaction is open at the marker
        (UnifiedLog.append, ProducerStateManager.lastStableOffset)."""
        if self._begins is None:
            self._begins = sorted((run.first_offset, run.producer_id) for run in self._rows.runs if run.transactional)
        at = bisect_left(self._begins, (marker.offset, r.NONE))
        others = (first for first, producer_id in islice(self._begins, at, None) if producer_id != marker.producer_id)
        return next(others, r.NONE)

    def _index_leftovers(self, end: int) -> None:
        for listed in self._aborted.values():
            last = listed.last_offset
            if last < self._facts.start_offset or self._not_read(last, last + 1):
                continue
            entry = f"{listed.first_offset}-{last} of producer {listed.producer_id}"
            reason = f"an entry says {entry} aborted; the log has no such marker"
            mended = not self._facts.clean and last >= end
            self._findings.append(finding_at("abort-index", listed, reason, severity=NOTICE if mended else None))

    # -- snapshots ---------------------------------------------------------------------------------------------------

    def _snapshot(self, snapshot: r.Snapshot, end: int) -> None:
        facts = self._facts
        if snapshot.offset < facts.first_offset or any(low < snapshot.offset for low, _ in self._unreadable):
            return
        if snapshot.offset > end:
            reason = f"taken at offset {snapshot.offset}, after the log's end {end}"
            self._differs(snapshot, r.NONE, reason, None if facts.clean else NOTICE)
            return
        if 0 < snapshot.offset <= facts.cleaned_offset:
            for entry in snapshot.entries:
                self._ahead(snapshot, entry, self._producers.get(entry.producer_id))
            return
        listed = {entry.producer_id: entry for entry in snapshot.entries}
        for producer_id, entry in listed.items():
            known = self._producers.get(producer_id)
            if known is None:
                if facts.whole:
                    self._differs(snapshot, producer_id, f"the log has nothing of producer {producer_id} up to here")
            elif not known.doubtful:
                self._compare_entry(snapshot, entry, known)
        for producer_id, known in self._producers.items():
            if producer_id not in listed and not known.doubtful and not self._expired(known):
                self._differs(snapshot, producer_id, f"producer {producer_id} is missing", NOTICE)

    def _ahead(self, snapshot: r.Snapshot, entry: r.SnapshotEntry, known: Producer | None) -> None:
        """Compaction took batches before the snapshot, so the log may be behind it, but not ahead."""
        if known is None or known.doubtful or known.epoch < entry.producer_epoch:
            return
        if known.epoch > entry.producer_epoch or known.last_offset > entry.last_offset >= 0:
            reason = (
                f"producer {entry.producer_id}: epoch {known.epoch}, last offset {known.last_offset} in the log, "
                f"{entry.producer_epoch} and {entry.last_offset} here"
            )
            self._differs(snapshot, entry.producer_id, reason)

    def _expired(self, known: Producer) -> bool:
        return self._as_of is None or self._as_of - known.timestamp >= PRODUCER_EXPIRATION_MS

    def _compare_entry(self, snapshot: r.Snapshot, entry: r.SnapshotEntry, known: Producer) -> None:
        names = ["epoch"]
        said = [entry.producer_epoch]
        actual = [known.epoch]
        if entry.last_offset < 0 <= known.last_offset < self._facts.start_offset:
            pass  # rebuilt from the log start on, where only a marker was left (ProducerStateManager.truncateAndReload)
        elif known.last_offset >= self._facts.cleaned_offset and (known.last_offset >= 0 or self._facts.whole):
            names += ["last sequence", "last offset", "offset delta"]
            said += [entry.last_sequence, entry.last_offset, entry.offset_delta]
            sequence = known.last_sequence if known.last_offset >= 0 else r.NONE
            actual += [sequence, known.last_offset, known.delta]
        elif not self._facts.whole:
            return
        if self._facts.whole:
            names += ["timestamp", "coordinator epoch", "open transaction"]
            said += [entry.timestamp, entry.coordinator_epoch, entry.current_txn_first_offset]
            actual += [known.timestamp, known.coordinator_epoch, known.txn.first_offset if known.txn else r.NONE]
        wrong = [
            f"{name} {right} in the log, {claim} here"
            for name, claim, right in zip(names, said, actual, strict=True)
            if claim != right
        ]
        if wrong:
            self._differs(snapshot, entry.producer_id, f"producer {entry.producer_id}: {'; '.join(wrong)}")

    def _differs(self, snapshot: r.Snapshot, producer_id: int, message: str, severity: str | None = None) -> None:
        self._findings.append(
            finding_at("producer-snapshot", snapshot, message, producer_id=producer_id, severity=severity)
        )


def _unreadable(fault: r.LogFault, spans: Iterable[r.Span]) -> tuple[int, int]:
    """Offsets that cannot be read; what follows bytes that are no batch is lost up to the next file."""
    if fault.rule != "torn-batch":
        return fault.first_offset, fault.last_offset
    following = (span.first_offset for span in spans if span.first_offset >= fault.first_offset)
    return fault.first_offset, min(following, default=r.EVERYTHING) - 1


def group_rows(
    facts: Iterable[r.LogFacts],
    rows: Iterable[LogRow],
) -> list[LogRows]:
    """Rows of many logs, sorted out log by log."""
    known = {fact.log: fact for fact in facts}
    by_log: dict[r.Log, dict[type, list[object]]] = {log: {} for log in known}
    for row in rows:
        by_log[row.log].setdefault(type(row), []).append(row)
    return [
        LogRows(known[log], *(tuple(parts.get(kind, ())) for kind in LOG_ROWS))  # type: ignore[arg-type]
        for log, parts in by_log.items()
    ]
