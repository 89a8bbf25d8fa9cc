"""One large log judged in pieces: ranges of offsets, each by a task of its own, from the state at its left border.

1. `head_of`, a task a piece: the few of its events that make the state at its right border, whatever that was before.
2. `lefts_of`, a task a log: the rules go through these events in order; what they find is dropped, the states are kept.
3. `judge_piece`, a task a piece: all of its events from the state at its left border.

Spans and faults are few (`Head.outline`): every piece has those of the whole log, the last one tells what they show.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

from minibroker.rules import rows as r
from minibroker.rules.file_rules import LogRow
from minibroker.rules.log_rules import PRODUCER_EXPIRATION_MS, LogState, LogVerdict, Producer, group_rows, judge_log
from minibroker_protocol.records import MAX_SEQUENCE, increment_sequence

ROWS_OF_A_PIECE = 100_000
"""A log with more rows is judged in pieces of about so many, which take some 100 MB."""

Event: TypeAlias = r.Run | r.Marker
Pair: TypeAlias = tuple[int, int]
"""Places in a list of events, of the only run of a transaction and of its marker."""

_FAR = 1 << 29
"""Sequences of one chain are not farther apart: half of what `judge_log` tells from its opposite around the wrap."""


class Head(NamedTuple):
    """What is needed of a piece to know the state behind it: `events`, in order.

    mentioned: the producers of its rows, also those in snapshots. outline: the rows that all pieces have, if it is the
        first.
    """

    piece: int
    events: list[Event]
    mentioned: frozenset[int]
    outline: list[LogRow]


class Left(NamedTuple):
    """What a piece is judged from. `ahead`: the first transactional runs from its end `until` on of two producers."""

    state: LogState
    ahead: tuple[r.Run, ...]
    until: int


def borders_of(extents: Iterable[tuple[int, int]], most: int = ROWS_OF_A_PIECE) -> tuple[int, ...]:
    """The offsets at which a log's pieces after the first begin; none for a log with up to `most` rows.

    extents: (first offset, number of rows) of groups of rows that stay together.
    """
    borders: list[int] = []
    count, begun = 0, r.NONE
    for first, rows in sorted(extents):
        if count + rows > most and first > begun and count:
            borders.append(first)
            count = 0
        begun = first
        count += rows
    return tuple(borders)


def place_of(row: object) -> int | None:
    """The offset by which a row belongs to a piece; None for one that all pieces have."""
    if isinstance(row, r.Run):
        return row.first_offset
    if isinstance(row, r.Marker | r.Snapshot):
        return row.offset
    return row.last_offset if isinstance(row, r.AbortedTxn) else None


def piece_of(offset: int, borders: Sequence[int]) -> int:
    return bisect_right(borders, offset)


def head_of(piece: int, facts: r.LogFacts, rows: Iterable[LogRow]) -> Head:
    events: list[Event] = []
    outline: list[LogRow] = []
    mentioned: set[int] = set()
    for row in rows:
        if isinstance(row, r.Run | r.Marker):
            events.append(row)
        elif isinstance(row, r.Snapshot):
            mentioned.update(entry.producer_id for entry in row.entries)
        elif place_of(row) is None:
            outline.append(row)
    mentioned.update(event.producer_id for event in events)
    events.sort(key=_in_order)
    if _unbroken(facts, outline):
        events = essential(events, sequences=facts.log.topic not in r.COORDINATOR_TOPICS)
    return Head(piece, events, frozenset(mentioned), [] if piece else outline)


def _in_order(event: Event) -> tuple[int, bool]:
    """As `judge_log` sorts: at one offset runs come first."""
    return (event.first_offset, False) if isinstance(event, r.Run) else (event.offset, True)


def _unbroken(facts: r.LogFacts, outline: Iterable[LogRow]) -> bool:
    """Whether no offset is missing, or cannot be read."""
    end = facts.first_offset
    for span in sorted(row for row in outline if isinstance(row, r.Span)):
        if span.first_offset > end or span.holes:
            return False
        end = max(end, span.end_offset)
    return all(row.readable for row in outline if isinstance(row, r.LogFault))


# -- what may be left out ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Chain:
    """Transactions of a producer that follow one another as they should; the first one of them is kept already.

    opened: the run after the last marker. latest: the last transactions but the first. `ahead`: sequences since then.
    """

    opened: int = r.NONE
    before: tuple[r.Run, r.Marker] | None = None
    latest: list[Pair] = field(default_factory=list)
    ahead: int = 0


def essential(events: Sequence[Event], *, sequences: bool = True) -> list[Event]:
    """The events of a log without holes that lead from every state to the same state as all of them do.

    Left out are whole transactions of one run and one marker. Their producer has an earlier one here and two later
    ones, and each follows on the one before it: with the epoch of that one's marker, which all of them raise or none,
    and with the next sequence. A state that is at odds with one of them, as it has a higher epoch or sequences that
    come again, is at odds with the earlier one too, which leaves the same marks in it; and what the later two make of
    it does not depend on those left out. The time of the last marker of any producer is a part of the state when a
    transaction begins, so that marker stays, with its transaction.
    """
    kept: set[int] = set()
    chains: dict[int, _Chain] = {}
    pairs: dict[int, int] = {}  # marker -> run, both as places
    markers: list[int] = []  # before each event the last marker with an outcome
    marked = r.NONE
    for at, event in enumerate(events):
        markers.append(marked)
        chain = chains.get(event.producer_id)
        if chain is None:
            chain = chains[event.producer_id] = _Chain()
        if isinstance(event, r.Run):
            if chain.opened >= 0 or not event.transactional:
                _end(chain, kept)
            if event.transactional:
                chain.opened = at
            else:
                kept.add(at)
            continue
        if event.outcome:
            marked = at
        if chain.opened < 0 or not event.outcome:
            _end(chain, kept)
            kept.add(at)
            continue
        pair, run = (chain.opened, at), events[chain.opened]
        assert isinstance(run, r.Run)
        pairs[at], chain.opened = chain.opened, r.NONE
        ahead = r.NONE if chain.before is None else _follows(*chain.before, run, event, sequences)
        if ahead >= 0 and chain.ahead + ahead < _FAR:
            chain.latest.append(pair)
            chain.ahead += ahead
            del chain.latest[:-2]
        else:
            _end(chain, kept)
            kept.update(pair)
        chain.before = run, event
    for chain in chains.values():
        _end(chain, kept)
    for at in tuple(kept):
        marker = markers[at]
        if marker >= 0 and isinstance(events[at], r.Run) and marker not in kept:
            kept.update((marker, pairs[marker]))
    return [events[at] for at in sorted(kept)]


def _end(chain: _Chain, kept: set[int]) -> None:
    for pair in chain.latest:
        kept.update(pair)
    if chain.opened >= 0:
        kept.add(chain.opened)
    chain.opened, chain.before, chain.ahead = r.NONE, None, 0
    chain.latest.clear()


def _follows(run: r.Run, marker: r.Marker, next_run: r.Run, next_marker: r.Marker, sequences: bool) -> int:
    """How many sequences a transaction is ahead of the one before, at most; -1 if it does not follow on it."""
    raised = marker.producer_epoch - run.producer_epoch
    if (
        run.producer_id < 0
        or raised not in (0, 1)
        or next_run.producer_epoch != marker.producer_epoch
        or next_marker.producer_epoch - next_run.producer_epoch != raised
        or next_marker.coordinator_epoch < marker.coordinator_epoch
    ):
        return r.NONE
    if not sequences:
        return 0
    if next_run.first_sequence != (0 if raised else increment_sequence(run.last_sequence, 1)):
        return r.NONE
    lengths = [(row.last_sequence - row.first_sequence) & MAX_SEQUENCE for row in (run, next_run)]
    return 1 + max(lengths)


# -- the states at the borders -----------------------------------------------------------------------------------------


def lefts_of(
    facts: r.LogFacts, heads: Iterable[Head], borders: Sequence[int], as_of_ms: int | None
) -> Iterator[tuple[int, Left]]:
    """What each piece of a log is judged from, given the heads of all of them."""
    ordered = sorted(heads, key=lambda head: head.piece)
    outline = ordered[0].outline
    ends = [*borders, r.EVERYTHING]
    ahead: list[tuple[r.Run, ...]] = [()]
    for head in reversed(ordered[1:]):
        ahead.append(_first_two([*head.events, *ahead[-1]]))
    state = LogState()
    for head, end, following in zip(ordered, ends, reversed(ahead), strict=True):
        last = end == r.EVERYTHING
        yield head.piece, Left(_needed(state, head.mentioned, as_of_ms, last=last), following, end)
        if not last:
            (rows,) = group_rows([facts], [*outline, *head.events])
            # Rows that know no deletion: `judge_log` takes the state for one of deleted records otherwise.
            judge_log(rows.from_start(), as_of_ms=as_of_ms, state=state, until=end)


def _first_two(events: Iterable[Event]) -> tuple[r.Run, ...]:
    """The first transactional runs of two producers."""
    runs: list[r.Run] = []
    for event in events:
        if isinstance(event, r.Run) and event.transactional:
            if not runs:
                runs.append(event)
            elif event.producer_id != runs[0].producer_id:
                return runs[0], event
    return tuple(runs)


def _needed(state: LogState, mentioned: frozenset[int], as_of_ms: int | None, *, last: bool) -> LogState:
    """A copy without producers that no rule can ask for in the piece, so that what pieces are given does not grow with
    all producers that ever were. With the last piece `plain` is told."""

    def counts(producer_id: int, known: Producer) -> bool:
        if producer_id in mentioned or known.txn is not None:
            return True
        alive = as_of_ms is not None and as_of_ms - known.timestamp < PRODUCER_EXPIRATION_MS
        return alive and not known.doubtful

    return replace(
        state,
        producers={number: replace(known) for number, known in state.producers.items() if counts(number, known)},
        plain=dict(state.plain) if last else {},
        broken={number: run for number, run in state.broken.items() if number in mentioned},
    )


def judge_piece(facts: r.LogFacts, rows: Iterable[LogRow], border: Left, as_of_ms: int | None) -> LogVerdict:
    """The verdict on a piece. That of the last one is about the log too; others have no end offset (-1) and no
    `plain`."""
    (own,) = group_rows([facts], [*rows, *border.ahead])
    verdict = judge_log(own.from_start(), as_of_ms=as_of_ms, state=border.state, until=border.until)
    return verdict if border.until == r.EVERYTHING else verdict._replace(end_offset=r.NONE, plain=[])


def is_last(verdict: LogVerdict) -> bool:
    """Whether a verdict is of a whole log, or of its last piece."""
    return verdict.end_offset >= 0
