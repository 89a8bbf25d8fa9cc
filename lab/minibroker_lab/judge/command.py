"""The command `minibroker judge`: a broker, failures, the user's command, and whether exactly-once held."""

from __future__ import annotations

import argparse
import datetime
import itertools
import math
import shlex
import sys
import time
from dataclasses import replace

from minibroker.client.connection import servers
from minibroker.client.security import add_command_config
from minibroker.config.settings import parse_assignment
from minibroker.config.types import ConfigError
from minibroker.exit_codes import EXIT_BROKEN, EXIT_HELD, EXIT_UNDECIDED, EXIT_UNMET
from minibroker.kernel.arguments import directory, duration, from_1
from minibroker.kernel.words import reason
from minibroker.output import say
from minibroker.rules.lineage_keys import HOW
from minibroker.server.options import parse_topic
from minibroker.server.service import StartError
from minibroker_lab.judge.draw import footprint, kills
from minibroker_lab.judge.files import NAME, makers, save_trace
from minibroker_lab.judge.history import HistoryError
from minibroker_lab.judge.kip890 import NO, YES, answer, late_scripts
from minibroker_lab.judge.kip890 import table as late_table
from minibroker_lab.judge.lineage import lineage_of
from minibroker_lab.judge.readers import TOPIC, judge_readers
from minibroker_lab.judge.report import (
    BROKEN,
    HELD,
    NOT_APPLICABLE,
    UNDECIDED,
    Judged,
    Met,
    coverage,
    failures_met,
    lines,
    unmet,
)
from minibroker_lab.judge.scripts import Script, ScriptError, bundled, load
from minibroker_lab.judge.search import Search
from minibroker_lab.judge.trial import Task, TryOut, try_out
from minibroker_lab.reports import add_report_arguments, write_reports

ALL = "all"
KIP890 = "kip890"
_TIMEOUT_SECONDS = 180.0
_MINUTES = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.description = (
        "Run COMMAND with BOOTSTRAP_SERVERS naming a broker on which a script of failures acts, and judge whether "
        "exactly-once held. Exit status: 0 it held, 1 it was broken, 2 it could not be decided, 4 it held, but an API "
        "that the command uses for it met no failure."
    )
    parser.add_argument(
        "--script",
        action="append",
        default=[],
        metavar="NAME|FILE",
        help=f"failures: {', '.join(bundled())}, all of these (all), or a .toml file; may be repeated (default: calm)",
    )
    parser.add_argument(
        "--kills",
        action="store_true",
        help="kill and restart the command at each request of its exactly-once path: before it is applied, and after",
    )
    parser.add_argument(
        "--preset", choices=[KIP890], help="kip890: whether a late request acts on the next transaction of the command"
    )
    parser.add_argument(
        "--readers",
        action="store_true",
        help=f"whether a consumer prints OFFSET VALUE of the records that read_committed promises of the topic {TOPIC}",
    )
    parser.add_argument(
        "--history", metavar="FILE", help="the client's history, as JSON lines (default: $MINIBROKER_HISTORY)"
    )
    parser.add_argument(
        "--lineage",
        action="append",
        default=[],
        metavar="IN=OUT",
        help="check that each committed record of topic IN is in topic OUT once",
    )
    parser.add_argument(
        "--lineage-key",
        default="value",
        metavar="HOW",
        help=f"what an output record has of its input record: {HOW} (default: %(default)s)",
    )
    parser.add_argument(
        "--upstream",
        type=servers,
        metavar="HOST:PORT[,…]",
        help="run against this cluster, through a proxy in which the failures act (default: a new broker for each run)",
    )
    add_command_config(parser)
    parser.add_argument("--semantics", default="kafka", metavar="NAME", help="kafka (default) or kip")
    parser.add_argument("--topic", action="append", default=[], metavar="NAME:PARTITIONS", help="create this topic")
    parser.add_argument("-c", "--config", action="append", default=[], metavar="KEY=VALUE", help="a broker setting")
    parser.add_argument(
        "--timeout",
        type=duration,
        default=_TIMEOUT_SECONDS,
        metavar="S",
        help="maximum time of the command (default: %(default)g s)",
    )
    parser.add_argument(
        "--repeat", type=from_1, default=1, metavar="N", help="runs of each script, with a rate (default: %(default)s)"
    )
    parser.add_argument("--any-exit", action="store_true", help="accept any exit status of the command")
    parser.add_argument("--allow-unmet", action="store_true", help="exit with 0 instead of 4")
    add_report_arguments(parser, NAME)
    parser.add_argument(
        "--traces", type=directory, metavar="DIR", help="write the exchanges of each run, for `minibroker trace view`"
    )
    search = parser.add_argument_group("search", "random scripts, one a run, instead of --script")
    search.add_argument(
        "--search", action="store_true", help="look for a script that breaks exactly-once, and make it smaller"
    )
    search.add_argument(
        "--minutes", type=duration, metavar="N", help=f"time (default: {_MINUTES:g}, or no end with --runs)"
    )
    search.add_argument("--runs", type=from_1, metavar="N", help="scripts to draw")
    search.add_argument("--seed", type=int, default=1, metavar="S", help="of the first script (default: %(default)s)")
    search.add_argument(
        "--found", type=directory, default=directory("."), metavar="DIR", help="where scripts are written (.)"
    )
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="after --: the command and its arguments")


