"""`minibroker audit --bootstrap … --follow`: reads new records and reports each finding once, until it is interrupted.

`--metrics` serves the current findings, for alerts.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

from minibroker.client.topics import Position
from minibroker.config.types import configured_address
from minibroker.kernel.addresses import format_address
from minibroker.output import say
from minibroker.rules.catalogue import ERROR
from minibroker.rules.rows import Finding, Log, LogFacts, Marker, Run, Span
from minibroker.rules.runs import merge_runs, merge_spans
from minibroker_pipeline.engine import judge_rows
from minibroker_pipeline.files import NotReadable
from minibroker_pipeline.follow_metrics import Figures
from minibroker_pipeline.plan import Plan, read_parts
from minibroker_pipeline.report import finding_lines
from minibroker_pipeline.topics import Seen, Topics

POLL_SECONDS = 1.0


class FollowingAudit:
    """Keeps the collapsed rows of everything read, and judges them again after each round. `--as-of` is the time when
    it begins; it goes on with this machine's clock."""

    def __init__(self, plan: Plan, arguments: argparse.Namespace) -> None:
        assert isinstance(plan.files, Topics)
        self._topics = plan.files
        self._plan = plan
        self._arguments = arguments
        self._facts: dict[Log, LogFacts] = {fact.log: fact for fact in plan.facts}
        self._rows: list[Any] = []
        self._seen: dict[Log, Seen] = {}
        self._told: set[tuple[Any, ...]] = set()
        self.figures = Figures()
        self.errors = 0
        self._ahead_ms = 0 if plan.as_of_ms is None else plan.as_of_ms - _now_ms()

    def round(self) -> list[Finding]:
        """Reads new records and returns the new findings. Raises NotReadable; what was read before the error is
        kept."""
        figures, started = self.figures, time.monotonic()
        for part, read in read_parts(self._plan, 0, self._plan.parts):
            self._rows += read.rows
            if (span := part.span) is not None:
                self._seen[part.facts.log] = Seen(span.topic_id, Position(span.stop, span.leader_epoch))
            figures.records += read.records
            figures.bytes += read.bytes
        self._rows = _collapsed(self._rows, self._facts)
        now_ms = _now_ms() + self._ahead_ms
        judged = replace(self._plan, facts=tuple(self._facts.values()), as_of_ms=now_ms)
        present, transactions, *_ = judge_rows(judged, self._rows)
        found = []
        for one in present:
            identity = one.rule, one.log, one.producer_id, one.first_offset
            if identity not in self._told:
                self._told.add(identity)
                found.append(one)
        self.errors += sum(one.severity == ERROR for one in found)
        figures.judged(present, transactions)
        figures.found.update((one.rule, one.severity) for one in found)
        figures.rounds += 1
        figures.now_ms, figures.seconds = now_ms, time.monotonic() - started
        return found

    def look(self) -> list[str]:
        """List the records that have arrived since the last round. Returns a line for each log of which the rows read
        before no longer count. Raises NotReadable."""
        chosen = self._arguments
        self._plan = replace(self._plan, parts=(), out=None)  # read once, also when an error follows
        listed, anew = self._topics.news(chosen.topic, chosen.partition, chosen.compacted, self._seen)
        deleted = self._facts.keys() - {fact.log for fact in listed.facts}
        said = [f"notice: {log}: {reason}; it is judged anew from its start" for log, reason in sorted(anew.items())]
        said += [f"notice: {log} is not in the cluster any more; it is not judged" for log in sorted(deleted)]
        self._forget({*anew, *deleted})
        for fact in listed.facts:
            known = self._facts.get(fact.log)
            # Rows of deleted records are kept, so the log's first offset stays the one of the first round.
            self._facts[fact.log] = fact if known is None else fact._replace(first_offset=known.first_offset)
        self._plan = replace(self._plan, parts=tuple(listed.parts))
        return said

    def _forget(self, logs: set[Log]) -> None:
        """Drop what is known of these logs."""
        if logs:
            self._rows = [row for row in self._rows if row.log not in logs]
            self._told = {identity for identity in self._told if identity[1] not in logs}
            for log in logs:
                self._facts.pop(log, None)
                self._seen.pop(log, None)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _collapsed(rows: list[Any], facts: dict[Log, LogFacts]) -> list[Any]:
    """Runs and spans that continue from one round to the next are merged, so that memory grows with producers only."""
    kept = [row for row in rows if not isinstance(row, (Run, Span))]
    for log, fact in facts.items():
        markers = [row for row in rows if isinstance(row, Marker) and row.log == log]
        kept += merge_runs([row for row in rows if isinstance(row, Run) and row.log == log], markers, fact)
        kept += merge_spans([row for row in rows if isinstance(row, Span) and row.log == log], fact)
    return kept


def follow(plan: Plan, arguments: argparse.Namespace, notice: Callable[[str], None]) -> int:
    """Run until interrupted (Ctrl-C). Exit status: 1 when there was a finding, else 0. A cluster that cannot be read
    for a while is waited for. Raises ConfigError and OSError for the address of the metrics."""
    follower = FollowingAudit(plan, arguments)
    metrics = None
    if arguments.metrics is not None:
        from minibroker.metrics.server import MetricsServer

        address = configured_address(arguments.metrics, "the address of the metrics")
        metrics = MetricsServer(address, lambda: {0: follower.figures.samples()})
        notice(f"metrics={format_address(*metrics.address)}")
    told: set[str] = set()

    def tell(found: Finding) -> None:
        for line in finding_lines(found, plan.source, told):
            notice(line)

    try:
        _follow(follower, tell, notice)
    except KeyboardInterrupt:
        return 1 if follower.errors else 0
    finally:
        if metrics is not None:
            metrics.close()


def _follow(follower: FollowingAudit, tell: Callable[[Finding], None], notice: Callable[[str], None]) -> NoReturn:
    first, failed = True, ""
    while True:
        try:
            if not first:
                for line in follower.look():
                    notice(line)
            first = False
            for found in follower.round():
                tell(found)
            if failed:
                say("minibroker audit: reading again", to=sys.stderr)
            failed = ""
        except NotReadable as error:
            follower.figures.failed += 1
            if failed != str(error):  # once for each outage
                failed = str(error)
                say(f"minibroker audit: {failed}; trying again", to=sys.stderr)
        time.sleep(POLL_SECONDS)
