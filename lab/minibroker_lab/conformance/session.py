"""One use of a cluster: scenarios are run against it, and what they made is removed at its end."""

from __future__ import annotations

import contextlib
import secrets
import sys
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from functools import partial

from minibroker.output import say

from .cluster import ClusterUnderTest
from .failure import ScenarioFailed
from .patience import Patience
from .results import Result
from .runner import Options, ScenarioRun
from .scenario import Scenario
from .schedule import Start, run_all
from .traces import Traces


class Session:
    """options: those that every scenario runs with.
    have: what the broker is said to have.
    jobs: scenarios at once.
    starting: called with a token for names, returns what brings a dead broker back.
    undelivered: results of scenarios that had ended when an interrupt came, and that `outcomes` did not hand over any
    more; the one handed over last may be among them.
    """

    def __init__(
        self,
        cluster: ClusterUnderTest,
        options: Options,
        have: frozenset[str],
        jobs: int,
        starting: Callable[[str], Start | None],
    ) -> None:
        self._cluster = cluster
        self._options = options
        self._have = have
        self._jobs = jobs
        self._token = secrets.token_hex(3)
        self._start = starting(self._token)
        self._runs: list[ScenarioRun] = []
        self.undelivered: list[Result] = []
        self._patience = Patience()
        cluster.warm_up(self._token)
        self._traces = Traces(cluster, f"mb-{self._token}")

    def outcomes(self, scenarios: Sequence[Scenario], expectation: str) -> Generator[Result, None, None]:
        """Run them and compare with `expectation`."""
        options, write = replace(self._options, expectation=expectation), partial(say, flush=True)
        runs = [
            ScenarioRun(
                self._cluster, scenario, f"{self._token}-{number}", options, wall_ms, write, patience=self._patience
            )
            for number, scenario in enumerate(scenarios, len(self._runs))
        ]
        self._runs += runs
        return run_all(runs, self._have, self._jobs, self._start, self.undelivered)

    def leave_nothing(self) -> None:
        """Remove what the scenarios made, and say what stays all the same."""
        last = self._cluster.for_the_last_time()
        stays = self._traces.remove(last, {name for run in self._runs for name in run.unended})
        if stays and self._options.restart is not None and not self._cluster.abandoned:
            # When it starts, a Kafka writes the markers that a partition refused again.
            with contextlib.suppress(ScenarioFailed):
                self._options.restart()
                last.wait_until_up(f"{self._token}-last")
            stays = self._traces.remove(last)
        say(*(f"left behind: {line}" for line in stays), to=sys.stderr)


def wall_ms() -> int:
    """The time of day, for batches and ``$now``."""
    return time.time_ns() // 1_000_000
