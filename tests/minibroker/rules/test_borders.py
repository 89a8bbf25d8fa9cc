"""Where rules begin and end to apply, on plain rows: one offset, one sequence or one outcome beside the other."""

from __future__ import annotations

import pytest

from minibroker.rules import rows as r
from minibroker.rules.catalogue import ERROR, NOTICE
from minibroker.rules.file_rules import LogRows
from minibroker.rules.log_rules import judge_log
from minibroker.rules.offset_rules import final_offsets

LOG = r.Log("", "t", 0)
OFFSETS = r.Log("", r.CONSUMER_OFFSETS, 0)
MAX = 2**31 - 1

Spans = list[tuple[int, int]]


def fault(first: int, last: int, rule: str = "checksum") -> r.LogFault:
    return r.LogFault(LOG, "f", 0, first, last, rule, "broken")


def spans(*bounds: tuple[int, int]) -> tuple[r.Span, ...]:
    return tuple(r.Span(LOG, "f", 0, first, end) for first, end in bounds)


@pytest.mark.parametrize(
    ("bounds", "faults", "cleaned", "found"),
    [
        ([(0, 5), (5, 9)], [], 0, []),
        ([(0, 5), (6, 9)], [], 0, [(5, 5)]),
        ([(0, 5), (4, 9)], [], 0, [(4, 4)]),
        ([(0, 9), (2, 4), (9, 12)], [], 0, [(2, 3)]),
        # compaction took what is below its offset, and may not have taken what is at it
        ([(0, 5), (7, 9)], [], 6, []),
        ([(0, 5), (7, 9)], [], 5, [(5, 6)]),
        # batches that cannot be read, which is told by itself
        ([(0, 5), (7, 9)], [fault(5, 5)], 0, []),
        ([(0, 5), (7, 9)], [fault(6, 6)], 0, []),
        ([(0, 5), (7, 9)], [fault(4, 4)], 0, [(5, 6)]),
        ([(0, 5), (7, 9)], [fault(7, 8)], 0, [(5, 6)]),
        # after bytes that are no batch everything up to the next file is lost, and nothing after its beginning
        ([(0, 5), (7, 9)], [fault(5, 5, "torn-batch")], 0, []),
        ([(0, 5), (5, 9), (12, 15)], [fault(5, 5, "torn-batch")], 0, [(9, 11)]),
    ],
)
def test_holes_and_overlaps(bounds: Spans, faults: list[r.LogFault], cleaned: int, found: Spans) -> None:
    rows = LogRows(r.LogFacts(LOG, cleaned_offset=cleaned, compacts=True), spans=spans(*bounds), faults=tuple(faults))
    holes = [f for f in judge_log(rows).findings if f.rule == "offset-hole"]
    assert [(f.first_offset, f.last_offset) for f in holes] == found


@pytest.mark.parametrize("rule", ["checksum", "torn-batch"])
@pytest.mark.parametrize(
    ("clean", "at", "severity"), [(False, 9, NOTICE), (False, 8, ERROR), (False, 3, ERROR), (True, 9, ERROR)]
)
def test_only_the_end_of_a_log_that_was_not_closed_may_be_damaged(
    rule: str, clean: bool, at: int, severity: str
) -> None:
    rows = LogRows(r.LogFacts(LOG, clean=clean), spans=spans((0, 9)), faults=(fault(at, at, rule),))
    assert [(f.rule, f.severity) for f in judge_log(rows).findings] == [(rule, severity)]


def run(offset: int, first: int, last: int) -> r.Run:
    count = ((last - first) & MAX) + 1
    return r.Run(LOG, "f", 0, offset, offset + count - 1, 7, 0, first, last, False, 1, count, 1, 1, offset, 100)


@pytest.mark.parametrize(
    ("before", "first", "found"),
    [
        ((MAX - 1, MAX), 0, []),
        ((MAX - 1, MAX), 1, ["sequence-gap"]),
        ((MAX - 1, MAX), MAX, ["duplicate"]),
        ((MAX - 1, 1), 2, []),
        ((MAX - 1, 1), 3, ["sequence-gap"]),
        ((MAX - 1, 1), 1, ["duplicate"]),
        ((MAX - 1, 1), MAX - 1, ["duplicate"]),
        ((4, 5), 6, []),
        ((4, 5), 7, ["sequence-gap"]),
        ((4, 5), 5, ["duplicate"]),
    ],
)
def test_sequences_around_their_end(before: tuple[int, int], first: int, found: list[str]) -> None:
    one = run(0, *before)
    rows = LogRows(
        r.LogFacts(LOG), spans=spans((0, one.last_offset + 2)), runs=(one, run(one.last_offset + 1, first, first))
    )
    assert [f.rule for f in judge_log(rows).findings] == found


def commit(offset: int, committed: int, producer_id: int = 7) -> r.CommittedOffset:
    return r.CommittedOffset(OFFSETS, offset, producer_id, 0, "g", "t", 0, committed)


def transaction(first: int, last: int, marker: int, outcome: str) -> r.Transaction:
    return r.Transaction(OFFSETS, "f", 7, 0, first, last, marker, 0, outcome, 0, 1, 2)


@pytest.mark.parametrize(
    ("commits", "transactions", "final"),
    [
        ([commit(0, 10, -1), commit(1, 20)], [transaction(1, 1, 2, r.COMMIT)], [20]),
        ([commit(0, 10, -1), commit(1, 20)], [transaction(1, 1, 2, r.ABORT)], [10]),
        ([commit(0, 10, -1), commit(1, 20)], [transaction(1, 1, -1, "")], [10]),
        ([commit(0, 10, -1), commit(1, 20)], [], [10]),
        ([commit(1, 20)], [transaction(1, 1, 2, r.ABORT)], []),
        ([commit(1, 20), commit(2, 30)], [transaction(1, 2, 3, r.COMMIT)], [30]),
        ([commit(1, 20), commit(3, 30)], [transaction(1, 1, 2, r.COMMIT)], [20]),
        ([commit(1, 20), commit(5, 30)], [transaction(1, 1, 2, r.COMMIT), transaction(5, 5, 6, r.ABORT)], [20]),
        ([commit(0, 10, -1), commit(1, -1, -1)], [], []),
    ],
)
def test_a_groups_offset_is_the_last_that_was_committed(
    commits: list[r.CommittedOffset], transactions: list[r.Transaction], final: list[int]
) -> None:
    assert [one.committed for one in final_offsets(commits, transactions)] == final
