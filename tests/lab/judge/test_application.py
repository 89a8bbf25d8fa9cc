"""What the wire shows of an application's mistakes, and that what is right is not taken for one."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any

import pytest

from minibroker.rules.rows import CommittedOffset, Log, Transaction
from minibroker.rules.rules import finding
from minibroker_lab.judge.application import (
    Causes,
    KeptOffset,
    Wire,
    kept_offsets,
    mixed_offsets,
    repeated_offsets,
    shared_ids,
    uncommitted_inputs,
    unfenced_offsets,
)
from minibroker_lab.judge.exchanges import Exchange, Produced
from minibroker_lab.judge.lineage import Lineage, lineage_of
from minibroker_lab.judge.stored import Stored
from minibroker_protocol.records import Record

FENCED, WAIT = "INVALID_PRODUCER_EPOCH (47)", "CONCURRENT_TRANSACTIONS (51)"


class Story:
    """Exchanges in the order in which they are told."""

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []
        self.produced: list[Produced] = []
        self.kept: set[KeptOffset] = set()
        self._numbers = itertools.count(1)

    def add(self, api: str, *errors: str, answer: Any = None, fault: int = 0, **request: Any) -> Exchange:
        one = {
            "number": next(self._numbers),
            "api": api,
            "client_id": "c",
            "outcome": "answered",
            "errors": list(errors),
            "fault": fault,
            "request": request,
            "response": answer,
        }
        self.exchanges.append(one)
        return one

    def init(self, epoch: int, *errors: str, name: str = "tx") -> Exchange:
        answer = {"producer_id": 1, "producer_epoch": epoch}
        return self.add("InitProducerId", *errors, answer=answer, transactional_id=name, producer_id=-1)

    def end(self, epoch: int, *errors: str, committed: bool = True, answered: bool = True, fault: int = 0) -> Exchange:
        request = {"transactional_id": "tx", "producer_id": 1, "producer_epoch": epoch, "committed": committed}
        return self.add("EndTxn", *errors, answer={} if answered else None, fault=fault, **request)

    def produce(self, value: str, epoch: int, *errors: str, name: str | None = "tx") -> Produced:
        one = self.add("Produce", *errors, transactional_id=name)
        records = [Record(timestamp=1, value=value.encode())]
        self.produced.append(Produced(one, "out", 0, (1, epoch, one["number"]), records, 0, name is not None))
        return self.produced[-1]

    def offsets(self, offset: int, epoch: int | None = None, **more: Any) -> Exchange:
        """In a transaction when an epoch is given."""
        topics = [{"name": "in", "partitions": [{"partition_index": 0, "committed_offset": offset}]}]
        if epoch is None:
            return self.add("OffsetCommit", group_id="g", topics=topics, **{"member_id": "m", **more})
        who = {"producer_id": 1, "producer_epoch": epoch, "transactional_id": "tx", "member_id": "m", **more}
        return self.add("TxnOffsetCommit", group_id="g", topics=topics, **who)

    @property
    def wire(self) -> Wire:
        return Wire(self.exchanges, self.produced, kept=self.kept)


def shared(story: Story) -> list[int]:
    return [exchange["number"] for _, exchange in shared_ids(story.wire)]


def test_two_instances_that_fence_each_other_share_an_id() -> None:
    story = Story()
    del story.init(0)["request"]["producer_id"]  # before version 3
    story.init(1)
    story.end(0, FENCED)
    story.init(3, WAIT)  # this alone fences
    second = story.produce("v", 1, FENCED).exchange
    story.init(3)
    assert shared(story) == [second["number"]]


def test_an_instance_that_is_left_over_shares_no_id() -> None:
    story = Story()
    story.init(0)
    story.init(1)
    story.end(0, FENCED)
    story.end(1)
    story.end(0, FENCED)
    assert shared(story) == []


def test_an_instance_whose_transactions_time_out_shares_no_id() -> None:
    story = Story()
    for epoch in (0, 2, 4):
        story.init(epoch)
        story.produce("v", epoch, FENCED)
        story.end(epoch, FENCED)
    story.init(6)
    story.end(4, FENCED)  # late, after its successor began
    assert shared(story) == []


def test_a_refusal_that_a_script_made_is_no_sign_of_another_instance() -> None:
    story = Story()
    for epoch in (0, 1):
        story.init(epoch)
        story.init(epoch, WAIT)
        story.end(epoch, FENCED, fault=1)
    assert shared(story) == []


@pytest.mark.parametrize(
    ("joined", "member", "notices"),
    [(True, "", 1), (True, "m", 0), (False, "", 0)],
    ids=["no member", "member", "none"],
)
def test_offsets_without_a_member_of_a_group_with_members(joined: bool, member: str, notices: int) -> None:
    story = Story()
    if joined:
        story.add("SyncGroup", group_id="g", member_id="m")
    commit = story.offsets(1, 0, member_id=member)
    story.offsets(2, 0, member_id=member)
    found = list(unfenced_offsets(story.wire))
    assert len(found) == notices
    assert all(f"(exchange {commit['number']})" in one.message for one in found)


@pytest.mark.parametrize("left", ["LeaveGroup", "ConsumerGroupHeartbeat"])
def test_a_member_that_left_is_not_asked_for(left: str) -> None:
    story = Story()
    story.add("Heartbeat", group_id="g", member_id="m")
    story.add(left, group_id="g", member_id="m", member_epoch=-1)
    story.offsets(1, 0, member_id="")
    assert list(unfenced_offsets(story.wire)) == []


def test_two_transactions_with_records_that_committed_one_offset() -> None:
    story = Story()
    for epoch, value in ((0, "v"), (0, "w"), (1, "x")):
        story.produce(value, epoch)
        story.offsets(2 if value != "w" else 4, epoch)
        story.offsets(2 if value != "w" else 4, epoch)  # again in the same one: no second
        story.end(epoch)
    story.offsets(2, 1)
    story.end(1)  # without records
    (found,) = repeated_offsets(story.wire)
    assert found.message.startswith("two transactions committed offset 2 of group g (exchanges 2 and 10)")


def test_a_transaction_whose_end_was_never_applied_committed_nothing() -> None:
    story = Story()
    story.produce("v", 0)
    story.offsets(2, 0)
    unapplied = story.end(0)["number"]
    story.produce("v", 1)
    story.offsets(2, 1)
    story.end(1)
    assert len(list(repeated_offsets(story.wire))) == 1
    assert list(repeated_offsets(Wire(story.exchanges, story.produced, {}, {unapplied}))) == []


def test_a_plain_commit_beside_transactions() -> None:
    story = Story()
    story.produce("v", 0)
    story.offsets(2, 0)
    story.end(0)
    plain = story.offsets(3)
    story.offsets(4)  # the same partition again: no second
    (found,) = mixed_offsets(story.wire)
    assert found.message.startswith("offset 3 of group g is committed outside of any transaction (exchange 4), after")
    assert (plain["number"], found.log, found.severity) == (4, Log("", "in", 0), "notice")


@pytest.mark.parametrize("case", ["before", "aborted", "no member", "another group", "refused", "only plain"])
def test_a_plain_commit_that_no_transaction_contradicts(case: str) -> None:
    story = Story()
    if case == "before":
        story.offsets(0)
    if case != "only plain":
        story.offsets(2, 0)
        story.end(0, committed=case != "aborted")
    if case == "no member":
        story.offsets(2, member_id="")
    elif case == "another group":
        story.offsets(2)["request"]["group_id"] = "other"
    elif case == "refused":
        story.offsets(2)["errors"] = ["ILLEGAL_GENERATION (22)"]
    elif case != "before":
        story.offsets(2)
    assert list(mixed_offsets(story.wire)) == []


READ_UNCOMMITTED, READ_COMMITTED = 0, 1


@pytest.mark.parametrize(
    ("levels", "committed", "numbers"),
    [
        pytest.param([READ_UNCOMMITTED, READ_UNCOMMITTED], True, ["exchange 1"], id="input is read uncommitted"),
        pytest.param([READ_COMMITTED, READ_COMMITTED], True, [], id="input is read committed"),
        pytest.param([READ_UNCOMMITTED, READ_COMMITTED], True, [], id="another part of the application looks too"),
        pytest.param([READ_UNCOMMITTED], False, [], id="no transaction has its offsets"),
        pytest.param([], True, [], id="nothing was read"),
    ],
)
def test_an_input_that_is_read_uncommitted(levels: list[int], committed: bool, numbers: list[str]) -> None:
    story = Story()
    for level in levels:
        story.add("Fetch", isolation_level=level, topics=[{"topic": "in"}])
    story.add("Fetch", isolation_level=READ_UNCOMMITTED, topics=[{"topic": "other"}])
    if committed:
        story.offsets(2, 0)
        story.end(0)
    else:
        story.offsets(2)
    findings = list(uncommitted_inputs(story.wire))
    assert [re.search(r"exchange \d+", one.message)[0] for one in findings] == numbers  # type: ignore[index]
    assert all("would be input too" in one.message for one in findings)  # whether there were any is not known
    assert {(one.rule, one.log, one.severity) for one in findings} <= {
        ("input-uncommitted", Log("", "in", 0), "notice")
    }


@pytest.mark.parametrize(("marker", "committed"), [("COMMIT", True), ("ABORT", False)])
def test_offsets_whose_end_has_no_answer_are_what_the_log_says(marker: str, committed: bool) -> None:
    story = Story()
    story.offsets(2, 0)
    story.end(0, answered=False)  # held, for instance, until the transaction had timed out
    log = Log("", "__consumer_offsets", 7)
    commits = [CommittedOffset(log, 4, 1, 0, "g", "in", 0, 2)]
    transactions = [Transaction(log, "f", 1, 0, 4, 4, 5, 0, marker, 0, 0, 0)]
    wire = Wire(story.exchanges, kept=kept_offsets(commits, transactions))
    assert [row.offset for row in wire.offsets()] == ([2] if committed else [])


def taken_along(*, kept: bool = True) -> Story:
    """A transaction whose offsets a late copy of the EndTxn before committed, which is no exchange: its records and its
    abort came too late."""
    story = Story()
    story.kept = {(1, "g", "in", 0, 1)} if kept else set()
    story.offsets(1, 0)
    story.produce("v", 0, "OUT_OF_ORDER_SEQUENCE_NUMBER (45) at out-0")
    story.end(0, "INVALID_TXN_STATE (48)", committed=False)
    return story


@pytest.mark.parametrize("kept", [True, False])
def test_offsets_that_a_late_commit_took_along(kept: bool) -> None:
    story = taken_along(kept=kept)
    assert [row.offset for row in story.wire.offsets()] == ([1] if kept else [])
    said = cause(story, "lineage-lost", row("in", 0), commit=story.exchanges[0])
    late = "its offset was committed (exchange 1, TxnOffsetCommit) by a late EndTxn of an earlier transaction (KIP-890)"
    assert (said == late) == kept


def test_offsets_that_were_taken_along_without_their_records_are_no_first_time() -> None:
    story = taken_along()
    again = story.produce("v", 0)
    story.produced[-1] = again._replace(batch=(2, *again.batch[1:]))
    story.offsets(1, 0, producer_id=2)
    story.end(0)["request"]["producer_id"] = 2
    assert len(list(story.wire.offsets())) == 2
    assert list(repeated_offsets(story.wire)) == []


def test_offsets_whose_own_commit_was_applied_and_answered_with_an_error_were_not_taken_along() -> None:
    story = Story()
    story.kept = {(1, "g", "in", 0, 1)}
    commit = story.offsets(1, 0)
    story.end(0, "NOT_COORDINATOR (16)", fault=1)
    assert [row.offset for row in story.wire.offsets()] == [1]
    assert cause(story, "lineage-lost", row("in", 0), commit=commit).endswith("before anything was written for it")


def test_offsets_of_an_aborted_transaction_that_a_later_one_committed() -> None:
    story = Story()
    story.kept = {(1, "g", "in", 0, 1)}
    story.offsets(1, 0)
    story.end(0, committed=False)
    story.offsets(1, 0)
    own = story.end(0)
    assert [row.exchange["number"] for row in story.wire.offsets()] == [own["number"] - 1]


def cause(story: Story, rule: str, *stored: Stored, commit: Exchange | None = None) -> str:
    topic = "in" if rule == "lineage-lost" else "out"
    offset = max(one.record.offset for one in stored if one.topic == topic)
    told = finding(rule, Log("", topic, 0), "x", first_offset=offset)
    return Causes(story.wire, stored, [Lineage("in", "out")]).of(told, commit)


def row(topic: str, offset: int, sent: Produced | None = None) -> Stored:
    batch = sent.batch if sent is not None else (9, 0, 0)
    return Stored(topic, 0, batch, Record(timestamp=1, offset=offset, value=b"v"), committed=True)


def test_an_offset_outside_of_the_transaction_that_failed() -> None:
    story = Story()
    story.produce("v", 0, "TOPIC_AUTHORIZATION_FAILED (29) at out-0")
    commit = story.offsets(1)
    assert cause(story, "lineage-lost", row("in", 0), commit=commit) == (
        "its Produce was refused (exchange 1: TOPIC_AUTHORIZATION_FAILED), and its offset was committed all the same "
        "outside of any transaction (exchange 2, OffsetCommit)"
    )


def test_an_offset_although_the_only_send_was_refused() -> None:
    story = Story()
    story.produce("v", 0, "TOPIC_AUTHORIZATION_FAILED (29) at out-0", name=None)
    said = cause(story, "lineage-lost", row("in", 0), commit=story.offsets(1))
    assert said.endswith("committed all the same (exchange 2, OffsetCommit)")


def test_an_offset_of_a_later_transaction() -> None:
    story = Story()
    story.produce("v", 0)
    story.end(0, committed=False)
    commit = story.offsets(1, 0)
    assert cause(story, "lineage-lost", row("in", 0), commit=commit) == (
        "the transaction that wrote it was aborted (exchange 2), the consumer was not set back, and a later "
        "transaction committed an offset past it (exchange 3, TxnOffsetCommit)"
    )


def test_an_offset_ahead_of_the_work() -> None:
    story = Story()
    commit = story.offsets(1, 0)
    story.produce("v", 0)
    said = cause(story, "lineage-lost", row("in", 0), commit=commit)
    assert said == "its offset was committed (exchange 1, TxnOffsetCommit) before anything was written for it"


def test_an_input_without_a_value_that_the_application_drops() -> None:
    story = Story()
    kept, dropped = row("in", 0), row("in", 0)._replace(record=Record(timestamp=1, offset=0))
    commit = story.offsets(1, 0)
    assert [
        cause(story, "lineage-lost", stored, commit=commit).endswith("it has no value: a tombstone that is dropped")
        for stored in (kept, dropped)
    ] == [False, True]


def test_an_input_whose_output_was_aborted_and_not_tried_again() -> None:
    story = Story()
    story.produce("v", 0)
    story.end(0, committed=False)
    assert cause(story, "lineage-lost", row("in", 0), commit=story.exchanges[0]) == (
        "the transaction that wrote it was aborted (exchange 2), and the command ended without another try"
    )


@pytest.mark.parametrize(("code", "old"), [("ILLEGAL_GENERATION", True), ("GROUP_AUTHORIZATION_FAILED", False)])
def test_an_abort_after_refused_offsets(code: str, old: bool) -> None:
    story = Story()
    story.offsets(1, 0)["errors"] = ["NOT_COORDINATOR (16)"]  # of the transaction before
    story.end(0)
    story.produce("v", 0)
    story.offsets(1, 0)["errors"] = [f"{code} (1) at in-0"]
    story.end(0, committed=False)
    assert cause(story, "lineage-lost", row("in", 0), commit=story.exchanges[2]) == (
        f"the transaction that wrote it was aborted (exchange 5) after its offsets were refused (exchange 4: {code})"
        f"{': the group metadata is that of before a rebalance' if old else ''}, and the command ended without another "
        "try"
    )


def test_an_abort_after_offsets_that_were_taken_at_the_second_try() -> None:
    story = Story()
    story.produce("v", 0)
    story.offsets(1, 0)["errors"] = ["NOT_COORDINATOR (16)"]
    story.offsets(1, 0)
    story.end(0, committed=False)
    assert cause(story, "lineage-lost", row("in", 0), commit=story.exchanges[0]) == (
        "the transaction that wrote it was aborted (exchange 4), and the command ended without another try"
    )


def test_copies_are_told_in_the_order_in_which_they_were_sent() -> None:
    """Not in that of their partitions."""
    story = Story()
    first = story.produce("v", 0)
    story.offsets(1, 0)
    story.end(0)
    again = story.produce("v", 1)
    said = cause(story, "lineage-duplicate", row("out", 5, again), row("out", 9, first))
    assert said.endswith("(exchange 3), and the same input was sent again in another transaction (exchange 4)")


def test_an_input_that_nobody_read_yet() -> None:
    story = Story()
    assert cause(story, "lineage-lost", row("in", 0), commit=story.add("Produce")) == ""


def twice(story: Story, first: Produced, again: Produced) -> str:
    return cause(story, "lineage-duplicate", row("out", 0, first), row("out", 2, again))


def test_a_second_transactional_id() -> None:
    story = Story()
    said = twice(story, story.produce("v", 0), story.produce("v", 1, name="tx-2"))
    assert said.startswith("they were written under two transactional ids, 'tx' and 'tx-2'")


def test_offsets_that_no_transaction_has() -> None:
    story = Story()
    first = story.produce("v", 0)
    story.end(0)
    again = story.produce("v", 1)
    story.end(1)
    story.offsets(1)
    assert twice(story, first, again).endswith("they are committed outside of it (exchange 5, OffsetCommit)")


def test_a_commit_whose_answer_was_lost() -> None:
    story = Story()
    first = story.produce("v", 0)
    story.offsets(1, 0)
    story.end(0)["outcome"] = "closed: fault"
    again = story.produce("v", 1)
    assert twice(story, first, again) == (
        "the first one was committed (exchange 3 and its answer was lost), and the same input was sent again in "
        "another transaction (exchange 4)"
    )


@pytest.mark.parametrize("kept", [False, True])
def test_offsets_that_were_refused_before_the_commit(kept: bool) -> None:
    story = Story()
    story.offsets(0, 0)
    story.end(0)
    first = story.produce("v", 0)
    story.offsets(1, 0)["errors"] = ["COORDINATOR_NOT_AVAILABLE (15)"]
    story.end(0)
    again = story.produce("v", 1)
    story.kept = {(1, "g", "in", 0, 1)} if kept else set()  # written, and answered with an error
    assert twice(story, first, again) == (
        "the first one was committed (exchange 5), and the same input was sent again in another transaction "
        "(exchange 6)"
        if kept
        else "the transaction that wrote the first one (exchange 5 ended it) has no offsets: they were not written "
        "(exchange 4, TxnOffsetCommit: COORDINATOR_NOT_AVAILABLE), and it was committed all the same"
    )


def test_a_transaction_that_sent_no_offsets() -> None:
    story = Story()
    story.offsets(0, 0)
    story.end(0)
    first = story.produce("v", 0)
    story.end(0)
    assert twice(story, first, story.produce("v", 1)).endswith("(exchange 4 ended it) has no offsets: none were sent")


@pytest.mark.parametrize(("offset", "named"), [(0, True), (1, False)])
def test_an_offset_that_is_not_past_its_record(offset: int, named: bool) -> None:
    story = Story()
    first = story.produce("v", 0)
    story.offsets(offset, 0)
    story.end(0)
    again = story.produce("v", 1)
    said = cause(story, "lineage-duplicate", row("out", 0, first), row("out", 2, again), row("in", 0))
    assert said.startswith(
        "the first one's transaction committed offset 0 (exchange 2), which is not past in-0@0"
        if named
        else "the first one was committed"
    )


@pytest.mark.parametrize(
    ("group", "partition", "why"),
    [
        ("h", 0, "no offsets of group g, only of h: two loops share one producer"),
        ("g", 1, "no offset of in-0, only of in-1: two loops share one producer, or one partition's offset is sent"),
        ("g", 0, ""),
    ],
)
def test_a_transaction_that_has_the_offsets_of_another_loop(group: str, partition: int, why: str) -> None:
    story = Story()
    first = story.produce("v", 0)
    topics = [{"name": "in", "partitions": [{"partition_index": partition, "committed_offset": 1}]}]
    story.offsets(1, 0)["request"] |= {"group_id": group, "topics": topics}
    story.end(0)
    again = story.produce("v", 1)
    story.offsets(1, 1)
    story.end(1)
    said = cause(story, "lineage-duplicate", row("out", 0, first), row("out", 2, again), row("in", 0))
    begins = f"the transaction that wrote the first one (exchange 3 ended it) has {why}" if why else "the first one was"
    assert said.startswith(begins)


@pytest.mark.parametrize(("level", "named"), [(0, True), (1, False)])
def test_input_that_was_read_uncommitted(level: int, named: bool) -> None:
    story = Story()
    story.add("Fetch", isolation_level=level, topics=[{"topic": "in"}])
    assert ("read_uncommitted (exchange 1)" in cause(story, "lineage-stray", row("out", 0))) == named


def key(how: str, record: Record) -> tuple[Sequence[str], Sequence[str]]:
    lineage = lineage_of("in=out", how)
    return lineage.of_input("in", 0, record), lineage.of_output(record)


def test_what_ties_an_output_record_to_its_input() -> None:
    record = Record(offset=3, key=b"k", value=b'{"id": [1, 2], "from": "in-0@7"}', headers=[("h", b"x"), ("h", None)])
    assert key("key", record) == (["k"], ["k"])
    assert key("value", Record()) == ([""], [""])
    assert key("header:h", record) == (["x"], ["x"])
    assert key("field:id", record) == (["1", "2"], ["1", "2"])
    assert key("position:field:from", record) == (["in-0@3"], ["in-0@7"])
    assert key("position:field:id", record) == (["in-0@3"], ["no position", "no position"])


@pytest.mark.parametrize(("text", "how"), [("in", "value"), ("in=out", "keys"), ("in=out", "position:value")])
def test_a_lineage_that_cannot_be(text: str, how: str) -> None:
    with pytest.raises(ValueError, match=r"expected"):
        lineage_of(text, how)
