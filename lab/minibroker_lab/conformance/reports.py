"""A verdict as a file: JSON for programs, JUnit's XML for CI, HTML for people."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from html import escape
from typing import Any, Final

from minibroker_lab.reports import JunitCase, junit, page

from .results import Result, Status, Verdict
from .scenario import Scenario
from .weight import Breach, Weight


def as_json(verdict: Verdict) -> str:
    """Counts, and every scenario with what it proves and how it went."""
    document = {
        "broker": verdict.broker,
        "expectation": verdict.expectation,
        "started": verdict.started,
        "seconds": round(verdict.seconds, 3),
        "exactly_once": {
            "kept": verdict.kept(),
            "broken": [{"promise": promise, "scenarios": names} for promise, names in verdict.broken().items()],
        },
        "weights": {weight.value: number for weight, number in verdict.weights().items()},
        "counts": {outcome.name.lower(): verdict.count(outcome) for outcome in Status},
        "fits": [{"expectation": fit.expectation, "passed": fit.passed, "of": fit.of} for fit in verdict.fits],
        "causes": [{"answer": cause, "stops": number} for cause, number in verdict.causes()],
        "groups": {
            group: {outcome.name.lower(): number for outcome, number in counts.items()}
            for group, counts in verdict.groups().items()
        },
        "scenarios": [_row(result) for result in verdict.results],
    }
    return json.dumps(document, indent=1) + "\n"


def _row(result: Result) -> dict[str, object]:
    scenario = result.scenario
    return {
        "name": scenario.name,
        "group": scenario.group,
        "why": scenario.why,
        "proves": list(scenario.proves),
        "tags": sorted(scenario.tags),
        "outcome": result.outcome.name.lower(),
        "weight": result.weight and result.weight.value,
        "promise": result.breach.promise if result.weight and result.breach else "",
        "message": result.why,
        "cause": result.cause,
        "lawful": list(result.lawful),
        "noted": list(result.noted),
        "seconds": round(result.seconds, 3),
    }


BAD: Final = frozenset({Status.FAILED, Status.NOT_REACHED})


def as_result(scenario: Scenario, row: Mapping[str, Any]) -> Result:
    """What a row of a JSON report says of the scenario. Raises KeyError, ValueError."""
    return Result(
        scenario,
        Status[row["outcome"].upper()],
        str(row.get("message", "")),
        float(row.get("seconds", 0.0)),
        tuple(map(str, row.get("lawful") or ())),
        str(row.get("cause", "")),
        Breach(Weight(row["weight"]), str(row.get("promise", ""))) if row.get("weight") else None,
        tuple(map(str, row.get("noted") or ())),
    )


def as_junit(verdict: Verdict) -> str:
    """One suite a group, one case a scenario; a failure's type is its weight."""
    return junit([_case(result) for result in verdict.results], "conformance", verdict.started)


def _case(result: Result) -> JunitCase:
    failed = result.outcome is Status.FAILED
    passed = result.outcome is Status.PASSED
    skipped = f"not reached: {result.cause}" if result.cause else result.why
    return JunitCase(
        result.scenario.group,
        result.scenario.name,
        result.seconds,
        failure=result.why if failed else None,
        weight=result.weight.value if result.weight else "",
        skipped=None if failed or passed else skipped,
        detail="\n".join(filter(None, [result.scenario.why, result.breach.promise if result.breach else ""])),
        said="\n".join([*result.lawful, *result.noted]),
    )


_CLASSES: Final = {Status.PASSED: "good", Status.FAILED: "bad"}


def as_html(verdict: Verdict) -> str:
    """One page without anything to load."""
    head = "".join(f"<th>{escape(outcome.value)}</th>" for outcome in Status)
    groups = "\n".join(
        f"<tr><td>{escape(group)}</td>" + "".join(f"<td>{counts[outcome] or ''}</td>" for outcome in Status) + "</tr>"
        for group, counts in verdict.groups().items()
    )
    rows = "\n".join(map(_html_row, verdict.results))
    judged = "bad" if verdict.broken() else "good"
    first = "".join(f'<p class="{judged}">{escape(line)}</p>' for line in verdict.exactly_once())
    if verdict.count(Status.FAILED):
        first += f"<p>{escape(verdict.weighed())}</p>"
    return page(
        f"Conformance of {verdict.broker}",
        f"""<p>Held against {escape(verdict.expectation)}, {escape(verdict.started)}, in {verdict.seconds:.1f} s:
{escape(verdict.summary())}.</p>
{first}{"".join(f"<p>{escape(line)}</p>" for line in verdict.fit())}
<table><tr><th>group</th>{head}</tr>
{groups}
</table>
<table><tr><th>scenario</th><th>proves</th><th>result</th><th>seconds</th></tr>
{rows}
</table>""",
    )


def _html_row(result: Result) -> str:
    scenario = result.scenario
    said = "<br>".join(escape(line) for line in [*result.why.splitlines(), *result.lawful, *result.noted])
    weight = f" {escape(result.weight.value)}" if result.weight else ""
    return (
        f"<tr><td>{escape(scenario.name)}<br><small>{escape(scenario.why)}</small></td>"
        f"<td>{escape(', '.join(scenario.proves))}</td>"
        f'<td class="{_CLASSES.get(result.outcome, "neutral")}">{escape(result.outcome.value)}{weight}'
        f"{'<br>' if said else ''}<small>{said}</small></td><td>{result.seconds:.1f}</td></tr>"
    )


def makers(verdict: Verdict) -> dict[str, Callable[[], str]]:
    """Kind of report → how it is made."""
    return {
        "html": lambda: as_html(verdict),
        "junit": lambda: as_junit(verdict),
        "json": lambda: as_json(verdict),
    }
