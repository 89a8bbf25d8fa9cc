"""A log that is judged in pieces has the verdict that it has as a whole, wherever it is cut, whatever is wrong."""

import dataclasses
import pickle
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest
from damage import DAMAGE
from hypothesis import given, settings
from hypothesis import strategies as st
from planting import GOLDEN, Planted, golden_files

from minibroker.rules import rows as r
from minibroker.rules.file_rules import LogRows
from minibroker.rules.log_rules import LogState, LogVerdict, Producer, group_rows, judge_log
from minibroker.rules.scan import base_of, scan_directory
from minibroker_pipeline.chunks import Piece, by_piece, chunks_of, heads_in, judge_chunks, lefts_in, pieces_of
from minibroker_pipeline.pieces import borders_of, essential, place_of
from minibroker_protocol.errors import Malformed

LOG = r.Log("", "t", 0)
HEALTHY = {path.name.removesuffix(".tar.xz") for path in (GOLDEN / "healthy").glob("*.tar.xz")}
DAY_MS = 86_400_000


def in_pieces(rows: LogRows, offsets: list[int], as_of_ms: int | None = None) -> tuple[LogVerdict, int]:
    """The verdicts of all pieces as one, as Spark's tasks make them, and how many events went into the states between
    them."""
    log, facts = rows.facts.log, rows.facts
    borders = {log: tuple(offsets)}
    own: dict[Piece, list[Any]] = defaultdict(list)
    for value in (facts, *chunks_of([row for kind in rows[1:] for row in kind], 7)):
        for piece, one in by_piece((log, value), borders):
            own[piece].append(one)
    heads = [head for pair in own.items() for _, head in heads_in(pair, borders)]
    for piece, left in lefts_in((log, heads[::-1]), borders, as_of_ms):
        own[piece].append(left)
    verdicts = [judge_chunks((piece, own[piece]), as_of_ms) for piece in pieces_of(borders)]
    findings = [finding for verdict in verdicts for finding in verdict.findings]
    transactions = [txn for verdict in verdicts for txn in verdict.transactions]
    assert all(verdict.end_offset < 0 and not verdict.plain for verdict in verdicts[:-1])
    events = sum(len(pickle.loads(head)[1].events) for head in heads)
    return verdicts[-1]._replace(findings=findings, transactions=transactions), events


def comparable(verdict: LogVerdict) -> tuple[Any, ...]:
    facts, end, *lists = verdict
    return facts, end, *(Counter(rows) for rows in lists)


