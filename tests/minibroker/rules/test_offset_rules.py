"""Committed offsets that go back: while a group has members a notice, after a reset or a deletion nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from minibroker.rules.offset_rules import drawn, final_offsets, judge_rewinds
from minibroker.rules.rows import ABORT, COMMIT, CommittedOffset, GroupMember, Log, Transaction

LOG = Log("", "__consumer_offsets", 0)


def judged(text: str, outcome: str = COMMIT) -> list[tuple[int, int, str]]:
    """`5`: an offset is committed; `t5`: in a transaction; `-`: deleted; `+a`, `-a`: member a comes, goes."""
    commits, members, transactions = [], [], []
    for at, word in enumerate(text.split()):
        if word[0] in "+-" and len(word) > 1:
            members.append(GroupMember(LOG, at, "g", word[1:], word[0] == "+"))
            continue
        producer = 7 if word[0] == "t" else -1
        value = -1 if word == "-" else int(word.lstrip("t"))
        commits.append(CommittedOffset(LOG, at, producer, producer, "g", "t", 0, value))
        if producer >= 0:
            transactions.append(Transaction(LOG, "", producer, 0, at, at, at, 0, outcome, 0, 1, 2))
    found = judge_rewinds(commits[::-1], members, transactions)
    assert {one.rule for one in found} <= {"offset-rewind"}
    return [(one.first_offset, one.last_offset, one.message) for one in found]


@pytest.mark.parametrize(
    "text",
    [
        "+a 3 5 5 9",
        "+a 9 -a 3 +a 5",  # reset
        "+a +b 9 -a -b 3",
        "+a 9 - 3",  # deleted, or the topic was
        "9 3 9 3",  # a group without members commits what it likes
    ],
)
def test_nothing_to_say(text: str) -> None:
    assert judged(text) == []


def test_one_notice_for_a_sawtooth() -> None:
    said = "group g on t-0 went back {} while it had members, first from 9 to 3 {}"
    assert judged("+a 9 3") == [(2, 2, said.format("once", "█▁"))]
    assert judged("+a +b 9 -a 3") == [(4, 4, said.format("once", "█▁"))]
    assert judged("+a 3 9 3 9 3 9") == [(3, 5, said.format("2 times", "▁█▁█▁█"))]
    assert judged("+a t9 t3") == [(2, 2, said.format("once", "█▁"))]
    assert judged("+a 9 t3 5", ABORT) == [(3, 3, said.replace("to 3", "to 5").format("once", "█▁"))]
    ((first, last, message),) = judged("+a " + " ".join(str(value) for value in [*range(100), 0, *range(100), 0]))
    assert (first, last) == (101, 202)
    assert "2 times" in message
    assert len(message.rpartition(" ")[2]) == 40


def test_bars() -> None:
    assert drawn([0, 7, -1, 14]) == "▁▄ █"
    assert drawn([5, 5]) == "▁▁"


def test_a_consumer_that_seeks_back_and_a_reset(tmp_path: Path) -> None:
    """Read from a broker: the group with the consumer gets the notice, the one that was reset does not."""
    kafka = pytest.importorskip("confluent_kafka")
    admin = pytest.importorskip("confluent_kafka.admin")
    pytest.importorskip("pyarrow")
    from minibroker import Minibroker
    from minibroker.cli import main

    with Minibroker(topics={"t": 1}, ephemeral=True) as broker:
        at = {"bootstrap.servers": broker.bootstrap_servers}
        for group in ("seeks", "is-reset"):
            consumer = kafka.Consumer({**at, "group.id": group, "enable.auto.commit": False})
            consumer.subscribe(["t"])
            while not consumer.assignment():
                consumer.poll(0.1)
            for offset in (9, 3) if group == "seeks" else (9,):
                consumer.commit(offsets=[kafka.TopicPartition("t", 0, offset)], asynchronous=False)
            consumer.close()
        back = kafka.ConsumerGroupTopicPartitions("is-reset", [kafka.TopicPartition("t", 0, 3)])
        client = admin.AdminClient(at)
        client.alter_consumer_group_offsets([back])["is-reset"].result(30)
        out = tmp_path / "s.json"
        main(["audit", "--bootstrap", broker.bootstrap_servers, "--json", str(out), "--quiet"])
    (found,) = (one for one in json.loads(out.read_text())["shown"] if one["rule"] == "offset-rewind")
    assert found["message"].startswith("group seeks on t-0 went back once while it had members, first from 9 to 3")
    assert found["severity"] == "notice"


@pytest.mark.parametrize(
    ("producer", "outcome", "final"), [(0, ABORT, 9), (0, COMMIT, 3), (7, ABORT, 9), (-1, ABORT, 3)]
)
def test_what_stands_in_the_end(producer: int, outcome: str, final: int) -> None:
    """What was committed in an aborted transaction was not; 0 is a producer's id as any other."""
    commits = [CommittedOffset(LOG, 0, -1, -1, "g", "t", 0, 9), CommittedOffset(LOG, 1, producer, 0, "g", "t", 0, 3)]
    transactions = [Transaction(LOG, "", 0, 0, 1, 1, 2, 0, outcome, 0, 1, 2)]
    if producer > 0:
        transactions = [transactions[0]._replace(producer_id=producer)]
    assert [one.committed for one in final_offsets(commits, transactions)] == [final]


def offset(at: int, value: int, producer: int = -1) -> CommittedOffset:
    return CommittedOffset(LOG, at, producer, 0 if producer >= 0 else -1, "g", "t", 0, value)


def test_what_was_written_last_stands_whenever_its_marker_came() -> None:
    """OffsetMetadataManager compares where the records lie, and a tombstone takes what transactions hold."""
    committed = [Transaction(LOG, "", 7, 0, 3, 3, 9, 0, COMMIT, 0, 1, 2)]
    held = offset(3, 40, 7)
    assert final_offsets([held], committed) == [held]
    assert final_offsets([held], []) == []
    later = offset(5, 41)
    assert final_offsets([held, later], committed) == [later]
    assert final_offsets([held, offset(5, -1)], committed) == []
