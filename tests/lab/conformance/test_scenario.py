"""Scenario files: those that come with the package, and clear errors for wrong ones."""

import re
import sys
from pathlib import Path

import pytest
from defect_matrix import ARGUMENTS
from defects import DEFECTS
from seeds import SEEDS

from minibroker_lab.conformance.failure import ScenarioError
from minibroker_lab.conformance.scenario import bundled, load, parse


def test_the_bundled_scenarios() -> None:
    scenarios = bundled()
    assert len(scenarios) > 200
    assert all(scenario.why and scenario.tags and scenario.steps for scenario in scenarios)
    assert {need for scenario in scenarios for need in scenario.needs} == set(ARGUMENTS)
    assert "matrix-empty" in {scenario.group for scenario in scenarios}


def test_what_scenarios_prove_exists() -> None:
    proved = {proof for scenario in bundled() for proof in scenario.proves}
    seeds = {proof for proof in proved if not proof.startswith(("kip-", "protocol"))}
    assert seeds <= set(SEEDS)
    assert all(re.fullmatch(r"kip-\d+|protocol-guide", proof) for proof in proved - seeds)
    assert [scenario.name for scenario in bundled() if not scenario.proves] == []


def test_what_scenarios_catch_exists() -> None:
    assert {defect for scenario in bundled() for defect in scenario.catches} <= set(DEFECTS)


def test_a_scenario_in_full() -> None:
    (scenario,) = parse(
        """
        - name: a
          why: because
          proves: [360-1, kip-98]
          catches: [accept-bad-crc]
          only: [kip]
          tags: [x, y]
          topics: {t: {partitions: 3, configs: {cleanup.policy: compact}}, u: null}
          names: [g]
          needs: [short-expiry]
          alone: true
          steps:
          - call: Produce v9
            note: any text
            at: t/0
            batch: {values: [a]}
          - loop: 3
            as: n
            steps:
            - {sleep: 0.1}
        """,
        "f.yaml",
    )
    assert (scenario.file, scenario.name, scenario.why, scenario.tags) == ("f.yaml", "a", "because", frozenset("xy"))
    assert scenario.topics == {"t": (3, {"cleanup.policy": "compact"}), "u": (1, {})}
    assert (scenario.names, scenario.needs, scenario.alone) == (("g",), ("short-expiry",), True)
    assert (scenario.proves, scenario.catches, scenario.only) == (("360-1", "kip-98"), ("accept-bad-crc",), ("kip",))
    assert scenario.labels == {"x", "y", "f", "360-1", "kip-98"}
    assert scenario.used_versions() == {("Produce", 9)}
    produce, loop = scenario.steps
    assert (produce.kind, produce.api, produce.version) == ("call", "Produce", 9)
    assert (loop.kind, loop.steps[0].kind) == ("loop", "sleep")


def test_steps_in_several_versions_and_steps_that_are_repeated() -> None:
    (scenario,) = parse(
        """
        - name: a
          steps:
          - versions: [1, 2]
            steps:
            - &shared
              - {call: Heartbeat v3}
              - {call: EndTxn $v}
          - versions: [4]
            steps:
            - *shared
            - {call: Produce $v}
        """,
        "f.yaml",
    )
    assert scenario.used_versions() == {("Heartbeat", 3), ("EndTxn", 1), ("EndTxn", 2), ("EndTxn", 4), ("Produce", 4)}
    assert [len(step.steps) for step in scenario.steps] == [2, 3]


