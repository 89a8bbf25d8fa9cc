"""A verdict as a file: JSON for programs, JUnit's XML for CI, HTML for people."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from html import escape
from typing import Final
from xml.etree import ElementTree

from .results import Outcome, Result, Verdict


def as_json(verdict: Verdict) -> str:
    """Counts, and every scenario with what it proves and how it went."""
    document = {
        "broker": verdict.broker,
        "expectation": verdict.expectation,
        "started": verdict.started,
        "counts": {outcome.name.lower(): verdict.count(outcome) for outcome in Outcome},
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
        "message": result.why,
        "lawful": list(result.lawful),
        "seconds": round(result.seconds, 3),
    }


def as_junit(verdict: Verdict) -> str:
    """One suite a group, one case a scenario."""
    root = ElementTree.Element(
        "testsuites", tests=str(len(verdict.results)), failures=str(verdict.count(Outcome.FAILED))
    )
    for group, counts in verdict.groups().items():
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=group,
            tests=str(sum(counts.values())),
            failures=str(counts[Outcome.FAILED]),
            skipped=str(counts[Outcome.SKIPPED] + counts[Outcome.ABSENT]),
            timestamp=verdict.started,
        )
        for result in verdict.results:
            if result.scenario.group == group:
                _case(suite, result)
    ElementTree.indent(root, " ")
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _case(suite: ElementTree.Element, result: Result) -> None:
    case = ElementTree.SubElement(
        suite,
        "testcase",
        classname=f"conformance.{result.scenario.group}",
        name=result.scenario.name,
        time=f"{result.seconds:.3f}",
    )
    if result.outcome is Outcome.FAILED:
        ElementTree.SubElement(case, "failure", message=_xml_text(result.why)).text = _xml_text(result.scenario.why)
    elif result.outcome is not Outcome.PASSED:
        ElementTree.SubElement(case, "skipped", message=_xml_text(result.why))
    elif result.lawful:
        ElementTree.SubElement(case, "system-out").text = _xml_text("\n".join(result.lawful))


def _xml_text(text: str) -> str:
    """XML 1.0 has no control characters but tab and line ends; a broker's bytes may."""
    return "".join(c if c in "\t\n\r" or c >= " " else "\ufffd" for c in text)


_STYLE: Final = """body{font:14px/1.5 system-ui,sans-serif;margin:2em;max-width:75em}
table{border-collapse:collapse;margin:1em 0}td,th{border:1px solid #ccc;padding:.2em .6em;text-align:left}
td{vertical-align:top}
.passed{color:#187a2e}.failed{color:#b3261e;font-weight:600}.skipped,.absent{color:#777}small{color:#555}"""


def as_html(verdict: Verdict) -> str:
    """One page without anything to load."""
    head = "".join(f"<th>{escape(outcome.value)}</th>" for outcome in Outcome)
    groups = "\n".join(
        f"<tr><td>{escape(group)}</td>" + "".join(f"<td>{counts[outcome] or ''}</td>" for outcome in Outcome) + "</tr>"
        for group, counts in verdict.groups().items()
    )
    rows = "\n".join(map(_html_row, verdict.results))
    return f"""<!DOCTYPE html>
<html lang="en"><meta charset="utf-8"><title>Conformance of {escape(verdict.broker)}</title><style>{_STYLE}</style>
<h1>Conformance of {escape(verdict.broker)}</h1>
<p>Held against {escape(verdict.expectation)}, {escape(verdict.started)}: {escape(verdict.summary())}.</p>
<table><tr><th>group</th>{head}</tr>
{groups}
</table>
<table><tr><th>scenario</th><th>proves</th><th>result</th><th>seconds</th></tr>
{rows}
</table></html>
"""


def _html_row(result: Result) -> str:
    scenario = result.scenario
    said = "<br>".join(escape(line) for line in [*result.why.splitlines(), *result.lawful])
    return (
        f"<tr><td>{escape(scenario.name)}<br><small>{escape(scenario.why)}</small></td>"
        f"<td>{escape(', '.join(scenario.proves))}</td>"
        f'<td class="{result.outcome.name.lower()}">{escape(result.outcome.value)}'
        f"{'<br>' if said else ''}<small>{said}</small></td><td>{result.seconds:.1f}</td></tr>"
    )


REPORTS: Final[Mapping[str, tuple[str, Callable[[Verdict], str]]]] = {
    "html": ("conformance.html", as_html),
    "junit": ("conformance.xml", as_junit),
    "json": ("conformance.json", as_json),
}
"""Kind → (file name, how it is made)."""
