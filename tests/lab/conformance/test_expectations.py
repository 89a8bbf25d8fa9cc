"""Expectations of either semantics, lawful differences, APIs a broker lacks, reports and recording."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
import record_answers
from record_answers import rewritten
from scripted_broker import ScriptedBroker, scripted_broker

from minibroker_lab.conformance import command as cli
from minibroker_lab.conformance.scenario import KAFKA
from minibroker_protocol.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
)

BEAT = "call: Heartbeat v3, req: {groupId: g, generationId: 1, memberId: m}"
UNKNOWN = 25
ILLEGAL = 22


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with scripted_broker() as made:
        made.handlers[HeartbeatRequest] = lambda request, version: HeartbeatResponse(error_code=UNKNOWN)
        yield made


class Run:
    """Runs a scenario file; keeps exit status and lines."""

    def __init__(self, broker: ScriptedBroker, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.broker, self.file, self.capsys = broker, folder / "01-suite.yaml", capsys
        self.status = -1

    def __call__(self, text: str, *options: str, main: Callable[[list[str]], int] = cli.main) -> list[str]:
        self.file.write_text(text)
        self.status = main(
            ["--bootstrap", self.broker.bootstrap, "--timeout", "2", "--until", "2", *options, str(self.file)]
        )
        return self.capsys.readouterr().out.splitlines()

    def record(self, text: str, *options: str) -> list[str]:
        return self(text, *options, main=record_answers.main)


@pytest.fixture
def run(broker: ScriptedBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(broker, tmp_path, capsys)


def one(options: str, more: str = "") -> str:
    return f"- {{name: s, why: w, {more} steps: [{{{BEAT}, {options}}}]}}\n"


def test_an_expectation_of_the_kips_stands_in_place_of_kafkas(run: Run) -> None:
    text = one("expect: {errorCode: UNKNOWN_MEMBER_ID, throttleTimeMs: 0}, kip: {errorCode: ILLEGAL_GENERATION}")
    assert run(text)[0] == "ok s"
    assert run(text, "--expect", "kip")[0] == (
        "FAIL s [code]: step 1 (Heartbeat v3): field errorCode: expected 'ILLEGAL_GENERATION', got 'UNKNOWN_MEMBER_ID'"
    )
    assert run.status == 1


def test_what_a_release_answered_holds_for_the_older_ones_too(run: Run) -> None:
    text = one("expect: {errorCode: NONE}, kafka-3.9: {errorCode: UNKNOWN_MEMBER_ID, throttleTimeMs: 0}")
    for release, status in (("kafka-4.3", 1), ("kafka-4.0", 1), ("kafka-3.9", 0), ("kafka-2.8", 0), ("kip", 1)):
        run(text, "--expect", release)
        assert run.status == status, release
    nearer = text.replace("kafka-3.9", "kafka-2.8: {errorCode: NONE}, kafka-3.9")
    assert [run(nearer, "--expect", release)[0][:4] for release in ("kafka-3.9", "kafka-2.8")] == ["ok s", "FAIL"]


def test_scenarios_of_releases(run: Run) -> None:
    every, one_release = (
        one("expect: {errorCode: UNKNOWN_MEMBER_ID}", f"only: [{only}],") for only in ("kafka", "kafka-3.9")
    )
    both = every + one_release.replace("name: s", "name: older")
    assert run(both, "--expect", "kafka-2.8")[0] == "ok s"
    # Each is printed when it ends.
    passed = sorted(line for line in run(both, "--expect", "kafka-3.9") if line.startswith("ok"))
    assert passed == ["ok older", "ok s"]
    assert [line for line in run(both) if line.startswith("ok")] == ["ok s"]


def test_a_scenario_of_one_expectation_only(run: Run) -> None:
    assert (
        run(one("expect: {errorCode: NONE}", "only: [kip],") + one("", "").replace("name: s", "name: r"))[0] == "ok r"
    )


def test_a_lawful_difference_passes_and_is_told(run: Run) -> None:
    expect = "expect: {errorCode: NONE}, may: {errorCode: [ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID]}"
    assert run(one(expect))[:2] == [
        "ok s",
        "     lawful: step 1 (Heartbeat v3): errorCode is 'UNKNOWN_MEMBER_ID', in Kafka 'NONE'",
    ]
    assert run(one("expect: {errorCode: NONE}, may: {errorCode: [ILLEGAL_GENERATION]}"))[0].startswith(
        "FAIL s [recovery]: "
    )


def test_what_the_broker_does_not_serve_is_no_failure(run: Run) -> None:
    rows = [ApiVersionsResponse.ApiVersion(api_key=key, min_version=0, max_version=2) for key in (3, 10, 12)]
    run.broker.handlers[ApiVersionsRequest] = lambda request, version: ApiVersionsResponse(error_code=0, api_keys=rows)
    assert run(one("expect: {errorCode: NONE}")) == [
        "n/a s (the broker does not serve Heartbeat v3)",
        "0 passed, 0 failed, 1 not applicable",
    ]
    assert run.status == 0


def test_groups_are_counted_in_a_table(run: Run, tmp_path: Path) -> None:
    other = tmp_path / "02-more.yaml"
    other.write_text(one("expect: {errorCode: NONE}").replace("name: s", "name: r"))
    assert run(one(""), str(other))[-4:] == [
        "           ok  FAIL  skip   n/a",
        "more        .     1     .     .",
        "suite       1     .     .     .",
        "1 passed, 1 failed",
    ]


def test_scenarios_are_selected_by_tag_group_and_proof(run: Run) -> None:
    text = one("", "tags: [x], proves: [360-1],") + one("").replace("name: s", "name: r")
    for label in ("x", "360-1"):
        assert run(text, "--select", label) == ["ok s", "1 passed, 0 failed"]
    assert run(text, "--select", "suite")[-1] == "2 passed, 0 failed"


def test_reports(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(one("expect: {errorCode: NONE}", "proves: [360-1],"), "--report", "json,junit,html", "--report-dir", str(out))
    document = json.loads((out / "conformance.json").read_text())
    assert document["counts"] == {"passed": 0, "failed": 1, "skipped": 0, "absent": 0, "not_run": 0, "not_reached": 0}
    assert document["expectation"] == KAFKA
    row = document["scenarios"][0]
    assert (row["name"], row["proves"], row["outcome"]) == ("s", ["360-1"], "failed")
    assert "expected 'NONE'" in row["message"]
    assert (row["weight"], document["weights"]["recovery"]) == ("recovery", 1)
    suites = ElementTree.fromstring((out / "conformance.xml").read_text())
    assert suites.get("failures") == "1"
    failure = suites.find("testsuite/testcase/failure")
    assert failure is not None
    assert "expected 'NONE'" in (failure.get("message") or "")
    assert failure.get("type") == "recovery"
    page = (out / "conformance.html").read_text()
    assert "expected &#x27;NONE&#x27;" in page
    assert "0 passed, 1 failed" in page


def test_an_unknown_kind_of_report(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(one(""), "--report", "pdf")
    assert "'pdf' is none of html, junit, json" in capsys.readouterr().err


def test_recording_changes_the_answers_that_differ_and_nothing_else(run: Run) -> None:
    text = """# a comment