class Story:
    """Writes a log, mostly as producers do, and what its small files say of it."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.spans: list[r.Span] = []
        self.offset = 0
        self.sequences = [0, 0, 0]
        self.epochs = [0, 0, 0]
        self.begun = [r.NONE] * 3

    def batch(self, producer: int, *, count: int = 1, transactional: bool = True, late: int = 0, off: int = 0) -> None:
        first, epoch = self.offset, self.epochs[producer] - late
        sequence = max(0, self.sequences[producer] + off)
        last, reached, time = first + count - 1, (sequence + count - 1) & 0x7FFFFFFF, 100 + first
        self.events.append(
            r.Run(
                LOG, "f", first, first, last, producer, epoch, sequence, reached, transactional, 1, count, time, time,
                first, 70,
            )
        )  # fmt: skip
        if self.begun[producer] < 0 and transactional:
            self.begun[producer] = first
        self.sequences[producer] = reached + 1 & 0x7FFFFFFF
        self.written(count)

    def end(
        self, producer: int, outcome: str = r.COMMIT, *, raised: int = 0, coordinator: int = 3, **index: int
    ) -> None:
        epoch = self.epochs[producer] + raised
        self.events.append(
            r.Marker(LOG, "f", self.offset, self.offset, producer, epoch, outcome, coordinator, self.offset)
        )
        if outcome == r.ABORT and self.begun[producer] >= 0:
            others = [first for other, first in enumerate(self.begun) if first >= 0 and other != producer]
            stable = min(others, default=self.offset + 1) + index.get("stable", 0)
            first = self.begun[producer] + index.get("first", 0)
            self.events.append(r.AbortedTxn(LOG, "i", producer, first, self.offset, stable))
        if raised > 0:
            self.epochs[producer], self.sequences[producer] = epoch, 0
        self.begun[producer] = r.NONE
        self.written(1)

    def written(self, count: int, epoch: int = 0) -> None:
        self.spans.append(r.Span(LOG, "f", self.offset, self.offset, self.offset + count, epoch))
        self.offset += count

    def rows(self, **facts: Any) -> LogRows:
        (rows,) = group_rows([r.LogFacts(LOG, **facts)], [*self.events, *self.spans])
        return rows


def transactions(story: Story, producers: list[int], raised: list[int], outcome: str, records: int) -> None:
    """Of several producers in turn: a transaction each for every number by which its marker raises the epoch."""
    for more in raised:
        for producer in producers:
            story.batch(producer, count=records)
        for producer in producers:
            story.end(producer, outcome, raised=more)


PRODUCER = st.integers(0, 2)
MANY = st.tuples(
    st.just("many"), st.sampled_from([[0], [1], [0, 1], [2, 0], [0, 1, 2]]),
    st.sampled_from([[0] * 4, [1] * 4, [0] * 8, [1] * 6, [1, 1, 0, 0, 1, 1], [0]]),
    st.sampled_from([r.COMMIT, r.ABORT]), st.integers(1, 2),
)  # fmt: skip
BATCH = st.tuples(
    st.just("batch"), PRODUCER, st.booleans(), st.sampled_from([0, 0, 0, -1, 1]), st.sampled_from([0, 0, -3, 4])
)
END = st.tuples(
    st.just("end"), PRODUCER, st.sampled_from([r.COMMIT, r.ABORT, r.ABORT, ""]), st.sampled_from([0, 0, 1, 2, -1]),
    st.sampled_from([3, 3, 3, 2, 4]), st.sampled_from([0, 0, 1, 2]), st.sampled_from([0, 0, 0, 1]),
)  # fmt: skip
ODD = st.one_of(
    st.tuples(st.just("snapshot"), st.integers(0, 3), st.sampled_from([0, 0, 0, 1, -1])),
    st.tuples(st.just("hole"), st.integers(1, 3)),
    st.tuples(st.just("broken"), st.integers(1, 2)),
    st.tuples(st.just("back"), st.integers(1, 3)),
    st.tuples(st.just("epoch"), PRODUCER, st.sampled_from([1, 1, -1, 3])),
    st.tuples(st.just("far"), PRODUCER, st.sampled_from([2**30, 2**31 - 3, 2**29])),
)
EVERY_KIND: list[tuple[str, ...]] = [(), ("snapshot",), ("hole", "broken"), ("back",), ("epoch", "far")]
ONE: Any = st.one_of(MANY, MANY, MANY, BATCH, BATCH, END, END, ODD, ODD)
Entries = list[tuple[Any, ...]]


def told(entries: Entries, kinds: Iterable[str] = ()) -> Story:
    """With those odd entries that are of these kinds: most logs with all of them would not be cut."""
    story = Story()
    for kind, *fields in entries:
        if kind not in ("many", "batch", "end", *kinds):
            continue
        if kind == "many":
            transactions(story, *fields)
        elif kind == "batch":
            producer, transactional, late, off = fields
            story.batch(producer, transactional=transactional, late=late, off=off)
        elif kind == "end":
            producer, outcome, raised, coordinator, stable, first = fields
            story.end(producer, outcome, raised=raised, coordinator=coordinator, stable=stable, first=first)
        elif kind == "snapshot":
            count, off = fields
            entries_of = tuple(
                r.SnapshotEntry(
                    number, story.epochs[number] + off, story.sequences[number] - 1, story.offset - 2, 0,
                    98 + story.offset, 3, story.begun[number],
                )
                for number in range(count)
            )  # fmt: skip
            story.events.append(r.Snapshot(LOG, "s", story.offset, entries_of))
        elif kind == "hole":
            story.offset += fields[0]
        elif kind == "back":
            story.offset = max(0, story.offset - fields[0])
        elif kind == "broken":
            last = story.offset + fields[0] - 1
            story.events.append(r.LogFault(LOG, "f", story.offset, story.offset, last, "checksum", "broken"))
            story.offset = last + 1
        elif kind == "epoch":
            story.epochs[fields[0]] = max(0, story.epochs[fields[0]] + fields[1])
            story.sequences[fields[0]] = 0
        else:
            story.sequences[fields[0]] = fields[1]
    return story


@given(
    st.lists(ONE, max_size=12),
    st.sampled_from(EVERY_KIND),
    st.lists(st.integers(0, 120), max_size=4),
    st.sampled_from(
        [{}, {}, {"cleaned_offset": r.EVERYTHING}, {"indexed": False}, {"start_offset": 4, "first_offset": 2}]
    ),
    st.sampled_from([None, 300, DAY_MS + 150]),
    st.sampled_from([False, False, False, True]),
)
@settings(max_examples=100)
def test_any_log_cut_anywhere(
    entries: Entries,
    kinds: tuple[str, ...],
    cuts: list[int],
    facts: dict[str, Any],
    as_of_ms: int | None,
    deleted: bool,
) -> None:
    story = told(entries, kinds)
    rows = story.rows(**facts)
    if deleted:
        rows = rows._replace(starts=(r.LogStart(LOG, story.offset // 3),))
    whole = comparable(judge_log(rows, as_of_ms=as_of_ms))
    for borders in (sorted({*cuts}), [story.offset // 2], [*range(1, story.offset)]):
        assert comparable(in_pieces(rows, borders, as_of_ms)[0]) == whole


def state_after(*parts: list[Any]) -> LogState:
    state = LogState()
    for events in parts:
        (rows,) = group_rows([r.LogFacts(LOG, indexed=False)], events)
        judge_log(rows, state=state, until=r.EVERYTHING - 1)
    for known in state.producers.values():
        if known.txn is None:
            known.marked_ms = r.NONE  # of a transaction that has ended
    return state


def same_from_there(before: list[Any], own: list[Any]) -> bool:
    events = sorted((e for e in own if isinstance(e, r.Run | r.Marker)), key=lambda e: place_of(e) or 0)
    kept = essential(events)
    whole, shorter = state_after(before, events), state_after(before, kept)
    fields = [field.name for field in dataclasses.fields(Producer)]
    told = [
        (
            state.marked_ms, state.plain, state.broken,
            {number: [getattr(known, name) for name in fields] for number, known in state.producers.items()},
        )
        for state in (whole, shorter)
    ]  # fmt: skip
    assert told[0] == told[1], (before, own)
    return len(kept) < len(events)


@given(st.lists(ONE, max_size=5), st.lists(ONE, max_size=10), st.sampled_from([(), ("epoch", "far"), ("back",)]))
@settings(max_examples=100)
def test_the_essential_events_lead_from_a_state_of_other_events_to_the_same_state(
    before: Entries, own: Entries, kinds: tuple[str, ...]
) -> None:
    same_from_there(told(before, ("epoch", "far")).events, told(own, kinds).events)


def test_the_essential_events_lead_from_any_epoch_and_sequence_to_the_same_state() -> None:
    shorter = 0
    wrap = 2**31 - 1
    for epoch, sequence, ended, raised, records in product(
        (None, *range(9)),
        (0, 3, 2**29, 2**30 + 3, wrap - 2),
        (None, r.COMMIT, ""),
        ([0] * 5, [1] * 5, [1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1]),
        (2, 2**29),
    ):
        before, own = Story(), Story()
        if epoch is not None:
            before.epochs[0], before.sequences[0] = epoch, sequence
            before.batch(0, transactional=ended is not None)
            if ended is not None:
                before.end(0, ended, raised=raised[0])
        own.offset = 5
        own.epochs[0], own.sequences[0] = (1, 0) if raised[0] else (3, sequence and wrap - 1)
        transactions(own, [0, 1], raised, r.COMMIT, records)
        own.batch(1)
        shorter += same_from_there(before.events, own.events)
    assert shorter > 200


@pytest.mark.parametrize("odd", ["duplicate", "coordinator", "empty", "two runs", "plain"])
def test_something_odd_among_transactions_that_are_left_out_stays(odd: str) -> None:
    own = Story()
    for number in range(10):
        for producer in (0, 1):
            is_odd = (number, producer) == (4, 0)
            own.batch(producer, off=-1 if is_odd and odd == "duplicate" else 0)
            if is_odd and odd in ("two runs", "plain"):
                own.batch(producer, transactional=odd == "two runs", off=-1)
            outcome = "" if is_odd and odd == "empty" else r.COMMIT
            own.end(producer, outcome, coordinator=5 if is_odd and odd == "coordinator" else 3)
    assert same_from_there([], own.events)


def story_of_an_index_entry() -> Story:
    """A follower's entry takes the next transaction of another producer for the last stable offset."""
    story = Story()
    story.batch(0)
    story.end(0, r.ABORT, stable=3)
    story.written(1)
    story.batch(0)
    story.batch(0)
    story.batch(1)
    return story


