"""The rows of a cluster under load, with a fault, at once or as a follower reads them. Wholly in memory."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from minibroker.rules import rows as r
from minibroker.rules.file_rules import is_log_row
from minibroker.rules.live import LiveJudge, identity
from minibroker.rules.log_rules import group_rows
from minibroker.rules.moments import APART_MS
from minibroker.rules.rules import judge_logs

STATES = r.Log("", r.TRANSACTION_STATE, 0)
OFFSETS = r.Log("", r.CONSUMER_OFFSETS, 0)
DATA = [r.Log("", "t", partition) for partition in (0, 1)]
LOGS = [OFFSETS, *DATA, STATES]
"""In the order in which they are read."""
BEGIN_MS = 1_700_000_000_000
OUTCOMES = "CCAC"


FAULTS = (
    *("sequence-gap", "duplicate", "outside-transaction", "offset-rewind", "hanging-transaction", "torn-transaction"),
    *("coordinator-epoch", "txn-state", "write-after-fencing"),
)
"""What an application can do wrong once, each named as the rule that finds it."""


class Cluster:
    """The rows of a cluster in the order in which brokers write them. Ids `old…` have many transactions in an epoch."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.ends = dict.fromkeys(LOGS, 0)
        self.now_ms = BEGIN_MS

    def _offset(self, log: r.Log) -> int:
        self.ends[log] += 1
        return self.ends[log] - 1

    def write(self, log: r.Log, make: Callable[[int], Any]) -> Any:
        self.now_ms += 7
        offset = self._offset(log)
        row = make(offset)
        self.rows += [row, r.Span(log, str(log), offset, offset, offset + 1, 0)]
        return row

    def state(self, name: str, pid: int, epoch: int, state: str, places: Any, begun: int, updated: int = 0) -> None:
        now = self.now_ms + 7
        fields = name, pid, epoch, 60_000, state, tuple(places), begun, updated or now, now
        self.write(STATES, lambda offset: r.TxnState(STATES, offset, 0, *fields))

    def data(self, log: r.Log, pid: int, epoch: int, sequence: int, *, transactional: bool = True) -> Any:
        now = self.now_ms
        return self.write(
            log,
            lambda at: r.Run(
                log, str(log), at, at, at, pid, epoch, sequence, sequence, transactional, 1, 1, now, now, at, 80
            ),
        )

    def marker(self, log: r.Log, pid: int, epoch: int, outcome: str, coordinator: int = 0) -> None:
        self.write(log, lambda at: r.Marker(log, str(log), at, at, pid, epoch, outcome, coordinator, self.now_ms))

    def commit(self, pid: int, epoch: int, group: str, committed: int) -> None:
        batch = self.data(OFFSETS, pid, epoch, 0, transactional=pid >= 0)
        self.rows.insert(-1, r.CommittedOffset(OFFSETS, batch.first_offset, pid, epoch, group, "t", 0, committed))

    def member(self, group: str, *, present: bool) -> None:
        self.write(OFFSETS, lambda offset: r.GroupMember(OFFSETS, offset, group, "m", present))


class Application:
    """A transactional id that writes to both partitions and commits offsets, a row at a time."""

    def __init__(self, cluster: Cluster, name: str, pid: int, fault: str = "", at: int = 5, *, group: str = "") -> None:
        self.cluster, self.name, self.pid, self.fault, self.at = cluster, name, pid, fault, at
        self.group = group or name
        self.ended = 0

    def steps(self) -> Iterator[None]:
        cluster, name, pid = self.cluster, self.name, self.pid
        bumps = not name.startswith("old")
        epoch = sequence = 0
        places = [(log.topic, log.partition) for log in (*DATA, OFFSETS)]
        cluster.state(name, pid, epoch, "Empty", (), -1)
        cluster.member(self.group, present=True)
        yield
        while True:
            fault = self.fault if self.ended == self.at else ""
            begun = cluster.now_ms + 7
            cluster.state(name, pid, epoch, "Ongoing", places, begun)
            yield
            for log in DATA:
                cluster.data(log, pid, epoch, sequence + (fault == "sequence-gap"))
                yield
                if fault == "duplicate":
                    cluster.data(log, pid, epoch, sequence)
                    yield
                if fault == "outside-transaction":
                    cluster.data(log, pid, epoch, sequence + 1, transactional=False)
                    yield
            sequence += 1 + (fault in ("sequence-gap", "outside-transaction"))
            outcome = r.COMMIT if OUTCOMES[self.ended % 4] == "C" else r.ABORT
            beyond = 1000 * (outcome == r.ABORT)
            cluster.commit(pid, epoch, self.group, 1 if fault == "offset-rewind" else self.ended + beyond)
            yield
            word = outcome.capitalize()
            before, epoch = epoch, epoch + bumps
            updated = cluster.now_ms + 7
            cluster.state(name, pid, epoch, f"Prepare{word}", places, begun, updated)
            yield
            for log in (*DATA, OFFSETS):
                if fault == "hanging-transaction" and log == DATA[1]:
                    continue
                marked = r.ABORT if fault == "torn-transaction" and log == DATA[0] else outcome
                cluster.marker(log, pid, epoch, marked, 3 if fault == "coordinator-epoch" else 0)
                yield
            wrong = "Dead" if fault == "txn-state" else f"Complete{word}"
            cluster.state(name, pid, epoch, wrong, (), begun, updated)
            if fault == "write-after-fencing":
                cluster.data(DATA[0], pid, before, sequence)
            if bumps:
                sequence = 0
            self.ended += 1
            yield
            while fault == "hanging-transaction":
                yield


