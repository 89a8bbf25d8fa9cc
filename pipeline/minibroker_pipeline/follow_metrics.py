"""Metrics of a following audit for Prometheus, named like those in docs/reference/metrics.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from minibroker.metrics.names import Bean, Sample
from minibroker.rules.catalogue import RULES
from minibroker.rules.rows import Finding, Transaction

_DOMAIN, _TYPE = "minibroker", "audit"


def _bean(name: str, kind: str = "gauge") -> Bean:
    return Bean(_DOMAIN, _TYPE, name, kind)


FINDINGS = _bean("Findings")
FOUND = _bean("Found", "counter")
OPEN = _bean("OpenTransactions")
OLDEST = _bean("OldestOpenTransactionSeconds")
RECORDS = _bean("Records", "counter")
BYTES = _bean("Bytes", "counter")
ROUNDS = _bean("Rounds", "counter")
FAILED = _bean("FailedRounds", "counter")
LAST = _bean("LastRoundTimestampSeconds")
SECONDS = _bean("LastRoundSeconds")


@dataclass
class Figures:
    """As of the last round.

    present: current findings by rule and severity.
    ever_found: all that were reported since the start.
    open: (topic, partition) -> when its oldest open transaction began, and how many there are.

    Times are ms since 1970.
    """

    present: Counter[tuple[str, str]] = field(default_factory=Counter)
    ever_found: Counter[tuple[str, str]] = field(default_factory=Counter)
    open: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    records: int = 0
    bytes: int = 0
    rounds: int = 0
    failed: int = 0
    now_ms: int = 0
    seconds: float = 0.0

    def judged(self, findings: Iterable[Finding], transactions: Iterable[Transaction]) -> None:
        """Update the metrics with the result of a round."""
        self.present = Counter((finding.rule, finding.severity) for finding in findings)
        self.open = {}
        for txn in transactions:
            if txn.marker_offset < 0 <= txn.first_offset:
                place = txn.log.topic, txn.log.partition
                began, count = self.open.get(place, (txn.start_timestamp, 0))
                self.open[place] = min(began, txn.start_timestamp), count + 1

    def samples(self) -> list[Sample]:
        """Everything on the page. A rule that was never broken is 0, so that an alert sees the change."""
        return list(self._samples())

    def _samples(self) -> Iterator[Sample]:
        for bean, counts in ((FINDINGS, self.present), (FOUND, self.ever_found)):
            kinds = {(rule.id, rule.severity) for rule in RULES.values() if rule.remedies} | counts.keys()
            for rule, severity in sorted(kinds):
                yield Sample(bean, {"rule": rule, "severity": severity}, counts[rule, severity])
        for (topic, partition), (began, count) in sorted(self.open.items()):
            labels = {"topic": topic, "partition": str(partition)}
            yield Sample(OPEN, labels, count)
            yield Sample(OLDEST, labels, max(self.now_ms - began, 0) / 1000)
        for bean, value in (
            (RECORDS, self.records),
            (BYTES, self.bytes),
            (ROUNDS, self.rounds),
            (FAILED, self.failed),
            (LAST, self.now_ms / 1000),
            (SECONDS, self.seconds),
        ):
            yield Sample(bean, {}, value)