def run(arguments: argparse.Namespace, *, try_out: TryOut = try_out) -> int:
    """0 when exactly-once held under every script that applies, 1 when it was broken, 2 when that could not be
    decided, 4 when an API of the exactly-once path met no failure."""
    verdicts: list[Judged] = []
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    try:
        _check_upstream(arguments)
        if arguments.readers:
            return _readers(arguments)
        if arguments.search:
            return _search(arguments, started, try_out)
        if arguments.minutes or arguments.runs:
            raise ScriptError("--minutes and --runs go with --search")
        scripts = [load(name) for name in _names(arguments.script, calm=not (arguments.kills or arguments.preset))]
        task = _task(arguments)
        if arguments.kills or arguments.preset:
            calm = try_out(task, load("calm"), "calm").run.exchanges
            scripts += kills(footprint(calm)) if arguments.kills else []
            scripts += late_scripts(calm) if arguments.preset else []
            if not scripts:
                raise ScriptError("the command sends no request that could be late, or made to fail")
        runs = [_run_of(script, number, arguments.repeat) for script in scripts for number in range(arguments.repeat)]
        for number, script in enumerate(runs, 1):
            verdicts.append(try_out(task, script, f"{script.name} ({number} of {len(runs)})"))
            say(*lines(verdicts[-1]), flush=True)
            save_trace(verdicts[-1], arguments.traces, script.name)
            if not verdicts[-1].run.exchanges and not verdicts[-1].run.misfit:
                break  # no other script would find more
        _report(arguments, verdicts, started)
    except (ScriptError, HistoryError, ConfigError, StartError, OSError) as error:
        say(f"minibroker: {reason(error)}", to=sys.stderr)
        return EXIT_UNDECIDED
    outcomes = [judged.outcome for judged in verdicts]
    if arguments.preset:
        return _late(verdicts, outcomes)
    met = failures_met(judged.run for judged in verdicts)
    if len(verdicts) > 1 or HELD in outcomes:
        say(coverage(met))
    if len(verdicts) > 1:
        say(*_rates([script.name for script in scripts], outcomes, arguments.repeat))
    if BROKEN in outcomes:
        return EXIT_BROKEN
    return _held(arguments, met) if HELD in outcomes and UNDECIDED not in outcomes else EXIT_UNDECIDED


def _check_upstream(arguments: argparse.Namespace) -> None:
    """Raises ScriptError for options of minibroker's own broker beside --upstream."""
    ours = [
        option
        for option, is_set in (
            ("--readers", arguments.readers),
            ("--semantics", arguments.semantics != "kafka"),
            ("--config", arguments.config),
        )
        if is_set
    ]
    if arguments.upstream and ours:
        raise ScriptError(f"{ours[0]} is for a broker of our own: leave it out, or --upstream")
    if arguments.command_config and not arguments.upstream:
        raise ScriptError("--command-config is for the cluster of --upstream, which is missing")


def _readers(arguments: argparse.Namespace) -> int:
    """A consumer on topics that are there."""
    options = vars(arguments)
    others = (
        "script",
        "kills",
        "preset",
        "history",
        "lineage",
        "topic",
        "report",
        "traces",
        "search",
        "minutes",
        "runs",
    )
    ignored = {"repeat": 1, "semantics": "kafka", "lineage_key": "value", "any_exit": False, "allow_unmet": False}
    for name, default in {**dict.fromkeys(others), **ignored}.items():
        if options[name] and options[name] != default:
            option = name.replace("_", "-")
            raise ScriptError(f"--readers has topics of its own, and no failures: leave out --{option}")
    config = dict(parse_assignment(text) for text in arguments.config)
    return judge_readers(arguments.command, arguments.timeout, config)


