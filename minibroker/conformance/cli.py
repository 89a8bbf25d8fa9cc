"""`minibroker conformance`: run the recorded scenarios against any broker.

One line a scenario, then `N passed, M failed`. Exit status: 0, 1 when any failed, 2 when nothing could be run.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import fnmatch
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from minibroker.wire import Address, parse_address

from .cluster import Cluster
from .failure import ScenarioError, ScenarioFailed
from .runner import Options, ScenarioRun
from .scenario import Scenario, bundled, load

PASSED, FAILED, UNUSABLE = 0, 1, 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command, for a parser of its own or a subcommand's."""
    parser.add_argument("--bootstrap", required=True, type=_address, metavar="HOST:PORT", help="any broker")
    parser.add_argument("files", nargs="*", type=Path, help="scenario files; default: those that come with minibroker")
    parser.add_argument("--only", metavar="GLOB", help="scenarios whose name matches")
    parser.add_argument("--tag", action="append", default=[], metavar="T", help="scenarios with this tag (repeatable)")
    parser.add_argument("--skip-tag", action="append", default=[], metavar="T", help="leave out those with this tag")
    parser.add_argument(
        "--have",
        action="append",
        default=[],
        metavar="WHAT",
        help="what the broker has and scenarios may need; short-expiry: producer.id.expiration.ms and "
        "transactional.id.expiration.ms of 4000 and checks every second",
    )
    parser.add_argument("--jobs", type=_positive, default=4, metavar="N", help="scenarios at once (default 4)")
    parser.add_argument("--timeout", type=float, default=10.0, metavar="S", help="seconds a response may take (10)")
    parser.add_argument("--until", type=float, default=30.0, metavar="S", help="seconds a polled step may take (30)")
    parser.add_argument("--times", action="store_true", help="show each scenario's seconds")
    parser.add_argument("--keep", action="store_true", help="leave the topics in place")
    parser.add_argument("--all", action="store_true", help="list every mismatch of a scenario, not only the first")
    parser.add_argument("-v", "--verbose", action="store_true", help="print every response; one scenario at a time")


def _address(text: str) -> Address:
    try:
        return parse_address(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from None


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return int(text)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with these arguments (default: the process's); returns the exit status."""
    parser = argparse.ArgumentParser(prog="minibroker conformance", description=__doc__)
    add_arguments(parser)
    return run(parser.parse_args(argv))


def run(arguments: argparse.Namespace) -> int:
    """Run with parsed arguments; returns the exit status."""
    try:
        scenarios = selected(load(arguments.files) if arguments.files else bundled(), arguments)
    except ScenarioError as exc:
        print(f"minibroker conformance: {exc}", file=sys.stderr)
        return UNUSABLE
    if not scenarios:
        print("minibroker conformance: no scenario matches", file=sys.stderr)
        return UNUSABLE
    options = Options(
        timeout=arguments.timeout,
        patience=arguments.until,
        keep_going=arguments.all,
        verbose=arguments.verbose,
        keep_topics=arguments.keep,
    )
    cluster = Cluster(arguments.bootstrap, timeout=arguments.timeout, patience=arguments.until)
    token = secrets.token_hex(3)
    if not _reachable(cluster):
        return UNUSABLE
    cluster.warm_up(token)
    jobs = 1 if arguments.verbose else arguments.jobs
    runs = [ScenarioRun(cluster, scenario, _token(token), options, _wall_ms) for scenario in scenarios]
    return _report(run_all(runs, frozenset(arguments.have), jobs), times=arguments.times)


def _token(run: str) -> str:
    return f"{run}{secrets.token_hex(2)}"


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def selected(scenarios: Sequence[Scenario], arguments: argparse.Namespace) -> list[Scenario]:
    """Those the options ask for."""
    return [
        scenario
        for scenario in scenarios
        if (not arguments.only or fnmatch.fnmatchcase(scenario.name, arguments.only))
        and (not arguments.tag or scenario.tags & set(arguments.tag))
        and not scenario.tags & set(arguments.skip_tag)
    ]


def _reachable(cluster: Cluster) -> bool:
    """Whether something answers."""
    try:
        cluster.versions()
    except ScenarioFailed as exc:
        print(f"minibroker conformance: {exc}", file=sys.stderr)
        return False
    return True


class Result:
    """How a scenario went: `why` it failed, what it is `missing` (then it was not run), and its seconds."""

    def __init__(self, scenario: Scenario, why: str | None, seconds: float, missing: tuple[str, ...] = ()) -> None:
        self.scenario = scenario
        self.why = why
        self.seconds = seconds
        self.missing = missing


def run_all(runs: Sequence[ScenarioRun], have: frozenset[str], jobs: int) -> Iterator[Result]:
    """Run scenarios, `jobs` at once, and those that must be alone after the others. Results come in that order."""
    together = [run for run in runs if not run.scenario.alone]
    alone = [run for run in runs if run.scenario.alone]
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(_guarded(have), together)
    yield from map(_guarded(have), alone)


def _guarded(have: frozenset[str]) -> Callable[[ScenarioRun], Result]:
    def run(scenario_run: ScenarioRun) -> Result:
        scenario = scenario_run.scenario
        missing = tuple(need for need in scenario.needs if need not in have)
        if missing:
            return Result(scenario, None, 0.0, missing)
        start = time.monotonic()
        try:
            why = scenario_run.run()
        except Exception as exc:  # a defect here must not end the run
            why = f"error in the runner: {type(exc).__name__}: {exc}"
        return Result(scenario, why, time.monotonic() - start)

    return run


def _report(results: Iterator[Result], *, times: bool) -> int:
    passed = failed = 0
    for result in results:
        name = result.scenario.name
        seconds = f"  [{result.seconds:.1f}s]" if times else ""
        if result.missing:
            print(f"skip {name} (needs --have {','.join(result.missing)})", flush=True)
        elif result.why:
            failed += 1
            print(f"FAIL {name}: {result.why}{seconds}", flush=True)
        else:
            passed += 1
            print(f"ok {name}{seconds}", flush=True)
    print(f"{passed} passed, {failed} failed", flush=True)
    return FAILED if failed else PASSED