def story_of_a_snapshot() -> Story:
    """It lacks a producer of long before."""
    story = Story()
    for producer in (0, 1, 1):
        story.batch(producer, transactional=False)
    story.events.append(r.Snapshot(LOG, "s", story.offset, ()))
    return story


def story_of_a_repetition() -> Story:
    """A run that goes on where the one before came again, of which the same was said."""
    story = Story()
    for count, off in ((6, 0), (2, -6), (2, 0)):
        story.batch(0, count=count, transactional=False, off=off)
    return story


@pytest.mark.parametrize(
    ("story", "rules"),
    [
        (story_of_an_index_entry(), []),
        (story_of_a_snapshot(), ["producer-snapshot"] * 2),
        (story_of_a_repetition(), ["duplicate"]),
    ],
)
def test_what_the_other_side_of_a_border_decides(story: Story, rules: list[str]) -> None:
    whole = judge_log(story.rows(), as_of_ms=300)
    assert [finding.rule for finding in whole.findings] == rules
    for border in range(1, story.offset + 1):
        assert comparable(in_pieces(story.rows(), [border], 300)[0]) == comparable(whole)


@pytest.mark.parametrize("raised", [0, 1])
def test_most_of_a_long_log_is_left_out(raised: int) -> None:
    story = Story()
    for _ in range(500):
        for producer in range(3):
            story.batch(producer)
        for producer in range(3):
            story.end(producer, raised=raised)
    verdict, events = in_pieces(story.rows(), [1000, 2000])
    assert not verdict.findings
    assert len(verdict.transactions) == 1500
    assert events < 120  # of 3000


