"""What compaction and DeleteTopics remove lawfully is not lost; what nothing removes is."""

from __future__ import annotations

from typing import Any

import pytest
from memory_cluster import MemoryCluster

from minibroker.rules.rows import ABORT, COMMIT, Log, Transaction
from minibroker_lab.judge.exchanges import Exchange, Produced
from minibroker_lab.judge.own_cluster import compacted_topics
from minibroker_lab.judge.removed import removed_records
from minibroker_lab.judge.stored import Stored
from minibroker_lab.judge.verdict import judge_wire
from minibroker_protocol.records import Record, build_batch
from minibroker_storage.origin import Origin

PRODUCER = (7, 0, 0)


def sent(number: int, offset: int, key: bytes | None, value: bytes | None, *, transactional: bool = False) -> Produced:
    exchange = {"number": number, "client_id": "c"}
    record = Record(timestamp=1, key=key, value=value)
    return Produced(exchange, "t", 0, PRODUCER, [record], offset, transactional)


def lying(offset: int, key: bytes, value: bytes, *, committed: bool = True) -> Stored:
    return Stored("t", 0, PRODUCER, Record(offset, 1, key, value), committed)


def end(number: int, *, committed: bool) -> Exchange:
    return {"number": number, "api": "EndTxn", "errors": [], "request": {"producer_id": 7, "committed": committed}}


def deletion(number: int, error: int = 0) -> Exchange:
    response = {"responses": [{"name": "t", "error_code": error}]}
    return {"number": number, "api": "DeleteTopics", "errors": [], "response": response}


def transaction(first: int, last: int, outcome: str) -> Transaction:
    return Transaction(Log("", "t", 0), "f", 7, 0, first, last, last + 1, 0, outcome, 0, 0, 0)


def lost(
    produced: list[Produced],
    stored: list[Stored],
    exchanges: list[Exchange] | None = None,
    transactions: list[Transaction] | None = None,
    *,
    compacted: str = "t",
) -> list[int]:
    """The offsets that the verdict calls lost."""
    removed = removed_records(produced, stored, exchanges or [], transactions or [], {compacted})
    return [found.first_offset for found in judge_wire(produced, stored, {}, removed) if found.rule == "lost-record"]


def test_a_record_with_a_later_one_of_its_key() -> None:
    produced = [sent(1, 0, b"k", b"old"), sent(2, 1, b"k", b"new")]
    assert lost(produced, [lying(1, b"k", b"new")]) == []
    assert lost(produced, [lying(1, b"k", b"new")], compacted="another") == [0]


def test_a_record_that_only_another_key_follows() -> None:
    produced = [sent(1, 0, b"k", b"v"), sent(2, 1, b"j", b"w")]
    assert lost(produced, [lying(1, b"j", b"w")]) == [0]


def test_an_earlier_record_of_the_key_supersedes_nothing() -> None:
    produced = [sent(1, 0, b"k", b"old"), sent(2, 1, b"k", b"new")]
    assert lost(produced, [lying(0, b"k", b"old")]) == [1]


def test_another_record_at_its_offset_is_no_compaction() -> None:
    produced = [sent(1, 0, b"k", b"old"), sent(2, 1, b"k", b"new")]
    assert lost(produced, [lying(0, b"k", b"other"), lying(1, b"k", b"new")]) == [0]


@pytest.mark.parametrize(("key", "value"), [(None, b"v"), (b"k", None)], ids=["no key", "tombstone"])
def test_what_compaction_removes_without_a_successor(key: bytes | None, value: bytes | None) -> None:
    assert lost([sent(1, 0, key, value)], []) == []


def test_an_aborted_record_supersedes_nothing() -> None:
    produced = [sent(1, 0, b"k", b"v"), sent(2, 1, b"k", b"w", transactional=True)]
    assert lost(produced, [], transactions=[transaction(1, 1, ABORT)]) == [0]
    assert lost(produced, [lying(1, b"k", b"w", committed=False)], transactions=[transaction(1, 1, ABORT)]) == [0]
    assert lost(produced, [lying(1, b"k", b"w")], transactions=[transaction(1, 1, COMMIT)]) == []


def test_without_a_marker_the_next_end_of_the_producer_tells() -> None:
    produced = [sent(2, 0, b"k", b"v", transactional=True)]
    assert lost(produced, [], [end(1, committed=False), end(3, committed=True)]) == [0]
    assert lost(produced, [], [end(1, committed=True), end(3, committed=False)]) == []


def test_records_of_a_topic_that_was_deleted() -> None:
    produced = [sent(1, 0, b"k", b"v"), sent(3, 0, b"k", b"w")]
    assert lost(produced, [lying(0, b"k", b"w")], [deletion(2)], compacted="") == []
    assert lost(produced, [], [deletion(2)], compacted="") == [0]
    assert lost(produced, [lying(0, b"k", b"w")], [deletion(2, error=29)], compacted="") == [0]


def test_removed_records_count_as_read_where_they_are_committed() -> None:
    produced: list[Any] = [sent(1, 0, b"k", b"old"), sent(2, 1, b"k", b"new")]
    (row,) = removed_records(produced, [lying(1, b"k", b"new")], [], [], {"t"})
    assert (row.record.offset, row.committed, row.record.value) == (0, True, b"old")


@pytest.mark.parametrize(("policy", "touched"), [("compact", True), ("delete", False), ("compact,delete", True)])
def test_the_topics_that_compaction_may_have_touched(policy: str, touched: bool) -> None:
    cluster = MemoryCluster({"log.cleanup.policy": policy}, topics={"t": 1})
    cluster.broker.partition("t", 0).append(
        build_batch([Record(0, 1, b"k", b"v", [])]), origin=Origin.CLIENT, api_version=9
    )
    assert compacted_topics(cluster.cluster) == ({"t"} if touched else set())
    cluster.broker.directory.cleaner_offsets["t", 0] = 1  # a policy that was changed since
    assert compacted_topics(cluster.cluster) == {"t"}
    cluster.stop()
