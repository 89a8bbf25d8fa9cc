"""minibroker beside other brokers, in turns: ``python benchmarks/run.py [--rounds 3] [--label NAME]``.

They are Apache Kafka, franz-go's kfake, which keeps everything in memory, and librdkafka's mock cluster, which checks
nothing and keeps 5 MB of a partition.

Every round starts each broker afresh, in alternating order, so that all see the same moods of the machine. Printed and
written to benchmarks/results/LABEL.md, and as a plot to LABEL.svg, are medians over the rounds, and minibroker's share
of each peer's median of the same run. Needs confluent-kafka, for Kafka Java and Maven, for kfake Go; what is missing is
left out, as is what a peer cannot do.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from math import nan
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / part) for part in (".", "protocol", "storage", "tests/support/real_brokers")]

from peer_targets import KfakeTarget, MockTarget  # noqa: E402
from plots import bar_plot  # noqa: E402
from scenarios import SCENARIOS, Figures, fixture_cycle  # noqa: E402
from targets import (  # noqa: E402
    KafkaTarget,
    MinibrokerTarget,
    Target,
    build,
    commit,
    cpu_seconds,
    end_on_sigterm,
    machine,
    memory_mb,
)
from toolchain import Unavailable  # noqa: E402

from minibroker.kernel.progress import ProgressLine  # noqa: E402
from minibroker_protocol.errors import Malformed  # noqa: E402

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
            try:
                figures |= SCENARIOS[name](target)
            except (OSError, RuntimeError, Malformed) as failure:
                if target.peer:
                    print(f"SKIPPED {name} with {target.name}: {failure}", file=sys.stderr)
                else:
                    raise
        figures["memory at the end, MB"] = memory_mb(target.pid) or nan
    finally:
        target.stop()
    figures["fixture cycle (start, topic, 10 in, 10 out, stop), s"] = fixture_cycle(target)["the whole cycle"]
    return figures


def report(series: Series, names: list[str], rounds: int) -> str:
    """A Markdown page of the medians; the last columns are minibroker's share of the peers' figures."""
    ours, *peers = names
    shares = [f"of {peer}'s" for peer in peers]
    lines = [
        f"# minibroker beside {', '.join(peers) or 'nothing'}",
        "",
        f"{rounds} rounds in turns, medians (lowest to highest). {machine()}. Commit {commit()}, {build()}.",
        f"{datetime.now(UTC).date()}. One run's figures belong together; those of different runs do not compare.",
        "",
        f"| figure | {' | '.join([*names, *shares])} |",
        f"|---|{'---:|' * (len(names) + len(shares))}",
    ]
    for figure, values in series.items():
        cells = [
            f"{median(values[name]):.4g} ({min(values[name]):.4g} to {max(values[name]):.4g})" if values[name] else "–"
            for name in names
        ]
        for peer in peers:
            known = values[peer] and values[ours] and median(values[peer]) > 0
            cells.append(f"{median(values[ours]) / median(values[peer]):.3g}" if known else "–")
        lines.append(f"| {figure} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def make(kind: Callable[[], Target]) -> Target | None:
    """A broker, or None with a line that says why it cannot be measured here."""
    try:
        return kind()
    except Unavailable as missing:
        print(f"SKIPPED {getattr(kind, '__name__', 'minibroker')}: {missing}", file=sys.stderr)
        return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scenario", action="append", choices=list(SCENARIOS), help="default: all")
    parser.add_argument("--label", default="latest", help="name of the page under results/")
    parser.add_argument("--alone", action="store_true", help="measure minibroker only")
    parser.add_argument("--beside", action="append", default=[], type=Path, metavar="TREE", help="another minibroker")
    options = parser.parse_args()
    end_on_sigterm()
    progress = ProgressLine(sys.stderr, at_once=True)
    kinds: list[Callable[[], Target]] = [MinibrokerTarget]
    kinds += [partial(MinibrokerTarget, tree.resolve()) for tree in options.beside]
    if not options.alone:
        kinds += [KafkaTarget, KfakeTarget, MockTarget]
    targets = [target for target in map(make, kinds) if target]
    series: Series = defaultdict(lambda: defaultdict(list))
    try:
        for number in range(options.rounds):
            for target in targets if number % 2 == 0 else reversed(targets):
                progress.say(f"round {number + 1} of {options.rounds}: {target.name}")
                for figure, value in measure(target, options.scenario or list(SCENARIOS)).items():
                    series[figure][target.name].append(value)
    finally:
        progress.clear()
        for target in targets:
            target.close()
    page = report(series, [target.name for target in targets], options.rounds)
    print(page)
    (HERE / "results").mkdir(exist_ok=True)
    (HERE / "results" / f"{options.label}.md").write_text(page, encoding="utf-8")
    bars = {
        figure: {name: median(measurements) for name, measurements in values.items() if measurements}
        for figure, values in series.items()
    }
    plot = bar_plot("Medians; each group has a scale of its own", bars)
    (HERE / "results" / f"{options.label}.svg").write_text(plot, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
