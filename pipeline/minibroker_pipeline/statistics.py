"""Figures over runs and transactions that can be added up in any order: what the report plots."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from minibroker.rules.catalogue import ERROR
from minibroker.rules.rows import Finding, Run, Transaction
from minibroker_pipeline.epochs import Epochs

OPEN = "OPEN"
DURATIONS_MS = (1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
"""Upper bounds of the duration classes; the last class is open."""


@dataclass
class Statistics:
    """Counts. Times are ms since 1970; `bucket_ms` is how long a step of the time axis is, and grows as needed."""

    logs: int = 0
    files: int = 0
    bytes: int = 0
    batches: int = 0
    records: int = 0
    runs: int = 0
    newest_ms: dict[str, int] = field(default_factory=dict)
    first_marker_ms: dict[str, int] = field(default_factory=dict)
    bucket_ms: int = 1_000
    transactions: Counter[tuple[int, str]] = field(default_factory=Counter)
    durations: Counter[int] = field(default_factory=Counter)
    lag: dict[int, int] = field(default_factory=dict)
    epochs: Epochs = field(default_factory=Epochs)
    findings: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add_read(self, *, files: int, size: int, batches: int, records: int) -> None:
        self.files += files
        self.bytes += size
        self.batches += batches
        self.records += records

    def add_time(self, root: str, timestamp: int) -> None:
        """A time that a broker, not a client, wrote (ms): its data directory was in use then."""
        self.newest_ms[root] = max(self.newest_ms.get(root, 0), timestamp)

    def add_marker_time(self, topic: str, timestamp: int) -> None:
        """The time of a marker (ms): the topic was there then."""
        self.first_marker_ms[topic] = min(self.first_marker_ms.get(topic, timestamp), timestamp)

    def add_run(self, run: Run) -> None:
        self.runs += 1
        if run.producer_id >= 0:
            self.epochs.add(run.log.root, run.producer_id, run.producer_epoch)

    def add_transaction(self, txn: Transaction) -> None:
        if txn.producer_id >= 0 and txn.marker_epoch >= 0:
            self.epochs.add(txn.log.root, txn.producer_id, txn.marker_epoch)
        if txn.first_offset < 0:
            return  # a marker without data took no time
        at = max(txn.end_timestamp, 0) // self.bucket_ms
        self.transactions[at, txn.outcome or OPEN] += 1
        if txn.marker_offset < 0:
            return
        if txn.start_timestamp >= 0:
            self.durations[_class_of(txn.end_timestamp - txn.start_timestamp)] += 1
        held = txn.marker_offset - txn.first_offset
        self.lag[at] = max(self.lag.get(at, 0), held)
        self._widen()

    def add_finding(self, finding: Finding) -> None:
        self.findings[finding.rule, finding.severity] += 1

    def _widen(self, most: int = 2_000) -> None:
        """Doubles the step of the time axis as long as there are too many of them."""
        while len(self.lag) > most or len(self.transactions) > 3 * most:
            self._rescale(self.bucket_ms * 2)

    def _rescale(self, bucket_ms: int) -> None:
        factor = bucket_ms // self.bucket_ms
        if factor <= 1:
            return
        transactions: Counter[tuple[int, str]] = Counter()
        for (at, outcome), count in self.transactions.items():
            transactions[at // factor, outcome] += count
        lag: dict[int, int] = {}
        for at, held in self.lag.items():
            lag[at // factor] = max(lag.get(at // factor, 0), held)
        self.transactions, self.lag, self.bucket_ms = transactions, lag, bucket_ms

    def merge(self, other: Statistics) -> Statistics:
        """Adds another one's counts to this one."""
        step = max(self.bucket_ms, other.bucket_ms)
        self._rescale(step)
        other._rescale(step)
        for name in ("logs", "files", "bytes", "batches", "records", "runs"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for root, timestamp in other.newest_ms.items():
            self.add_time(root, timestamp)
        for topic, timestamp in other.first_marker_ms.items():
            self.add_marker_time(topic, timestamp)
        self.transactions += other.transactions
        self.durations += other.durations
        self.findings += other.findings
        for at, held in other.lag.items():
            self.lag[at] = max(self.lag.get(at, 0), held)
        self.epochs.merge(other.epochs)
        self._widen()
        return self

    def outcomes(self) -> Counter[str]:
        totals: Counter[str] = Counter()
        for (_, outcome), count in self.transactions.items():
            totals[outcome] += count
        return totals

    def as_json(self) -> dict[str, Any]:
        errors = {rule: count for (rule, severity), count in sorted(self.findings.items()) if severity == ERROR}
        notices = {rule: count for (rule, severity), count in sorted(self.findings.items()) if severity != ERROR}
        return {
            "logs": self.logs,
            "files": self.files,
            "bytes": self.bytes,
            "batches": self.batches,
            "records": self.records,
            "runs": self.runs,
            "producers": len(self.epochs),
            "transactions": dict(sorted(self.outcomes().items())),
            "epoch_bumps": {str(bumps): count for bumps, count in sorted(self.epochs.bumps().items())},
            "findings": errors,
            "notices": notices,
        }


def _class_of(duration: int) -> int:
    for number, bound in enumerate(DURATIONS_MS):
        if duration <= bound:
            return number
    return len(DURATIONS_MS)
