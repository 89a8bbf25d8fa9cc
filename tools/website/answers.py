"""For each row of the texts: the recorded answers of brokers, and the answers expected of releases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any, Final

from recorded_runs import RecordedRun
from seeds import SEEDS

from minibroker_lab.conformance.scenario import EXPECTATIONS, KIP, Scenario, Step, bundled, every_step
from website.markdown_pages import Page

PATH: Final = "answers.html"
_TOLD: Final = ("transactionalId", "producerId", "producerEpoch", "committed", "sequence", "epoch")
_ABOUT: Final = """<p>For every row of <a href="benchmarks/results/seeds.html">what the texts ask for</a>: the
scenarios of <a href="docs/reference/conformance.html">the conformance suite</a> that decide it, what each broker did in
them, and the answers that they expect of each release of Apache Kafka and of the texts themselves (<code>kip</code>).
minibroker gives these answers with <code>--as-version</code> and <code>--semantics</code>.</p>
<p>Open a scenario for its answers. Its table of answers has a column where an answer differs from that of the column
before. The results of all scenarios are <a href="benchmarks/results/conformance.html">counted by group</a>.</p>
<p>The brokers, and the answers that each was held against:</p>"""
_SIGNS: Final = {"passed": "✓", "failed": "✗"}
_NOTHING: Final = "–"


def page(runs: list[RecordedRun]) -> Page:
    """Of each row: the brokers' results, and a table for each scenario that proves it."""
    proving: dict[str, list[Scenario]] = {}
    for scenario in bundled():
        for row in scenario.proves:
            proving.setdefault(row, []).append(scenario)
    parts = ["<h1>What answers how</h1>", _ABOUT, _brokers(runs), _overview(runs, proving)]
    ids = set()
    for row, seed in SEEDS.items():
        name = f"row-{row}"
        ids.add(name)
        parts.append(f'<h2 id="{name}">{escape(row)}</h2><p>{escape(seed.holds)}</p>')
        if seed.kafka:
            parts.append(f"<p>Apache Kafka 4.4: {escape(seed.kafka)}</p>")
        parts += [_scenario(scenario, runs) for scenario in proving[row]]
    return Page(PATH, "What answers how", "\n".join(parts), ids)


def _brokers(runs: list[RecordedRun]) -> str:
    lines = [
        f"<tr><td>{_label(run)}</td><td>{escape(run.version)}</td><td>{escape(run.date)}</td>"
        f"<td><code>{escape(run.expect)}</code></td></tr>"
        for run in runs
    ]
    head = "<tr><th>broker</th><th>version</th><th>recorded</th><th>held against</th></tr>"
    return f"<table><thead>{head}</thead><tbody>{''.join(lines)}</tbody></table>"


def _overview(runs: list[RecordedRun], proving: Mapping[str, list[Scenario]]) -> str:
    """Rows × brokers: how many of the row's scenarios passed."""
    lines = []
    for row in SEEDS:
        cells = "".join(f"<td{_class(counts)}>{_counted(counts)}</td>" for counts in _counts(runs, proving[row]))
        lines.append(f'<tr><td><a href="#row-{escape(row)}">{escape(row)}</a></td>{cells}</tr>')
    head = "".join(f"<th>{_label(run)}</th>" for run in runs)
    about = (
        "<p>Scenarios passed / run of each row; –: the broker does not serve what the row's scenarios use, none of"
        " them is about what it was held against, or it stopped answering in their group, which is told by numbers"
        " only.</p>"
    )
    return (
        f'{about}<table id="overview"><thead><tr><th>row</th>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table>'
    )


def _counts(runs: list[RecordedRun], scenarios: list[Scenario]) -> Iterator[tuple[int, int]]:
    for run in runs:
        outcomes = [run.outcome(scenario) for scenario in scenarios]
        passed = outcomes.count("passed")
        yield passed, passed + outcomes.count("failed")


def _class(counts: tuple[int, int]) -> str:
    passed, total = counts
    return "" if not total else ' class="passed"' if passed == total else ' class="failed"'


def _counted(counts: tuple[int, int]) -> str:
    passed, total = counts
    return f"{passed} / {total}" if total else _NOTHING


def _label(run: RecordedRun) -> str:
    return "".join(
        f"<code>{escape(part)}</code>" if number % 2 else escape(part)
        for number, part in enumerate(run.broker.split("`"))
    )


def _scenario(scenario: Scenario, runs: list[RecordedRun]) -> str:
    signs = "".join(
        f'<span class="{_word(run.outcome(scenario))}" title="{escape(run.broker.replace("`", ""))}">'
        f"{_SIGNS.get(run.outcome(scenario), _NOTHING)}</span>"
        for run in runs
    )
    return (
        f'<details><summary><span class="signs">{signs}</span> <code>{escape(scenario.name)}</code>:'
        f" {escape(scenario.why)}</summary>{_did(scenario, runs)}{_table(scenario)}</details>"
    )


def _did(scenario: Scenario, runs: list[RecordedRun]) -> str:
    """The brokers' results in one scenario."""
    lines = [
        f'<tr><td>{_label(run)}</td><td class="{_word(run.outcome(scenario))}">{escape(run.outcome(scenario))}</td>'
        f'<td title="{escape(run.why(scenario))}">{escape(run.instead(scenario))}</td></tr>'
        for run in runs
    ]
    head = "<tr><th>broker</th><th>result</th><th>where it differs first, or why it was not run</th></tr>"
    return f"<table><thead>{head}</thead><tbody>{''.join(lines)}</tbody></table>"


def _word(outcome: str) -> str:
    return outcome if outcome in _SIGNS else "other"


def _table(scenario: Scenario) -> str:
    steps = [step for step in every_step(scenario.steps) if step.kind == "call"]
    columns: list[tuple[str, list[str]]] = []
    for expectation in sorted(scenario.only, key=EXPECTATIONS.index):
        answers = [", ".join(_answers(step.expected(expectation))) for step in steps]
        if not columns or answers != columns[-1][1] or expectation == KIP:
            columns.append((expectation, answers))
    if len(columns) > 1 and columns[-1][1] == columns[0][1]:
        columns.pop()  # kip, as the newest release
    head = "".join(f"<th>{escape(name)}</th>" for name, _ in columns)
    order = range(len(columns))
    lines = [
        f"<tr><td>{escape(_request_text(step))}</td>{''.join(_cell(columns, column, place) for column in order)}</tr>"
        for place, step in enumerate(steps)
        if any(answers[place] for _, answers in columns)
    ]
    return f"<table><thead><tr><th>request</th>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _cell(columns: list[tuple[str, list[str]]], column: int, place: int) -> str:
    text = columns[column][1][place]
    same = column > 0 and columns[column - 1][1][place] == text
    return f"<td>{'' if same else escape(text)}</td>"


def _request_text(step: Step) -> str:
    request = dict(_leaves(step.get("req") or {}))
    words = [f"{name}={value}" for name, value in request.items() if name.rpartition(".")[2] in _TOLD]
    return " ".join([str(step.get("call")), *words])


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _leaves(inner, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner, path)
    else:
        yield path, value


def _answers(expected: Mapping[str, Any]) -> Iterator[str]:
    for path, value in expected.items():
        if path.endswith(("errorCode", "producerEpoch", "producerId", "transactionState")):
            yield f"{path.rpartition('.')[2]} {value}" if not path.endswith("errorCode") else str(value)
