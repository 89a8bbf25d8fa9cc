"""benchmarks/results/conformance.json: what each broker did in each scenario, by the last run recorded of it.

`peers.py` records runs. benchmarks/results/conformance.md and the site's "What answers how" are written from it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from minibroker_lab.conformance.results import Result, Status
from minibroker_lab.conformance.scenario import Scenario, bundled
from minibroker_lab.conformance.weight import Weight

ROOT: Final = Path(__file__).resolve().parents[3]
DATA: Final = ROOT / "benchmarks" / "results" / "conformance.json"
PAGE: Final = ROOT / "benchmarks" / "results" / "conformance.md"
BEGIN, END = "<!-- begin results -->", "<!-- end results -->"
COUNTED: Final = "counted"
_PASSED: Final = "passed"
_SILENT: Final = re.compile("does not answer|no response within|connection closed")
_ABOUT_GROUPS: Final = (
    "Scenarios passed / run, by group. `n/a`: the broker does not advertise an API version that the scenario uses."
    " Skipped: the scenario needs something that the broker did not have (a restart, short expiry), or takes minutes."
)
_ABOUT_WEIGHTS: Final = (
    "Scenarios that passed, and that failed by [the weight](../../docs/reference/conformance.md) of what they show. Not"
    " reached: the broker's answer to the set-up stopped it."
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
    because it had ended by itself. scenarios: name → "passed", or the outcome and why, as in "failed (recovery): …".
    counted: group → outcome → number of scenarios, for groups in which the broker stopped answering: they are told by
    numbers alone, as nobody is to learn here by which request. broken: sentence about exactly-once → number of
    scenarios that show that the broker breaks it."""

    broker: str
    version: str
    how: str
    date: str
    expect: str
    starts: int
    scenarios: Mapping[str, str]
    counted: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    broken: Mapping[str, int] = field(default_factory=dict)

    def outcome(self, scenario: Scenario) -> str:
        """One word, of `Status`; "not asked" for a scenario that is not about what the broker was held against.

        Raises KeyError for a scenario that the run should have had.
        """
        return self._of(scenario).partition(":")[0].partition(" (")[0]

    def counts(self, scenarios: Sequence[Scenario]) -> Counter[str]:
        """Outcome, with the weight of a failure → number of scenarios. Of a group that is told by numbers all count."""
        counts: Counter[str] = Counter()
        for group in {scenario.group for scenario in scenarios}:
            own = [self._of(scenario).partition(":")[0] for scenario in scenarios if scenario.group == group]
            counts += Counter(self.counted.get(group, own))
        return counts

    def why(self, scenario: Scenario) -> str:
        """Why it did not pass; "" when it did."""
        return self._of(scenario).partition(": ")[2]

    def instead(self, scenario: Scenario) -> str:
        """What a failing broker answered, in a few words."""
        why = self.why(scenario)
        difference = _difference(why)
        if difference is None:
            return re.sub(r"^step \S+ \((\w+)[^)]*\):", r"\1:", why)
        field = difference["field"].rpartition(".")[2]
        return f"{difference['call'] or ''} {field} {difference['got'].strip(chr(39))}".strip()

    def _of(self, scenario: Scenario) -> str:
        if scenario.group in self.counted:
            return f"{COUNTED}: the broker stopped answering in this group"
        if scenario.name not in self.scenarios and self.expect not in scenario.only:
            return f"not asked: it is about {', '.join(scenario.only)}"
        return self.scenarios[scenario.name]


def outcome_of(result: Result) -> str:
    """A result as it stands in the file, without what differs from run to run."""
    if result.outcome is Status.PASSED:
        return _PASSED
    weight = f" ({result.weight.value})" if result.weight else ""
    outcome = "n/a" if result.outcome is Status.ABSENT else result.outcome.name.lower().replace("_", " ")
    why = _NAMES_OF_A_RUN.sub("", result.why).partition("\n")[0]
    if difference := _difference(why):
        for value in (difference["expected"], difference["got"]):
            why = why.replace(value, _short(value))
    else:
        why = _short(why, 2 * _LONGEST)
    return f"{outcome}{weight}: {why}"


