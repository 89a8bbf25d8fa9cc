"""The rules over clients' histories, offsets over time, reloads and lineage."""

from minibroker.rules.rows import ABORT, COMMIT, Finding, Log, Marks, Seen, Sent
from minibroker.rules.rules import UNKNOWN, RecordPosition, judge_history, judge_lineage, judge_marks, judge_reload

LOG = Log("", "t", 0)


def sent(key: str, transaction: int | None = None, *, acknowledged: bool = True) -> Sent:
    return Sent("p", "t", 0, key, acknowledged, transaction)


def seen(key: str, offset: int, reader: str = "r") -> Seen:
    return Seen(reader, "t", 0, offset, key)


def names(found: list[Finding]) -> list[str]:
    return [finding.rule for finding in found]


def test_a_history_that_holds() -> None:
    history = [sent("a"), sent("b", 1), sent("c", 2), sent("d", acknowledged=False), sent("e", 3), sent("f", 3)]
    outcomes = {1: COMMIT, 2: ABORT, 3: UNKNOWN}
    stored = [seen("a", 0), seen("b", 1)]
    assert judge_history(history, stored, outcomes=outcomes, reads=stored) == []
    both = [*stored, seen("e", 4), seen("f", 5)]
    assert judge_history(history, both, outcomes=outcomes, reads=both) == []


def test_acknowledged_and_lost() -> None:
    assert names(judge_history([sent("a"), sent("b", 1)], [], outcomes={1: COMMIT})) == ["lost-record", "lost-record"]
    assert judge_history([sent("a", acknowledged=False)], []) == []
    assert judge_history([sent("a")], [], start_offsets={("t", 0): 1}) == []


def test_stored_twice() -> None:
    assert names(judge_history([sent("a")], [seen("a", 0), seen("a", 1)])) == ["duplicate-record"]
    assert judge_history([sent("a")], [seen("a", 0), seen("a", 1)], idempotent=False) == []
    assert judge_history([sent("a")], [seen("a", 0), seen("a", 0)]) == []


def test_aborted_and_read() -> None:
    assert names(judge_history([sent("a", 1)], [seen("a", 0)], outcomes={1: ABORT})) == ["aborted-read"]
    assert names(judge_history([sent("a", 1)], [], outcomes={1: ABORT}, reads=[seen("a", 0)])) == ["aborted-read"]


def test_half_of_a_transaction() -> None:
    assert names(judge_history([sent("a", 1), sent("b", 1)], [seen("b", 0)])) == ["torn-transaction"]
    assert judge_history([sent("a", 1, acknowledged=False), sent("b", 1)], [seen("b", 0)]) == []
    assert judge_history([sent("a", 1), sent("b", 1)], [seen("b", 0)], start_offsets={("t", 0): 1}) == []
    assert judge_history([sent("a", 1), sent("b", 2)], [seen("b", 0)]) == []


def test_strays_and_order() -> None:
    assert names(judge_history([], [seen("x", 0)])) == ["stray-record"]
    reads = [seen("a", 0), seen("b", 1), seen("a", 0), seen("a", 0, "other")]
    stored = [seen("a", 0), seen("b", 1)]
    assert names(judge_history([sent("a"), sent("b")], stored, reads=reads)) == ["order"]


def test_offsets_never_fall() -> None:
    def marks(*rows: tuple[int, int, int]) -> list[Marks]:
        return [Marks("r", "t", 0, *row) for row in rows]

    assert judge_marks(marks((0, 0, 0), (0, 2, 5), (2, 2, 5), (3, 5, 5))) == []
    assert judge_marks(marks((1, 3, 5), (4, 3, 5))) == []  # records of an open transaction were deleted
    for row in ((0, 3, 5), (1, 2, 5), (1, 3, 4), (6, 3, 5), (1, 6, 5)):
        assert names(judge_marks(marks((1, 3, 5), row))) == ["offset-back"], row


def test_reload() -> None:
    assert judge_reload(LOG, {"a": 1, "b": 2}, {"b": 2, "a": 1}) == []
    assert names(judge_reload(LOG, {"a": 1, "b": 2}, {"a": 1, "b": 3, "c": 4})) == ["reload", "reload"]


def test_lineage() -> None:
    one, two = RecordPosition(LOG, 1), RecordPosition(LOG, 2)
    assert judge_lineage("k", [one], [two]) == []
    assert judge_lineage("k", [one, two], [one, two]) == []
    assert names(judge_lineage("k", [one], [])) == ["lineage-lost"]
    assert names(judge_lineage("k", [one], [one, two])) == ["lineage-duplicate"]
    assert names(judge_lineage("k", [], [one])) == ["lineage-stray"]
