"""Runs many scenarios, some at once, and finds the one that ended the broker."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence

from .failure import ScenarioFailed
from .order import Phase, phase
from .results import Result, Status
from .runner import ScenarioRun
from .scenario import RESTART
from .weight import RECOVERY, Breach, heaviest

Start = Callable[[], None]
"""Brings a broker back that has died, and returns once it serves. Raises ScenarioFailed."""
_DIED = "the broker does not answer any more"
_ASKED_NOTHING = (Status.NOT_RUN, Status.ABSENT, Status.SKIPPED)


def run_all(
    runs: Sequence[ScenarioRun],
    have: frozenset[str],
    jobs: int,
    start: Start | None = None,
    undelivered: list[Result] | None = None,
) -> Generator[Result, None, None]:
    """Run scenarios, `jobs` at once, those that must be alone after the others, and last, one by one, those whose bytes
    no client sends: what ends a broker leaves nothing unasked then. Each result comes as soon as its scenario has
    ended. An interrupt adds to `undelivered` the results of scenarios that had ended and were not taken yet.

    After each the broker is asked whether it is there. Where it died, the scenario that was running fails. If several
    were, `start` brings the broker back and they are run again one after the other, to tell which it was. Without
    `start` all of those fail, and the remaining scenarios are not run. One that had not asked anything yet does not
    fail for it: it is run once more, or not run.
    """
    malformed = [run for run in runs if phase(run.scenario) is Phase.MALFORMED]
    others = [run for run in runs if run not in malformed]
    together = [run for run in others if not run.scenario.alone]
    alone = [run for run in others if run.scenario.alone]
    gone = False
    late = [] if undelivered is None else undelivered
    try:
        for part, at_once in ((together, jobs), (alone, 1), (malformed, 1)):
            if gone:
                yield from map(_not_run, part)
            else:
                gone = yield from _part(part, have, at_once, start, late)
    except BaseException:  # an interrupt, or further results are not needed
        for cluster in {run.cluster for run in runs}:
            cluster.abandon()
        raise


def _part(
    runs: Sequence[ScenarioRun], have: frozenset[str], jobs: int, start: Start | None, undelivered: list[Result]
) -> Generator[Result, None, bool]:
    """Results as they come, except for those of a time in which the broker died, which come last of it, in the order of
    `runs`. Returns whether the broker is gone for good."""
    remaining = list(runs)
    run_once_more: set[str] = set()
    while remaining:
        watch = _Watch(have)
        results: dict[int, Result | None] = {}
        taken: set[str] = set()
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            places = {pool.submit(watch.run, run): place for place, run in enumerate(remaining)}
            try:
                for ended in concurrent.futures.as_completed(places):
                    place, result = places[ended], ended.result()
                    results[place] = result
                    if result is not None and not watch.suspects(remaining[place]):
                        yield from _handed_over([result], undelivered, taken)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                undelivered += _untaken(places, remaining, watch, taken)
                for cluster in {run.cluster for run in remaining}:
                    cluster.abandon()
                raise
        rest = [run for place, run in enumerate(remaining) if results[place] is None]
        begun = [
            (run, result)
            for place, run in enumerate(remaining)
            if watch.suspects(run) and (result := results[place]) is not None
        ]
        if not watch.dead:
            break
        try:
            back = _brought_back(start)
            unasked = [(run, result) for run, result in begun if result.outcome in _ASKED_NOTHING]
            begun = [(run, result) for run, result in begun if result.outcome not in _ASKED_NOTHING]
            blamed = _blamed(begun, watch, start) if back and len(begun) > 1 else _all_blamed(begun)
            yield from _handed_over(blamed, undelivered, taken)
            for run, result in unasked:
                if back and result.outcome is Status.NOT_RUN and run.scenario.name not in run_once_more:
                    run_once_more.add(run.scenario.name)
                    rest.append(run.again())
                else:
                    yield from _handed_over([result], undelivered, taken)
        except BaseException:
            undelivered += _untaken(places, remaining, watch, taken)
            raise
        if not back:
            yield from map(_not_run, rest)
            return True
        remaining = rest
    return False


def _handed_over(
    results: Iterable[Result], undelivered: list[Result], taken: set[str]
) -> Generator[Result, None, None]:
    """Each of them. It stays in `undelivered` until the next is asked for: an interrupt may come before the caller has
    kept it."""
    for result in results:
        undelivered.append(result)
        taken.add(result.scenario.name)
        yield result
        undelivered.pop()


def _untaken(
    places: Mapping[concurrent.futures.Future[Result | None], int],
    runs: Sequence[ScenarioRun],
    watch: _Watch,
    taken: Collection[str],
) -> list[Result]:
    """Of scenarios that had ended before the interrupt. It is too late to find which of several ended the broker."""
    as_they_are: list[Result] = []
    begun: list[tuple[ScenarioRun, Result]] = []
    for future, place in places.items():
        result = future.result() if future.done() and not future.cancelled() else None
        if result is None or result.scenario.name in taken:
            continue
        if watch.suspects(runs[place]) and result.outcome not in _ASKED_NOTHING:
            begun.append((runs[place], result))
        else:
            as_they_are.append(result)
    return [*as_they_are, *_all_blamed(begun)]


def _brought_back(start: Start | None) -> bool:
    if start is None:
        return False
    try:
        start()
    except ScenarioFailed:
        return False
    return True


def _blamed(
    begun: Sequence[tuple[ScenarioRun, Result]], watch: _Watch, start: Start | None
) -> Generator[Result, None, None]:
    """With the broker back: what ran when it died is run again, each alone. The one that the broker dies of again
    fails."""
    blamed = False
    again: list[Result] = []
    for run, _ in begun:
        alone = _Watch(watch.have)
        repeated = run.again()
        result = alone.run(repeated)
        assert result is not None
        if alone.dead:
            blamed = True
            result = Result(run.scenario, Status.FAILED, _died(repeated), result.seconds, breach=RECOVERY)
            if not _brought_back(start):
                again += [result, *(_not_run(other) for other, _ in begun[len(again) + 1 :])]
                break
        again.append(result)
    if not blamed:
        names = ", ".join(run.scenario.name for run, _ in begun)
        first = again[0]
        said = f"{_DIED}, while these ran together: {names}"
        again[0] = Result(first.scenario, Status.FAILED, said, first.seconds, breach=RECOVERY)
    yield from again


def _all_blamed(begun: Sequence[tuple[ScenarioRun, Result]]) -> Generator[Result, None, None]:
    more = "; --jobs 1 or --start-command tells which of these it was" if len(begun) > 1 else ""
    for run, result in begun:
        said = f"{_died(run)}{more}" + (
            f"; {result.why}" if result.outcome in (Status.FAILED, Status.NOT_REACHED) else ""
        )
        breach = heaviest([RECOVERY, *([result.breach] if result.breach else [])])
        yield Result(run.scenario, Status.FAILED, said, result.seconds, breach=breach)


def _died(run: ScenarioRun) -> str:
    return f"{_DIED} after {run.where}" if run.where else _DIED


def _not_run(run: ScenarioRun) -> Result:
    return Result(run.scenario, Status.NOT_RUN, "the broker was gone")


class _Watch:
    """Runs scenarios until the broker dies; `suspects` tells which were under way then."""

    def __init__(self, have: frozenset[str]) -> None:
        self.have = have
        self.dead = False
        self._lock = threading.Lock()
        self._under_way: set[int] = set()
        self._suspects: set[int] = set()

    def suspects(self, run: ScenarioRun) -> bool:
        return id(run) in self._suspects

    def run(self, run: ScenarioRun) -> Result | None:
        """The result; None where the broker had died before."""
        missing = [need for need in run.scenario.needs if need not in self.have]
        if missing:
            options = ["--restart-command" if need == RESTART else f"--have {need}" for need in missing]
            return Result(run.scenario, Status.SKIPPED, f"needs {' '.join(options)}")
        with self._lock:
            if self.dead:
                return None
            self._under_way.add(id(run))
        result = _result(run)
        answers = run.cluster.answers()
        with self._lock:
            if not answers:
                if not self.dead:
                    self.dead = True
                    self._suspects |= self._under_way
                self._suspects.add(id(run))
            self._under_way.discard(id(run))
        return result


def _result(run: ScenarioRun) -> Result:
    start = time.monotonic()
    breach: Breach | None = RECOVERY
    try:
        unasked = _unasked(run)
        if unasked is not None:
            return unasked
        why = run.run()
        breach = run.breach
    except ScenarioFailed as exc:
        why = str(exc)
    except Exception as exc:  # a defect here must not end the run
        why, breach = f"error in the runner: {type(exc).__name__}: {exc}", None
    if run.inapplicable and not why:
        return Result(run.scenario, Status.ABSENT, run.inapplicable, time.monotonic() - start)
    outcome = Status.PASSED if not why else Status.NOT_REACHED if run.stopped_by else Status.FAILED
    seconds = time.monotonic() - start
    lawful, noted = tuple(run.lawful), tuple(run.noted)
    return Result(run.scenario, outcome, why or "", seconds, lawful, run.stopped_by, breach, noted)


def _unasked(run: ScenarioRun) -> Result | None:
    """The result of a scenario that cannot be asked of this cluster."""
    scenario = run.scenario
    try:
        absent = run.cluster.lacks(scenario.used_versions())
        spread = "one-broker" in scenario.tags and run.cluster.sole_broker() is None
    except ScenarioFailed:  # the broker is gone, and this scenario has sent it nothing that could be the cause
        return _not_run(run)
    if absent:
        return Result(scenario, Status.ABSENT, f"the broker does not serve {absent[0]}")
    if spread:
        return Result(scenario, Status.SKIPPED, "asks one broker for what this cluster spreads over several")
    return None
