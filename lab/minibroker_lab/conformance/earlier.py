"""The JSON report of an earlier run: to go on with it, to run again what failed, to tell what is new since then."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minibroker.kernel.words import counted, reason

from .failure import ScenarioError
from .reports import BAD, as_result
from .results import Result, Status
from .scenario import Scenario
from .weight import Weight


@dataclass(frozen=True, slots=True)
class Earlier:
    """expectation: what the broker was compared with.
    rows: of the scenarios, by name, as the report has them.
    """

    file: str
    expectation: str
    rows: Mapping[str, Mapping[str, Any]]

    def results(self, scenarios: Sequence[Scenario]) -> dict[str, Result]:
        """Scenario → its result then, of those that were run."""
        results = {
            scenario.name: as_result(scenario, self.rows[scenario.name])
            for scenario in scenarios
            if scenario.name in self.rows
        }
        return {name: result for name, result in results.items() if result.outcome is not Status.NOT_RUN}

    def failed(self, scenarios: Sequence[Scenario]) -> list[Scenario]:
        return [
            scenario
            for scenario in scenarios
            if scenario.name in self.rows and _outcome(self.rows[scenario.name]) in BAD
        ]


@dataclass(frozen=True, slots=True)
class Difference:
    """new: results that fail now and did not then, or failed less heavily.
    mended: names of scenarios that pass now and did not then.
    otherwise: results that failed then too, but at another place.
    unrun: scenarios that were not run because the broker was gone, which it was not then.
    """

    new: Sequence[Result]
    mended: Sequence[str]
    otherwise: Sequence[Result]
    unrun: Sequence[Result]

    def lines(self, file: str) -> list[str]:
        counts = [
            counted(len(self.new), "new failure"),
            f"{len(self.mended)} mended",
            *([f"{len(self.otherwise)} that fail otherwise"] if self.otherwise else []),
        ]
        return [
            f"against {file}: {', '.join(counts)}",
            *(f"  new: {_line(result)}" for result in self.new),
            *(f"  mended: {name}" for name in self.mended),
            *(f"  otherwise: {_line(result)}" for result in self.otherwise),
        ]


def _line(result: Result) -> str:
    weight = f" [{result.weight.value}]" if result.weight else ""
    return f"{result.scenario.name}{weight}: {result.why.splitlines()[0]}"


def difference(earlier: Earlier, results: Sequence[Result]) -> Difference:
    """Compare with the earlier run. A scenario that it does not have counts as passed then."""
    then = {result.scenario.name: earlier.rows.get(result.scenario.name, {"outcome": "passed"}) for result in results}
    bad = [result for result in results if result.outcome in BAD]
    known = [result for result in bad if _as_heavy(then[result.scenario.name], result)]
    return Difference(
        new=[result for result in bad if result not in known],
        mended=[
            result.scenario.name
            for result in results
            if result.outcome is Status.PASSED and _outcome(then[result.scenario.name]) in BAD
        ],
        otherwise=[
            result for result in known if _place(result.why) != _place(str(then[result.scenario.name].get("message")))
        ],
        unrun=[
            result
            for result in results
            if result.outcome is Status.NOT_RUN and _outcome(then[result.scenario.name]) is not Status.NOT_RUN
        ],
    )


def read(path: Path) -> Earlier:
    """Raises ScenarioError for a file that is not a report of the suite."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        rows = {str(row["name"]): row for row in document["scenarios"]}
        for row in rows.values():
            _outcome(row)
            Weight(row.get("weight") or Weight.DETAIL)
        return Earlier(str(path), str(document["expectation"]), rows)
    except OSError as error:
        raise ScenarioError(reason(error)) from None
    except (ValueError, KeyError, TypeError):
        raise ScenarioError(f"{path}: not a JSON report of minibroker conformance") from None


def _outcome(row: Mapping[str, Any]) -> Status:
    return Status[str(row["outcome"]).upper()]


def _as_heavy(row: Mapping[str, Any], now: Result) -> bool:
    """Whether it failed then too, and with a breach at least as heavy where both have one."""
    weight = row.get("weight")
    return _outcome(row) in BAD and not (weight and now.weight and not Weight(weight).at_least(now.weight))


def _place(why: str) -> str:
    """The step and the field; values may differ in every run."""
    return why.partition(": expected ")[0]