def rows_of(seed: int, fault: str, steps: int) -> Cluster:
    """One of three applications has the fault in its sixth transaction."""
    chance, cluster = random.Random(seed), Cluster()
    names = ["old-a", "b", "old-c"]
    running = [
        Application(cluster, name, number, fault if number == seed % 2 else "").steps()
        for number, name in enumerate(names)
    ]
    for _ in range(steps):
        next(chance.choice(running))
    return cluster


def skewed(cluster: Cluster, behind_ms: int) -> Cluster:
    """The same, where the clock of the data partitions' leaders is behind the coordinators'."""
    cluster.rows = [
        row._replace(timestamp=row.timestamp - behind_ms) if isinstance(row, r.Marker) and row.log in DATA else row
        for row in cluster.rows
    ]
    return cluster


def facts_of(settled: int = r.EVERYTHING) -> list[r.LogFacts]:
    everything = {log: r.EVERYTHING if log in (STATES, OFFSETS) else 0 for log in LOGS}
    return [
        r.LogFacts(
            log,
            indexed=False,
            cleaned_offset=everything[log],
            compacts=log in (STATES, OFFSETS),
            settled_offset=settled if log == STATES else r.EVERYTHING,
        )
        for log in LOGS
    ]


def at_once(cluster: Cluster) -> set[Any]:
    rows = cluster.rows
    logs = group_rows(facts_of(), filter(is_log_row, rows))
    others = [[row for row in rows if isinstance(row, kind)] for kind in (r.TxnState, r.CommittedOffset, r.GroupMember)]
    return {identity(finding) for finding in judge_logs(logs, *others, as_of_ms=cluster.now_ms, apart_ms=APART_MS)}


def followed(
    cluster: Cluster,
    seed: int,
    rounds: int,
    between: Callable[[LiveJudge], LiveJudge] = lambda judge: judge,
    *,
    logs: Sequence[r.Log] = LOGS,
) -> tuple[list[Any], list[int], LiveJudge]:
    """(findings, how much was kept after each round). Brokers write on while logs are read one after the other."""
    chance, judge = random.Random(seed), LiveJudge()
    read = dict.fromkeys(LOGS, 0)
    new, kept = [], []
    cuts = sorted(chance.sample(range(len(cluster.rows)), rounds))
    for number, cut in enumerate(cuts):
        last = number == rounds - 1
        behind = [
            len(cluster.rows) if last else min(cut + chance.randrange(9) * n, len(cluster.rows)) for n in range(4)
        ]
        behind.sort()
        settled = sum(isinstance(row, r.TxnState) for row in cluster.rows[: len(cluster.rows) if last else cut])
        for fact in facts_of(settled):
            if fact.log in logs:
                judge.know(fact)
        for log, end in zip(LOGS, behind, strict=True):
            if end > read[log] and log in logs:
                piece = [row for row in cluster.rows[read[log] : end] if row.log == log]
                judge.take(log, piece, cluster.now_ms)
                read[log] = end
        new += judge.judge(cluster.now_ms)
        kept.append(judge.kept)
        judge = between(judge)
    return new, kept, judge
