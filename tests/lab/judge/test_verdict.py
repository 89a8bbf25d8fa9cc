"""What the wire and the log say of records that were sent more than once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from planting import rewound

from minibroker.rules.rows import Log, Sent
from minibroker.rules.rules import finding
from minibroker_lab.judge.exchanges import Produced
from minibroker_lab.judge.history import History, read_history
from minibroker_lab.judge.lineage import Lineage
from minibroker_lab.judge.report import coverage, failures_met, unmet
from minibroker_lab.judge.run import JudgedRun
from minibroker_lab.judge.scripts import Script, Step, load
from minibroker_lab.judge.stored import Stored
from minibroker_lab.judge.verdict import Evidence, _Links, judge, judge_wire, since, waited_for, without_new_beginnings
from minibroker_protocol.records import Record, build_batch
from minibroker_storage.os_disk import OsDisk

_numbers = iter(range(1, 1000))


def sent(*values: str, answer: int = -1, client: str = "c") -> Produced:
    """One Produce; answer: the base offset that came back."""
    exchange: dict[str, Any] = {"number": next(_numbers), "client_id": client, "errors": []}
    records = [Record(timestamp=1, value=value.encode()) for value in values]
    return Produced(exchange, "t", 0, (1, 0, 0), records, answer)


def log(*values: str, committed: bool = True) -> list[Stored]:
    return [
        Stored("t", 0, (1, 0, 0), Record(timestamp=1, offset=offset, value=value.encode()), committed)
        for offset, value in enumerate(values)
    ]


def rules(produced: list[Produced], stored: list[Stored], *, complete: bool = True) -> list[str]:
    return [found.rule for found in judge_wire(produced, stored, {}, complete=complete)]


def test_a_record_sent_once_and_read_twice() -> None:
    assert rules([sent("v", answer=0)], log("v", "v")) == ["duplicate-record"]


def test_a_lost_answer_and_the_next_try_are_one_record() -> None:
    tries = [sent("v"), sent("v"), sent("v", answer=0)]
    assert rules(tries, log("v")) == []
    assert rules(tries, log("v", "v")) == ["duplicate-record"]


def test_the_same_again_after_an_answer_is_another_record() -> None:
    tries = [sent("v", answer=0), sent("v", answer=1)]
    assert rules(tries, log("v", "v")) == []
    assert rules(tries, log("v", "v", "v")) == ["duplicate-record"]


def test_equal_records_of_one_batch_may_be_sent_again_together() -> None:
    tries = [sent("v", "v"), sent("v", "v", answer=0)]
    assert rules(tries, log("v", "v")) == []
    assert rules(tries, log("v", "v", "v", "v")) == ["duplicate-record"]


def test_equal_records_of_two_clients() -> None:
    tries = [sent("v", client="a"), sent("v", client="b", answer=1)]
    assert rules(tries, log("v", "v")) == []


def test_only_what_is_committed_counts() -> None:
    assert rules([sent("v", answer=0)], log("v") + log("v", "v", committed=False)[1:]) == []


def test_nothing_is_said_of_how_often_when_exchanges_are_missing() -> None:
    assert rules([sent("v", answer=0)], log("v", "v"), complete=False) == []
    assert rules([sent("w", answer=0)], log("v", "v"), complete=False) == ["lost-record"]


def test_offsets_that_went_back_are_a_notice() -> None:
    planted, at = rewound(60, 90, 120, 40, 80)
    broken, noticed = judge(Evidence(planted.disk(), [], [], None, [], as_of_ms=0))
    assert broken == []
    (notice,) = noticed
    assert (notice.rule, notice.first_offset, notice.last_offset) == ("offset-rewind", at, at + 3)
    assert notice.message.endswith("went back 2 times while it had members, first from 120 to 60 █▂▅█▁▄")


def exchange(number: int, api: str, outcome: str = "answered", **request: Any) -> dict[str, Any]:
    return {"number": number, "api": api, "client_id": "c", "outcome": outcome, "errors": [], "request": request}


def test_a_client_that_waits_is_shown_by_what_got_no_answer() -> None:
    lost = exchange(2, "EndTxn", "closed: fault")
    polls = [exchange(number, "Fetch") for number in range(4, 9)]
    waiting = [exchange(1, "Produce"), lost, exchange(3, "AddOffsetsToTxn"), *polls, exchange(9, "Heartbeat")]
    assert waited_for(waiting) is lost
    assert since(waiting) == ", and sent 5 Fetch, 1 AddOffsetsToTxn, 1 Heartbeat since then"
    again = exchange(10, "EndTxn")
    assert waited_for([*waiting, again]) is again  # it asked again, and was answered
    assert waited_for([*waiting, {**again, "client_id": "of another"}]) is lost
    assert waited_for([*waiting, exchange(10, "Produce")]) is lost
    assert waited_for([exchange(1, "EndTxn"), *waiting]) is lost
    assert (waited_for(polls), since(polls)) == (polls[-1], "")
    assert (waited_for([]), since([])) == (None, "")


@pytest.mark.parametrize(
    ("earlier", "later", "said"),
    [
        ((), (5, 5, 5), " (all of in-0 from offset 5)"),
        ((3, 5), (None, None, None), " (all of in-0 from offset 5)"),
        ((5,), (5, 6, 6), ""),
        ((), (None, None, None), ""),
    ],
    ids=["loop", "session", "progress", "unknown"],
)
def test_fetches_of_one_offset_are_shown_as_a_loop(
    earlier: Sequence[int], later: Sequence[int | None], said: str
) -> None:
    """None: a request of a fetch session that names no partition."""

    def fetch(number: int, offset: int | None) -> dict[str, Any]:
        topic = {"topic_id": "i", "partitions": [{"partition": 0, "fetch_offset": offset}]}
        return exchange(number, "Fetch", topics=[topic] if offset is not None else [])

    numbers = itertools.count(1)
    before = [fetch(next(numbers), offset) for offset in earlier]
    waiting = [*before, exchange(next(numbers), "EndTxn")]
    waiting += [fetch(next(numbers), offset) for offset in later]
    assert since(waiting, {"i": "in"}) == f", and sent 3 Fetch{said} since then"


def test_a_lost_input_is_shown_by_the_offsets_that_went_past_it(tmp_path: Path) -> None:
    """Of a transaction that was aborted, and of one that another epoch committed, offsets count for nothing."""

    def commits(number: int, offset: int, api: str = "TxnOffsetCommit", **of: Any) -> dict[str, Any]:
        topics = [{"topic_id": "i", "partitions": [{"partition_index": 0, "committed_offset": offset}]}]
        return exchange(number, api, topics=topics, **of)

    def producer(epoch: int) -> dict[str, Any]:
        return {"producer_id": 1, "producer_epoch": epoch}

    exchanges = [
        commits(1, 1, **producer(0)),
        exchange(2, "EndTxn", committed=False, **producer(0)),
        commits(3, 1, **producer(1)),
        {**exchange(4, "EndTxn", committed=True, **producer(2)), "response": {}},
        commits(5, 1, **producer(3)),
        {**exchange(6, "EndTxn", committed=True, **producer(3)), "response": {}},
        commits(7, 2, "OffsetCommit"),
    ]
    evidence = Evidence(OsDisk(str(tmp_path)), exchanges, [], None, [], 0, topic_names={"i": "in"})
    links = _Links(evidence, [])
    shown = [
        links.broken(finding("lineage-lost", Log("", "in", 0), "x", first_offset=offset)).exchange
        for offset in (0, 1, 2)
    ]
    assert [one and one["number"] for one in shown] == [5, 7, None]


def test_the_apis_that_no_script_made_fail_are_named() -> None:
    produce, end, offsets, fetch = (exchange(1, api) for api in ("Produce", "EndTxn", "OffsetCommit", "Fetch"))
    first = JudgedRun(load("calm"), exchanges=[{**one, "fault": 0} for one in (produce, end, offsets)])
    failures = [{**produce, "fault": 1}, {**produce, "fault": 1}, {**fetch, "fault": 3}]
    second = JudgedRun(load("connection-resets"), exchanges=failures)
    both = failures_met([first, second])
    assert coverage(both) == "requests made to fail: Produce (reset 2); no failure met: EndTxn, OffsetCommit"
    assert coverage(failures_met([second])) == "requests made to fail: Produce (reset 2)"
    assert (
        coverage(failures_met([first])) == "requests made to fail: none; no failure met: EndTxn, OffsetCommit, Produce"
    )
    assert unmet(both) == ["EndTxn", "OffsetCommit"]
    killed = JudgedRun(load("client-killed-before-commit"), exchanges=[{**end, "fault": 1}])
    refused = JudgedRun(load("offsets-unavailable"), exchanges=[{**offsets, "fault": 1}])
    assert coverage(failures_met([killed, refused])) == (
        "requests made to fail: EndTxn (killed 1), OffsetCommit (error NOT_COORDINATOR 1)"
    )


def test_losses_that_have_no_place_are_told_apart_by_what_was_lost() -> None:
    planted, _ = rewound(60, 90)
    history = History(sent=[Sent("c", "u", 0, key, acknowledged=True) for key in ("v", "w", "v")])
    broken, _ = judge(Evidence(planted.disk(), [], [], history, [], as_of_ms=0))
    assert [one.finding.rule for one in broken] == ["lost-record"] * 2
    assert [key for key in ("'v'", "'w'") if sum(key in one.finding.message for one in broken) == 1] == ["'v'", "'w'"]


@pytest.mark.parametrize(
    ("fault", "outcome", "action", "unapplied"),
    [
        (1, "no answer", {"name": "close"}, True),
        (1, "no answer", {"name": "hold", "when": "before"}, True),
        (1, "no answer", {"name": "hold", "when": "after"}, False),
        (1, "answered", {"name": "close"}, False),  # the rule acted on the connection's next request
        (0, "no answer", {"name": "close"}, False),
    ],
)
def test_what_a_failure_kept_from_being_applied(
    fault: int, outcome: str, action: dict[str, str], unapplied: bool
) -> None:
    run = JudgedRun(Script("s", "", (Step({"api": "EndTxn", "action": action}),)))
    run.exchanges = [{"number": 7, "fault": fault, "outcome": outcome}]
    assert run.unapplied == ({7} if unapplied else set())


def written(folder: Path, topic: str, start: int, *values: str, at: int = 1) -> None:
    """Partition 0 of a topic, from an offset on: a batch for each value."""
    (folder / f"{topic}-0").mkdir()
    batches = [
        build_batch([Record(timestamp=at, value=value.encode())], base_offset=start + index)
        for index, value in enumerate(values)
    ]
    (folder / f"{topic}-0" / f"{start:020}.log").write_bytes(b"".join(batches))


def rules_of(evidence: Evidence) -> list[str]:
    return [promise.finding.rule for promise in judge(evidence).broken]


def test_what_was_there_before_the_run_excuses_no_loss_of_the_run(tmp_path: Path) -> None:
    """A run that begins at offset 5 of a topic has a log that starts there, without that anything was deleted."""
    written(tmp_path, "in", 5, "a")
    tell = [
        f'{{"event": "{event}", "topic": "in", "partition": 0, "value": "{value}", "transaction": 1}}'
        for value in ("a", "b")
        for event in ("send", "ack")
    ]
    for end, rule in (
        (['{"event": "end", "transaction": 1, "outcome": "commit"}'], "lost-record"),
        ([], "torn-transaction"),
    ):
        evidence = Evidence(OsDisk(str(tmp_path)), [], [], read_history([*tell, *end]), [], 0, before={("in", 0): 5})
        assert rules_of(evidence) == [rule]
        assert rules_of(evidence._replace(before={("in", 0): 0})) == []  # then it was deleted


def test_the_same_values_in_the_run_before_are_no_duplicates(tmp_path: Path) -> None:
    written(tmp_path, "in", 0, "a", "a")
    history = read_history(['{"event": "send", "topic": "in", "value": "a"}'])
    evidence = Evidence(OsDisk(str(tmp_path)), [], [sent("a")._replace(topic="in")], history, [], 0)
    assert rules_of(evidence._replace(before={("in", 0): 1})) == []
    assert rules_of(evidence) == ["duplicate-record"]


@pytest.mark.parametrize(
    ("output", "rules"),
    [
        (("a",), []),
        (("a", "a"), []),  # that of the run before was left to this one
        (("a", "a", "a"), ["lineage-duplicate"]),
        ((), ["lineage-lost"]),
        (("a", "b"), ["lineage-stray"]),
        (("a", "old"), []),
        (("a", "old", "old"), ["lineage-duplicate"]),
    ],
)
def test_input_of_the_run_before_may_become_output_of_this_one(
    tmp_path: Path, output: Sequence[str], rules: list[str]
) -> None:
    written(tmp_path, "in", 0, "old", "a", "a")
    written(tmp_path, "out", 0, "a", *output)
    before = {("in", 0): 2, ("out", 0): 1}
    assert rules_of(Evidence(OsDisk(str(tmp_path)), [], [], None, [Lineage("in", "out")], 0, before=before)) == rules


def produced_at(time_ms: int, *, offset: int = -1, code: int = 0, epoch: int = 0) -> Produced:
    """One that was answered 5 ms after it came, by a broker that refused another partition of it."""
    exchange = {"time_ms": time_ms, "took_ms": 5.2, "errors": ["UNKNOWN_PRODUCER_ID (59) at out-9: none"]}
    return Produced(exchange, "out", 0, (1, epoch, 0), [], offset, error_code=code)


FORGOTTEN = produced_at(10, code=59)


@pytest.mark.parametrize(
    ("produced", "kept"),
    [
        ([FORGOTTEN, produced_at(15, offset=4)], False),
        ([FORGOTTEN, produced_at(1), produced_at(15)], False),  # the answer to the second copy was lost
        ([FORGOTTEN], False),  # its exchange was not kept
        ([FORGOTTEN, produced_at(14, offset=4)], True),
        ([FORGOTTEN, produced_at(14, offset=4), produced_at(20, offset=6)], True),
        ([FORGOTTEN, produced_at(1), produced_at(14)], True),
        ([produced_at(10), produced_at(15, offset=4)], True),
        ([produced_at(10, code=59, epoch=1), produced_at(15, offset=4)], True),
    ],
    ids=[
        "anew", "anew, unanswered", "not seen", "before", "before, others after", "before, unanswered",
        "another partition", "another epoch",
    ],
)  # fmt: skip
def test_sequences_of_a_producer_that_the_leader_had_forgotten_begin_anew(produced: list[Produced], kept: bool) -> None:
    log = Log("", "out", 0)
    again = finding("duplicate", log, "sequences 0-1 again", producer_id=1, producer_epoch=0, first_offset=4)
    others = [again._replace(log=Log("", "out", 1)), again._replace(producer_id=2), again._replace(rule="order")]
    assert without_new_beginnings([again, *others], produced) == ([again] if kept else []) + others
