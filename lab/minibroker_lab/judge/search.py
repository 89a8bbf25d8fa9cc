"""A search: one random script per run. A script that breaks a rule is made as small as possible."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from minibroker.kernel.words import counted
from minibroker.output import say
from minibroker_lab.judge.draw import Footprint, draw
from minibroker_lab.judge.history import HistoryError
from minibroker_lab.judge.report import BROKEN, HELD, NOT_APPLICABLE, UNDECIDED, Judged, Met, failures_met, lines
from minibroker_lab.judge.scripts import Script, Step, as_toml, load, reachable
from minibroker_storage.private_files import output_path

Try = Callable[[Script], Judged]
"""Runs the command under a script."""


@dataclass(slots=True)
class Found:
    """A way to break a rule.

    name: of the script that was drawn.
    script: the smallest so far.
    judged: its verdict.
    times: how many drawn scripts contain it.

    In `broken` of `runs` further runs it broke the rule again.
    """

    name: str
    rule: str
    script: Script
    judged: Judged
    times: int = 1
    broken: int = 0
    runs: int = 0


@dataclass(slots=True)
class Search:
    """try_out: runs a script.
    repeat: runs of each smaller script at most, until one breaks the rule.
    over: whether the time is up.
    directory: where scripts are written.
    """

    try_out: Try
    repeat: int
    over: Callable[[], bool]
    directory: Path
    broken_scripts: list[Found] = field(default_factory=list)
    held: int = 0
    idle: int = 0
    undecided: Counter[str] = field(default_factory=Counter)
    met: Met = field(default_factory=dict)

    def calm(self) -> Judged:
        """Run the command without failures; `footprint` reads the result."""
        return self.try_out(load("calm"))

    def run(self, seeds: Iterator[int], seen: Footprint) -> None:
        """Run the script of each seed until there are no more seeds or the time is up."""
        for seed in seeds:
            if self.over():
                break
            script = draw(seed, seen)
            try:
                judged = self.try_out(script)
            except HistoryError as error:  # the command may have been ended in the middle of a line
                self.undecided[str(error)] += 1
                continue
            for api, failures in failures_met([judged.run]).items():
                self.met.setdefault(api, Counter()).update(failures)
            _say_run(script, judged)
            if judged.outcome == BROKEN:
                self._broken(script, judged)
            elif judged.outcome == HELD:
                self.held += 1
            elif judged.outcome == UNDECIDED:
                self.undecided[judged.doubt] += 1
            else:
                self.idle += 1

    def _broken(self, script: Script, judged: Judged) -> None:
        rule = judged.broken[0].finding.rule
        for known in self.broken_scripts:
            if known.rule == rule and contains(script, known.script):
                known.times += 1
                return
        say(*lines(judged), flush=True)
        broken = Found(script.name, rule, script, judged)
        self.broken_scripts.append(broken)  # before the long work, so that an interrupted search reports it
        self._save(broken)
        self._minimise(broken)
        again = [self._breaks(broken.script, rule) for _ in range(self.repeat) if not self.over()]
        broken.broken, broken.runs = len(again) - again.count(None), len(again)
        say(*(f"  {line}" for line in as_toml(broken.script).splitlines()), flush=True)

    def _minimise(self, broken: Found) -> None:
        """Replace the script by a smaller one as long as one breaks the rule."""
        smaller = True
        while smaller and not self.over():
            smaller = False
            for candidate in (script for script in _smaller(broken.script, broken.judged) if script.steps):
                judged = self._broken_once(candidate, broken.rule)
                if judged is not None:
                    broken.script, broken.judged, smaller = candidate, judged, True
                    self._save(broken)
                    break

    def _broken_once(self, script: Script, rule: str) -> Judged | None:
        tries = (self._breaks(script, rule) for _ in range(self.repeat) if not self.over())
        return next((judged for judged in tries if judged is not None), None)

    def _breaks(self, script: Script, rule: str) -> Judged | None:
        try:
            judged = self.try_out(script)
        except HistoryError:
            return None
        return judged if rule in {promise.finding.rule for promise in judged.broken} else None

    def _save(self, broken: Found) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        output_path(self.directory / f"{broken.name}.toml").write_text(as_toml(broken.script), encoding="utf-8")

    def table(self) -> list[str]:
        """How often each outcome occurred, then what broke, and why the rest could not be decided."""
        outcomes = {
            HELD: self.held,
            BROKEN: sum(broken.times for broken in self.broken_scripts),
            UNDECIDED: self.undecided.total(),
        }
        outcomes[NOT_APPLICABLE] = self.idle
        lines = [
            f"{counted(sum(outcomes.values()), 'run')}: " + ", ".join(f"{n} {said}" for said, n in outcomes.items())
        ]
        for broken in self.broken_scripts:
            rate = f"{broken.broken} of {counted(broken.runs, 'run')}" if broken.runs else "not repeated"
            lines.append(f"  {BROKEN} {broken.times}×: {broken.rule}: {broken.name}.toml ({rate})")
        lines += [f"  {UNDECIDED} {times}×: {why}" for why, times in self.undecided.most_common()]
        return lines


def _smaller(script: Script, judged: Judged) -> Iterator[Script]:
    """Smaller scripts; those that remove most come first."""
    steps = script.steps
    acted = {exchange["fault"] for exchange in judged.run.exchanges}
    idle = [at for at in range(len(steps)) if at + 1 not in acted]
    if idle and len(idle) < len(steps):
        yield _with(script, [step for at, step in enumerate(steps) if at not in idle])
    if len(steps) > 1:
        for at in reversed(range(len(steps))):
            yield _with(script, [*steps[:at], *steps[at + 1 :]])
    for at, step in enumerate(steps):
        for rule in _fewer(step.rule):
            yield _with(script, [*steps[:at], replace(step, rule=rule), *steps[at + 1 :]])


def _fewer(rule: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for name in ("times", "nth"):
        value = rule[name]
        yield from ({**rule, name: less} for less in dict.fromkeys((1, value // 2, value - 1)) if 1 <= less < value)


def _with(script: Script, steps: list[Step]) -> Script:
    steps = reachable(steps)
    brokers = script.brokers if any("$other_broker" in str(step.rule) for step in steps) else 1
    return replace(script, steps=tuple(steps), brokers=brokers)


def contains(script: Script, known: Script) -> bool:
    """Whether `script` has every fault of `known`, each at least as often, whichever requests they meet."""
    return Counter(map(_kind, known.steps)) <= Counter(map(_kind, script.steps))


def _kind(step: Step) -> str:
    return str((step.rule["api"], step.rule["action"], bool(step.until), bool(step.advance_ms), step.restart))


def _say_run(script: Script, judged: Judged) -> None:
    if sys.stderr.isatty():
        say(f"{script.name}: {judged.outcome}, {judged.run.seconds:.1f} s: {script.about}", to=sys.stderr)
