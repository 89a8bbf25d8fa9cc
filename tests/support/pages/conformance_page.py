"""The counts of the conformance suite, which this writes into benchmarks/results/conformance-defects.md."""

from __future__ import annotations

import sys
from pathlib import Path

from defects import DEFECTS
from seeds import SEEDS

from minibroker_lab.conformance.scenario import EXPECTATIONS, bundled

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "benchmarks" / "results" / "conformance-defects.md"
BEGIN, END = "<!-- begin counts -->", "<!-- end counts -->"


def counts() -> str:
    """How many scenarios and defects there are, and which scenario catches which defect."""
    scenarios = bundled()
    groups: dict[str, list[int]] = {}
    for scenario in scenarios:
        row = groups.setdefault(scenario.group, [0, 0, 0])
        row[0] += 1
        row[1] += len(scenario.steps)
        row[2] += bool(scenario.catches)
    caught: dict[str, list[str]] = {}
    for scenario in scenarios:
        for name in scenario.catches:
            caught.setdefault(name, []).append(scenario.name)
    by_expectation = ", ".join(f"{sum(e in scenario.only for scenario in scenarios)} for `{e}`" for e in EXPECTATIONS)
    proved = {proof for scenario in scenarios for proof in scenario.proves}
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


def main() -> int:
    PAGE.write_text(with_counts(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
