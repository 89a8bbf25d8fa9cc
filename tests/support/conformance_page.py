"""The generated parts of the pages about the conformance suite.

`conformance_page.py` writes the counts into docs/conformance.md; with `LABEL=REPORT.json …` also
docs/conformance-results.md, a table of groups × brokers from what `--report json` wrote. ``LABEL=A.json+B.json`` takes
from B what A had to skip.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from defects import DEFECTS
from seeds import SEEDS

from minibroker.conformance.scenario import EXPECTATIONS, bundled

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "conformance.md"
RESULTS = ROOT / "docs" / "conformance-results.md"
BEGIN, END = "<!-- begin counts -->", "<!-- end counts -->"


def counts() -> str:
    """How many scenarios and defects there are, and which scenario catches which defect."""
    scenarios = bundled()
    groups: dict[str, list[int]] = {}
    for one in scenarios:
        row = groups.setdefault(one.group, [0, 0, 0])
        row[0] += 1
        row[1] += len(one.steps)
        row[2] += bool(one.catches)
    caught: dict[str, list[str]] = {}
    for one in scenarios:
        for name in one.catches:
            caught.setdefault(name, []).append(one.name)
    by_expectation = ", ".join(f"{sum(e in one.only for one in scenarios)} for `{e}`" for e in EXPECTATIONS)
    proved = {proof for one in scenarios for proof in one.proves}
    summary = (
        f"{len(scenarios)} scenarios ({by_expectation}) with {sum(row[1] for row in groups.values())} steps prove "
        f"{sum(p in SEEDS for p in proved)} seeds and {sum(p.startswith('kip') for p in proved)} KIPs. "
        f"{len(caught)} of {len(DEFECTS)} deliberate defects are caught by a scenario that names them; "
        f"{sum(row[2] for row in groups.values())} scenarios name a defect."
    )
    lines = [
        summary,
        "",
        "| group | scenarios | steps | that name a defect |",
        "|---|---|---|---|",
        *(f"| {group} | {row[0]} | {row[1]} | {row[2]} |" for group, row in sorted(groups.items())),
        "",
        "| defect | what it breaks | caught by |",
        "|---|---|---|",
        *(f"| `{d.name}` | {d.breaks} | {', '.join(caught.get(d.name, ['nothing']))} |" for d in DEFECTS.values()),
    ]
    return "\n".join(lines)


def with_counts(page: str) -> str:
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{counts()}\n{END}{tail}"


def results(reports: dict[str, dict[str, Any]], note: str) -> str:
    """Groups × brokers: passed / run. `note` is the text above the table."""
    names = list(reports)
    groups = sorted({group for report in reports.values() for group in report["groups"]})
    lines = [note, "", "| group | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    lines += [
        f"| {group} | " + " | ".join(_cell(reports[name]["groups"].get(group)) for name in names) + " |"
        for group in groups
    ]
    lines.append("| **all** | " + " | ".join(f"**{_cell(reports[name]['counts'])}**" for name in names) + " |")
    unjudged = _never_failed(reports)
    lines += ["", f"Scenarios that fail for no defect and no peer: {', '.join(unjudged) or 'none'}."]
    return "\n".join(lines) + "\n"


def merged(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """One report of several runs: of each scenario the first result that is one, and counts anew."""
    rows: dict[str, dict[str, Any]] = {}
    for report in reports:
        for row in report["scenarios"]:
            if rows.get(row["name"], {"outcome": "skipped"})["outcome"] == "skipped":
                rows[row["name"]] = row
    groups: dict[str, dict[str, int]] = {}
    counts = dict.fromkeys(("passed", "failed", "skipped", "absent"), 0)
    for row in rows.values():
        groups.setdefault(row["group"], dict.fromkeys(counts, 0))[row["outcome"]] += 1
        counts[row["outcome"]] += 1
    return {"scenarios": list(rows.values()), "groups": groups, "counts": counts}


def _cell(counted: dict[str, int] | None) -> str:
    if counted is None:
        return ""
    run = counted["passed"] + counted["failed"]
    absent = f" ({counted['absent']} n/a)" if counted["absent"] else ""
    return f"{counted['passed']} / {run}{absent}"


def _never_failed(reports: dict[str, dict[str, Any]]) -> list[str]:
    failed = {row["name"] for report in reports.values() for row in report["scenarios"] if row["outcome"] == "failed"}
    return [one.name for one in bundled() if not one.catches and one.name not in failed]


def main(arguments: list[str]) -> int:
    PAGE.write_text(with_counts(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    if arguments:
        reports = {}
        for argument in arguments:
            label, _, file = argument.partition("=")
            reports[label] = merged([json.loads(Path(name).read_text(encoding="utf-8")) for name in file.split("+")])
        note, _, _ = RESULTS.read_text(encoding="utf-8").partition("\n| group |")
        RESULTS.write_text(results(reports, note.rstrip("\n")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
