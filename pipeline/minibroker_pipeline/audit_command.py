"""`minibroker audit`: arguments, the choice of an engine, and the output."""

from __future__ import annotations

import argparse
import re
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from minibroker.exit_codes import EXIT_OK
from minibroker.kernel.arguments import from_1
from minibroker.kernel.extras import hint, hint_for, missing
from minibroker.kernel.words import fail
from minibroker.output import say, write_out
from minibroker.rules.scan import DEPTHS, RECORDS
from minibroker.rules.txn_rules import DEFAULT_TIMEOUT_MS
from minibroker_protocol.errors import Malformed

if TYPE_CHECKING:
    from minibroker_pipeline.plan import Plan
    from minibroker_pipeline.report import Audit

COULD_NOT_RUN = 2
SMALL_BYTES = 1 << 30
"""Up to this is audited in the process itself unless Spark is asked for: starting Spark would take longer."""
WITHOUT_SPARK_BYTES = 4 << 30
"""And this where Spark is not installed: a minute or two, and memory for what its producers and transactions are."""
HERE, SPARK = "here", "spark"
ENGINES = ("auto", SPARK, HERE)
_KEY = "key"
_GOES_WITH = {
    "follow": "bootstrap",
    "metrics": "follow",
    "checkpoint": "follow",
    "command_config": "bootstrap",
    "group": "lineage",
    "lineage_key": "lineage",
    "no_batches": "out",
}
"""Options that would do nothing without the other."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to `parser`."""
    parser.add_argument("path", nargs="?", help="data directory, a directory of such, or a URI of one (s3://…)")
    parser.add_argument("--bootstrap", metavar="HOST:PORT", help="read the topics of a running cluster instead")
    parser.add_argument("--command-config", metavar="FILE", help="with --bootstrap: client properties (TLS, login)")
    parser.add_argument(
        "--timeout-ms", metavar="MS", type=int, help="with --bootstrap: how long to wait for a busy cluster (60000)"
    )
    parser.add_argument("--follow", action="store_true", help="with --bootstrap: keep reading new records")
    parser.add_argument("--metrics", metavar="HOST:PORT", help="with --follow: serve the findings for Prometheus")
    parser.add_argument(
        "--checkpoint", metavar="FILE", help="with --follow: where it stands; a new start goes on there"
    )
    parser.add_argument("--topic", action="append", default=[], help="only this topic (may be repeated)")
    parser.add_argument("--partition", action="append", default=[], type=int, help="only this partition")
    parser.add_argument(
        "--compacted", action="append", default=[], metavar="TOPIC", help="compacted topic: batches may be missing"
    )
    parser.add_argument("--depth", choices=DEPTHS, default=RECORDS, help="how much of each batch is read (%(default)s)")
    parser.add_argument("--as-of", metavar="TIME", help="time of the data: now, ms since 1970, or ISO 8601")
    parser.add_argument("--max-timeout-ms", type=from_1, default=DEFAULT_TIMEOUT_MS, help="transaction.max.timeout.ms")
    parser.add_argument("--content", action="store_true", help="look for records written again after an epoch bump")
    parser.add_argument(
        "--lineage",
        action="append",
        default=[],
        metavar="IN[,IN]=OUT[,OUT]",
        help="topics of a consume-process-produce loop (may be repeated)",
    )
    parser.add_argument(
        "--lineage-key",
        default=_KEY,
        metavar="HOW",
        help="key, value, header:NAME, field:NAME, or position: and one of the last two",
    )
    parser.add_argument("--group", help="with --lineage: only input that this group has consumed")
    parser.add_argument("--out", metavar="DIR", help="write Parquet tables, summary.json and report.html there")
    parser.add_argument("--no-batches", action="store_true", help="leave out the table of batches, the largest")
    parser.add_argument("--json", metavar="FILE", help="write the summary (- is stdout)")
    parser.add_argument("--html", metavar="FILE", help="write the report")
    parser.add_argument("--engine", choices=ENGINES, default="auto", help="auto: small data needs no Spark")
    parser.add_argument("--master", help="Spark master, as for spark-submit; default local[*]")
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="Spark setting")
    parser.add_argument("--show", metavar="TOPIC-PARTITION[@FROM-TO]", help="print these batches and nothing else")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def run(arguments: argparse.Namespace) -> int:
    """Exit status. 0: no broken promise found; 1: some found; 2: could not run (one line on stderr gives the
    reason)."""
    if absent := missing(("numpy", "pyarrow")):
        return _refuse(hint("the audit", *absent))
    try:
        return _run(arguments)
    except ImportError as error:
        said = hint_for("the audit", error)
        if said is None:
            raise
        return _refuse(said)
    except _expected() as error:
        return _refuse(error)
    except Exception as error:
        if not type(error).__module__.startswith(("py4j", "pyspark")):
            raise
        return _refuse(_cause(str(error)) or f"{type(error).__name__}: {error}")


