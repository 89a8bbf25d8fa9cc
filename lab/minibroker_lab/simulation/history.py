"""The history of a run, as clients and world know it: rows for the rules, the story, the counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from minibroker.rules.rows import ABORT, COMMIT, Finding, Log, Marks, Sent
from minibroker.rules.rules import UNKNOWN, finding
from minibroker_lab.simulation.evidence import Evidence

__all__ = ["ABORT", "COMMIT", "UNKNOWN", "History", "Record"]


@dataclass(slots=True)
class Record:
    """A record that a client sent, or was about to."""

    client: str
    topic: str
    partition: int
    key: str
    transaction: Hashable | None
    sent: bool = False
    acknowledged: bool = False


@dataclass
class History:
    """Filled while the world runs.

    elapsed_ms: the world's current time.
    evidence: the facts that known holes need.
    """

    elapsed_ms: Callable[[], float]
    telling: bool = False
    records: dict[str, Record] = field(default_factory=dict)
    outcomes: dict[Hashable, str] = field(default_factory=dict)
    marks: list[Marks] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    evidence: Evidence = field(default_factory=Evidence)
    counts: Counter[str] = field(default_factory=Counter)
    story: list[str] = field(default_factory=list)

    def tell(self, event: str, text: str = "") -> None:
        """Count `event`; `text` is its line in the story."""
        self.counts[event] += 1
        if self.telling:
            self.story.append(f"{self.elapsed_ms() / 1000:9.3f}  {text or event}")

    def record(self, client: str, topic: str, partition: int, transaction: Hashable | None, origin: str) -> Record:
        """A new record; the key of one that was made of another record ends in that one's."""
        key = f"{client}.{len(self.records)}{'<' if origin else ''}{origin}"
        made = self.records[key] = Record(client, topic, partition, key, transaction)
        return made

    def report(self, rule: str, topic: str, partition: int, message: str, facts: frozenset[str] = frozenset()) -> None:
        """A finding that the rows do not show.

        facts: the circumstances at that time (`evidence.Fact`).
        """
        self.findings.append(finding(rule, Log("", topic, partition), message))
        self.evidence.facts[message] = self.evidence.facts.get(message, facts) & facts
        self.tell(f"found: {rule}", f"FOUND {rule}: {message}")

    def sent(self) -> list[Sent]:
        return [
            Sent(r.client, r.topic, r.partition, r.key, r.acknowledged, r.transaction)
            for r in self.records.values()
            if r.sent
        ]
