"""`minibroker conformance`: run the recorded scenarios against any broker.

One line a scenario, a table of the groups, then `N passed, M failed`. Exit status: 0, 1 when any failed, 2 when nothing
could be run, 3 when the broker died and was not brought back.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import fnmatch
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path

from minibroker.client.connection import servers
from minibroker.client.security import add_command_config, read_security
from minibroker.kernel.arguments import duration, from_1
from minibroker.kernel.progress import ProgressLine
from minibroker.kernel.words import counted, fail
from minibroker.output import say
from minibroker.program import uninterrupted
from minibroker_lab.reports import add_report_arguments

from .cluster import ClusterUnderTest
from .earlier import Earlier, difference, read
from .failure import ConnectionClosed, ScenarioError, ScenarioFailed
from .fit import Fits
from .live import REPORT, LiveReports
from .order import by_phase
from .repeats import merged, unsteady
from .reports import BAD
from .results import Fit, Result, Status, Verdict
from .runner import Options
from .scenario import EXPECTATIONS, KAFKA, RELEASE_EXPECTATIONS, RESTART, Scenario, bundled, load
from .schedule import Start
from .session import Session
from .weight import Weight

PASSED, FAILED, UNUSABLE, BROKER_DIED = 0, 1, 2, 3
_STANDARD_ERROR = 2
_COMMAND = "minibroker conformance"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command, for a parser of its own or a subcommand's."""
    parser.add_argument("--bootstrap", required=True, type=servers, metavar="HOST:PORT", help="any broker")
    add_command_config(parser)
    parser.add_argument("files", nargs="*", type=Path, help="scenario files (default: the bundled ones)")
    parser.add_argument("--only", metavar="GLOB", help="only scenarios whose name matches")
    parser.add_argument(
        "--expect",
        choices=EXPECTATIONS,
        help="expected answers: those of a release of Apache Kafka, or those of the KIPs' texts (default: those of the "
        "newest release, and the release that fits best is named)",
    )
    parser.add_argument(
        "--select",
        "--tag",
        action="append",
        default=[],
        metavar="T",
        help="only scenarios with this tag, of this group, or that prove this seed or KIP (repeatable)",
    )
    parser.add_argument("--skip-tag", action="append", default=[], metavar="T", help="skip scenarios with this tag")
    parser.add_argument(
        "--skip",
        action="append",
        default=[],
        metavar="GLOB",
        help="leave out scenarios whose name matches (repeatable)",
    )
    parser.add_argument(
        "--have",
        action="append",
        default=[],
        metavar="WHAT",
        help="capabilities of the broker that scenarios need; short-expiry: producer.id.expiration.ms and "
        "transactional.id.expiration.ms of 4000 and checks every second",
    )
    parser.add_argument(
        "--restart-command",
        metavar="CMD",
        help="shell command that restarts the broker; runs the scenarios that need it, one by one",
    )
    parser.add_argument(
        "--start-command",
        metavar="CMD",
        help="shell command that starts a broker that has died; without it the remaining scenarios are not run",
    )
    parser.add_argument(
        "--fail-on",
        choices=[weight.value for weight in Weight],
        default=Weight.DETAIL.value,
        metavar="WEIGHT",
        help=f"exit status 1 only for failures of this weight or a heavier one: {', '.join(w.value for w in Weight)} "
        f"(default {Weight.DETAIL.value}: for all)",
    )
    parser.add_argument(
        "--resume",
        type=Path,
        metavar="FILE",
        help="go on with a run that was interrupted: scenarios with a result in this JSON report are not run again",
    )
    parser.add_argument(
        "--only-failed", type=Path, metavar="FILE", help="only scenarios that failed according to this JSON report"
    )
    parser.add_argument(
        "--baseline",
        type=Path,
        metavar="FILE",
        help="print what differs from this JSON report of an earlier run, and fail only for what is new",
    )
    parser.add_argument("--repeat", type=from_1, default=1, metavar="N", help="run everything N times (1)")
    parser.add_argument("--jobs", type=from_1, default=4, metavar="N", help="scenarios run at once (default 4)")
    parser.add_argument(
        "--timeout", type=duration, default=10.0, metavar="S", help="seconds to wait for a response (10)"
    )
    parser.add_argument(
        "--until", type=duration, default=30.0, metavar="S", help="seconds to wait for a polled step (30)"
    )
    add_report_arguments(parser, REPORT)
    parser.add_argument("--times", action="store_true", help="print each scenario's seconds")
    parser.add_argument(
        "-q", "--quiet", action="store_true", help="print only failures, scenarios that were not run, and the counts"
    )
    parser.add_argument("--keep", action="store_true", help="keep topics and groups")
    parser.add_argument("--all", action="store_true", help="list every mismatch of a scenario, not only the first")
    parser.add_argument("-v", "--verbose", action="store_true", help="print every response; one scenario at a time")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with these arguments (default: the process's); returns the exit status."""
    parser = argparse.ArgumentParser(prog="minibroker conformance", description=__doc__)
    add_arguments(parser)
    return run(parser.parse_args(argv))


def run(arguments: argparse.Namespace) -> int:
    """Run with parsed arguments; returns the exit status."""
    held = arguments.expect or KAFKA
    try:
        known = load(arguments.files) if arguments.files else by_phase(bundled())
        scenarios = selected(known, arguments, held)
        if arguments.only_failed:
            scenarios = read(arguments.only_failed).failed(scenarios)
        done, baseline = _of_before(scenarios, arguments, held)
    except ScenarioError as exc:
        return fail(exc, UNUSABLE, _COMMAND)
    if not scenarios and arguments.only_failed:
        say(f"{arguments.only_failed}: nothing of it failed")
        return PASSED
    if not scenarios:
        return fail("no scenario matches", UNUSABLE, _COMMAND)
    begun, started = time.monotonic(), datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    try:
        session = _session(arguments)
    except (ScenarioFailed, OSError, ValueError) as exc:
        return fail(exc, UNUSABLE, _COMMAND)
    results: list[Result] = [*done.values()]
    fits: list[Fit] = []
    places = {scenario.name: place for place, scenario in enumerate(scenarios)}

    def verdict() -> Verdict:
        seconds = time.monotonic() - begun
        ordered = sorted(merged(results), key=lambda result: places[result.scenario.name])
        return Verdict(arguments.bootstrap, held, started, ordered, seconds, fits)

    def keep(outcomes: Iterable[Result]) -> Iterator[Result]:
        """Before they are printed: an interrupt in between loses none that was seen."""
        for result in outcomes:
            results.append(result)
            yield result

    reports = LiveReports(arguments.report, arguments.report_dir, scenarios, verdict)
    remaining = [scenario for scenario in scenarios if scenario.name not in done] * arguments.repeat
    written: list[Path] = []
    unwritten: OSError | None = None
    try:
        with contextlib.closing(session.outcomes(remaining, held)) as outcomes:
            for _ in _printed(keep(outcomes), len(remaining), times=arguments.times, quiet=arguments.quiet):
                reports.go_on()
        whole = all(result.outcome is not Status.NOT_RUN for result in results)
        if whole and not arguments.expect and not arguments.only_failed:
            wanted = {release: selected(known, arguments, release) for release in RELEASE_EXPECTATIONS}
            fits += _fits(session, Fits(wanted, merged(results), held))
    except OSError as exc:
        unwritten = exc
    finally:
        with uninterrupted():  # a signal that comes now waits: the run must end what it began on the broker
            late = [result for result in session.undelivered if not any(result is kept for kept in results)]
            results += late
            if len(results) < len(done) + len(remaining):  # stdout may have no reader any more
                printed = partial(_lines, times=arguments.times, quiet=arguments.quiet)
                say(*chain.from_iterable(map(printed, late)), f"until then {verdict().summary()}", to=sys.stderr)
            try:
                written = reports.write()
            except OSError as exc:
                unwritten = exc
            if not arguments.keep:
                session.leave_nothing()
    if unwritten:
        return fail(unwritten, UNUSABLE, _COMMAND)
    say(*(f"wrote {path}" for path in written))
    return _conclude(verdict(), baseline, arguments)


def _session(arguments: argparse.Namespace) -> Session:
    """Raises ScenarioFailed for a broker that cannot be used, OSError and ValueError for the file of a login."""
    cluster = ClusterUnderTest(
        arguments.bootstrap,
        timeout=arguments.timeout,
        patience=arguments.until,
        security=read_security(arguments.command_config),
    )
    cluster.versions()
    _get_in(cluster, arguments.command_config)
    options = Options(
        timeout=arguments.timeout,
        patience=arguments.until,
        keep_going=arguments.all,
        verbose=arguments.verbose,
        keep_topics=arguments.keep,
        restart=None if arguments.restart_command is None else _running("restart", arguments.restart_command),
    )
    have = frozenset(arguments.have) | (frozenset() if options.restart is None else {RESTART})
    jobs = 1 if arguments.verbose else arguments.jobs
    return Session(cluster, options, have, jobs, partial(_starting, cluster, arguments.start_command))


def _fits(session: Session, fits: Fits) -> list[Fit]:
    """The releases, the one that fits best first; none where they cannot be told apart."""
    questions = fits.questions() if fits.differ else []
    for expectation in {question.expectation: None for question in questions}:
        by_name = {question.scenario.name: question for question in questions if question.expectation == expectation}
        with contextlib.closing(
            session.outcomes([question.scenario for question in by_name.values()], expectation)
        ) as outcomes:
            for result in outcomes:
                fits.answer(by_name[result.scenario.name], result)
    return fits.best_first() if fits.differ else []


def _conclude(verdict: Verdict, baseline: Earlier | None, arguments: argparse.Namespace) -> int:
    """Print the outcome of the run; returns the exit status."""
    results = verdict.results
    say(*unsteady(results), *verdict.exactly_once())
    if len(verdict.groups()) > 1 and not arguments.quiet:
        say(*verdict.matrix().splitlines())
    say(*(f"one answer stops {counted(number, 'scenario')}: {cause}" for cause, number in verdict.causes()))
    if verdict.count(Status.FAILED) > 1:
        say(verdict.weighed())
    say(*verdict.fit(), verdict.summary(), flush=True)
    if not arguments.quiet:
        say(f"{counted(len(results), 'scenario')} in {verdict.seconds:.1f} s", to=sys.stderr)
    unrun = [result for result in results if result.outcome is Status.NOT_RUN]
    bad = [result for result in results if result.outcome in BAD]
    if baseline:
        since = difference(baseline, results)
        say(*since.lines(arguments.baseline), flush=True)
        unrun, bad = [*since.unrun], [*since.new]
    if unrun:
        return BROKER_DIED
    return FAILED if any(result.fails(Weight(arguments.fail_on)) for result in bad) else PASSED


def _of_before(
    scenarios: Sequence[Scenario], arguments: argparse.Namespace, held: str
) -> tuple[dict[str, Result], Earlier | None]:
    """Results of an earlier run that are kept, and what the run is compared with. Raises ScenarioError."""
    done: dict[str, Result] = {}
    if arguments.resume:
        interrupted = read(arguments.resume)
        if interrupted.expectation != held:
            raise ScenarioError(f"--resume {arguments.resume}: that run was compared with {interrupted.expectation}")
        done = interrupted.results(scenarios)
    return done, read(arguments.baseline) if arguments.baseline else None


def _get_in(cluster: ClusterUnderTest, command_config: str | None) -> None:
    """A broker that wants a login tells its versions, and then closes the connection. Raises ScenarioFailed."""
    try:
        cluster.brokers()
    except ConnectionClosed as error:
        hint = "" if command_config else " (--command-config FILE)"
        raise ScenarioFailed(f"{error}{hint}") from None


def _running(what: str, command: str) -> Callable[[], None]:
    def run_it() -> None:
        # Its output goes where our progress goes; what it leaves running must not hold our output open.
        done = subprocess.run(command, shell=True, stdin=subprocess.DEVNULL, stdout=_STANDARD_ERROR)
        if done.returncode:
            raise ScenarioFailed(f"the {what} command ended with {done.returncode}")

    return run_it


def _starting(cluster: ClusterUnderTest, command: str | None, token: str) -> Start | None:
    if command is None:
        return None
    start = _running("start", command)

    def bring_back() -> None:
        try:
            start()
            cluster.wait_until_up(f"{token}-started")
        except ScenarioFailed as exc:
            fail(exc, UNUSABLE, _COMMAND)
            raise

    return bring_back


def selected(scenarios: Sequence[Scenario], arguments: argparse.Namespace, expectation: str) -> list[Scenario]:
    """The scenarios that the options choose and that are for this expectation. Raises ScenarioError for a name to skip
    that no scenario has."""
    for glob in arguments.skip:
        if not any(fnmatch.fnmatchcase(scenario.name, glob) for scenario in scenarios):
            raise ScenarioError(f"--skip {glob}: no scenario has such a name")
    return [
        scenario
        for scenario in scenarios
        if (not arguments.only or fnmatch.fnmatchcase(scenario.name, arguments.only))
        and (not arguments.select or scenario.labels & set(arguments.select))
        and expectation in scenario.only
        and not scenario.tags & set(arguments.skip_tag)
        and not any(fnmatch.fnmatchcase(scenario.name, glob) for glob in arguments.skip)
    ]


def _printed(results: Iterable[Result], total: int, *, times: bool, quiet: bool) -> Iterator[Result]:
    """Print each result as it comes, and on a terminal how far the run is."""
    progress = None if quiet else ProgressLine(sys.stderr)
    for number, result in enumerate(results, 1):
        if progress:
            progress.clear()
        say(*_lines(result, times=times, quiet=quiet), flush=True)
        if progress:
            progress.say(f"{number}/{total} ")
        yield result
    if progress:
        progress.clear()


def _lines(result: Result, *, times: bool, quiet: bool) -> list[str]:
    """What is printed of a result. quiet: nothing about scenarios that passed, were skipped or are not applicable."""
    if quiet and result.outcome not in (Status.FAILED, Status.NOT_REACHED, Status.NOT_RUN):
        return []
    seconds = f"  [{result.seconds:.1f}s]" if times else ""
    name, why = result.scenario.name, result.why
    match result.outcome:
        case Status.FAILED:
            weight = f" [{result.weight.value}]" if result.weight else ""
            return f"FAIL {name}{weight}: {why}{seconds}".split("\n")  # one a mismatch
        case Status.PASSED:
            return [
                f"ok {name}{seconds}",
                *(f"     lawful: {text}" for text in result.lawful),
                *(f"     noted: {text}" for text in result.noted),
            ]
        case other:
            return [f"{other.value} {name} ({why})"]
