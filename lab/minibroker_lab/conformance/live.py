"""The reports of a run that is going on: on disk all the time, so that no end of it loses them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from minibroker_lab.reports import write_reports

from .reports import makers
from .results import Result, Status, Verdict
from .scenario import Scenario

REPORT: Final = "conformance"
"""Name of the files, without ending."""
EVERY_SECONDS: Final = 1.0
_NOT_YET = "the run had not come to it"


class LiveReports:
    """verdict: the one so far.
    scenarios: of the whole run; those without a result are `not run`.
    """

    def __init__(
        self,
        kinds: Sequence[str],
        directory: Path,
        scenarios: Sequence[Scenario],
        verdict: Callable[[], Verdict],
    ) -> None:
        self._kinds = kinds
        self._directory = directory
        self._scenarios = scenarios
        self._verdict = verdict
        self._next = 0.0

    def go_on(self) -> None:
        """Write what there is, unless that was done a moment ago. Raises OSError."""
        if self._kinds and time.monotonic() >= self._next:
            self.write()
            self._next = time.monotonic() + EVERY_SECONDS

    def write(self) -> list[Path]:
        """The files. Raises OSError."""
        verdict = self._verdict()
        known = {result.scenario.name for result in verdict.results}
        pending = [
            Result(scenario, Status.NOT_RUN, _NOT_YET) for scenario in self._scenarios if scenario.name not in known
        ]
        whole = replace(verdict, results=[*verdict.results, *pending])
        return write_reports(self._kinds, self._directory, REPORT, makers(whole))
