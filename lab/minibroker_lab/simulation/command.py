"""The command `minibroker simulate`: runs one seed and prints its story, or many seeds and prints their counts."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from minibroker.exit_codes import EXIT_FAILED, EXIT_OK, EXIT_USAGE
from minibroker.kernel.arguments import from_1, local_path
from minibroker.kernel.progress import ProgressLine
from minibroker.kernel.words import counted, fail
from minibroker.output import say
from minibroker.program import ctrl_c_is_ours, whole
from minibroker.trace.saved import Trace, as_lines
from minibroker_lab.simulation.holes import HOLES
from minibroker_lab.simulation.run import SeedResult, simulate
from minibroker_storage.private_files import output_path

if TYPE_CHECKING:
    from multiprocessing.pool import Pool

_SHOWN = 20
_FINDINGS = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to a parser."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--seed", type=int, help="run this seed and print what happens")
    parser.add_argument(
        "--about",
        action="append",
        default=[],
        metavar="TEXT",
        help="print only lines with this text, such as a client, a partition or `broker` (repeatable)",
    )
    parser.add_argument(
        "--trace",
        type=local_path,
        metavar="FILE",
        help="with --seed: write the exchanges, for `minibroker trace view FILE`",
    )
    which.add_argument(
        "--seeds", type=from_1, default=1000, metavar="N", help="number of seeds to run (default: %(default)s)"
    )
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="first seed (default: %(default)s)")
    parser.add_argument(
        "--find", metavar="EVENT", help="name the seeds in which an event with this text in its name happens"
    )
    parser.add_argument("--jobs", type=from_1, default=1, metavar="N", help="number of processes")


def run(options: argparse.Namespace) -> int:
    """Exit status: 0 when no promise was broken, 1 when one was."""
    logging.disable(logging.CRITICAL)  # a simulated crash needs no log line
    if options.seed is not None:
        outcome = simulate(options.seed, telling=True, tracing=options.trace is not None)
        status = tell(outcome, options.about)
        if options.trace is not None:
            try:
                output_path(options.trace).write_text(as_lines(as_trace(outcome)), encoding="utf-8")
            except OSError as error:
                return fail(error, EXIT_USAGE)
        return status
    if options.trace is not None:
        return fail("--trace goes with --seed", EXIT_USAGE)
    began = time.perf_counter()
    counts: Counter[str] = Counter()
    broken = []
    cpu_s = 0.0
    progress = ProgressLine(sys.stderr)
    for done, outcome in enumerate(_outcomes(range(options.first, options.first + options.seeds), options.jobs), 1):
        counts.update(outcome.counts)
        cpu_s += outcome.cpu_s
        if options.find is not None:
            progress.clear()
            _show(outcome, options.find)
        if outcome.broken:
            broken.append(outcome)
            if len(broken) <= _SHOWN:
                progress.clear()
                say(f"seed {outcome.plan.seed}: {outcome.why()}", flush=True)
        left_s = (time.perf_counter() - began) * (options.seeds - done) / done
        progress.say(f"{done} of {counted(options.seeds, 'seed')}, {len(broken)} broken, {left_s:.0f} s left")
    progress.clear()
    width = max(map(len, counts), default=0)
    for event, count in counts.most_common():
        say(f"{event:<{width}}  {count}")
    seconds = time.perf_counter() - began
    each = cpu_s / options.seeds
    say(f"{counted(options.seeds, 'seed')} in {seconds:.1f} s, {each:.3f} s of CPU each")
    say(f"{len(broken)} of them with broken promises")
    return EXIT_FAILED if broken else EXIT_OK


def _show(outcome: SeedResult, wanted: str) -> None:
    """One line for each event whose name has `wanted` in it."""
    for event, count in sorted(outcome.counts.items()):
        if wanted.lower() in event.lower():
            say(f"seed {outcome.plan.seed}: {event}: {count}", flush=True)


def _outcomes(seeds: range, jobs: int) -> Iterator[SeedResult]:
    if jobs < 2:
        yield from map(simulate, seeds)
        return
    with whole(_processes(jobs)) as pool:
        yield from pool.imap_unordered(simulate, seeds, chunksize=20)


@contextmanager
def _processes(jobs: int) -> Iterator[Pool]:
    from multiprocessing import get_context, resource_tracker

    resource_tracker.ensure_running()  # it lets every signal through again once it has started
    with ctrl_c_is_ours():
        pool = get_context("spawn").Pool(jobs, _ignore_signals)
    with pool:
        yield pool


def _ignore_signals() -> None:
    """A process of the pool: it ignores the terminal's signals, its parent ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.disable(logging.CRITICAL)


_LEGEND = """\
  names     p is idempotent; x0#1 the first instance of transactional id x0, c0#1 of a copying one, feeder writes what
            they copy, r0 reads committed records; x0#1/4 is a transaction, x0#1.7 a record, c0#1.8<feeder.3 a copy
"""


def tell(outcome: SeedResult, about: Sequence[str] = ()) -> int:
    """The story, of all or of the lines that have one of `about`, and the verdict."""
    say(*outcome.plan.described().splitlines())
    say(*_LEGEND.splitlines(), "")
    for line in outcome.story:
        if not about or any(name in line for name in about):
            say(line)
    say("")
    say(*verdict(outcome))
    return EXIT_FAILED if outcome.broken else EXIT_OK


def as_trace(outcome: SeedResult) -> Trace:
    """The exchanges of clients and brokers, below the plan and the verdict."""
    return Trace(outcome.exchanges, [*outcome.plan.described().splitlines(), "", *verdict(outcome)])


def verdict(outcome: SeedResult) -> list[str]:
    """Lines of text: the known holes of Kafka that this seed ran into, and the promises it broke."""
    lines = []
    for name, findings in outcome.explained.items():
        hole = next(hole for hole in HOLES if hole.name == name)
        lines += [f"known hole of Kafka: {name} ({hole.source})", f"  {hole.what}"]
        lines.append(f"  {counted(len(findings), 'thing')} seen here, which it explains:")
        lines += [f"    {finding.described()}" for finding in findings[:_FINDINGS]]
        if len(findings) > _FINDINGS:
            lines.append(f"    … and {len(findings) - _FINDINGS} more")
    lines += outcome.crash.splitlines()
    lines += map(str, outcome.findings)
    if not outcome.broken:
        holes = counted(len(outcome.explained), "known hole")
        lines.append("no promise was broken" + (f" but by {holes} of Kafka" if outcome.explained else ""))
    return lines
