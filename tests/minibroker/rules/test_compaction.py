"""What compaction may have taken: by cleanup.policy, and by the shape of what is there."""

from __future__ import annotations

import pytest

from minibroker.rules import rows as r
from minibroker.rules.catalogue import ERROR, NOTICE
from minibroker.rules.compaction import compacts, may_miss
from minibroker.rules.file_rules import LogRows
from minibroker.rules.log_rules import judge_log

HOLE = (r.Span(r.Log("", "t", 0), "f", 0, 0, 5), r.Span(r.Log("", "t", 0), "f", 9, 7, 9))
THINNED = (HOLE[0]._replace(thinned=1, first_thinned=2, thinned_end=4), HOLE[1])


@pytest.mark.parametrize(
    ("topic", "policies", "named", "spans", "found"),
    [
        ("t", {"t": True}, False, HOLE, []),
        ("t", {}, False, HOLE, [("offset-hole", NOTICE, 5, 6)]),
        ("t", {"t": None}, False, HOLE, [("offset-hole", NOTICE, 5, 6)]),
        ("t", {"t": False}, True, HOLE, [("offset-hole", NOTICE, 5, 6)]),  # it was compacted once
        ("t", {"t": False}, False, THINNED, [("offset-hole", NOTICE, 2, 6)]),
        ("t", {"t": False}, False, HOLE, [("offset-hole", ERROR, 5, 6)]),
        ("t", {"t": False}, False, THINNED[:1], [("record-count", NOTICE, 2, 3)]),
        ("__cluster_metadata", {}, False, HOLE, [("offset-hole", ERROR, 5, 6)]),
        ("__transaction_state", {}, False, HOLE, []),
    ],
)
def test_holes(
    topic: str,
    policies: dict[str, bool | None],
    named: bool,
    spans: tuple[r.Span, ...],
    found: list[tuple[str, str, int, int]],
) -> None:
    log = r.Log("", topic, 0)
    facts = r.LogFacts(log, **may_miss(topic, policies, cleaned=0 if named else None))
    verdict = judge_log(LogRows(facts, spans=tuple(span._replace(log=log) for span in spans)))
    assert [(one.rule, one.severity, one.first_offset, one.last_offset) for one in verdict.findings] == found


def test_only_where_something_is_missing_the_log_is_not_whole() -> None:
    facts = r.LogFacts(HOLE[0].log, **may_miss("t", {"t": True}))
    assert judge_log(LogRows(facts, spans=HOLE[:1])).facts.whole
    assert judge_log(LogRows(facts, spans=HOLE)).facts.cleaned_offset == 7


def test_a_thinned_batch_tells_that_compaction_came_farther_than_was_known() -> None:
    facts = r.LogFacts(HOLE[0].log, cleaned_offset=1)
    (found,) = judge_log(LogRows(facts, spans=THINNED[:1])).findings
    assert (found.rule, found.severity, found.first_offset, found.last_offset) == ("record-count", NOTICE, 2, 3)


def test_the_policy_of_a_topic_or_of_its_brokers() -> None:
    assert compacts({"cleanup.policy": "compact,delete"}, []) is True
    assert compacts({"cleanup.policy": "delete"}, [{"log.cleanup.policy": "compact"}]) is False
    assert compacts({}, [{"log.cleanup.policy": "compact"}]) is None
    assert compacts({}, [{}]) is False
