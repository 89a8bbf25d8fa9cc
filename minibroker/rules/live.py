"""The rules over rows that come in bit by bit: rows in, findings out. Rows that no later row can change are dropped.

A log's runs and markers are judged as they come in; `LogState` is what is kept of them. Kept are the transactions and
decisions of a producer that a later row can change, the last ones before them, and the last value of each offset.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, NamedTuple

from minibroker.rules import rows as r
from minibroker.rules.catalogue import ERROR
from minibroker.rules.decisions import (
    Decision,
    coordinators_whole,
    in_order,
    opened_by,
    read_coordinators,
    unbroken,
)
from minibroker.rules.file_rules import LogRows, is_log_row
from minibroker.rules.log_rules import LogState, group_rows, judge_log
from minibroker.rules.moments import APART_MS, CLOCKS_MS, Moments, newest_ms
from minibroker.rules.offset_rules import GroupPlace, judge_committed_offsets, rewinds
from minibroker.rules.runs import merge_spans
from minibroker.rules.state_rules import judge_states
from minibroker.rules.txn_rules import DEFAULT_TIMEOUT_MS, judge_transactions, transaction_around

FORGOTTEN_MS = 7 * 86_400_000
"""Kafka forgets an idle transactional id after so long, and an idle producer after a day."""


class Identity(NamedTuple):
    """What tells findings apart.

    producer_epoch: of an error without an offset, else NONE.
    """

    rule: str
    severity: str
    log: r.Log
    producer_id: int
    producer_epoch: int
    first_offset: int


def identity(finding: r.Finding) -> Identity:
    # A notice without an offset is about all epochs up to its own, which rises.
    by_epoch = finding.first_offset < 0 and finding.severity == ERROR
    epoch = finding.producer_epoch if by_epoch else r.NONE
    return Identity(finding.rule, finding.severity, finding.log, finding.producer_id, epoch, finding.first_offset)


@dataclass(slots=True)
class LiveLog:
    """The rows and figures of a log that are still needed.

    cleaned_offset: as of its rows.
    ended: transactions that are not decided everywhere.
    first_marker_ms: NONE without one.
    judged_offset: where the rows of the last `judge` ended, `holed`: compaction took some of those after it.
    fresh: findings that `judge` has not returned yet.
    """

    facts: r.LogFacts
    cleaned_offset: int = 0
    hole_end: int = 0
    state: LogState = field(default_factory=LogState)
    spans: list[r.Span] = field(default_factory=list)
    faults: list[r.LogFault] = field(default_factory=list)
    ended: list[r.Transaction] = field(default_factory=list)
    opened: list[r.Transaction] = field(default_factory=list)
    first_marker_ms: int = r.NONE
    end_offset: int = 0
    judged_offset: int = 0
    holed: bool = False
    fresh: list[r.Finding] = field(default_factory=list)


class LiveJudge:
    """lasting: findings that stay true.
    passing: those of the last round that what follows may settle (a transaction that is open, an offset past the end).
    """

    def __init__(self, max_timeout_ms: int = DEFAULT_TIMEOUT_MS) -> None:
        self._max_timeout_ms = max_timeout_ms
        self.logs: dict[r.Log, LiveLog] = {}
        self.states: dict[str, list[r.TxnState]] = {}
        self.commits: list[r.CommittedOffset] = []
        self.members: list[r.GroupMember] = []
        self.newest_ms: dict[str, int] = {}
        self.lasting: dict[Identity, r.Finding] = {}
        self.passing: list[r.Finding] = []
        self.reported: set[Identity] = set()
        self.fallen: set[GroupPlace] = set()

    def know(self, facts: r.LogFacts) -> None:
        """Update the facts about a log. Rows of deleted records still count, so its first offset stays that of the
        first call."""
        known = self.logs.get(facts.log)
        if known is None:
            known = self.logs[facts.log] = LiveLog(facts, end_offset=facts.first_offset)
        before = known.facts
        start = max(facts.start_offset, before.start_offset)
        known.facts = facts._replace(start_offset=start, first_offset=before.first_offset, marked_ms=before.marked_ms)
        known.cleaned_offset = max(known.cleaned_offset, facts.cleaned_offset)

    def take(self, log: r.Log, rows: Iterable[Any], now_ms: int) -> None:
        """Rows of a known log, which follow those that were taken before."""
        known, own = self.logs[log], []
        for row in rows:
            if is_log_row(row):
                own.append(row)
            elif isinstance(row, r.TxnState):
                self.states.setdefault(row.transactional_id, []).append(row)
                self.newest_ms[log.root] = max(self.newest_ms.get(log.root, 0), row.update_timestamp)
            elif isinstance(row, r.CommittedOffset):
                self.commits.append(row)
            elif isinstance(row, r.GroupMember):
                self.members.append(row)
        self._judge_log(known, group_rows([known.facts], own)[0], now_ms)

    def _judge_log(self, known: LiveLog, rows: LogRows, now_ms: int) -> None:
        known.holed = known.holed or _holed(rows.spans, known.end_offset)
        known.spans = merge_spans([*known.spans, *rows.spans], known.facts)
        faults = *known.faults, *rows.faults
        known.faults += [fault for fault in rows.faults if not fault.readable]
        if rows.starts:
            start = max(row.offset for row in rows.starts)
            known.facts = known.facts._replace(start_offset=start, first_offset=start)
            known.spans = [span for span in known.spans if span.end_offset > start]
            known.ended = [txn for txn in known.ended if txn.marker_offset >= start]
        rows = rows._replace(spans=tuple(known.spans), faults=faults)
        verdict = judge_log(rows, as_of_ms=now_ms, state=known.state)
        known.opened = [txn for txn in verdict.transactions if not txn.outcome]
        ended = [txn for txn in verdict.transactions if txn.marker_offset >= 0]
        known.ended += ended
        if ended and known.first_marker_ms < 0:
            known.first_marker_ms = min(txn.end_timestamp for txn in ended)
        for root, newest in newest_ms((), ended).items():
            self.newest_ms[root] = max(self.newest_ms.get(root, 0), newest)
        known.cleaned_offset = max(known.cleaned_offset, verdict.facts.cleaned_offset)
        known.hole_end = max(known.hole_end, verdict.facts.hole_end)
        known.end_offset = verdict.end_offset
        known.facts = known.facts._replace(marked_ms=verdict.facts.marked_ms)
        known.fresh += verdict.findings
        if lost := [txn for txn in verdict.transactions if txn.outcome == r.LOST]:
            self._settle(known.facts.log, lost)

    def judge(self, now_ms: int) -> list[r.Finding]:
        """New findings, when every log was read up to where `know` was told that it ends."""
        logs = self.logs.values()
        self._leave_holes()
        facts = [known.facts._replace(cleaned_offset=known.cleaned_offset, hole_end=known.hole_end) for known in logs]
        moments = Moments(facts, self.newest_ms, APART_MS, self._first_markers())
        states = unbroken((state for history in self.states.values() for state in history), facts)
        coordinators = read_coordinators(states, whole=coordinators_whole(facts), moments=moments)
        ended = [txn for known in logs for txn in known.ended]
        opened = [txn for known in logs for txn in known.opened]
        pairs: list[tuple[Decision, r.Transaction]] = []
        compared = judge_transactions(
            [*ended, *opened],
            facts=facts,
            commits=[commit for commit in self.commits if commit.producer_id >= 0],
            plain=[run for known in logs for run in known.state.plain.values()],
            coordinators=coordinators,
            as_of_ms=now_ms,
            max_timeout_ms=self._max_timeout_ms,
            moments=moments,
            pairs=pairs,
        )
        of_groups = [txn for txn in (*ended, *opened) if txn.log.topic == r.CONSUMER_OFFSETS]
        fallen = rewinds(self.commits, self.members, of_groups)
        ends: dict[tuple[str, int], int] = {}
        for known in logs:
            place = known.facts.log.topic, known.facts.log.partition
            ends[place] = max(ends.get(place, 0), known.end_offset)
        lasting = [finding for known in logs for finding in known.fresh]
        lasting += [finding for finding in compared if not _may_pass(finding)]
        lasting += judge_states(states)
        lasting += [finding for place, finding in fallen.items() if place not in self.fallen]
        self.passing = [finding for finding in compared if _may_pass(finding)]
        self.passing += judge_committed_offsets(self.commits, of_groups, ends)
        self.fallen |= fallen.keys()
        for known in logs:
            known.fresh = []
            known.state.expire(now_ms - FORGOTTEN_MS)
        self.keep(lasting)
        new = []
        for finding in (*lasting, *self.passing):
            if identity(finding) not in self.reported:
                self.reported.add(identity(finding))
                new.append(finding)
        self._drop(coordinators.decisions, pairs, opened, moments)
        for known in logs:
            known.judged_offset = known.end_offset
        return new

    def keep(self, lasting: Iterable[r.Finding]) -> None:
        """Add findings that stay true."""
        for finding in lasting:
            self.lasting.setdefault(identity(finding), finding)

    @property
    def present(self) -> list[r.Finding]:
        """The findings that are true now."""
        return [*self.lasting.values(), *(finding for finding in self.passing if identity(finding) not in self.lasting)]

    @property
    def kept(self) -> int:
        """How many rows and producers are kept."""
        of_logs = (
            len(known.state.producers) + len(known.spans) + len(known.faults) + len(known.ended)
            for known in self.logs.values()
        )
        return sum((*of_logs, *map(len, self.states.values()), len(self.commits), len(self.members)))

    @property
    def open_transactions(self) -> list[r.Transaction]:
        return [txn for known in self.logs.values() for txn in known.opened]

    def forget(self, logs: Collection[r.Log], *, known_findings: Collection[Identity] = ()) -> None:
        """Drop what is known of these logs.

        known_findings: those that are not new when they are made again.
        """
        for log in logs:
            self.logs.pop(log, None)
        self.states = _by_id(state for history in self.states.values() for state in history if state.log not in logs)
        self.commits = [row for row in self.commits if row.log not in logs]
        self.members = [row for row in self.members if row.log not in logs]
        self.lasting = {key: finding for key, finding in self.lasting.items() if finding.log not in logs}
        self.passing = [finding for finding in self.passing if finding.log not in logs]
        self.reported = {key for key in self.reported if key.log not in logs or key in known_findings}
        self.fallen = {place for place in self.fallen if place[0] not in logs}

    def _leave_holes(self) -> None:
        """Where compaction was faster than the reader, what came before does not lead to what comes after."""
        judged = {log: known.judged_offset for log, known in self.logs.items() if known.holed}
        for known in self.logs.values():
            known.holed = False
        if not judged:
            return
        for name, history in self.states.items():
            fresh = [state for state in history if state.offset >= judged.get(state.log, 0)]
            if fresh:  # else the newest state of the id is the one that was
                self.states[name] = fresh
        self.commits = [row for row in self.commits if row.offset >= judged.get(row.log, 0)]
        self.members = [row for row in self.members if row.offset >= judged.get(row.log, 0)]

    def _first_markers(self) -> dict[str, int]:
        first: dict[str, int] = {}
        for log, known in self.logs.items():
            if known.first_marker_ms >= 0:
                first[log.topic] = min(first.get(log.topic, known.first_marker_ms), known.first_marker_ms)
        return first

    # -- what is decided ---------------------------------------------------------------------------------------------

    def _drop(
        self,
        decisions: Sequence[Decision],
        pairs: Iterable[tuple[Decision, r.Transaction]],
        opened: Iterable[r.Transaction],
        moments: Moments,
    ) -> None:
        """Drop transactions and decisions that every later row leaves as they are, then what is known of offsets."""
        open_of: dict[int, list[r.Transaction]] = defaultdict(list)
        for txn in opened:
            open_of[txn.producer_id].append(txn)
        by_id: dict[str, list[Decision]] = defaultdict(list)
        for decision in sorted(decisions, key=lambda decision: decision.place):
            by_id[decision.transactional_id].append(decision)
        dropped: dict[str, set[tuple[int, int]]] = {}
        kept_since: dict[int, int] = {}  # producer -> when the first transaction that is kept began
        for name, history in [*self.states.items()]:
            own, ordered = by_id.get(name, []), in_order({(row.log.partition, row.offset): row for row in history})
            deleted = not ordered[-1].state and moments.settled(ordered[-1])
            over = _decided(own, open_of, deleted=deleted)
            places = dropped[name] = {decision.place for decision in over}
            for decision in over:
                kept_since.setdefault(decision.producer_id, r.EVERYTHING)
            for decision in reversed(own):
                if decision.place not in places:
                    kept_since[decision.producer_id] = decision.start_timestamp
            if deleted and len(over) == len(own):
                del self.states[name]
            elif places:
                self.states[name] = _without(ordered, places, {decision.place for decision in own} - places)
        self._drop_transactions(dropped, pairs, kept_since)
        self._drop_offsets()

    def _drop_transactions(
        self,
        dropped: Mapping[str, Collection[tuple[int, int]]],
        pairs: Iterable[tuple[Decision, r.Transaction]],
        kept_since: Mapping[int, int],
    ) -> None:
        """Drop the transactions whose decision is dropped, and what was before them. For a producer without decisions
        the last transaction of each log is kept."""
        until: dict[tuple[r.Log, int], int] = {}
        # Transactions whose decision is kept, whatever the clock of their marker's broker says.
        paired: set[tuple[r.Log, int]] = set()
        decided: set[tuple[r.Log, int]] = set()
        for decision, txn in pairs:
            if decision.complete and decision.settled:
                decided.add((txn.log, txn.marker_offset))
            if decision.place in dropped.get(decision.transactional_id, ()):
                place = txn.log, txn.producer_id
                until[place] = max(until.get(place, r.NONE), txn.marker_offset)
            else:
                paired.add((txn.log, txn.marker_offset))
        for log, known in self.logs.items():
            last = {txn.producer_id: txn.marker_offset for txn in known.ended}
            kept: list[r.Transaction] = []
            judged: list[r.Transaction] = []  # in all their partitions
            for txn in known.ended:
                producer = txn.producer_id
                if (log, txn.marker_offset) in paired:
                    over = False
                elif producer in kept_since:
                    over = txn.marker_offset <= until.get((log, producer), r.NONE)
                    over = over or txn.end_timestamp + CLOCKS_MS < kept_since[producer]
                else:
                    over = txn.marker_offset < last[producer]
                if not over:
                    kept.append(txn)
                # Without decisions: where the marker was there a round ago, those of other partitions are there now.
                before = producer not in kept_since and txn.marker_offset < known.judged_offset
                if over or before or (log, txn.marker_offset) in decided:
                    judged.append(txn)
            known.ended = kept
            if judged and log.topic == r.CONSUMER_OFFSETS:
                self._settle(log, judged)

    def _settle(self, log: r.Log, ended: Iterable[r.Transaction]) -> None:
        """Offsets committed in these transactions count, or do not, from now on without them."""
        by_producer: dict[int, list[r.Transaction]] = defaultdict(list)
        for txn in ended:
            if txn.first_offset >= 0:
                by_producer[txn.producer_id].append(txn)
        commits = []
        for row in self.commits:
            around = None
            if row.log == log and row.producer_id in by_producer:
                own = by_producer[row.producer_id]
                around = transaction_around(own, row.offset)
            if around is None:
                commits.append(row)
            elif around.outcome == r.COMMIT:
                commits.append(row._replace(producer_id=r.NONE, producer_epoch=r.NONE))
        self.commits = commits

    def _drop_offsets(self) -> None:
        """Keep the last offset of each group and partition, and which members there are. Rows after an undecided offset
        are kept too."""
        undecided: dict[tuple[r.Log, str], int] = {}
        for row in self.commits:
            if row.producer_id >= 0:
                group = row.log, row.group
                undecided[group] = min(undecided.get(group, r.EVERYTHING), row.offset)
        last: dict[Any, r.CommittedOffset] = {}
        present: dict[Any, r.GroupMember] = {}
        later: list[r.CommittedOffset] = []
        later_members: list[r.GroupMember] = []
        for row in sorted(self.commits, key=lambda row: row.offset):
            if row.offset >= undecided.get((row.log, row.group), r.EVERYTHING):
                later.append(row)
            else:
                last[row.log, row.group, row.topic, row.partition] = row
        for member in sorted(self.members, key=lambda row: row.offset):
            if member.offset >= undecided.get((member.log, member.group), r.EVERYTHING):
                later_members.append(member)
            else:
                present[member.log, member.group, member.member] = member
        self.commits = [*(row for row in last.values() if row.committed >= 0), *later]
        self.members = [*(row for row in present.values() if row.present), *later_members]


def _may_pass(finding: r.Finding) -> bool:
    """Whether a finding of `judge_transactions` is about a transaction that is open."""
    return finding.rule in ("hanging-transaction", "outside-transaction")


def _holed(spans: Iterable[r.Span], end: int) -> bool:
    """Whether records are missing between these spans of a log, or between them and where it ended before."""
    for span in sorted(spans, key=lambda span: span.first_offset):
        if span.first_offset > end or span.holes or span.thinned:
            return True
        end = max(end, span.end_offset)
    return False


def _by_id(states: Iterable[r.TxnState]) -> dict[str, list[r.TxnState]]:
    histories: dict[str, list[r.TxnState]] = {}
    for state in states:
        histories.setdefault(state.transactional_id, []).append(state)
    return histories


def _decided(
    own: Sequence[Decision], open_of: Mapping[int, Sequence[r.Transaction]], *, deleted: bool
) -> list[Decision]:
    """The decisions of an id that no later row can change. The last of the first of them is kept nevertheless, unless
    the id is deleted: what comes after it is compared with it."""
    over = [*takewhile(lambda decision: decision.complete and decision.settled, own)]
    if not (deleted and len(over) == len(own)):
        over = over[:-1]
    return [decision for decision in over if not _hangs(decision, open_of.get(decision.producer_id, ()))]


def _hangs(decision: Decision, opened: Iterable[r.Transaction]) -> bool:
    """Whether an open transaction of a partition that the decision is about may be its own."""
    there = [txn for txn in opened if (txn.log.topic, txn.log.partition) in decision.partitions]
    return bool(opened_by(decision, there))


def _without(
    history: Sequence[r.TxnState], dropped: Collection[tuple[int, int]], kept: Collection[tuple[int, int]]
) -> list[r.TxnState]:
    """The records of an id from the last dropped decision on, and those of decisions before it that are kept: what
    began, was decided and was completed."""
    numbers = {(row.log.partition, row.offset): number for number, row in enumerate(history)}
    last = max(numbers[place] for place in dropped)
    before: list[r.TxnState] = []
    for number in sorted(numbers[place] for place in kept if numbers[place] < last):
        began = [row for row in history[number - 1 : number] if row.state == "Ongoing"]
        before += [*began, *history[number : number + 2]]
    # The completion of the dropped one would follow on that of another.
    return [*before, *history[last + (2 if before else 1) :]]