def _expected() -> tuple[type[Exception], ...]:
    from minibroker_pipeline.files import NotReadable
    from minibroker_pipeline.java import NoJava

    return NotReadable, NoJava, Malformed, OSError, ValueError


def _cause(text: str) -> str:
    """The Python error of a worker, extracted from Spark's message; empty if there was none."""
    raised = re.findall(
        r"^(?:[A-Za-z_][\w.]*\.)?([A-Z]\w*(?:Error|Readable|Malformed|Exception): .+)$", text, re.MULTILINE
    )
    return f"a worker failed: {raised[0]}" if raised else ""


def _refuse(why: object) -> int:
    return fail(why, COULD_NOT_RUN, "minibroker audit")


def _run(arguments: argparse.Namespace) -> int:
    from minibroker_pipeline.folder import Folder

    if (arguments.path is None) == (arguments.bootstrap is None):
        raise ValueError("give a PATH or --bootstrap HOST:PORT, one of them")
    _refuse_useless(arguments)
    if arguments.follow and any((arguments.out, arguments.json, arguments.html, arguments.lineage, arguments.content)):
        others = "--out, --json, --html, --lineage and --content"
        raise ValueError(f"--follow prints findings as they come; {others} do not go with it")
    if arguments.follow and (arguments.engine == SPARK or arguments.master is not None):
        raise ValueError(
            "--follow runs in this process only: a round judges what is new beside what earlier rounds have kept, and "
            "Spark keeps nothing between rounds"
        )
    if arguments.metrics is not None and missing(["prometheus_client"]):
        raise ValueError(hint("--metrics", "prometheus_client"))
    if arguments.timeout_ms is not None and (arguments.bootstrap is None or arguments.timeout_ms < 1):
        raise ValueError("--timeout-ms goes with --bootstrap, and is 1 or more")
    for uri in (arguments.json, arguments.html):
        if uri is not None:
            Folder(uri).check()
    spark = _Session(arguments)
    try:
        return _with_plan(arguments, plan_of(arguments, spark), spark)
    finally:
        spark.stop()


def _refuse_useless(arguments: argparse.Namespace) -> None:
    """Raises ValueError for an option that would do nothing."""
    for name, needed in _GOES_WITH.items():
        unset = _KEY if name == "lineage_key" else None
        if getattr(arguments, name) not in (unset, False) and not getattr(arguments, needed):
            raise ValueError(f"--{name.replace('_', '-')} goes with --{needed}")
    if arguments.engine == HERE and (arguments.master is not None or arguments.conf):
        raise ValueError("--master and --conf are for Spark: leave them out, or --engine here")


def _with_plan(arguments: argparse.Namespace, plan: Plan, spark: _Session) -> int:
    if arguments.show:
        from minibroker_pipeline.show import show

        for line in show(plan, arguments.show):
            say(line)
        return EXIT_OK
    if arguments.follow:
        from minibroker_pipeline.follow import follow

        # Before the checkpoint says that a line was told, it has left the process.
        return follow(plan, arguments, partial(say, flush=True))
    audit = audit_path(plan, arguments, spark)
    _write(audit, arguments)
    return audit.exit_code


