"""A test's whole use of a broker, with every peer: ``python benchmarks/cycle.py [--rounds 5] [--label cycle]``.

Start, create a topic, produce ten records, consume ten in a group, stop, with librdkafka as the client. In each round
every broker has its turn, in alternating order, with nothing left from the one before. Printed and written to
benchmarks/results/LABEL.md are medians over the rounds. Peers not to be had are left out: Kafka and its test kit
need Java and Maven, kfake Go, the mock confluent-kafka, tansu and noida-db packages of PyPI.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime
from math import nan
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / part) for part in (".", "protocol", "storage", "tests/support/real_brokers")]

from peer_targets import KfakeTarget, MockTarget, NoidaTarget, TansuTarget, TestKitTarget  # noqa: E402
from run import make  # noqa: E402
from scenarios import fixture_cycle  # noqa: E402
from targets import EmbeddedTarget, MinibrokerTarget, NewKafkaTarget, Target, commit, end_on_sigterm, machine  # noqa: E402

from minibroker.kernel.progress import ProgressLine  # noqa: E402

KINDS: tuple[Callable[[], Target], ...] = (
    MinibrokerTarget,
    EmbeddedTarget,
    NewKafkaTarget,
    TestKitTarget,
    KfakeTarget,
    MockTarget,
    TansuTarget,
    NoidaTarget,
)
Series = dict[str, dict[str, list[float]]]
"""Broker → step → one value a round, in seconds."""


def busy() -> float:
    """The system's load average of the last five minutes, NaN where it keeps none; a run takes about as long."""
    return os.getloadavg()[1] if hasattr(os, "getloadavg") else nan


def report(series: Series, failures: dict[str, str], rounds: int, load: float) -> str:
    """A Markdown page of the medians. load: `busy` at the end."""
    steps = list(next(iter(series.values())))
    lines = [
        "# Start, topic, ten in, ten out by a group, stop",
        "",
        f"Seconds; {rounds} rounds in turns, medians (lowest to highest for the whole). {machine()}.",
        f"Commit {commit()}, {datetime.now(UTC).date()}. Groups rebalance without delay where that can be set.",
        f"The machine's load average meanwhile was {load:.1f}: above its cores, programs wait for each other to start.",
        "",
        f"| broker | {' | '.join(steps)} |",
        f"|---|{'---:|' * len(steps)}",
    ]
    for name, values in series.items():
        cells = [f"{median(values[step]):.3f}" for step in steps]
        cells[0] = f"**{cells[0]}** ({min(values[steps[0]]):.3f} to {max(values[steps[0]]):.3f})"
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += [f"| {name} | failed: {why} |{' |' * (len(steps) - 1)}" for name, why in failures.items()]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--label", default="cycle", help="name of the page under results/")
    parser.add_argument("--alone", action="store_true", help="measure minibroker only")
    options = parser.parse_args()
    end_on_sigterm()
    progress = ProgressLine(sys.stderr, at_once=True)
    targets = [target for target in map(make, KINDS[:2] if options.alone else KINDS) if target]
    series: Series = defaultdict(lambda: defaultdict(list))
    failures: dict[str, str] = {}
    try:
        for number in range(options.rounds):
            for target in targets if number % 2 == 0 else reversed(targets):
                if target.name in failures:
                    continue
                progress.say(f"round {number + 1} of {options.rounds}: {target.name}")
                try:
                    figures = fixture_cycle(target)
                except (OSError, RuntimeError) as failure:
                    if not target.peer:
                        raise
                    failures[target.name] = str(failure)
                    continue
                for step, seconds in figures.items():
                    series[target.name][step].append(seconds)
    finally:
        progress.clear()
        for target in targets:
            target.close()
    ordered = {target.name: series[target.name] for target in targets if target.name in series}
    page = report(ordered, failures, options.rounds, busy())
    print(page)
    (HERE / "results").mkdir(exist_ok=True)
    (HERE / "results" / f"{options.label}.md").write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
