"""How a run went: one result a scenario, and the counts of each group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from .scenario import Scenario


class Status(Enum):
    """Of one scenario. NOT_REACHED: an answer to its set-up stopped it before its subject. SKIPPED: the broker was not
    said to have what it needs, or is one of several; ABSENT: the broker does not serve the API versions it is about;
    NOT_RUN: the broker had died before."""

    PASSED = "ok"
    FAILED = "FAIL"
    NOT_REACHED = "not reached"
    SKIPPED = "skip"
    ABSENT = "n/a"
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True)
class Result:
    """why: it failed or was not run. seconds: how long it took. lawful: what differs from Kafka and may. cause:
    the answer to its set-up that stopped it."""

    scenario: Scenario
    outcome: Status
    why: str = ""
    seconds: float = 0.0
    lawful: tuple[str, ...] = ()
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """All results of a run. broker: its address; expectation: what it was held against; started: ISO 8601;
    seconds: how long all of it took."""

    broker: str
    expectation: str
    started: str
    results: Sequence[Result]
    seconds: float = 0.0

    def count(self, outcome: Status) -> int:
        return sum(result.outcome is outcome for result in self.results)

    def groups(self) -> dict[str, dict[Status, int]]:
        """Group → outcome → number of scenarios."""
        found: dict[str, dict[Status, int]] = {}
        for result in self.results:
            counts = found.setdefault(result.scenario.group, dict.fromkeys(Status, 0))
            counts[result.outcome] += 1
        return dict(sorted(found.items()))

    def matrix(self) -> str:
        """The groups as a table of text."""
        width = max((len(name) for name in self.groups()), default=0)
        seen = [one for one in Status if one not in _RARE or self.count(one)]
        lines = [f"{'':{width}}  " + "".join(f"{outcome.value:>{_cell(outcome)}}" for outcome in seen)]
        for name, counts in self.groups().items():
            lines.append(f"{name:{width}}  " + "".join(f"{counts[one] or '.':>{_cell(one)}}" for one in seen))
        return "\n".join(lines)

    def summary(self) -> str:
        """``N passed, M failed``, and what was not run when there is any."""
        parts = [f"{self.count(Status.PASSED)} passed", f"{self.count(Status.FAILED)} failed"]
        if skipped := self.count(Status.SKIPPED):
            parts.append(f"{skipped} skipped")
        if absent := self.count(Status.ABSENT):
            parts.append(f"{absent} not applicable")
        if left := self.count(Status.NOT_RUN):
            parts.append(f"{left} not run")
        if stopped := self.count(Status.NOT_REACHED):
            parts.append(f"{stopped} not reached")
        return ", ".join(parts)

    def causes(self) -> list[tuple[str, int]]:
        """The answers to set-ups that stopped scenarios, and how many each stopped; the worst first."""
        return Counter(result.cause for result in self.results if result.cause).most_common()


_RARE = frozenset({Status.NOT_RUN, Status.NOT_REACHED})


def _cell(outcome: Status) -> int:
    return max(6, len(outcome.value) + 2)
