"""benchmarks/results/conformance.json: what each broker did in each scenario, by the last run recorded of it.

`peers.py` records runs. benchmarks/results/conformance.md and the site's "What answers how" are written from it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from minibroker_lab.conformance.results import Result, Status
from minibroker_lab.conformance.scenario import Scenario, bundled

ROOT: Final = Path(__file__).resolve().parents[2]
DATA: Final = ROOT / "benchmarks" / "results" / "conformance.json"
PAGE: Final = ROOT / "benchmarks" / "results" / "conformance.md"
BEGIN, END = "<!-- begin results -->", "<!-- end results -->"
_PASSED: Final = "passed"
_ABOUT_GROUPS: Final = (
    "Scenarios passed / run, by group. `n/a`: the broker does not advertise an API version that the scenario uses."
    " Skipped: the scenario needs something that the broker did not have (a restart, short expiry), or takes minutes."
)
_LONGEST: Final = 100
_NAMES_OF_A_RUN: Final = re.compile(r"mb-[0-9a-f]{6}-\d+-(?:again-)?")
_PLACE: Final = r"(?:step \S+ \((?P<call>\w+)[^)]*\): )?.*?"
_DIFFERENCES: Final = (
    re.compile(_PLACE + r"field (?P<field>\S+): expected (?P<expected>.*), got (?P<got>.*)"),
    re.compile(_PLACE + r"(?P<field>\S+) never became (?P<expected>.*) \(last: (?P<got>.*)\)"),
    re.compile(_PLACE + r"(?P<field>outcome): expected (?P<expected>.*), got (?P<got>.*)"),
)


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """One broker's. expect: the answers it was held against. starts: how often it was started, each time but the first
    because it had ended by itself. scenarios: name → "passed", or the outcome and why, as in "failed: …"."""

    broker: str
    version: str
    how: str
    date: str
    expect: str
    starts: int
    scenarios: Mapping[str, str]

    def outcome(self, scenario: Scenario) -> str:
        """One word, of `Status`; "not asked" for a scenario that is not about what the broker was held against.

        Raises KeyError for a scenario that the run should have had.
        """
        return self._of(scenario).partition(":")[0]

    def why(self, scenario: Scenario) -> str:
        """Why it did not pass; "" when it did."""
        return self._of(scenario).partition(": ")[2]

    def instead(self, scenario: Scenario) -> str:
        """What a failing broker answered, in a few words."""
        why = self.why(scenario)
        found = _difference(why)
        if found is None:
            return re.sub(r"^step \S+ \((\w+)[^)]*\):", r"\1:", why)
        field = found["field"].rpartition(".")[2]
        return f"{found['call'] or ''} {field} {found['got'].strip(chr(39))}".strip()

    def _of(self, scenario: Scenario) -> str:
        if scenario.name not in self.scenarios and self.expect not in scenario.only:
            return f"not asked: it is about {', '.join(scenario.only)}"
        return self.scenarios[scenario.name]


def told(result: Result) -> str:
    """A result as it stands in the file, without what differs from run to run."""
    if result.outcome is Status.PASSED:
        return _PASSED
    outcome = "n/a" if result.outcome is Status.ABSENT else result.outcome.name.lower().replace("_", " ")
    why = _NAMES_OF_A_RUN.sub("", result.why).partition("\n")[0]
    if found := _difference(why):
        for value in (found["expected"], found["got"]):
            why = why.replace(value, _short(value))
    else:
        why = _short(why, 2 * _LONGEST)
    return f"{outcome}: {why}"


def _difference(why: str) -> re.Match[str] | None:
    return next((found for one in _DIFFERENCES if (found := one.match(why))), None)


def _short(text: str, longest: int = _LONGEST) -> str:
    return text if len(text) <= longest else f"{text[:longest]} …"


def load(file: Path = DATA) -> list[RecordedRun]:
    """Every run, in the order of the table."""
    return [RecordedRun(**entry) for entry in json.loads(file.read_text(encoding="utf-8"))]


def save(runs: Iterable[RecordedRun], file: Path = DATA) -> None:
    file.write_text(json.dumps([asdict(run) for run in runs], indent=0, ensure_ascii=False) + "\n", encoding="utf-8")


def with_results(page: str, runs: list[RecordedRun]) -> str:
    """benchmarks/results/conformance.md with the tables of these runs."""
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{_tables(runs)}\n{END}{tail}"


def write_page() -> None:
    PAGE.write_text(with_results(PAGE.read_text(encoding="utf-8"), load()), encoding="utf-8")


def _tables(runs: list[RecordedRun]) -> str:
    scenarios = bundled()
    lines = [
        "| broker | version | recorded | held against | how it ran | ended by itself |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {one.broker} | {one.version} | {one.date} | `{one.expect}` | {one.how} | {_times(one.starts - 1)} |"
        for one in runs
    ]
    lines += [
        "",
        _ABOUT_GROUPS,
        "",
        "| group | " + " | ".join(one.broker for one in runs) + " |",
        "|---" * (len(runs) + 1) + "|",
    ]
    for group in sorted({one.group for one in scenarios}):
        own = [one for one in scenarios if one.group == group]
        lines.append(f"| {group} | " + " | ".join(_cell(run, own) for run in runs) + " |")
    lines.append("| **all** | " + " | ".join(f"**{_cell(run, scenarios)}**" for run in runs) + " |")
    unjudged = [one.name for one in scenarios if not one.catches and all(run.outcome(one) != "failed" for run in runs)]
    lines += ["", f"Scenarios that fail for no defect and no broker: {', '.join(unjudged) or 'none'}."]
    return "\n".join(lines)


def _times(number: int) -> str:
    return {0: "never", 1: "once"}.get(number) or f"{number} times"


def _cell(run: RecordedRun, scenarios: Iterable[Scenario]) -> str:
    counts = Counter(run.outcome(one) for one in scenarios)
    others = ", ".join(f"{number} {word}" for word in ("n/a", "skipped", "not run") if (number := counts[word]))
    asked = counts[_PASSED] + counts["failed"]
    return f"{counts[_PASSED]} / {asked}{f' ({others})' if others else ''}"
