"""The reports of a run that is going on: on disk all the time, so that no end of it loses them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from minibroker.testing.reports import write_reports

from .reports import makers
from .results import Result, Status, Verdict
from .scenario import Scenario

_NAME: Final = "conformance"
EVERY_SECONDS: Final = 1.0
_NOT_YET = "the run had not come to it"


class LiveReports:
    """verdict: makes one of results. scenarios: of the whole run; those without a result are `not run`."""

    def __init__(
        self,
        kinds: Sequence[str],
        directory: Path,
        scenarios: Sequence[Scenario],
        verdict: Callable[[Sequence[Result]], Verdict],
    ) -> None:
        self._kinds = kinds
        self._directory = directory
        self._scenarios = scenarios
        self._verdict = verdict
        self._next = 0.0

    def go_on(self, results: Sequence[Result]) -> None:
        """Write what there is, unless that was done a moment ago. Raises OSError."""
        if self._kinds and time.monotonic() >= self._next:
            self.write(results)
            self._next = time.monotonic() + EVERY_SECONDS

    def write(self, results: Sequence[Result]) -> list[Path]:
        """The files. Raises OSError."""
        known = {result.scenario.name for result in results}
        left = [Result(one, Status.NOT_RUN, _NOT_YET) for one in self._scenarios if one.name not in known]
        return write_reports(self._kinds, self._directory, _NAME, makers(self._verdict([*results, *left])))
