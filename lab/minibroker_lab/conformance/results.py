"""How a run went: one result a scenario, and the counts of each group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from minibroker.kernel.words import counted

from .scenario import Scenario
from .weight import Breach, Weight


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
    """why: it failed or was not run.
    seconds: how long it took.
    lawful: what differs from Kafka and may.
    cause: the answer to its set-up that stopped it.
    breach: what its failure, or the answer that stopped it, breaks; None too where the scenario itself is wrong.
    noted: what differs in the set-up and does no harm.
    turns: (failures, runs) of one that ran several times and did not always end alike.
    """

    scenario: Scenario
    outcome: Status
    why: str = ""
    seconds: float = 0.0
    lawful: tuple[str, ...] = ()
    cause: str = ""
    breach: Breach | None = None
    noted: tuple[str, ...] = ()
    turns: tuple[int, int] | None = None

    @property
    def weight(self) -> Weight | None:
        """The weight of its failure; None when it did not fail, or when the scenario itself is wrong."""
        return self.breach.weight if self.outcome is Status.FAILED and self.breach else None

    def fails(self, on: Weight) -> bool:
        """Whether it fails a run that fails on this weight and heavier ones. A scenario that was not reached counts
        with the heaviest weight that it is about."""
        if self.outcome is Status.NOT_REACHED:
            return self.scenario.heaviest.at_least(on)
        return self.outcome is Status.FAILED and (self.breach is None or self.breach.weight.at_least(on))


@dataclass(frozen=True, slots=True)
class Fit:
    """How many of the scenarios that were run pass, compared with this release."""

    expectation: str
    passed: int
    of: int

    def __str__(self) -> str:
        return f"{self.expectation}: {self.passed} of {self.of}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """All results of a run.

    broker: its address.
    expectation: what it was compared with.
    started: ISO 8601.
    seconds: how long all of it took.
    fits: releases, the one that fits best first, where that was looked for.
    """

    broker: str
    expectation: str
    started: str
    results: Sequence[Result]
    seconds: float = 0.0
    fits: Sequence[Fit] = ()

    def count(self, outcome: Status) -> int:
        return sum(result.outcome is outcome for result in self.results)

    def groups(self) -> dict[str, dict[Status, int]]:
        """Group → outcome → number of scenarios."""
        groups: dict[str, dict[Status, int]] = {}
        for result in self.results:
            counts = groups.setdefault(result.scenario.group, dict.fromkeys(Status, 0))
            counts[result.outcome] += 1
        return dict(sorted(groups.items()))

    def matrix(self) -> str:
        """The groups as a table of text."""
        width = max((len(name) for name in self.groups()), default=0)
        seen = [status for status in Status if status not in _RARE or self.count(status)]
        lines = [f"{'':{width}}  " + "".join(f"{outcome.value:>{_cell(outcome)}}" for outcome in seen)]
        for name, counts in self.groups().items():
            lines.append(f"{name:{width}}  " + "".join(f"{counts[status] or '.':>{_cell(status)}}" for status in seen))
        return "\n".join(lines)

    def fit(self) -> list[str]:
        """A line about the release that fits best, where releases were compared."""
        if not self.fits:
            return []
        best, *others = self.fits
        return [f"fits best: {best}" + (f" ({', '.join(map(str, others))})" if others else "")]

    def summary(self) -> str:
        """``N passed, M failed``, and what was not run when there is any."""
        parts = [f"{self.count(Status.PASSED)} passed", f"{self.count(Status.FAILED)} failed"]
        if skipped := self.count(Status.SKIPPED):
            parts.append(f"{skipped} skipped")
        if absent := self.count(Status.ABSENT):
            parts.append(f"{absent} not applicable")
        if unrun := self.count(Status.NOT_RUN):
            parts.append(f"{unrun} not run")
        if stopped := self.count(Status.NOT_REACHED):
            parts.append(f"{stopped} not reached")
        return ", ".join(parts)

    def weights(self) -> dict[Weight, int]:
        """Weight → how many scenarios failed of it; every weight is in it."""
        return {weight: sum(result.weight is weight for result in self.results) for weight in Weight}

    def broken(self) -> dict[str, list[str]]:
        """Sentence about exactly-once that the broker breaks → the scenarios that show it."""
        broken: dict[str, list[str]] = {}
        for result in self.results:
            if result.weight is Weight.EXACTLY_ONCE and result.breach:
                broken.setdefault(result.breach.promise, []).append(result.scenario.name)
        return broken

    def kept(self) -> int:
        """How many of the scenarios that passed would show a breach of exactly-once."""
        return sum(
            result.outcome is Status.PASSED and result.scenario.heaviest is Weight.EXACTLY_ONCE
            for result in self.results
        )

    def exactly_once(self) -> list[str]:
        """The verdict that stands first: a line, and one for each sentence that is broken. Nothing where no scenario
        could have shown it."""
        broken, kept = self.broken(), self.kept()
        number = self.weights()[Weight.EXACTLY_ONCE]
        if not number:
            return [f"exactly-once: held in {counted(kept, 'scenario')}"] if kept else []
        return [
            f"exactly-once: broken in {number} of {counted(number + kept, 'scenario')}",
            *(f"  {promise} ({', '.join(names)})" for promise, names in broken.items()),
        ]

    def weighed(self) -> str:
        """How many failures there are of each weight."""
        return "failures by weight: " + ", ".join(
            f"{number} {weight.value}" for weight, number in self.weights().items() if number
        )

    def causes(self) -> list[tuple[str, int]]:
        """The answers to set-ups that stopped scenarios, and how many each stopped; the worst first."""
        return Counter(result.cause for result in self.results if result.cause).most_common()


_RARE = frozenset({Status.NOT_RUN, Status.NOT_REACHED})


def _cell(outcome: Status) -> int:
    return max(6, len(outcome.value) + 2)
