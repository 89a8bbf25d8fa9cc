"""How much each kind of difference weighs."""

from typing import Any

import pytest

from minibroker_lab.conformance.failure import ScenarioError
from minibroker_lab.conformance.scenario import bundled, parse
from minibroker_lab.conformance.weighing import (
    Difference,
    batch_key,
    goes_on,
    is_done_at_once,
    is_empty_list,
    is_promise,
    is_refused_alike,
    never_became,
    of_another,
    promise,
    weigh,
    weigh_answer,
)
from minibroker_lab.conformance.weight import CODE, DETAIL, RECOVERY, Breach, Weight, heaviest

OPEN = [{"base": 0, "values": ["a"], "txn": True}]
ENDED = [*OPEN, {"base": 1, "marker": "ABORT"}]
MARKER = {"base": 1, "marker": "ABORT", "txn": True}


def of(api: str, path: str, expected: Any, got: Any, request: dict[str, Any] | None = None, **more: Any) -> Breach:
    return weigh(Difference(api, path, expected, got, request or {}, **more))


@pytest.mark.parametrize(
    ("api", "expected", "got", "rule"),
    [
        ("Produce", "INVALID_PRODUCER_EPOCH", "NONE", "older-epoch"),
        ("Produce", "UNKNOWN_PRODUCER_ID", "NONE", "sequence-gap"),
        ("Produce", "INVALID_PRODUCER_ID_MAPPING", "NONE", "mapping"),
        ("EndTxn", "INVALID_PRODUCER_ID_MAPPING", "NONE", "mapping"),
        ("AddPartitionsToTxn", "CONCURRENT_TRANSACTIONS", "NONE", "late-write"),
        ("TxnOffsetCommit", "CONCURRENT_TRANSACTIONS", "NONE", "late-write"),
        ("TxnOffsetCommit", "INVALID_TXN_STATE", "NONE", "outside-transaction"),
        ("Produce", "OUT_OF_ORDER_SEQUENCE_NUMBER", "NONE", "sequence-gap"),
        ("Produce", "INVALID_TXN_STATE", "NONE", "outside-transaction"),
        ("AddPartitionsToTxn", ["NONE", "PRODUCER_FENCED"], ["NONE", "NONE"], "fencing"),
        ("InitProducerId", "PRODUCER_FENCED", "NONE", "fencing"),
        ("TxnOffsetCommit", "ILLEGAL_GENERATION", "NONE", "group-fencing"),
        ("OffsetFetch", "UNSTABLE_OFFSET_COMMIT", "NONE", "offset-outcome"),
    ],
)
def test_somebody_writes_or_reads_who_must_not(api: str, expected: Any, got: Any, rule: str) -> None:
    assert of(api, "..errorCode", expected, got) == (Weight.EXACTLY_ONCE, promise(rule))


@pytest.mark.parametrize(
    ("api", "expected", "got", "breach"),
    [
        ("InitProducerId", "NONE", "PRODUCER_FENCED", RECOVERY),
        ("InitProducerId", "INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED", CODE),
        ("EndTxn", "CONCURRENT_TRANSACTIONS", "INVALID_TXN_STATE", RECOVERY),
        ("Produce", "INVALID_TXN_STATE", "TRANSACTION_ABORTABLE", RECOVERY),
        ("Produce", "NOT_ENOUGH_REPLICAS", "CONCURRENT_TRANSACTIONS", CODE),
        ("Produce", "CORRUPT_MESSAGE", "NONE", RECOVERY),
        ("Heartbeat", "ILLEGAL_GENERATION", "NONE", RECOVERY),
        ("OffsetCommit", "ILLEGAL_GENERATION", "NONE", RECOVERY),
        ("Fetch", "UNKNOWN_TOPIC_OR_PARTITION", "NONE", RECOVERY),
        ("Fetch", "OFFSET_OUT_OF_RANGE", "NONE", RECOVERY),
        ("ListOffsets", "UNKNOWN_LEADER_EPOCH", "NONE", RECOVERY),
        ("Fetch", "FETCH_SESSION_TOPIC_ID_ERROR", "NONE", CODE),
        ("AddPartitionsToTxn", "NONE", "<absent>", RECOVERY),
        ("CreateTopics", "TOPIC_ALREADY_EXISTS", "NONE", CODE),
        ("DescribeConfigs", "NONE", "UNKNOWN_SERVER_ERROR", CODE),
    ],
)
def test_codes_weigh_by_what_a_client_does(api: str, expected: str, got: str, breach: Breach) -> None:
    assert of(api, "..errorCode", expected, got) == breach


