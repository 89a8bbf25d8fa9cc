"""Short logs with one thing wrong, or only allegedly wrong: everything that is found in them."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.rules import rows as r
from minibroker.rules.catalogue import ERROR, NOTICE
from minibroker.rules.file_rules import LogRows
from minibroker.rules.log_rules import PRODUCER_EXPIRATION_MS, judge_log

LOG = r.Log("", "t", 0)
END = 20


def data(offset: int, sequence: int = 0, *, epoch: int = 0, txn: bool = False, pid: int = 7, time: int = 100) -> r.Run:
    return r.Run(LOG, "f", 0, offset, offset, pid, epoch, sequence, sequence, txn, 1, 1, time, time, offset, 100)


def marker(offset: int, outcome: str = r.COMMIT, *, epoch: int = 0, coordinator: int = 3, pid: int = 7) -> r.Marker:
    return r.Marker(LOG, "f", 0, offset, pid, epoch, outcome, coordinator, 100)


def entry(**fields: int) -> r.SnapshotEntry:
    """What a snapshot says of producer 7 after one record at offset 0."""
    return r.SnapshotEntry(7, 0, 0, 0, 0, 100, r.NONE, r.NONE)._replace(**fields)


def snapshot(offset: int, *entries: r.SnapshotEntry) -> r.Snapshot:
    return r.Snapshot(LOG, "s", offset, entries)


def aborted(first: int, last: int, stable: int | None = None) -> r.AbortedTxn:
    return r.AbortedTxn(LOG, "i", 7, first, last, last + 1 if stable is None else stable)


def lost(first: int, last: int) -> r.LogFault:
    return r.LogFault(LOG, "f", 0, first, last, "checksum", "broken")


def found(events: list[Any], as_of_ms: int | None = None, **facts: Any) -> list[tuple[str, int, str]]:
    """(rule, first offset, severity) but for the broken bytes that the story itself has."""
    kinds: dict[type, str] = {
        r.Run: "runs", r.Marker: "markers", r.Snapshot: "snapshots", r.AbortedTxn: "aborted", r.LogFault: "faults",
    }  # fmt: skip
    given = {name: tuple(e for e in events if type(e) is kind) for kind, name in kinds.items()}
    cleaned = facts.get("cleaned_offset", 0)
    span = r.Span(LOG, "f", 0, 0, END, holes=(r.Hole(0, cleaned, cleaned),) if cleaned else ())
    rows = LogRows(r.LogFacts(LOG, compacts=True, **facts), spans=(span,), **given)  # type: ignore[arg-type]
    findings = judge_log(rows, as_of_ms=as_of_ms).findings
    return [(f.rule, f.first_offset, f.severity) for f in findings if f.rule != "checksum"]


TXN = [data(0, txn=True), data(1, 1, txn=True)]
CLEANED = {"cleaned_offset": 2}
DELETED = {"start_offset": 2}


@pytest.mark.parametrize(
    ("events", "facts", "expected"),
    [
        # the index of aborted transactions
        ([*TXN, marker(2, r.ABORT), aborted(0, 2, 3)], {}, []),
        ([*TXN, marker(2, r.ABORT)], {}, ["abort-index"]),
        ([*TXN, marker(2, r.ABORT)], {"indexed": False}, []),
        ([*TXN, marker(2)], {}, []),
        ([marker(2, r.ABORT)], {}, []),
        ([marker(2, r.ABORT)], {"indexed": False}, []),
        ([*TXN, marker(2, r.ABORT), aborted(1, 2, 3)], {}, ["abort-index"]),
        ([*TXN, marker(2, r.ABORT), aborted(0, 2, 2)], {}, ["abort-index"]),
        ([*TXN, marker(2, r.ABORT), aborted(0, 2, 2)], {"cleaned_offset": 1}, []),
        ([*TXN, marker(2, r.ABORT), aborted(0, 2, 2)], {"first_offset": 1}, []),
        ([*TXN, marker(2, r.ABORT), aborted(1, 2, 3)], {"first_offset": 1}, ["abort-index"]),
        ([*TXN, marker(2, r.ABORT)], {"cleaned_offset": 2}, ["abort-index"]),
        # the cleaner keeps the entry as long as it keeps a batch and the marker (CleanedTransactionMetadata)
        ([*TXN, marker(2, r.ABORT)], {"cleaned_offset": 3}, ["abort-index"]),
        ([*TXN, marker(2, r.ABORT)], {"start_offset": 2}, ["abort-index"]),
        ([*TXN, marker(2, r.ABORT)], {"start_offset": 3}, []),
        ([*TXN, marker(2, r.ABORT), aborted(0, 2, 2), lost(9, 9)], {}, []),
        # another transaction is open: the last stable offset is where it began
        ([data(0, txn=True), data(1, txn=True, pid=8), marker(2, r.ABORT), aborted(0, 2, 1)], {}, []),
        ([data(0, txn=True), data(1, txn=True, pid=8), marker(2, r.ABORT), aborted(0, 2, 3)], {}, ["abort-index"]),
        # entries that no marker stands for, behind one that may lack it
        ([aborted(5, 6)], {}, ["abort-index"]),
        ([aborted(0, 1), aborted(5, 6)], CLEANED, ["abort-index", "abort-index"]),
        ([aborted(0, 1), aborted(5, 6)], DELETED, ["abort-index"]),
        ([aborted(0, 2), aborted(5, 6)], DELETED, ["abort-index", "abort-index"]),
        ([aborted(0, 1), aborted(5, 6), lost(1, 1)], {}, ["abort-index"]),
        ([aborted(0, 1), aborted(5, 6), lost(2, 3)], {}, ["abort-index", "abort-index"]),
        # transactions and what is outside of them
        ([data(0, txn=True), data(1, 1)], {}, ["outside-transaction"]),
        ([data(0, txn=True), data(1, epoch=1, txn=True)], {}, ["outside-transaction"]),
        ([data(0, txn=True, pid=-1)], {}, ["no-producer-id"]),
        ([data(0, pid=-1), data(1, pid=-1)], {}, []),
        # epochs of markers, of their coordinators, and of what follows
        ([data(0, txn=True), marker(1, epoch=1), data(2, epoch=1, txn=True)], {}, []),
        ([data(0, txn=True), marker(1, epoch=1), data(2, 1)], {}, ["write-after-fencing"]),
        ([data(0), data(1, epoch=1), data(2, 1)], {}, ["epoch-back"]),
        ([data(0, txn=True), marker(1, epoch=2)], {}, ["marker-epoch"]),
        ([data(0, epoch=1), marker(1)], {}, ["marker-epoch"]),
        ([marker(1), marker(2, coordinator=3)], {}, []),
        ([marker(1), marker(2, coordinator=2)], {}, ["coordinator-epoch"]),
        ([marker(1, coordinator=4), marker(2, coordinator=3), marker(3, coordinator=3)], {}, ["coordinator-epoch"] * 2),
        # sequences where some batches are gone
        ([data(0), data(1, 2)], {}, ["sequence-gap"]),
        ([data(0), data(2, 2)], {"cleaned_offset": 2}, []),
        ([data(0), data(2, 2)], {"cleaned_offset": 1}, ["sequence-gap"]),
        ([data(0), data(2, 2), lost(1, 1)], {}, []),
        ([data(0), data(3, 2), lost(3, 3)], {}, ["sequence-gap"]),
        ([data(0), data(2, 2, epoch=1)], {}, ["sequence-gap"]),
        ([data(0), data(2, 2, epoch=1)], {"cleaned_offset": 2}, []),
        ([data(0), data(2, 2, epoch=1), lost(1, 1)], {}, []),
        ([marker(1, epoch=1), data(2, 5, epoch=1)], {}, ["sequence-gap"]),
        ([marker(1, epoch=1), data(2, 5, epoch=1)], {"first_offset": 1}, []),
        ([marker(1, epoch=1), data(2, 5, epoch=1), lost(0, 0)], {}, []),
        ([data(0), marker(2, epoch=1), data(3, 5, epoch=1)], {}, ["sequence-gap"]),
        ([data(0), marker(2, epoch=1), data(3, 5, epoch=1), lost(1, 1)], {}, []),
        ([data(0, txn=True), marker(2, epoch=1), data(3, 5, epoch=1), lost(1, 1)], {}, ["sequence-gap"]),
        ([data(0), data(1)], {}, ["duplicate"]),
    ],
)  # fmt: skip
def test_a_log(events: list[Any], facts: dict[str, Any], expected: list[str]) -> None:
    assert [rule for rule, _, _ in found(events, **facts)] == expected


ONE = [data(0)]


@pytest.mark.parametrize(
    ("events", "facts", "count"),
    [
        ([*ONE, snapshot(1, entry())], {}, 0),
        ([*ONE, snapshot(1, entry(producer_epoch=1))], {}, 1),
        ([*ONE, snapshot(1, entry(last_sequence=1))], {}, 1),
        ([*ONE, snapshot(1, entry(last_offset=5))], {}, 1),
        ([*ONE, snapshot(1, entry(offset_delta=1))], {}, 1),
        ([*ONE, snapshot(1, entry(timestamp=1))], {}, 1),
        ([*ONE, snapshot(1, entry(coordinator_epoch=0))], {}, 1),
        ([*ONE, snapshot(1, entry(current_txn_first_offset=0))], {}, 1),
        # where not every batch is there, only what the last one says
        ([*ONE, snapshot(1, entry(timestamp=1, coordinator_epoch=0))], {"first_offset": 1, "start_offset": 0}, 0),
        ([*ONE, snapshot(1, entry(last_sequence=1))], {"first_offset": 1}, 1),
        ([*ONE, snapshot(3, entry(last_sequence=1))], {"cleaned_offset": 1}, 0),
        ([data(1), snapshot(3, entry(last_sequence=1, last_offset=1))], {"cleaned_offset": 1}, 1),
        ([data(0), snapshot(1, entry(last_sequence=-1, last_offset=-1))], {"start_offset": 1}, 0),
        ([data(1), snapshot(2, entry(last_sequence=-1, last_offset=-1))], {"start_offset": 1}, 1),
        ([data(0), snapshot(1, entry(producer_epoch=1, last_sequence=-1, last_offset=-1))], {"start_offset": 1}, 1),
        # of what is below its offset, so before the marker there
        ([*ONE, snapshot(1, entry()), marker(1)], {}, 0),
        # with a transaction
        ([*TXN, snapshot(2, entry(last_sequence=1, last_offset=1, current_txn_first_offset=0))], {}, 0),
        ([*TXN, marker(2), snapshot(3, entry(last_sequence=1, last_offset=1, coordinator_epoch=3))], {}, 0),
        ([data(0), marker(2, epoch=1),
          snapshot(3, entry(producer_epoch=1, last_sequence=-1, last_offset=-1, coordinator_epoch=3))], {}, 0),
        # a producer that the log does not have
        ([snapshot(1, entry())], {}, 1),
        ([snapshot(1, entry())], {"first_offset": 1}, 0),
        # its offset
        ([*ONE, snapshot(END, entry())], {}, 0),
        ([*ONE, snapshot(END + 1, entry())], {}, 1),
        ([*ONE, snapshot(2, entry(producer_epoch=1))], {"first_offset": 2}, 1),
        ([*ONE, snapshot(2, entry(producer_epoch=1))], {"first_offset": 3}, 0),
        ([*ONE, snapshot(2, entry(producer_epoch=1))], {"cleaned_offset": 2}, 0),
        ([data(1), snapshot(3, entry(producer_epoch=1))], {"cleaned_offset": 2}, 0),
        ([*ONE, lost(1, 1), snapshot(2, entry(producer_epoch=1))], {}, 0),
        ([*ONE, lost(2, 2), snapshot(2, entry(producer_epoch=1))], {}, 1),
    ],
)  # fmt: skip
def test_a_snapshot(events: list[Any], facts: dict[str, Any], count: int) -> None:
    assert [rule for rule, _, _ in found(events, **facts)] == ["producer-snapshot"] * count


@pytest.mark.parametrize(
    ("events", "rules"),
    [
        ([data(0), data(1)], ["duplicate"]),
        ([data(0), data(1, epoch=1), data(2, 1)], ["epoch-back"]),
        ([data(0), marker(1, outcome="")], []),
        ([data(0, epoch=1), marker(1)], ["marker-epoch"]),
    ],
)
def test_a_producer_of_which_something_is_wrong_is_not_held_against_a_snapshot_as_well(
    events: list[Any], rules: list[str]
) -> None:
    for taken in (snapshot(4, entry(last_sequence=9)), snapshot(4)):
        assert [rule for rule, _, _ in found([*events, taken], as_of_ms=0)] == rules


def test_a_producer_may_be_missing_once_it_has_expired() -> None:
    story = [data(0, time=100), snapshot(1)]
    missing = [("producer-snapshot", 1, NOTICE)]
    assert found(story) == []
    assert found(story, as_of_ms=100 + PRODUCER_EXPIRATION_MS) == []
    assert found(story, as_of_ms=99 + PRODUCER_EXPIRATION_MS) == missing


def test_a_snapshot_after_the_end_is_what_a_crash_leaves() -> None:
    for clean, severity in ((True, ERROR), (False, NOTICE)):
        assert [one[2] for one in found([snapshot(END + 1)], clean=clean)] == [severity]


@pytest.mark.parametrize(("first", "began"), [(100, 700), (900, 900)])
def test_an_open_transaction_began_after_the_marker_before_it(first: int, began: int) -> None:
    """Its client wrote a time of its own; the brokers wrote markers at 600, 700 and, after its first batch, 800."""
    others = [data(0, txn=True, pid=8), data(2, 1, txn=True, pid=8), data(5, 2, txn=True, pid=8)]
    times = {1: 600, 3: 700, 6: 800}
    markers = [marker(offset, pid=8)._replace(timestamp=time) for offset, time in times.items()]
    runs = (*others, data(4, txn=True, time=first))
    span = r.Span(LOG, "f", 0, 0, END)
    rows = LogRows(r.LogFacts(LOG), spans=(span,), runs=runs, markers=tuple(markers))
    (opened,) = [txn for txn in judge_log(rows).transactions if txn.marker_offset < 0]
    assert (opened.first_offset, opened.start_timestamp) == (4, began)


@pytest.mark.parametrize(
    ("stable", "more", "wrong"),
    [
        (3, [], False),
        (5, [data(5, pid=8, txn=True)], False),
        (6, [data(5, pid=8, txn=True)], True),
        (5, [], True),
        (4, [data(4, pid=8)], True),  # in no transaction
        (6, [data(4, 1, txn=True), data(6, pid=8, txn=True)], False),  # its own next one does not count
        (4, [data(4, 1, txn=True), data(6, pid=8, txn=True)], True),
        (5, [data(1, pid=9, txn=True), data(5, pid=8, txn=True)], True),  # another was open, and holds it back
    ],
)
def test_the_last_stable_offset_that_a_follower_writes(stable: int, more: list[Any], wrong: bool) -> None:
    """As Kafka 4.4.0: after all that it has fetched at once, up to the next transaction of another producer."""
    events = [TXN[0], marker(2, r.ABORT), aborted(0, 2, stable), *more]
    assert found(events) == ([("abort-index", 2, ERROR)] if wrong else [])


@pytest.mark.parametrize(
    ("facts", "severity"),
    [({}, ERROR), ({"clean": False}, NOTICE), ({"clean": False, "recovery_point": 3}, ERROR)],
)
def test_a_marker_whose_entry_is_not_written_yet(facts: dict[str, Any], severity: str) -> None:
    """Kafka writes it after the batch, and anew when it opens a log that was not closed, from the recovery point on."""
    assert found([*TXN, marker(2, r.ABORT)], **facts) == [("abort-index", 2, severity)]


def test_offsets_that_fall_within_a_file() -> None:
    """Of a compacted log too, of which any batch may be missing."""
    spans = [r.Span(LOG, "f", position, first, first + 2) for position, first in ((0, 8), (9, 2), (18, 12))]
    rows = LogRows(r.LogFacts(LOG, compacts=True, cleaned_offset=r.EVERYTHING), spans=tuple(spans))
    assert [(one.rule, one.message) for one in judge_log(rows).findings] == [("offset-hole", "offset 2 after 9")]


def test_positions_of_fetched_batches_do_not_compare() -> None:
    """Each answer begins at 0, and an election or a hole ends a span."""
    spans = r.Span(LOG, "t-0", 0, 0, 5, 0), r.Span(LOG, "t-0", 500, 5, 9, 1), r.Span(LOG, "t-0", 0, 9, 12, 2)
    rows = LogRows(r.LogFacts(LOG, indexed=False), spans=spans)
    assert judge_log(rows).findings == []
    missing = judge_log(rows._replace(spans=(*spans[:2], spans[2]._replace(first_offset=10))))
    assert [one.rule for one in missing.findings] == ["offset-hole"]


@pytest.mark.parametrize(("unread", "rule"), [((), "torn-transaction"), ((lost(2, 2),), "outside-transaction")])
def test_a_batch_that_cannot_be_read_is_no_hole_of_compaction(unread: tuple[r.LogFault, ...], rule: str) -> None:
    """It may have been the marker."""
    span = r.Span(LOG, "f", 0, 0, END, holes=(r.Hole(1, 4, 3),))
    facts = r.LogFacts(LOG, compacts=True, cleaned_offset=r.EVERYTHING)
    rows = LogRows(facts, spans=(span,), runs=(data(0, txn=True), data(4, epoch=2, txn=True)), faults=unread)
    assert [one.rule for one in judge_log(rows).findings if one.rule != "checksum"] == [rule]


class ReadHole(r.Hole):
    reads = 0

    @property
    def first_offset(self) -> int:
        ReadHole.reads += 1
        return self[0]


def test_a_log_of_many_holes_and_producers_is_judged_in_proportion() -> None:
    """The last batch of a producer lies many holes back, and the next hole explains the sequences that are missing."""
    producers, turns = 100, 20
    at = range(0, 2 * producers * turns, 2)
    holes = tuple(ReadHole(offset + 1, offset + 2, 1) for offset in at)
    span = r.Span(LOG, "f", 0, 0, at[-1] + 2, holes=holes)
    runs = [
        data(offset, sequence=2 * (number // producers), pid=number % producers) for number, offset in enumerate(at)
    ]
    rows = LogRows(r.LogFacts(LOG, compacts=True, cleaned_offset=r.EVERYTHING), spans=(span,), runs=tuple(runs))
    assert judge_log(rows).findings == []
    assert len(runs) <= ReadHole.reads < 10 * len(runs)
