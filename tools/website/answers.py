"""What answers how: for each row of the texts, the requests that decide it, and their answers by release."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any, Final

from seeds import SEEDS

from minibroker.conformance.scenario import EXPECTATIONS, KIP, Scenario, Step, bundled, every_step
from website.markdown_pages import Page

PATH: Final = "answers.html"
_TOLD: Final = ("transactionalId", "producerId", "producerEpoch", "committed", "sequence", "epoch")
_ABOUT: Final = """<p>What the scenarios of <a href="docs/conformance.html">the conformance suite</a> expect of each
release of Apache Kafka, and of the texts themselves (<code>kip</code>), for every row of
<a href="docs/seeds.html">what the texts ask for</a>. minibroker gives these answers with <code>--as-version</code> and
<code>--semantics</code>. A column is there where an answer differs from the one before it. How other brokers do:
<a href="docs/conformance-results.html">results by broker</a>.</p>"""


def page() -> Page:
    """One table for each scenario that proves a row. An empty cell: as in the column before."""
    proving: dict[str, list[Scenario]] = {}
    for scenario in bundled():
        for row in scenario.proves:
            proving.setdefault(row, []).append(scenario)
    parts = ["<h1>What answers how</h1>", _ABOUT]
    ids = set()
    for row, seed in SEEDS.items():
        name = f"row-{row}"
        ids.add(name)
        parts.append(f'<h2 id="{name}">{escape(row)}</h2><p>{escape(seed.holds)}</p>')
        parts += [_table(scenario) for scenario in proving[row]]
    return Page(PATH, "What answers how", "\n".join(parts), ids)


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
    lines = [
        f"<tr><td>{escape(_asked(step))}</td>{''.join(_cell(columns, one, place) for one in range(len(columns)))}</tr>"
        for place, step in enumerate(steps)
        if any(answers[place] for _, answers in columns)
    ]
    return (
        f"<details><summary><code>{escape(scenario.name)}</code>: {escape(scenario.why)}</summary>"
        f"<table><thead><tr><th>request</th>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></details>"
    )


def _cell(columns: list[tuple[str, list[str]]], column: int, place: int) -> str:
    text = columns[column][1][place]
    same = column > 0 and columns[column - 1][1][place] == text
    return f"<td>{'' if same else escape(text)}</td>"


def _asked(step: Step) -> str:
    request = dict(_leaves(step.get("req") or {}))
    told = [f"{name}={value}" for name, value in request.items() if name.rpartition(".")[2] in _TOLD]
    return " ".join([str(step.get("call")), *told])


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