- name: s
  why: w   # kept
  steps:
  - {call: Heartbeat v3, req: {groupId: g, memberId: m}, expect: {throttleTimeMs: $nonneg, errorCode: NONE}}
"""
    lines = run.record(text)
    assert lines[:2] == ["new s", "     errorCode: UNKNOWN_MEMBER_ID"]
    assert run.file.read_text() == text.replace("errorCode: NONE", "errorCode: UNKNOWN_MEMBER_ID")
    assert run.record(run.file.read_text()) == ["ok s"]


def test_recorded_values_go_to_their_step_inside_loops() -> None:
    text = "- {name: s, steps: [{loop: 2, steps: [{call: A v1, expect: {a: 1}}]}, {call: A v1, expect: {a: 2, b: 3}}]}"
    assert rewritten(text, {("s", 1, "a"): "7", ("s", 2, "b"): "[8, 9]"}) == text.replace("a: 1", "a: 7").replace(
        "b: 3", "b: [8, 9]"
    )


def test_what_an_older_release_answers_is_written_beside_the_newest(run: Run) -> None:
    flow = one("expect: {errorCode: NONE, throttleTimeMs: 0}")
    run.record(flow, "--expect", "kafka-3.9")
    assert run.file.read_text() == flow.replace("Ms: 0}", "Ms: 0}, kafka-3.9: {errorCode: UNKNOWN_MEMBER_ID}")
    block = """- name: s
  steps:
  - call: Heartbeat v3
    req: {groupId: g, memberId: m}
    expect:
      errorCode: NONE
      throttleTimeMs: 0
    kafka-3.9:
      throttleTimeMs: 1
  - sleep: 0
"""
    run.record(block, "--expect", "kafka-3.9")
    written = block.replace("Ms: 1", "Ms: 0\n      errorCode: UNKNOWN_MEMBER_ID")
    assert run.file.read_text() == written
    assert run.record(written, "--expect", "kafka-3.9") == ["ok s"]
    run.record(written, "--expect", "kafka-4.0")
    assert (
        "      throttleTimeMs: 0\n    kafka-4.0: {errorCode: UNKNOWN_MEMBER_ID}\n    kafka-3.9:" in run.file.read_text()
    )


def test_recording_needs_files(broker: ScriptedBroker, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        record_answers.main(["--bootstrap", broker.bootstrap])
    assert "name the files to write to" in capsys.readouterr().err


def test_recorded_values_go_to_their_step_among_repeated_ones() -> None:
    text = "- {name: s, steps: [[{call: A v1, expect: {a: 1}}], {call: A v1, expect: {a: 2}}]}"
    assert rewritten(text, {("s", 1, "a"): "7"}) == text.replace("a: 2", "a: 7")


def test_recorded_values_go_to_their_cell_of_a_matrix() -> None:
    text = "- {matrix: m, before: [{sleep: 1}], cells: {a: {steps: [{call: A v1, expect: {a: 1}}]}}}"
    assert rewritten(text, {("m-a", 1, "a"): "7"}) == text.replace("a: 1", "a: 7")
    without = text.replace("before: [{sleep: 1}], ", "")
    assert rewritten(without, {("m-a", 0, "a"): "7"}) == without.replace("a: 1", "a: 7")