def _late(verdicts: list[Judged], outcomes: list[str]) -> int:
    """Answer the question of the preset `late`. That is the result where no rule was visibly broken."""
    answers = [(judged.run.script.name.rstrip("-0123456789"), answer(judged)) for judged in verdicts]
    say(*late_table(answers))
    said = [answered.said for _, answered in answers]
    if YES in said or BROKEN in outcomes:
        return EXIT_BROKEN
    return EXIT_HELD if NO in said else EXIT_UNDECIDED


def _held(arguments: argparse.Namespace, met: Met) -> int:
    return EXIT_UNMET if unmet(met) and not arguments.allow_unmet else EXIT_HELD


def _report(arguments: argparse.Namespace, verdicts: list[Judged], started: str) -> None:
    made = makers(verdicts, shlex.join(arguments.command), started)
    for path in write_reports(arguments.report, arguments.report_dir, NAME, made):
        say(f"wrote {path}")


def _search(arguments: argparse.Namespace, started: str, try_out: TryOut) -> int:
    """Random scripts until the time is up; the reports and traces are of the smallest that broke something."""
    if arguments.script or arguments.kills or arguments.preset:
        raise ScriptError("--search draws its scripts: leave out --script, --kills and --preset")
    minutes = arguments.minutes or (math.inf if arguments.runs else _MINUTES)
    end = time.monotonic() + minutes * 60
    task = _task(arguments)
    search = Search(
        lambda script: try_out(task, script, script.name),
        arguments.repeat,
        lambda: time.monotonic() >= end,
        arguments.found,
    )
    calm = search.calm()
    if calm.outcome != HELD:
        say(*lines(calm))
        return EXIT_BROKEN if calm.outcome == BROKEN else EXIT_UNDECIDED
    seen = footprint(calm.run.exchanges)
    if not seen.versions:
        raise ScriptError("the command sends no request that a search can make fail")
    seeds = itertools.count(arguments.seed)
    try:
        search.run(itertools.islice(seeds, arguments.runs), seen)
    finally:
        say(coverage(search.met), *search.table(), flush=True)
    for broken in search.broken_scripts:
        save_trace(broken.judged, arguments.traces, broken.name)
    _report(arguments, [broken.judged for broken in search.broken_scripts], started)
    return EXIT_BROKEN if search.broken_scripts else _held(arguments, search.met) if search.held else EXIT_UNDECIDED


def _run_of(script: Script, number: int, repeat: int) -> Script:
    return replace(script, name=f"{script.name}-{number + 1}") if repeat > 1 else script


def _rates(names: list[str], outcomes: list[str], repeat: int) -> list[str]:
    """With several runs a line for each script with its rate; then how often each outcome was."""
    lines = []
    if repeat > 1:
        width = max(map(len, names))
        for at, name in enumerate(names):
            own = outcomes[at * repeat : (at + 1) * repeat]
            rates = [f"{said} {own.count(said)} of {len(own)}" for said in dict.fromkeys(own)]
            lines += [f"{name:<{width}}  {', '.join(rates)}"] if own else []
    totals = [HELD, BROKEN, UNDECIDED, *([NOT_APPLICABLE] if NOT_APPLICABLE in outcomes else [])]
    return [*lines, ", ".join(f"{outcomes.count(said)} {said}" for said in totals)]


def _names(scripts: list[str], *, calm: bool) -> list[str]:
    names = scripts or (["calm"] if calm else [])
    return [script for name in names for script in (bundled() if name == ALL else [name])]


def _task(arguments: argparse.Namespace) -> Task:
    broker = {"semantics": arguments.semantics, "topics": dict(parse_topic(text) for text in arguments.topic)}
    # The run without failures counts the requests that faults are then aimed at. Retries after such answers would be
    # counted too, and their number varies.
    config = {"minibroker.not.yet.answers": "false"} if arguments.preset or arguments.search else {}
    config |= dict(parse_assignment(text) for text in arguments.config)
    try:
        lineage = [lineage_of(text, arguments.lineage_key) for text in arguments.lineage]
    except ValueError as error:
        raise ScriptError(str(error)) from None
    return Task(
        arguments.command,
        arguments.timeout,
        broker,
        config,
        arguments.history,
        lineage,
        any_status=arguments.any_exit,
        upstream=arguments.upstream or "",
        command_config=arguments.command_config,
    )