class _Session:
    """The Spark of a run, opened when it is needed."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._opened: tuple[Any, str] | None = None

    def opened(self) -> tuple[Any, str]:
        """(session, which Java it has). Raises NoJava and ValueError."""
        if self._opened is None:
            from minibroker_pipeline.session import open_session

            self._opened = open_session(self._arguments.master, self._arguments.conf)
        return self._opened

    def stop(self) -> None:
        if self._opened is not None:
            self._opened[0].stop()
            self._opened = None


def plan_of(arguments: argparse.Namespace, spark: _Session | None = None) -> Plan:
    """The plan for a PATH or a cluster.

    spark: lists many partitions where it was asked for.

    Raises NotReadable and ValueError.
    """
    from minibroker.client.security import read_security
    from minibroker_pipeline.engine import spread_on
    from minibroker_pipeline.folder import Folder
    from minibroker_pipeline.planning import as_of, plan_for

    return plan_for(
        arguments.path,
        bootstrap=arguments.bootstrap,
        security=read_security(arguments.command_config),
        settings_file=arguments.command_config,
        timeout_ms=arguments.timeout_ms,
        topics=arguments.topic,
        partitions=arguments.partition,
        compacted=arguments.compacted,
        lineage=arguments.lineage,
        lineage_key=arguments.lineage_key,
        group=arguments.group,
        spread=spread_on(lambda: spark.opened()[0]) if spark is not None and _spark_asked(arguments) else map,
        depth=arguments.depth,
        as_of_ms=as_of(arguments.as_of),
        max_timeout_ms=arguments.max_timeout_ms,
        out=None if arguments.out is None else Folder(arguments.out).check(),
        batches=not arguments.no_batches,
        content=arguments.content,
    )


def audit_path(plan: Plan, arguments: argparse.Namespace, session: _Session | None = None) -> Audit:
    """Runs the plan on the engine that was asked for or fits."""
    from minibroker_pipeline.engine import SparkAudit, audit_here, result

    bar = _Bar(not arguments.quiet and sys.stderr.isatty())
    if engine_for(plan.bytes, arguments) == HERE:
        started = time.monotonic()
        outcome = audit_here(plan, bar.show)
        bar.end()
        return result(plan, outcome, time.monotonic() - started, "in this process")
    session = session or _Session(arguments)
    spark, java = session.opened()
    try:
        started = time.monotonic()
        outcome = SparkAudit(spark, plan, bar.show).run()
        bar.end()
        engine = f"Spark {spark.version}, {spark.sparkContext.master}, {java}"
        return result(plan, outcome, time.monotonic() - started, engine)
    finally:
        session.stop()


def _spark_asked(arguments: argparse.Namespace) -> bool:
    from minibroker_pipeline.session import submitted

    on_spark = arguments.engine == SPARK or arguments.master is not None or submitted()
    return on_spark and arguments.engine != HERE and not missing(("pyspark", "pandas"))


def engine_for(size: int, arguments: argparse.Namespace) -> str:
    """The engine for so many bytes: Spark when asked for, or for much data. Raises ValueError, which names every
    missing package."""
    from minibroker_pipeline.session import submitted

    on_spark = arguments.engine == SPARK or arguments.master is not None or submitted()
    if arguments.engine == HERE or (not on_spark and (size <= SMALL_BYTES or arguments.bootstrap is not None)):
        return HERE
    absent = missing(("pyspark", "pandas"))
    if not absent:
        return SPARK
    if on_spark:
        raise ValueError(hint("an audit on Spark", *absent))
    if size <= WITHOUT_SPARK_BYTES:
        return HERE
    raise ValueError(f"{hint(f'an audit of {size / 1e9:,.1f} GB', *absent)} (or --engine here: slower, in one process)")


def _write(audit: Audit, arguments: argparse.Namespace) -> None:
    from minibroker_pipeline.folder import Folder, write_file
    from minibroker_pipeline.report import lines, page, summary_text

    if arguments.out is not None:
        out = Folder(arguments.out)
        out.write_text("summary.json", summary_text(audit))
        out.write_text("report.html", page(audit))
    if arguments.html is not None:
        write_file(arguments.html, page(audit))
    if arguments.json not in (None, "-"):
        write_file(arguments.json, summary_text(audit))
    if arguments.json == "-":
        write_out(summary_text(audit))
        return
    say(*lines(audit))


class _Bar:
    """A progress bar on stderr: bytes read of bytes in all."""

    WIDTH = 40

    def __init__(self, shown: bool) -> None:
        self._shown = shown
        self._drawn = False
        self._started = time.monotonic()

    def show(self, done: int, total: int) -> None:
        if not self._shown:
            return
        self._drawn = True
        share = done / total if total else 1.0
        filled = "#" * int(share * self.WIDTH)
        rate = done / 1e6 / max(time.monotonic() - self._started, 1e-3)
        line = f"\r[{filled:<{self.WIDTH}}] {share:4.0%} of {total / 1e6:,.0f} MB, {rate:,.0f} MB/s "
        sys.stderr.write(line)
        sys.stderr.flush()

    def end(self) -> None:
        if self._drawn:
            say("", to=sys.stderr)
