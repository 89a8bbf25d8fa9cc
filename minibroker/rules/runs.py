"""Runs and spans that continue are put together, so that memory grows with producers and transactions, not batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from minibroker.rules import rows as r
from minibroker_protocol.records import MAX_SEQUENCE


class RunMerger:
    """Takes the runs and markers of one log in the order of their offsets. A run also ends at `cuts`, where snapshots
    of the producers were taken."""

    def __init__(self, facts: r.LogFacts, cuts: Iterable[int] = ()) -> None:
        self._facts = facts
        self._cuts = sorted(cuts)
        self._open: dict[int, r.Run] = {}
        self._done: list[r.Run] = []

    def add(self, event: r.Run | r.Marker) -> None:
        before = self._open.pop(event.producer_id, None)
        if isinstance(event, r.Marker):
            if before is not None:
                self._done.append(before)
            return
        if before is not None and goes_on(before, event, self._facts, self._cuts):
            event = _joined(before, event)
        elif before is not None:
            self._done.append(before)
        self._open[event.producer_id] = event

    def runs(self) -> list[r.Run]:
        """All of them, by first offset; nothing may be added after it."""
        self._done += self._open.values()
        self._done.sort(key=lambda run: run.first_offset)
        return self._done


def merge_runs(
    runs: Iterable[r.Run], markers: Iterable[r.Marker], facts: r.LogFacts, cuts: Sequence[int] = ()
) -> list[r.Run]:
    """Merge runs that continue in the next block or file. Associative, so it may be done in any grouping of
    neighbours."""
    events: list[r.Run | r.Marker] = [*runs, *markers]
    events.sort(key=lambda row: row.first_offset if isinstance(row, r.Run) else row.offset)
    merger = RunMerger(facts, cuts)
    for event in events:
        merger.add(event)
    return merger.runs()


def goes_on(before: r.Run, run: r.Run, facts: r.LogFacts, cuts: Sequence[int] = ()) -> bool:
    """Whether the run, its producer's next without a marker in between, continues the one before."""
    if before.producer_epoch != run.producer_epoch or before.transactional != run.transactional:
        return False
    if before.file != run.file or any(before.first_offset < cut <= run.first_offset for cut in cuts):
        return False
    ahead = (run.first_sequence - before.last_sequence - 1) & MAX_SEQUENCE
    if not ahead or run.producer_id < 0 or run.log.topic in r.COORDINATOR_TOPICS:
        return True
    room = run.first_offset - before.last_offset - 1
    return ahead <= room and before.last_offset + 1 < facts.cleaned_offset


def _joined(before: r.Run, run: r.Run) -> r.Run:
    return before._replace(
        last_offset=run.last_offset,
        last_sequence=run.last_sequence,
        batches=before.batches + run.batches,
        records=before.records + run.records,
        last_timestamp=run.last_timestamp,
        last_base_offset=run.last_base_offset,
        bytes=before.bytes + run.bytes,
    )


class SpanMerger:
    """Takes the spans of one log in the order of their offsets."""

    def __init__(self, facts: r.LogFacts) -> None:
        self._cleaned = facts.cleaned_offset
        self.spans: list[r.Span] = []

    def add(self, span: r.Span) -> None:
        before = self.spans[-1] if self.spans else None
        if before is not None and self._goes_on(before, span):
            self.spans[-1] = before.joined(span)
        else:
            self.spans.append(span)

    def _goes_on(self, before: r.Span, span: r.Span) -> bool:
        if span.epoch != before.epoch:
            return False
        return span.first_offset == before.end_offset or (
            span.first_offset > before.end_offset and before.end_offset < self._cleaned
        )


def merge_spans(spans: Iterable[r.Span], facts: r.LogFacts) -> list[r.Span]:
    """Merge spans of one file that continue in the next block."""
    merger = SpanMerger(facts)
    for span in spans:
        merger.add(span)
    return merger.spans
