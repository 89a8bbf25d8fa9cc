"""The command `minibroker museum`: bugs of real clients, shown with the script and the program of each."""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from dataclasses import replace

from minibroker.config.types import ConfigError
from minibroker.exit_codes import EXIT_BROKEN, EXIT_HELD, EXIT_SKIPPED, EXIT_UNDECIDED
from minibroker.kernel.arguments import directory, from_1
from minibroker.kernel.words import counted, reason
from minibroker.output import say, write_out
from minibroker.server.service import StartError
from minibroker_lab.judge.files import save_trace
from minibroker_lab.judge.history import HistoryError
from minibroker_lab.judge.lineage import lineage_of
from minibroker_lab.judge.report import BROKEN, HELD, UNDECIDED, Judged, lines
from minibroker_lab.judge.scripts import Script
from minibroker_lab.judge.trial import Task, TryOut, try_out
from minibroker_lab.museum.cases import Case, CaseError, Measured, chosen, find, read_all, save
from minibroker_lab.museum.clients import ClientError, Programs, parse_client, program
from minibroker_lab.museum.matrix import NAME, REPORTS, as_markdown, makers
from minibroker_lab.museum.scoreboard.cells import KAFKA
from minibroker_lab.museum.scoreboard.failures import FAILURES
from minibroker_lab.museum.scoreboard.runs import scoreboard
from minibroker_lab.reports import add_report_arguments, write_reports

