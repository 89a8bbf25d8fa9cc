"""minibroker beside Apache Kafka, measured in turns: ``python benchmarks/run.py [--rounds 3] [--label NAME]``.

Every round starts each broker afresh, in alternating order, so that both see the same moods of the machine. Printed and
written to benchmarks/results/LABEL.md are medians over the rounds and the ratio to Kafka's median of the same run.
Needs confluent-kafka, and for Kafka Java and Maven; without those minibroker is measured alone.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from math import isnan, nan
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / part) for part in ("protocol", "storage", "tests/support")]

from scenarios import SCENARIOS, Figures, use_as_fixture  # noqa: E402
from targets import KafkaTarget, MinibrokerTarget, Target, commit, cpu_seconds, end_on_sigterm, machine, memory_mb  # noqa: E402
from toolchain import Unavailable  # noqa: E402

Series = dict[str, dict[str, list[float]]]
"""Figure → broker → one value a round."""


def measure(target: Target, scenarios: list[str]) -> Figures:
    """All figures of one broker in one round."""
    figures: Figures = {"start until Metadata is answered, s": target.start()}
    try:
        figures["start, CPU s"] = cpu_seconds(target.pid) or nan
        time.sleep(0.3)
        figures["memory after the start, MB"] = memory_mb(target.pid) or nan
        for name in scenarios:
            if target.warm_up:
                SCENARIOS[name](target)
            figures |= SCENARIOS[name](target)
        figures["memory at the end, MB"] = memory_mb(target.pid) or nan
    finally:
        target.stop()
    begin = time.perf_counter()
    target.start()
    try:
        use_as_fixture(target)
    finally:
        target.stop()
    figures["fixture cycle (start, topic, 10 in, 10 out, stop), s"] = time.perf_counter() - begin
    return figures


def report(series: Series, names: list[str], rounds: int) -> str:
    """A Markdown page of the medians; the last column is minibroker's share of the peer's figure."""
    lines = [
        "# minibroker beside Apache Kafka",
        "",
        f"{rounds} rounds in turns, medians (lowest to highest). {machine()}. Commit {commit()}.",
        "One run's figures belong together; those of different runs do not compare.",
        "",
        f"| figure | {' | '.join(names)} | ratio |",
        f"|---|{'---:|' * (len(names) + 1)}",
    ]
    for figure, values in series.items():
        medians = [median(values[name]) for name in names]
        ratio = f"{medians[0] / medians[1]:.3g}" if len(medians) > 1 and medians[1] and not isnan(medians[1]) else ""
        cells = [
            f"{middle:.4g} ({min(values[name]):.4g} to {max(values[name]):.4g})"
            for name, middle in zip(names, medians, strict=True)
        ]
        lines.append(f"| {figure} | {' | '.join(cells)} | {ratio} |")
    return "\n".join(lines) + "\n"


def make(kind: Callable[[], Target]) -> Target | None:
    """A broker, or None with a line that says why it cannot be measured here."""
    try:
        return kind()
    except Unavailable as missing:
        print(f"SKIPPED {kind.__name__}: {missing}", file=sys.stderr)
        return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scenario", action="append", choices=list(SCENARIOS), help="default: all")
    parser.add_argument("--label", default="latest", help="name of the page under results/")
    parser.add_argument("--alone", action="store_true", help="measure minibroker only")
    options = parser.parse_args()
    end_on_sigterm()
    kinds: list[Callable[[], Target]] = [MinibrokerTarget] if options.alone else [MinibrokerTarget, KafkaTarget]
    targets = [target for target in map(make, kinds) if target]
    series: Series = defaultdict(lambda: defaultdict(list))
    try:
        for number in range(options.rounds):
            for target in targets if number % 2 == 0 else reversed(targets):
                print(f"round {number + 1} of {options.rounds}: {target.name}", file=sys.stderr)
                for figure, value in measure(target, options.scenario or list(SCENARIOS)).items():
                    series[figure][target.name].append(value)
    finally:
        for target in targets:
            target.close()
    page = report(series, [target.name for target in targets], options.rounds)
    print(page)
    (HERE / "results").mkdir(exist_ok=True)
    (HERE / "results" / f"{options.label}.md").write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