def test_what_no_client_sends_fences_nobody() -> None:
    """A TxnOffsetCommit that names a generation and no member; the questions of one broker to another."""
    fenced = "TxnOffsetCommit", "..errorCode", "UNKNOWN_MEMBER_ID", "NONE"
    assert of(*fenced, {"memberId": "m"}).promise == promise("group-fencing")
    assert of(*fenced, {"memberId": ""}) == CODE
    question, addition = ({"transactions": [{"verifyOnly": only}]} for only in (True, False))
    accepted = "AddPartitionsToTxn", "..partitionErrorCode", "PRODUCER_FENCED", "NONE"
    assert of(*accepted, question) == CODE
    assert of(*accepted, addition).promise == promise("fencing")
    assert of("AddPartitionsToTxn", "..partitionErrorCode", "NONE", "<absent>", question) == CODE


def test_the_sentence_about_a_neighbours_id_is_not_that_about_an_older_instance() -> None:
    accepted = "InitProducerId", "errorCode", "PRODUCER_FENCED", "NONE"
    assert of(*accepted, foreign=True).promise == promise("mapping")
    assert of(*accepted).promise == promise("fencing")


@pytest.mark.parametrize(
    ("committed", "written", "weight"),
    [(True, True, Weight.EXACTLY_ONCE), (False, True, Weight.CODE), (True, False, Weight.CODE)],
)
def test_a_commit_that_is_none(committed: bool, written: bool, weight: Weight) -> None:
    """Of what was written, not of nothing."""
    breach = of("EndTxn", "errorCode", "INVALID_TXN_STATE", "NONE", {"committed": committed}, written=written)
    assert breach.weight is weight


@pytest.mark.parametrize(
    ("path", "expected", "got", "rule"),
    [
        ("..records", OPEN, [], "lost-record"),
        ("..records", OPEN, [*OPEN, *OPEN], "duplicate-record"),
        ("..records", [], OPEN, "stray-record"),
        ("..records committed", [], OPEN, "open-read"),
        ("#..records", 2, 3, "duplicate-record"),
        ("..records", ENDED, OPEN, "hanging-transaction"),
        ("..records", ENDED, [*OPEN, {"base": 1, "marker": "COMMIT"}], "torn-transaction"),
        ("..recordsFull[0].marker", "ABORT", "COMMIT", "torn-transaction"),
        ("..abortedTransactions", [{"producerId": 1, "firstOffset": 0}], [], "aborted-read"),
        ("..abortedTransactions", [], [{"producerId": 1, "firstOffset": 0}], "lost-record"),
    ],
)
def test_what_a_reader_gets(path: str, expected: Any, got: Any, rule: str) -> None:
    path, _, committed = path.partition(" ")
    read = {"isolationLevel": int(bool(committed))}
    assert of("Fetch", path, expected, got, read) == (Weight.EXACTLY_ONCE, promise(rule))


def test_the_same_records_in_another_form() -> None:
    assert of("Fetch", "..records", OPEN, [{**OPEN[0], "base": 7}]) == RECOVERY
    assert of("Fetch", "..records", [{**OPEN[0], "codec": "lz4"}], OPEN) == DETAIL
    assert of("Fetch", "..abortedTransactions", [], None) == DETAIL
    assert of("Fetch", "..records", [{**MARKER, "epoch": 1}], [{**MARKER, "epoch": 0}]) == CODE
    assert of("Fetch", "..records", [{**OPEN[0], "pid": 1}], [{**OPEN[0], "pid": 2}]) == RECOVERY


def test_a_stable_offset_beyond_an_open_transaction() -> None:
    """Only a reader of committed records that is given some of it reads what may be aborted."""
    answer = {"responses": [{"partitions": [{"errorCode": "NONE", "records": OPEN}]}]}
    read = {"isolationLevel": 1}
    assert of("Fetch", "..lastStableOffset", 0, 1, read, response=answer).promise == promise("aborted-read")
    assert of("Fetch", "..lastStableOffset", 0, 1, {}, response=answer) == CODE
    assert of("Fetch", "..lastStableOffset", 3, 1, read, response=answer) == RECOVERY


def test_a_batch_that_is_called_a_duplicate() -> None:
    """Clients take DUPLICATE_SEQUENCE_NUMBER for success: right of a batch sent again, and of a new one a loss."""
    called = "Produce", "..errorCode", "NONE", "DUPLICATE_SEQUENCE_NUMBER"
    assert of(*called, repeated=True) == CODE
    assert of(*called).promise == promise("lost-record")


def test_a_batch_that_is_sent_again() -> None:
    assert of("Produce", "..baseOffset", 0, 1, repeated=True).promise == promise("duplicate-record")
    assert of("Produce", "..baseOffset", 0, 1) == CODE
    assert of("Produce", "..baseOffset", 0, -1, repeated=True) == CODE
    assert of("Produce", "..baseOffset", 5, 0, repeated=True) == CODE, "it is known longer than with Kafka"
    plain = {"at": "t/0", "batch": {"values": ["a"]}}
    assert batch_key(plain) == ""
    assert batch_key({**plain, "batch": {"pid": 1, "epoch": 0, "seq": 0}}) != ""


