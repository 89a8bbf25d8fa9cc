"""The command `minibroker judge`: a broker, failures, the user's command, and whether exactly-once held."""

from __future__ import annotations

import argparse
import datetime
import shlex
import sys

from minibroker.config.settings import parse_assignment
from minibroker.config.types import ConfigError
from minibroker.judge.files import NAME, makers
from minibroker.judge.history import HistoryError
from minibroker.judge.report import BROKEN, HELD, UNDECIDED, Judged, lines
from minibroker.judge.scripts import ScriptError, bundled, load
from minibroker.judge.trial import Task, try_out
from minibroker.kernel.words import reason
from minibroker.server.options import parse_topic
from minibroker.server.service import StartError
from minibroker.testing.reports import add_report_arguments, write_reports

EXIT_HELD, EXIT_BROKEN, EXIT_UNDECIDED = 0, 1, 2
ALL = "all"
_TIMEOUT_SECONDS = 120.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.description = (
        "Run COMMAND with BOOTSTRAP_SERVERS naming a new broker on which a script of failures acts, and judge whether "
        "exactly-once held. Exit status: 0 it held, 1 it was broken, 2 it could not be decided."
    )
    parser.add_argument(
        "--script",
        action="append",
        default=[],
        metavar="NAME|FILE",
        help=f"failures: {', '.join(bundled())}, all of these (all), or a .toml file; may be repeated (default: calm)",
    )
    parser.add_argument(
        "--history", metavar="FILE", help="the client's history, as JSON lines (default: $MINIBROKER_HISTORY)"
    )
    parser.add_argument(
        "--lineage",
        action="append",
        default=[],
        metavar="IN=OUT",
        help="check that each committed record of topic IN is in topic OUT once, by its value",
    )
    parser.add_argument("--semantics", default="kafka", metavar="NAME", help="kafka (default) or kip")
    parser.add_argument("--topic", action="append", default=[], metavar="NAME:PARTITIONS", help="create this topic")
    parser.add_argument("-c", "--config", action="append", default=[], metavar="KEY=VALUE", help="a broker setting")
    parser.add_argument(
        "--timeout",
        type=float,
        default=_TIMEOUT_SECONDS,
        metavar="S",
        help="maximum time of the command (default: %(default)g s)",
    )
    parser.add_argument("--any-exit", action="store_true", help="accept any exit status of the command")
    add_report_arguments(parser, NAME)
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="after --: the command and its arguments")


def run(arguments: argparse.Namespace) -> int:
    """0 when exactly-once held under every script, 1 when it was broken, 2 when that could not be decided."""
    verdicts: list[Judged] = []
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    try:
        scripts = [load(name) for name in _names(arguments.script)]
        task = _task(arguments)
        for number, script in enumerate(scripts, 1):
            verdicts.append(try_out(task, script, f"{script.name} ({number} of {len(scripts)})"))
            print("\n".join(lines(verdicts[-1])), flush=True)
            if not verdicts[-1].run.exchanges:
                break  # no other script would find more
        made = makers(verdicts, shlex.join(arguments.command), started)
        for path in write_reports(arguments.report, arguments.report_dir, NAME, made):
            print(f"wrote {path}")
    except (ScriptError, HistoryError, ConfigError, StartError, OSError) as error:
        print(f"minibroker: {reason(error)}", file=sys.stderr)
        return EXIT_UNDECIDED
    outcomes = {one.outcome for one in verdicts}
    if len(verdicts) > 1:
        print(", ".join(f"{sum(one.outcome == said for one in verdicts)} {said}" for said in (HELD, BROKEN, UNDECIDED)))
    return EXIT_BROKEN if BROKEN in outcomes else EXIT_HELD if outcomes == {HELD} else EXIT_UNDECIDED


def _names(given: list[str]) -> list[str]:
    names = given or ["calm"]
    return [one for name in names for one in (bundled() if name == ALL else [name])]


def _task(arguments: argparse.Namespace) -> Task:
    broker = {"semantics": arguments.semantics, "topics": dict(parse_topic(text) for text in arguments.topic)}
    config = dict(parse_assignment(text) for text in arguments.config)
    lineage = [_lineage(text) for text in arguments.lineage]
    return Task(
        arguments.command, arguments.timeout, broker, config, arguments.history, lineage, any_status=arguments.any_exit
    )


def _lineage(text: str) -> tuple[str, str]:
    source, equals, target = text.partition("=")
    if not equals or not source or not target:
        raise ScriptError(f"expected IN=OUT, got {text!r}")
    return source, target