_LIST, _SHOW, _RUN, _MATRIX, _SCOREBOARD = "list", "show", "run", "matrix", "scoreboard"
_OPTIONS = {
    _LIST: {"cases"},
    _SHOW: {"cases", "all"},
    _RUN: {"cases", "all", "client", "times", "calm", "matrix", "save", "upstream", "traces"},
    _MATRIX: {"cases", "all", "report", "report_dir"},
    _SCOREBOARD: {"all", "client", "times", "save", "upstream", "traces", "failure", "broker_name", "add"},
}
"""What each of them acts on."""
_OTHER = "broken otherwise"
_KIP = "kip"
_START_SECONDS = 60.0
"""A JVM on a busy machine may take longer to start than a case does."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.description = (
        "Bugs of real clients, each with a small program and the failures that provoke it. Exit status of run: 0 the "
        "rule held in every run, 1 it was broken, 2 it could not be decided, 77 the client's version is not available."
    )
    parser.add_argument(
        "do", nargs="?", choices=(_LIST, _SHOW, _RUN, _MATRIX, _SCOREBOARD), default=_LIST, help="default: list"
    )
    parser.add_argument("case", nargs="*", metavar="CASE", help="ids of cases, names of frameworks")
    parser.add_argument("--all", action="store_true", help="run every case")
    parser.add_argument(
        "--client",
        action="append",
        default=[],
        type=_client,
        metavar="NAME==VERSION",
        help="run with this version; may be repeated (default: the one that shows the bug)",
    )
    parser.add_argument("--times", type=from_1, default=1, metavar="N", help="runs of each (default: %(default)s)")
    parser.add_argument("--calm", action="store_true", help="run without any failure")
    parser.add_argument("--matrix", action="store_true", help="run with every version that the case names")
    parser.add_argument("--save", action="store_true", help="write the rates to rates.json beside the folder of cases")
    parser.add_argument(
        "--cases", metavar="DIR", help="folder of cases (default: museum/cases, else the installed ones)"
    )
    add_report_arguments(parser, NAME, tuple(REPORTS))
    board = parser.add_argument_group("scoreboard", "frameworks under the same failures; without names the table")
    board.add_argument(
        "--failure", action="append", default=[], metavar="NAME", help=f"{', '.join(FAILURES)} (default: all)"
    )
    board.add_argument("--broker-name", metavar="NAME", help=f"what --save calls the cluster of --upstream: {KAFKA!r}")
    board.add_argument("--add", action="store_true", help="with --save: run what a saved cell lacks of --times")
    parser.add_argument(
        "--upstream", metavar="HOST:PORT", help="run on this Kafka, behind a proxy, with the failures a proxy can make"
    )
    parser.add_argument(
        "--traces", type=directory, metavar="DIR", help="write the exchanges of each run, for `minibroker trace view`"
    )


def run(arguments: argparse.Namespace, *, program: Programs = program, try_out: TryOut = try_out) -> int:
    """0 when the rules held, 1 when one was broken, 2 when that could not be decided, 77 when nothing could be run."""
    try:
        _refuse_useless(arguments)
        if arguments.do == _SCOREBOARD:
            return scoreboard(arguments)
        cases = read_all(find(arguments.cases))
        if arguments.do == _RUN and arguments.upstream and arguments.save:
            raise CaseError(
                "--save keeps rates measured on a broker of our own: run without --upstream, or do not save"
            )
        if arguments.do == _LIST:
            return _list(cases)
        wanted = cases if arguments.all else [chosen(cases, name) for name in arguments.case]
        if arguments.do == _MATRIX:
            return _matrix(wanted or cases, arguments)
        if not wanted:
            raise CaseError(f"name a case: minibroker museum {arguments.do} CASE")
        if arguments.do == _SHOW:
            for number, case in enumerate(wanted):
                say(*([""] if number else []), *_shown(case))
            return EXIT_HELD
        codes = set()
        for case in wanted:
            for version, failing in _versions(case, arguments):
                code, measured = _run(case, version, arguments, program, try_out, failing=failing)
                codes.add(code)
                if measured is not None and arguments.save:
                    save(case.folder.parent, case.id, measured)
    except (CaseError, HistoryError, ConfigError, StartError, OSError) as error:
        say(f"minibroker: {reason(error)}", to=sys.stderr)
        return EXIT_UNDECIDED
    return next(code for code in (EXIT_BROKEN, EXIT_UNDECIDED, EXIT_SKIPPED, EXIT_HELD) if code in codes)


def _refuse_useless(arguments: argparse.Namespace) -> None:
    """Raises CaseError for an option or a name that would do nothing."""
    if arguments.case and (arguments.all or arguments.do == _LIST):
        every = "--all is" if arguments.all else "list shows"
        raise CaseError(f"{every} every case: leave out {' '.join(arguments.case)}")
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    for name in sorted({name for names in _OPTIONS.values() for name in names} - _OPTIONS[arguments.do]):
        if getattr(arguments, name) != parser.get_default(name):
            acting = ", ".join(do for do, names in _OPTIONS.items() if name in names)
            raise CaseError(f"--{name.replace('_', '-')} is for {acting}, not for {arguments.do}")


def _client(text: str) -> tuple[str, str]:
    try:
        return parse_client(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _list(cases: list[Case]) -> int:
    width = max(len(case.id) for case in cases)
    for case in cases:
        say(f"{case.id:<{width}}  {case.client} {case.affected}: {case.about}")
    return EXIT_HELD


def _matrix(cases: list[Case], arguments: argparse.Namespace) -> int:
    write_out(as_markdown(cases))
    for path in write_reports(arguments.report, arguments.report_dir, NAME, makers(cases)):
        say(f"wrote {path}", to=sys.stderr)
    return EXIT_HELD


def _shown(case: Case) -> list[str]:
    said = [f"{case.id}: {case.about}", "", *case.happens.strip().splitlines(), ""]
    said += [
        f"thread:    {case.thread}",
        f"affected:  {case.client} {case.affected}",
        f"fixed:     {case.fixed or 'open upstream'}",
        f"rule:      {case.rule}",
        f"failures:  {case.script().about} ({case.folder / case.failures})",
        f"program:   {case.sources[0]}",
    ]
    said += [f"plan:      {', '.join(case.plan)}"] if case.plan else []
    said += [f"settings:  {json.dumps(case.settings)}"] if case.settings else []
    for measured in case.measured:
        calm = "" if measured.failures else ", without failures"
        said.append(f"measured:  {measured.rate} on {case.client} {measured.version}{calm}, {measured.date}")
    return said


def _versions(case: Case, arguments: argparse.Namespace) -> list[tuple[str, bool]]:
    """Versions to run, each with whether something fails."""
    for name, _ in arguments.client:
        if name != case.client:
            raise CaseError(f"the case {case.id} is about {case.client}, not {name}")
    if arguments.matrix:
        return case.column
    return [(version, not arguments.calm) for _, version in arguments.client] or [(case.shown_on, not arguments.calm)]


def _run(
    case: Case, version: str, arguments: argparse.Namespace, program: Programs, try_out: TryOut, *, failing: bool
) -> tuple[int, Measured | None]:
    times = arguments.times
    what = f"{case.id} on {case.client} {version}{'' if failing else ' without failures'}"
    release, _, broker = version.partition("@")
    if broker:
        option = "semantics" if broker == _KIP else "as_version"
        case = replace(case, broker={**case.broker, option: broker})
    if arguments.upstream and (case.broker or case.config):
        say(f"{what}: SKIPPED: it needs {', '.join({**case.broker, **case.config})} of a broker of our own")
        return EXIT_SKIPPED, None
    try:
        with program(case.client, release, case.sources) as command:
            outcomes = _outcomes(case, case.command(command), what, arguments, try_out, failing=failing)
    except ClientError as error:
        say(f"{what}: SKIPPED: {error}")
        return EXIT_SKIPPED, None
    shown = outcomes.count(BROKEN)
    say(f"{what}: {case.rule} in {shown} of {counted(times, 'run')}", flush=True)
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    code = EXIT_BROKEN if shown else EXIT_HELD if set(outcomes) == {HELD} else EXIT_UNDECIDED
    undecided = outcomes.count(UNDECIDED)
    return code, None if undecided else Measured(version, times, shown, date, failing)


def _outcomes(
    case: Case, command: list[str], what: str, arguments: argparse.Namespace, try_out: TryOut, *, failing: bool
) -> list[str]:
    times = arguments.times
    script = case.script() if failing else Script("calm", "Nothing fails.", ())
    broker = {**case.broker, "topics": case.topics}
    lineage = [lineage_of(text, "value") for text in case.lineage]
    upstream = arguments.upstream or ""
    task = Task(command, case.timeout, broker, case.config, lineage=lineage, start=_START_SECONDS, upstream=upstream)
    outcomes: list[str] = []
    for number in range(1, times + 1):
        judged = try_out(task, script, f"{what} ({number} of {times})")
        outcomes.append(outcome(case, judged))
        save_trace(judged, arguments.traces, trace_name(what, number))
        if outcomes[-1] != HELD and outcomes.count(outcomes[-1]) == 1:
            say(*(f"  {line}" for line in lines(judged)))
        detail = judged.doubt if outcomes[-1] == UNDECIDED else f"{judged.run.seconds:.1f} s"
        say(f"{what}: run {number}: {outcomes[-1]} ({detail})", flush=True)
    return outcomes


def trace_name(what: str, number: int) -> str:
    """Name of a file: that of a client may have a slash in it (@platformatic/kafka)."""
    return f"{what} {number}".replace(" ", "-").replace("/", "-")


def outcome(case: Case, judged: Judged) -> str:
    """`BROKEN` when the rule of the case was; another rule decides nothing about this bug, nor does a program that did
    not return."""
    if judged.run.status is None:
        return UNDECIDED
    if case.rule in {promise.finding.rule for promise in judged.broken}:
        return BROKEN
    return _OTHER if judged.broken else judged.outcome