def test_epochs_offsets_and_states() -> None:
    assert of("InitProducerId", "producerEpoch", 2, 1).weight is Weight.EXACTLY_ONCE
    assert of("InitProducerId", "producerEpoch", 2, 3) == CODE
    assert of("EndTxn", "producerEpoch", 2, 1) == RECOVERY
    assert of("OffsetFetch", "..committedOffset", 5, -1).promise == promise("offset-outcome")
    assert of("OffsetFetch", "..committedOffset", 5, -1, offsets_in_transaction=False) == RECOVERY
    assert of("ListOffsets", "..offset", 5, 4, {"at": "t/0@-1"}) == RECOVERY
    assert of("ListOffsets", "..offset", 5, 4, {"at": "t/0@1000"}) == CODE
    assert of("DescribeTransactions", "..transactionState", "CompleteCommit", "Empty") == CODE
    assert of("DescribeTransactions", "..transactionState", "CompleteCommit", "Ongoing") == RECOVERY
    assert of("DescribeTransactions", "..transactionState", "PrepareAbort", "CompleteCommit").promise == promise(
        "torn-transaction"
    )


def test_beside_another_code_other_fields_are_consequences() -> None:
    code = Difference("InitProducerId", "errorCode", "INVALID_TRANSACTION_TIMEOUT", "NONE")
    assert weigh_answer([code, Difference("InitProducerId", "producerId", -1, 7)]) == [CODE, DETAIL]


def test_a_scenario_goes_on_where_the_state_may_be_the_expected_one() -> None:
    other_code = Difference("Produce", "..errorCode", "INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED")
    accepted = Difference("CreateTopics", "..errorCode", "INVALID_REQUEST", "NONE")
    assert goes_on(other_code, weigh(other_code))
    assert not goes_on(accepted, weigh(accepted))


def test_who_waits_in_vain_cannot_go_on() -> None:
    assert never_became(Difference("Fetch", "..highWatermark", 4, 3)) == RECOVERY
    assert never_became(Difference("DescribeTransactions", "..transactionState", "CompleteAbort", "Empty")) == CODE


def test_a_neighbour_is_harmed() -> None:
    assert of_another(RECOVERY).promise == promise("neighbour")
    assert of_another(CODE) == CODE


def test_answers_that_every_broker_may_give() -> None:
    assert is_empty_list(Difference("Fetch", "..abortedTransactions", [], None))
    assert not is_empty_list(Difference("Fetch", "..abortedTransactions", [], [{"producerId": 1}]))
    assert not is_empty_list(Difference("Fetch", "..records", [], None))
    init = "InitProducerId", "errorCode", "CONCURRENT_TRANSACTIONS", "NONE"
    assert is_done_at_once(Difference(*init, {"transactionalId": "x"}))
    refused = "Produce", "..errorCode", "INVALID_RECORD"
    assert is_refused_alike(Difference(*refused, "CORRUPT_MESSAGE"))
    assert not is_refused_alike(Difference(*refused, "NONE"))
    assert not is_done_at_once(Difference(*init, {"transactionalId": "x", "producerEpoch": 0}))


def test_the_heaviest_comes_first() -> None:
    once = Breach(Weight.EXACTLY_ONCE, "s")
    assert heaviest([CODE, RECOVERY, once, DETAIL]) == once
    assert [weight for weight in Weight if weight.at_least(Weight.RECOVERY)] == [Weight.EXACTLY_ONCE, Weight.RECOVERY]


def test_a_step_says_what_it_breaks() -> None:
    step = "{call: Heartbeat v3, req: {groupId: g}, %s, expect: {errorCode: NONE}}"
    (scenario,) = parse(f"- {{name: s, steps: [{step % 'breaks: fencing'}]}}", "f")
    assert scenario.heaviest is Weight.EXACTLY_ONCE
    (scenario,) = parse(f"- {{name: s, steps: [{step % 'weight: detail'}]}}", "f")
    assert scenario.heaviest is Weight.DETAIL
    for wrong in ("weight: heavy", "weight: exactly-once", "breaks: nothing-known"):
        with pytest.raises(ScenarioError, match=wrong.partition(" ")[2]):
            parse(f"- {{name: s, steps: [{step % wrong}]}}", "f")


def test_every_promise_has_its_sentence() -> None:
    assert [is_promise(name) for name in ("fencing", "lost-record", "none")] == [True, True, False]
    assert promise("lost-record").startswith("KIP-98: ")


def test_what_the_groups_are_about() -> None:
    """Those about exactly-once can show a breach of it; those about broken bytes cannot."""
    about: dict[str, set[Weight]] = {}
    for scenario in bundled():
        about.setdefault(scenario.group, set()).add(scenario.heaviest)
    for group in ("transactions", "txn-offsets", "isolation", "restart", "timeouts", "idempotence"):
        assert Weight.EXACTLY_ONCE in about[group], group
    assert Weight.EXACTLY_ONCE not in about["malformed"]
