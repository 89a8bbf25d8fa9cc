"""The command `minibroker simulate`: one seed as a story, or many with what they came through."""

from __future__ import annotations

import argparse
import logging
import time
from collections import Counter
from collections.abc import Iterator

from minibroker.simulation.run import Outcome, simulate

_SHOWN = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command, on a parser that the command line hands in."""
    parser.add_argument("--seed", type=int, help="replay this seed and tell what happens")
    parser.add_argument("--seeds", type=int, default=1000, metavar="N", help="how many to run (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the first of them (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes to share the work")


def run(options: argparse.Namespace) -> int:
    """0 when no promise was broken, 1 when one was."""
    logging.disable(logging.CRITICAL)  # a simulated crash is no news to a log
    if options.seed is not None:
        return _tell(simulate(options.seed, telling=True))
    began = time.perf_counter()
    counts: Counter[str] = Counter()
    broken = []
    for outcome in _outcomes(range(options.first, options.first + options.seeds), options.jobs):
        counts.update(outcome.counts)
        if outcome.broken:
            broken.append(outcome)
            if len(broken) <= _SHOWN:
                print(f"seed {outcome.plan.seed}: {outcome.why()}", flush=True)
    for line in coverage(counts):
        print(line)
    seconds = time.perf_counter() - began
    print(f"{options.seeds} seeds in {seconds:.1f} s, {len(broken)} of them with broken promises")
    return 1 if broken else 0


def _outcomes(seeds: range, jobs: int) -> Iterator[Outcome]:
    if jobs < 2:
        yield from map(simulate, seeds)
        return
    from multiprocessing import get_context

    with get_context("spawn").Pool(jobs, logging.disable, (logging.CRITICAL,)) as pool:
        yield from pool.imap_unordered(simulate, seeds, chunksize=20)


def _tell(outcome: Outcome) -> int:
    print(outcome.plan)
    print("\n".join(outcome.story))
    print()
    if outcome.crash:
        print(outcome.crash)
    for found in outcome.findings:
        print(found)
    if not outcome.broken:
        print("no promise was broken")
    return 1 if outcome.broken else 0


def coverage(counts: Counter[str]) -> list[str]:
    """What the runs came through, most frequent first: a lazy simulation shows here."""
    width = max(map(len, counts), default=0)
    return [f"{event:<{width}}  {count}" for event, count in sorted(counts.items(), key=lambda e: (-e[1], e[0]))]