def steps(text: str) -> str:
    return f"[{{name: s, steps: [{text}]}}]"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[", "f.yaml: "),
        ("a: b", "f.yaml: a list of scenarios"),
        ("[1]", "f.yaml: scenario 1: a mapping with a name"),
        ("[{name: s, steps: [{sleep: 1}]}, {why: x}]", "f.yaml: scenario 2: a mapping with a name"),
        ("[{name: s}]", "f.yaml: s: a list of steps"),
        ("[{name: s, steps: []}]", "f.yaml: s: a list of steps"),
        ("[{name: s, step: [], steps: [{sleep: 1}]}]", "f.yaml: s: no such key: step"),
        ("[{name: s, tags: x, steps: [{sleep: 1}]}]", "f.yaml: s: tags: a list"),
        ("[{name: s, topics: [t], steps: [{sleep: 1}]}]", "f.yaml: s: topics: a mapping"),
        ("[{name: s, topics: {t: {parts: 1}}, steps: [{sleep: 1}]}]", "f.yaml: s: topics: t: partitions"),
        ("[{name: s, names: [now], steps: [{sleep: 1}]}]", r"f.yaml: s: \$now"),
        ("[{matrix: m}]", "f.yaml: matrix m: cells: a mapping"),
        ("[{matrix: m, cells: {a: 1}}]", "f.yaml: matrix m: cells: a mapping"),
        ("[{matrix: m, before: 1, cells: {a: {}}}]", "f.yaml: matrix m: before: a list"),
        ("[{matrix: m, tags: x, cells: {a: {steps: [{sleep: 1}]}}}]", "f.yaml: m-a: tags: a list"),
        ("[{matrix: m, before: [{sleep: 1}], cells: {a: {why: x}}}]", "f.yaml: m-a: a list of steps"),
        ("[{matrix: m, before: [{sleep: 1}], cells: {a: {steps: [{nap: 1}]}}}]", "f.yaml: m-a: step 2: none of"),
        (steps("1"), "f.yaml: s: step 1: a mapping"),
        (steps("{sleep: 1}, {expect: {}}"), "f.yaml: s: step 2: none of call"),
        (steps("{sleep: x}"), "f.yaml: s: step 1: sleep: int or float"),
        (steps("{call: Produce v9, exepct: {}}"), "f.yaml: s: step 1: 'exepct' is no option of a call step"),
        (steps("{call: Produce}"), "step 1: call: 'Produce' is not like"),
        (steps("{call: Prodcue v9}"), "step 1: call: there is no API Prodcue"),
        (steps("{call: Produce v9, batch: {pidd: 1}}"), "step 1: batch: no such key: pidd"),
        (steps("{call: Produce v9, at: {t/0: {pidd: 1}}}"), "step 1: batch: no such key: pidd"),
        (steps("{call: Heartbeat v3, at: t/0}"), "step 1: at: Heartbeat has no short form"),
        (steps("{call: Produce v9, outcome: open}"), "step 1: outcome: 'open'"),
        (steps("{call: Produce v9, to: leeder:t/0}"), "step 1: to: 'leeder:t/0'"),
        (steps("{call: Produce v9, header: {key: 1}}"), "step 1: header: no such key: key"),
        (steps("{loop: 3}"), "step 1: a loop without steps"),
        (steps("{loop: 3, steps: [{sleep: 1}, {nap: 1}]}"), "f.yaml: s: step 1.2: none of"),
        (steps("{versions: [1, x], steps: [{sleep: 1}]}"), "step 1: versions: numbers"),
        (steps("{versions: [1]}"), "step 1: a versions without steps"),
        (steps("{call: EndTxn $v}"), r"step 1: call: \$v is for the steps of `versions`"),
        (steps("[{sleep: 1}, {nap: 1}], {sleep: 1}"), "f.yaml: s: step 2: none of"),
        (steps("{pipeline: [{sleep: 1}]}"), "step 1: only calls can be pipelined"),
        ("[{name: s, steps: [{sleep: 1}]}, {name: s, steps: [{sleep: 1}]}]", None),
    ],
)
def test_wrong_files(text: str, why: str | None, tmp_path: Path) -> None:
    if why is not None:
        with pytest.raises(ScenarioError, match=f"^{why}" if why.startswith("f.yaml") else why) as info:
            parse(text, "f.yaml")
        assert "\n" not in str(info.value)
    else:
        file = tmp_path / "f.yaml"
        file.write_text(text)
        with pytest.raises(ScenarioError, match=r"f\.yaml: s: there is one of this name"):
            load([file])


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"nosuch\.yaml"):
        load([tmp_path / "nosuch.yaml"])


def test_without_yaml_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ScenarioError, match=r"minibroker\[conformance\]"):
        parse("[]", "f.yaml")


def test_a_matrix_is_a_scenario_for_each_of_its_cells() -> None:
    table = """
- matrix: m
  why: W
  tags: [t, $cell]
  names: [x]
  before: [{sleep: 1}]
  cells:
    a: {why: one, steps: [{sleep: 2}]}
    b: {why: two, names: [y], steps: [{sleep: 3}]}
- {name: s, steps: [{sleep: 4}]}
"""
    written = """
- {name: m-a, why: 'W: one', tags: [t, a], names: [x], steps: [[{sleep: 1}], {sleep: 2}]}
- {name: m-b, why: 'W: two', tags: [t, b], names: [y], steps: [[{sleep: 1}], {sleep: 3}]}
- {name: s, steps: [{sleep: 4}]}
"""
    assert parse(table, "f.yaml") == parse(written, "f.yaml")
