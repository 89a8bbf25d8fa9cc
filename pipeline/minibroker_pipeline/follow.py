"""`minibroker audit --bootstrap … --follow`: reads new records and reports each finding once, until it is interrupted.

`--metrics` serves the current findings, for alerts; `--checkpoint` is a file from which a new start goes on.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from minibroker.client.topics import Position
from minibroker.config.types import configured_address
from minibroker.kernel.addresses import format_address
from minibroker.output import say
from minibroker.program import uninterrupted
from minibroker.rules.catalogue import ERROR
from minibroker.rules.live import LiveJudge
from minibroker.rules.rows import TRANSACTION_STATE, Finding, Log
from minibroker_pipeline import follow_checkpoint
from minibroker_pipeline.files import NotReadable
from minibroker_pipeline.follow_metrics import Figures
from minibroker_pipeline.plan import Plan, read_parts
from minibroker_pipeline.report import finding_lines
from minibroker_pipeline.topics import Seen, Topics

POLL_SECONDS = 1.0
SAVE_SECONDS = 10.0
"""A checkpoint is written with each finding, and so often without one."""


class FollowingAudit:
    """Judges what is new in each round. `--as-of` is the time when it begins; it goes on with this machine's clock.

    untold: findings that were not printed yet.
    resumed: it goes on from a checkpoint, so `look` comes first.

    Raises OSError and ValueError for a checkpoint. A signal waits while what `save` writes does not fit together.
    """

    def __init__(self, plan: Plan, arguments: argparse.Namespace) -> None:
        assert isinstance(plan.files, Topics)
        self._topics = plan.files
        self._plan = plan
        self._arguments = arguments
        self._judge = LiveJudge(plan.max_timeout_ms)
        self._seen: dict[Log, Seen] = {}
        self.untold: list[Finding] = []
        self.resumed = False
        self.figures = Figures()
        self.errors = 0
        self._ahead_ms = 0 if plan.as_of_ms is None else plan.as_of_ms - _now_ms()
        self._checkpoint = None if arguments.checkpoint is None else Path(arguments.checkpoint)
        self._saved = 0.0
        if self._checkpoint is not None and (
            kept := follow_checkpoint.load(self._checkpoint, self._judge, self._chosen)
        ):
            self._seen, self.untold = kept
            self.resumed = True
            self.errors = sum(finding.severity == ERROR for finding in self._judge.present)
        else:
            for fact in plan.facts:
                self._judge.know(fact)
        self.save()

    @property
    def _chosen(self) -> dict[str, object]:
        """The options that decide what is read and how it is judged."""
        names = ("topic", "partition", "compacted", "depth", "max_timeout_ms")
        return {f"--{name.replace('_', '-')}": getattr(self._arguments, name) for name in names}

    @property
    def kept(self) -> int:
        """How many rows are kept: what grows when something is never decided."""
        return self._judge.kept

    def save(self) -> None:
        """Write the checkpoint, if there is one. Raises OSError."""
        if self._checkpoint is not None:
            follow_checkpoint.save(self._checkpoint, self._judge, self._seen, self.untold, self._chosen)
            self._saved = time.monotonic()

    def round(self) -> list[Finding]:
        """Reads new records and returns the new findings, which are `untold` until they are taken from there. Raises
        NotReadable; what was read before the error is kept."""
        figures, started = self.figures, time.monotonic()
        now_ms = _now_ms() + self._ahead_ms
        for part, read in read_parts(self._plan, 0, self._plan.parts):
            with uninterrupted():
                self._judge.take(part.facts.log, read.rows, now_ms)
                if (span := part.span) is not None:
                    self._seen[part.facts.log] = Seen(span.topic_id, Position(span.stop, span.leader_epoch))
            figures.records += read.records
            figures.bytes += read.bytes
        now_ms = _now_ms() + self._ahead_ms
        with uninterrupted():
            new = self._judge.judge(now_ms)
            self.untold += new
            self.errors += sum(finding.severity == ERROR for finding in new)
        figures.judged(self._judge.present, self._judge.open_transactions)
        figures.ever_found.update((finding.rule, finding.severity) for finding in new)
        figures.rounds += 1
        figures.now_ms, figures.seconds = now_ms, time.monotonic() - started
        if new or started - self._saved >= SAVE_SECONDS:
            self.save()
        return new

    def look(self) -> list[str]:
        """List the records that have arrived since the last round. Returns a line for each log of which the rows read
        before no longer count. Raises NotReadable."""
        chosen = self._arguments
        self._plan = replace(self._plan, parts=(), out=None)  # read once, also when an error follows
        listed, anew = self._topics.news(chosen.topic, chosen.partition, chosen.compacted, self._seen)
        everything = any(log.topic == TRANSACTION_STATE for log in anew)
        if everything:  # its old decisions come again, and what was dropped with them has to come with them
            listed, _ = self._topics.news(chosen.topic, chosen.partition, chosen.compacted, {})
        deleted = self._judge.logs.keys() - {fact.log for fact in listed.facts}
        said = [f"notice: {log}: {reason}; it is judged anew from its start" for log, reason in sorted(anew.items())]
        said += ["notice: all logs are judged anew with it"] if everything else []
        said += [f"notice: {log} is not in the cluster any more; it is not judged" for log in sorted(deleted)]
        with uninterrupted():
            known_findings = {key for key in self._judge.reported if key.log not in anew} if everything else ()
            forgotten = {*self._judge.logs} if everything else {*anew, *deleted}
            self._judge.forget(forgotten, known_findings=known_findings)
            for log in forgotten:
                self._seen.pop(log, None)
            for fact in listed.facts:
                self._judge.know(fact)
        self._plan = replace(self._plan, parts=tuple(listed.parts))
        return said


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def follow(plan: Plan, arguments: argparse.Namespace, notice: Callable[[str], None]) -> int:
    """Run until interrupted (Ctrl-C). Exit status: 1 when there was a finding, else 0. A cluster that cannot be read
    for a while is waited for. Raises ConfigError and OSError for the address of the metrics, OSError and ValueError for
    the checkpoint."""
    follower = FollowingAudit(plan, arguments)
    metrics = None
    if arguments.metrics is not None:
        from minibroker.metrics.server import MetricsServer

        address = configured_address(arguments.metrics, "the address of the metrics")
        metrics = MetricsServer(address, lambda: {0: follower.figures.samples()})
        notice(f"metrics={format_address(*metrics.address)}")
    explained: set[str] = set()

    def tell() -> None:
        """Print the findings that were not printed yet. A process that is killed in between prints them again at its
        next start."""
        if not follower.untold:
            return
        while follower.untold:
            for line in finding_lines(follower.untold[0], plan.source, explained):
                notice(line)
            del follower.untold[0]
        follower.save()

    try:
        _follow(follower, tell, notice)
    except KeyboardInterrupt:
        follower.save()
        return 1 if follower.errors else 0
    finally:
        if metrics is not None:
            metrics.close()


def _follow(follower: FollowingAudit, tell: Callable[[], None], notice: Callable[[str], None]) -> NoReturn:
    first, failed = not follower.resumed, ""
    tell()
    while True:
        try:
            if not first:
                for line in follower.look():
                    notice(line)
            first = False
            follower.round()
            tell()
            if failed:
                say("minibroker audit: reading again", to=sys.stderr)
            failed = ""
        except NotReadable as error:
            follower.figures.failed += 1
            if failed != str(error):  # once for each outage
                failed = str(error)
                say(f"minibroker audit: {failed}; trying again", to=sys.stderr)
        time.sleep(POLL_SECONDS)