def split_at_every_segment_and_elsewhere(planted: Planted) -> set[str]:
    """The rules that are broken."""
    broken = set()
    for rows in scan_directory(planted.disk()).logs:
        verdict = judge_log(rows, as_of_ms=1 << 50)
        segments = sorted({base_of(span.file) for span in rows.spans})
        anywhere = sorted({place_of(event) or 0 for event in (*rows.runs, *rows.markers)})
        for borders in (segments, anywhere[:: len(anywhere) // 12 + 1]):
            assert comparable(in_pieces(rows, borders, 1 << 50)[0]) == comparable(verdict)
        broken |= {finding.rule for finding in verdict.findings}
    return broken


@pytest.mark.parametrize("name", ["killed", *sorted(HEALTHY - {"id-rotation"})])  # that one is large
def test_what_kafka_wrote(name: str) -> None:
    split_at_every_segment_and_elsewhere(Planted(name))


def test_every_planted_fault() -> None:
    broken = set()
    for name, plant, _ in DAMAGE:
        planted = Planted()
        plant(planted)
        before = golden_files(planted.name)
        touched = {file.partition("/")[0] for file in before if before[file] != planted.files.get(file)}
        planted.files = {
            file: data for file, data in planted.files.items() if "/" not in file or file.partition("/")[0] in touched
        }
        try:
            broken |= split_at_every_segment_and_elsewhere(planted)
        except Malformed:
            continue  # a small file that `scan_directory` refuses
        except AssertionError as error:
            raise AssertionError(name) from error
    assert {"sequence-gap", "duplicate", "epoch-back", "abort-index", "producer-snapshot", "offset-hole"} <= broken


def test_borders() -> None:
    assert borders_of([(0, 5), (10, 5)], 10) == ()
    assert borders_of([(10, 5), (0, 5), (20, 5)], 10) == (20,)
    assert borders_of([(0, 50), (10, 50), (10, 50), (20, 1)], 10) == (10, 20)
    assert borders_of([(0, 50), (0, 50)], 10) == ()
    assert {place_of(row) is None for row in (r.LogStart(LOG, 1), r.EpochStart(LOG, "f", 1, 1))} == {True}
