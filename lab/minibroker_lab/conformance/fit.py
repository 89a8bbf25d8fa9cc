"""Which release of Apache Kafka a broker answers like: where releases expect different answers of a scenario, it is run
once more for each; for all others one run tells."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from .reports import BAD
from .results import Fit, Result, Status
from .scenario import Scenario, every_step


@dataclass(frozen=True, slots=True)
class Question:
    """A scenario that is to be run again and compared with another release."""

    scenario: Scenario
    expectation: str


class Fits:
    """wanted: release, the newest first → its scenarios.
    results: of the run that was compared with the release `held`.
    """

    def __init__(self, wanted: Mapping[str, Sequence[Scenario]], results: Sequence[Result], held: str) -> None:
        self._wanted = wanted
        self._held = held
        self._settled = not any(result.outcome in BAD for result in results)
        self._known = {_key_of(result.scenario, held): result.outcome for result in results}

    def questions(self) -> list[Question]:
        """Those that are open, each once; none where everything is answered as by the release that was asked for."""
        questions: dict[Hashable, Question] = {}
        if self._settled:
            return []
        for expectation, scenarios in self._wanted.items():
            for scenario in scenarios:
                key = _key_of(scenario, expectation)
                if key not in self._known:
                    questions.setdefault(key, Question(scenario, expectation))
        return list(questions.values())

    def answer(self, question: Question, result: Result) -> None:
        self._known[_key_of(question.scenario, question.expectation)] = result.outcome

    @property
    def differ(self) -> bool:
        """Whether these scenarios can tell the releases apart."""
        return (
            len({frozenset(_key_of(scenario, release) for scenario in own) for release, own in self._wanted.items()})
            > 1
        )

    def best_first(self) -> list[Fit]:
        """Sorted by failures; of equally many the newest comes first."""
        fits = []
        for expectation, scenarios in self._wanted.items():
            if self._settled and expectation != self._held:
                continue
            outcomes = [self._known.get(_key_of(scenario, expectation)) for scenario in scenarios]
            passed = outcomes.count(Status.PASSED)
            fits.append(Fit(expectation, passed, passed + sum(outcome in BAD for outcome in outcomes)))
        return sorted(fits, key=lambda fit: fit.of - fit.passed)


def _key_of(scenario: Scenario, expectation: str) -> Hashable:
    """The same for releases that expect the same answers."""
    steps = every_step((*scenario.before, *scenario.steps, *scenario.after))
    return scenario.name, repr([step.expected(expectation) for step in steps])
