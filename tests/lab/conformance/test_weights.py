"""A run that weighs its failures: what is printed and reported, what goes on, what the exit status tells."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripted_broker import ScriptedBroker, scripted_broker

from minibroker_lab.conformance import command as cli
from minibroker_protocol.messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    ApiVersionsRequest,
    ApiVersionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    FetchRequest,
    FetchResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)

BEAT = "{call: Heartbeat v3, req: {groupId: g, generationId: 1, memberId: m}, expect: {errorCode: %s}}"
END = (
    "{call: EndTxn v3, req: {transactionalId: x, producerId: 1, producerEpoch: 0, committed: %s},"
    " expect: {errorCode: %s}}"
)
STATE = "{call: DescribeTransactions v0, req: {transactionalIds: [x]}, %s: {..transactionState: %s}}"


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    """Everything succeeds but heartbeats, whose member is unknown."""
    with scripted_broker() as broker:
        broker.handlers[EndTxnRequest] = lambda request, version: EndTxnResponse(error_code=0)
        broker.handlers[HeartbeatRequest] = lambda request, version: HeartbeatResponse(error_code=25)
        broker.handlers[InitProducerIdRequest] = lambda request, version: InitProducerIdResponse(
            error_code=0, producer_id=1, producer_epoch=0
        )
        yield broker


def run(broker: ScriptedBroker, folder: Path, *scenarios: str, options: tuple[str, ...] = ()) -> int:
    file = folder / "suite.yaml"
    steps = [f"- {{name: s{number}, steps: [{steps}]}}\n" for number, steps in enumerate(scenarios)]
    file.write_text("".join(steps))
    short = ["--timeout", "2", "--until", "2", "--jobs", "1", "--keep"]
    return cli.main(["--bootstrap", broker.bootstrap, *short, *options, str(file)])


FENCED = END % ("true", "PRODUCER_FENCED")
REFUSED = BEAT % "NONE"
OTHER_CODE = BEAT % "ILLEGAL_GENERATION"


def test_the_verdict_about_exactly_once(
    broker: ScriptedBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reports = ("--report", "json,junit,html", "--report-dir", str(tmp_path))
    assert run(broker, tmp_path, FENCED, REFUSED, OTHER_CODE, options=reports) == 1
    promise = "KIP-98: of an older instance of a transactional id nothing is accepted any more."
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("wrote")]
    assert [line.partition("]")[0] for line in lines[:3]] == [
        "FAIL s0 [exactly-once",
        "FAIL s1 [recovery",
        "FAIL s2 [code",
    ]
    assert lines[3:] == [
        "exactly-once: broken in 1 of 1 scenario",
        f"  {promise} (s0)",
        "failures by weight: 1 exactly-once, 1 recovery, 1 code",
        "0 passed, 3 failed",
    ]
    report = json.loads((tmp_path / "conformance.json").read_text())
    assert report["exactly_once"] == {"kept": 0, "broken": [{"promise": promise, "scenarios": ["s0"]}]}
    assert report["weights"] == {"exactly-once": 1, "recovery": 1, "code": 1, "detail": 0}
    assert [row["weight"] for row in report["scenarios"]] == ["exactly-once", "recovery", "code"]
    junit = (tmp_path / "conformance.xml").read_text()
    assert 'type="exactly-once"' in junit
    assert promise in junit
    page = (tmp_path / "conformance.html").read_text()
    assert page.index(promise) < page.index("<table>")


@pytest.mark.parametrize(
    ("weight", "steps", "status"),
    [
        ("exactly-once", FENCED, 1),
        ("exactly-once", REFUSED, 0),
        ("recovery", REFUSED, 1),
        ("recovery", OTHER_CODE, 0),
        ("code", OTHER_CODE, 1),
        ("exactly-once", BEAT.replace("groupId", "groopId") % "NONE", 1),
    ],
)
def test_what_the_run_fails_on(broker: ScriptedBroker, tmp_path: Path, weight: str, steps: str, status: int) -> None:
    assert run(broker, tmp_path, steps, options=("--fail-on", weight)) == status


def test_a_weight_that_is_none_names_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--bootstrap", "127.0.0.1:1", "--fail-on", "heavy"])
    said = capsys.readouterr().err
    assert [word for word in ("heavy", "exactly-once", "recovery", "code", "detail") if word not in said] == []


@pytest.mark.parametrize(("subject", "status"), [(FENCED, 1), (REFUSED, 0)])
def test_what_was_not_reached_counts_as_what_it_could_have_shown(
    broker: ScriptedBroker, tmp_path: Path, subject: str, status: int
) -> None:
    set_up = REFUSED.replace("expect", "retry: true, expect")
    assert run(broker, tmp_path, f"{set_up}, {subject}", options=("--fail-on", "exactly-once")) == status


def test_a_light_difference_hides_no_heavy_one(
    broker: ScriptedBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(broker, tmp_path, f"{OTHER_CODE}, {FENCED}, {OTHER_CODE}")
    assert capsys.readouterr().out.startswith("FAIL s0 [exactly-once]: step 2 (EndTxn v3)")
    assert sum(isinstance(request, HeartbeatRequest) for request, _ in broker.requests) == 1, (
        "what was accepted ends it"
    )


def test_a_commit_of_what_is_gone_weighs_more_than_one_of_nothing(
    broker: ScriptedBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.handlers[AddOffsetsToTxnRequest] = lambda request, version: AddOffsetsToTxnResponse(error_code=0)
    add = "{call: AddOffsetsToTxn v3, req: {transactionalId: x, producerId: 1, producerEpoch: 0, groupId: g}}"
    refused = END % ("true", "INVALID_TXN_STATE")
    run(broker, tmp_path, f"{add}, {refused}", f"{add}, {END % ('true', 'NONE')}, {refused}")
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("]")[0] for line in lines[:2]] == ["FAIL s0 [exactly-once", "FAIL s1 [code"]


def test_a_light_difference_of_the_set_up_is_noted(
    broker: ScriptedBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(broker, tmp_path, f"[{OTHER_CODE}], {END % ('true', 'NONE')}") == 0
    first, note = capsys.readouterr().out.splitlines()[:2]
    assert first == "ok s0"
    assert note.startswith("     noted: in the set-up, step 1 (Heartbeat v3): field errorCode: expected 'ILLEGAL_GEN")


def without_describe(request: ApiVersionsRequest, version: int) -> ApiVersionsResponse:
    kind = ApiVersionsResponse.ApiVersion
    keys = (3, 10, 12, 18, 22, 26)
    return ApiVersionsResponse(api_keys=[kind(api_key=key, min_version=0, max_version=4) for key in keys])


def test_states_that_are_not_told_are_not_looked_at(
    broker: ScriptedBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.handlers[ApiVersionsRequest] = without_describe
    commit = END % ("true", "NONE")
    waits = STATE % ("until", "CompleteCommit")
    scenarios = (
        f"{commit}, {waits}, {commit}",
        f"{commit}, {STATE % ('expect', 'CompleteCommit')}",
        f"[{commit}, {STATE % ('until', 'PrepareCommit')}], {commit}",
        f"{OTHER_CODE}, {waits}, {commit}",
        STATE % ("expect", "Empty"),
    )
    assert run(broker, tmp_path, *scenarios) == 0
    lines = capsys.readouterr().out.splitlines()
    note = "     noted: DescribeTransactions is not served: the states of transactions were not looked at"
    absent = "(the broker does not serve DescribeTransactions v0)"
    assert lines[:7] == ["ok s0", note, "ok s1", note, *(f"n/a s{number} {absent}" for number in (2, 3, 4))]


def test_what_nobody_waited_for_may_be_under_way(broker: ScriptedBroker, tmp_path: Path) -> None:
    broker.handlers[ApiVersionsRequest] = without_describe
    codes = [0, 51, 51, 0]
    broker.handlers[EndTxnRequest] = lambda request, version: EndTxnResponse(error_code=codes.pop(0))
    commit = END % ("true", "NONE")
    assert run(broker, tmp_path, f"{commit}, {STATE % ('until', 'CompleteCommit')}, {commit}") == 0
    assert codes == []


def test_a_new_instance_gets_its_epoch_at_once(broker: ScriptedBroker, tmp_path: Path) -> None:
    waits = "{errorCode: CONCURRENT_TRANSACTIONS, producerId: -1, producerEpoch: -1}"
    new = f"{{call: InitProducerId v4, req: {{transactionalId: x}}, expect: {waits}}}"
    owner = new.replace("x}", "x, producerId: 1, producerEpoch: 7}")
    assert run(broker, tmp_path, new) == 0
    assert run(broker, tmp_path, owner) == 1


def test_no_list_in_either_form_and_nothing_more(
    broker: ScriptedBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind = FetchResponse.FetchableTopicResponse
    part = FetchResponse.PartitionData(partition_index=0, high_watermark=5, aborted_transactions=None, records=None)
    broker.handlers[FetchRequest] = lambda request, version: FetchResponse(responses=[kind(partitions=[part])])
    fetch = "{call: Fetch v11, req: {topics: []}, expect: {..abortedTransactions: [], ..highWatermark: %d}}"
    assert run(broker, tmp_path, fetch % 5, fetch % 6) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["ok s0", "     lawful: step 1 (Fetch v11): ..abortedTransactions is None, in Kafka []"]
    assert lines[2].startswith("FAIL s1 [code]: step 1 (Fetch v11): field ..highWatermark")


def test_an_answer_that_comes_sooner(
    broker: ScriptedBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kafka lets the client ask again; a broker that is done at once is not asked twice."""
    init = (
        "{call: InitProducerId v4, req: {transactionalId: x, producerId: 1, producerEpoch: 0}, expect: {errorCode: %s}}"
    )
    assert run(broker, tmp_path, f"{init % 'CONCURRENT_TRANSACTIONS'}, {init % 'NONE'}") == 0
    assert "     lawful: step 1 (InitProducerId v4): answered at once, in Kafka CONCURRENT_TRANSACTIONS" in (
        capsys.readouterr().out
    )
    assert sum(isinstance(request, InitProducerIdRequest) for request, _ in broker.requests) == 1