def recorded(results: Sequence[Result]) -> tuple[dict[str, str], dict[str, dict[str, int]], dict[str, int]]:
    """`scenarios`, `counted` and `broken` of a run."""
    silent = {result.scenario.group for result in results if _SILENT.search(result.why)}
    scenarios = {result.scenario.name: outcome_of(result) for result in results if result.scenario.group not in silent}
    counted = {
        group: dict(
            Counter(outcome_of(result).partition(":")[0] for result in results if result.scenario.group == group)
        )
        for group in sorted(silent)
    }
    heavy = (result.breach.promise for result in results if result.weight is Weight.EXACTLY_ONCE and result.breach)
    return scenarios, counted, dict(sorted(Counter(heavy).items()))


def _difference(why: str) -> re.Match[str] | None:
    return next((match for pattern in _DIFFERENCES if (match := pattern.match(why))), None)


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
        "| broker | version | recorded | held against | how it ran |",
        "|---|---|---|---|---|",
        *(f"| {run.broker} | {run.version} | {run.date} | `{run.expect}` | {run.how} |" for run in runs),
        "",
        _ABOUT_WEIGHTS,
        "",
        f"| broker | passed | {' | '.join(weight.value for weight in Weight)} | not reached | n/a | skipped | ended |",
        "|---" * (len(Weight) + 6) + "|",
        *(_by_weight(run, scenarios) for run in runs),
        "",
        "Sentences about exactly-once that a broker breaks, and in how many scenarios:",
        "",
        *_broken(runs),
    ]
    lines += [
        "",
        _ABOUT_GROUPS,
        "",
        "| group | " + " | ".join(run.broker for run in runs) + " |",
        "|---" * (len(runs) + 1) + "|",
    ]
    for group in sorted({scenario.group for scenario in scenarios}):
        own = [scenario for scenario in scenarios if scenario.group == group]
        lines.append(f"| {group} | " + " | ".join(_cell(run, own) for run in runs) + " |")
    lines.append("| **all** | " + " | ".join(f"**{_cell(run, scenarios)}**" for run in runs) + " |")
    unjudged = [
        scenario.name
        for scenario in scenarios
        if not scenario.catches and all(run.outcome(scenario) != "failed" for run in runs)
    ]
    lines += ["", f"Scenarios that fail for no defect and no broker: {', '.join(unjudged) or 'none'}."]
    return "\n".join(lines)


def _by_weight(run: RecordedRun, scenarios: Sequence[Scenario]) -> str:
    counts = run.counts(scenarios)
    weights = [str(counts[f"failed ({weight.value})"]) for weight in Weight]
    cells = [str(counts[_PASSED]), *weights, *(str(counts[word]) for word in ("not reached", "n/a", "skipped"))]
    return f"| {run.broker} | {' | '.join(cells)} | {_ended(run)} |"


def _ended(run: RecordedRun) -> str:
    """In words: what ends a broker is between its author and whoever found it."""
    times = {0: "never", 1: "once"}.get(run.starts - 1) or f"{run.starts - 1} times"
    return f"{times}; silent in {', '.join(run.counted)}" if run.counted else times


def _broken(runs: Iterable[RecordedRun]) -> Iterator[str]:
    broken = [run for run in runs if run.broken]
    for run in broken:
        yield f"- **{run.broker}**: " + " ".join(f"{promise} ({number})" for promise, number in run.broken.items())
    if not broken:
        yield "- None."


def _cell(run: RecordedRun, scenarios: Sequence[Scenario]) -> str:
    counts = run.counts(scenarios)
    words = ("not reached", "n/a", "skipped", "not run")
    others = ", ".join(f"{number} {word}" for word in words if (number := counts[word]))
    answered = counts[_PASSED] + sum(number for word, number in counts.items() if word.startswith("failed"))
    return f"{counts[_PASSED]} / {answered}{f' ({others})' if others else ''}"
