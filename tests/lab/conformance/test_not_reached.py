"""Scenarios whose set-up the broker answers otherwise: what they are about was never asked."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from scripted_broker import CLOSE, ScriptedBroker, scripted_broker

from minibroker_lab.conformance import command as cli
from minibroker_lab.conformance.scenario import bundled
from minibroker_protocol.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)

INIT = "{call: InitProducerId v4, req: {transactionTimeoutMs: 60000}, save: {p: producerId}, expect: {errorCode: NONE}}"
BEAT = "{call: Heartbeat v3, req: {groupId: g, generationId: 1, memberId: m}, expect: {errorCode: NONE}}"
SUITE = f"""
- {{name: about-init, steps: [{INIT}]}}
- {{name: first, steps: [{INIT}, {BEAT}]}}
- {{name: second, steps: [{INIT}, {BEAT}]}}
- matrix: m
  before: [{INIT.replace("save: {p: producerId}, ", "")}]
  cells: {{third: {{steps: [{BEAT}]}}}}
"""


def run(broker: ScriptedBroker, folder: Path) -> int:
    file = folder / "suite.yaml"
    file.write_text(SUITE)
    options = ["--jobs", "1", "--report", "json,junit", "--report-dir", str(folder)]
    return cli.main(["--bootstrap", broker.bootstrap, "--timeout", "2", "--until", "2", *options, str(file)])


def test_what_was_not_asked_has_not_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with scripted_broker() as broker:
        broker.handlers[InitProducerIdRequest] = lambda request, version: InitProducerIdResponse(
            error_code=53, producer_id=1234567, producer_epoch=0
        )
        broker.handlers[HeartbeatRequest] = lambda request, version: HeartbeatResponse(error_code=0)
        assert run(broker, tmp_path) == 1
    lines = capsys.readouterr().out.splitlines()
    answer = "field errorCode: expected 'NONE', got 'TRANSACTIONAL_ID_AUTHORIZATION_FAILED'"
    assert lines[:4] == [
        f"FAIL about-init [recovery]: step 1 (InitProducerId v4): {answer}",
        f"not reached first (step 1 (InitProducerId v4): {answer})",
        f"not reached second (step 1 (InitProducerId v4): {answer})",
        f"not reached m-third (step 1 (InitProducerId v4): {answer})",
    ]
    assert lines[-2:] == [
        f"one answer stops 3 scenarios: InitProducerId v4: {answer}",
        "0 passed, 1 failed, 3 not reached",
    ]
    report = json.loads((tmp_path / "conformance.json").read_text())
    assert report["causes"] == [{"answer": f"InitProducerId v4: {answer}", "stops": 3}]
    assert report["counts"]["not_reached"] == 3
    cases = ElementTree.parse(tmp_path / "conformance.xml").iter("testcase")
    skipped = [case.find("skipped") for case in cases]
    messages = [found.get("message") for found in skipped if found is not None]
    assert messages == [f"not reached: InitProducerId v4: {answer}"] * 3


def test_a_failure_behind_the_set_up_is_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with scripted_broker() as broker:
        broker.handlers[InitProducerIdRequest] = lambda request, version: InitProducerIdResponse(
            error_code=0, producer_id=1234567, producer_epoch=0
        )
        broker.handlers[HeartbeatRequest] = lambda request, version: CLOSE
        assert run(broker, tmp_path) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "1 passed, 3 failed"


def test_the_last_step_is_never_set_up() -> None:
    assert [one.name for one in bundled() if one.steps[-1].set_up] == []
    (last_but_looks,) = [one for one in bundled() if one.name == "empty-init-last"]
    assert [step.set_up for step in last_but_looks.steps[-3:]] == [True, False, False]
    assert sum(one.steps[0].set_up for one in bundled()) > 200
