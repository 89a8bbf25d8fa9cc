"""The order of a run follows from what scenarios ask."""

import pytest
from scripted_broker import scripted_broker

from minibroker_lab.conformance import command as cli
from minibroker_lab.conformance.order import Phase, by_phase, phase
from minibroker_lab.conformance.scenario import bundled, parse


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ("{call: Produce v9, at: t/0, batch: {values: [a]}}", Phase.CONNECT),
        ("{call: ApiVersions v0, header: {apiVersion: 99}}", Phase.CONNECT),
        ("{call: InitProducerId v4}", Phase.IDEMPOTENCE),
        ("{call: Produce v9, at: {t/0: [{pid: 5, epoch: 0, seq: 0, values: [a]}]}}", Phase.IDEMPOTENCE),
        ("{call: InitProducerId v4, req: {transactionalId: x}}", Phase.TRANSACTIONS),
        ("{loop: 2, steps: [{call: EndTxn v3}]}", Phase.TRANSACTIONS),
        ("{call: TxnOffsetCommit v3, req: {transactionalId: x}}", Phase.GROUPS),
        ("{pipeline: [{call: Heartbeat v3}]}", Phase.GROUPS),
        ("{raw: '00'}", Phase.MALFORMED),
        ("{call: Heartbeat v3, tail: '00'}", Phase.MALFORMED),
        ("{call: Heartbeat v3, header: {apiVersion: 99}}", Phase.MALFORMED),
        ("{call: ApiVersions v0, header: {apiKey: 9999}}", Phase.MALFORMED),
        ("{call: Produce v9, at: t/0, batch: {payload: '00'}}", Phase.MALFORMED),
    ],
)
def test_the_phase_of_a_scenario_is_that_of_its_last_step(step: str, expected: Phase) -> None:
    first = "{call: ApiVersions v0}"
    (scenario,) = parse(f"- {{name: s, topics: {{t: {{}}}}, steps: [{step}, {first}]}}", "s.yaml")
    assert phase(scenario) is expected


def test_a_whole_run_connects_first_and_breaks_last() -> None:
    phases = [phase(scenario) for scenario in by_phase(bundled())]
    assert phases == sorted(phases)
    assert set(phases) == {*Phase}


def test_the_bundled_scenarios_are_run_in_that_order(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = {"groups": "Heartbeat v3", "idempotence": "InitProducerId v4", "connect": "ApiVersions v0"}
    text = "".join(f"- {{name: {name}, steps: [{{call: {call}}}]}}\n" for name, call in calls.items())
    monkeypatch.setattr(cli, "bundled", lambda: parse(text, "s.yaml"))
    with scripted_broker() as broker:
        cli.main(["--bootstrap", broker.bootstrap, "--jobs", "1"])
    lines = [line.split()[1].rstrip(":") for line in capsys.readouterr().out.splitlines()[:3]]
    assert lines == ["connect", "idempotence", "groups"]
