"""`minibroker audit --bootstrap … --follow`: reads what arrives and says each finding once, until it is interrupted."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from minibroker.rules.catalogue import ERROR
from minibroker.rules.rows import Finding, Log, LogFacts, Marker, Run, Span
from minibroker_pipeline.engine import judge_rows
from minibroker_pipeline.headers import merge_runs, merge_spans
from minibroker_pipeline.plan import Plan, read_parts
from minibroker_pipeline.topics import Topics

POLL_SECONDS = 1.0


class Follower:
    """Keeps the collapsed rows of what was read so far, and judges them anew after each round."""

    def __init__(self, plan: Plan, arguments: argparse.Namespace) -> None:
        assert isinstance(plan.files, Topics)
        self._topics = plan.files
        self._plan = plan
        self._arguments = arguments
        self._facts: dict[Log, LogFacts] = {fact.log: fact for fact in plan.facts}
        self._rows: list[Any] = []
        self._next: dict[Log, int] = {}
        self._told: set[tuple[Any, ...]] = set()
        self.errors = 0

    def round(self) -> list[Finding]:
        """Reads what is new and returns the findings that were not there before."""
        for _, read in read_parts(self._plan, 0, self._plan.parts):
            self._rows += read.rows
        for part in self._plan.parts:
            self._next[part.facts.log] = part.stop
        self._rows = _collapsed(self._rows, self._facts)
        judged = replace(self._plan, facts=tuple(self._facts.values()), as_of_ms=time.time_ns() // 1_000_000)
        found = []
        for one in judge_rows(judged, self._rows)[0]:
            identity = one.rule, one.log, one.producer_id, one.first_offset
            if identity not in self._told:
                self._told.add(identity)
                found.append(one)
        self.errors += sum(one.severity == ERROR for one in found)
        return found

    def look(self) -> None:
        """Finds out what has arrived since the last round."""
        chosen = self._arguments
        listed = self._topics.list(chosen.topic, chosen.partition, chosen.compacted, since=self._next)
        for fact in listed.facts:
            known = self._facts.get(fact.log)
            # What was read before its deletion stays known, so the log's first offset is the one it had then.
            self._facts[fact.log] = fact if known is None else fact._replace(first_offset=known.first_offset)
        self._plan = replace(self._plan, parts=tuple(listed.parts), out=None)


def _collapsed(rows: list[Any], facts: dict[Log, LogFacts]) -> list[Any]:
    """Runs and spans that go on from one round to the next, made one, so that memory grows with producers only."""
    kept = [row for row in rows if not isinstance(row, (Run, Span))]
    for log, fact in facts.items():
        markers = [row for row in rows if isinstance(row, Marker) and row.log == log]
        kept += merge_runs([row for row in rows if isinstance(row, Run) and row.log == log], markers, fact)
        kept += merge_spans([row for row in rows if isinstance(row, Span) and row.log == log], fact)
    return kept


def follow(plan: Plan, arguments: argparse.Namespace, say: Callable[[str], None]) -> int:
    """Goes on until interrupted (Ctrl-C); 1 when there was a finding by then, else 0."""
    follower = Follower(plan, arguments)
    try:
        while True:
            for found in follower.round():
                say(str(found))
            time.sleep(POLL_SECONDS)
            follower.look()
    except KeyboardInterrupt:
        return 1 if follower.errors else 0
