"""What was measured: ``scoreboard.json`` beside the folder of frameworks, a line for each cell, and the page of it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final

from minibroker.exit_codes import EXIT_BROKEN, EXIT_HELD, EXIT_UNDECIDED
from minibroker.kernel.words import reason
from minibroker_lab.museum.cases import CaseError, alone
from minibroker_lab.museum.scoreboard.failures import FAILURES
from minibroker_lab.museum.scoreboard.frameworks import Framework
from minibroker_lab.museum.scoreboard.verdict import HELD, NO_VERDICT, Verdict

HERE, KAFKA = "minibroker", "Kafka 4.4.0"
_FILE: Final = "scoreboard.json"
NOT_RUN: Final = "not run"
NOT_SENT: Final = "no such request"


@dataclass(frozen=True, slots=True)
class Cell:
    """The runs of one version under one failure.

    broker: `HERE`, or the name of a cluster behind the proxy.
    verdicts: how many runs each; empty where the program sends no request that the failure is about.
    why: the reason of each verdict in one line, of its first run.
    """

    framework: str
    version: str
    failure: str
    broker: str
    date: str
    verdicts: dict[str, int] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)

    @property
    def at(self) -> tuple[str, str, str, str]:
        """What it is about."""
        return self.framework, self.version, self.failure, self.broker

    @property
    def text(self) -> str:
        """``held 9 of 10, lost 1 of 10``."""
        return ", ".join(f"{said} {count} of {self.runs}" for said, count in self.verdicts.items()) or NOT_SENT

    @property
    def runs(self) -> int:
        """How many."""
        return sum(self.verdicts.values())

    def plus(self, verdict: Verdict, date: str) -> Cell:
        """With a run more."""
        verdicts = Counter(self.verdicts)
        verdicts[verdict.said] += 1
        why = {verdict.said: verdict.why, **self.why} if verdict.why else self.why
        return replace(self, date=date, verdicts=dict(verdicts.most_common()), why=why)


def read_cells(folder: Path) -> list[Cell]:
    """folder: of frameworks. Raises CaseError."""
    path = folder.parent / _FILE
    try:
        return [Cell(**row) for row in json.loads(path.read_text(encoding="utf-8"))]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CaseError(reason(error)) from None
    except (ValueError, TypeError) as error:
        raise CaseError(f"{path}: {error}") from None


def save(folder: Path, measured: Cell) -> None:
    """In place of an older one. Raises CaseError."""
    path = folder.parent / _FILE
    with alone(path):
        cells = {kept.at: kept for kept in read_cells(folder)} | {measured.at: measured}
        rows = ",\n".join(json.dumps(asdict(cells[at]), ensure_ascii=False) for at in sorted(cells))
        path.write_text(f"[\n{rows}\n]\n", encoding="utf-8")


def as_markdown(frameworks: Sequence[Framework], cells: Sequence[Cell]) -> str:
    """A table of the cells here, each row with the command that repeats it; what did not hold, with what Kafka showed;
    what each documentation promises."""
    known = {cell.at: cell for cell in cells}
    titles = [f"{failure.title} `{name}`" for name, failure in FAILURES.items()]
    lines = [f"| framework | {' | '.join(titles)} | command of a cell |", "|---|" + "---|" * (len(titles) + 1)]
    for framework in frameworks:
        for version in framework.versions:
            own = [known.get((framework.name, version, failure, HERE)) for failure in FAILURES]
            texts = [NOT_RUN if cell is None else cell.text for cell in own]
            command = _command(framework, version, "NAME", max(map(_runs, own)))
            lines.append(f"| {framework.title} {version} | {' | '.join(texts)} | {command} |")
    lines += ["", "The first run of each that did not hold, and what Kafka behind the proxy gave:", ""]
    framework_of = {framework.name: framework for framework in frameworks}
    clusters = sorted({cell.broker for cell in cells} - {HERE}) or [KAFKA]
    for cell in cells:
        framework = framework_of[cell.framework]
        title = f"{framework.title} {cell.version}, {FAILURES[cell.failure].title}"
        if cell.broker == HERE:
            for said, why in cell.why.items():
                there = [f"{name}: {_elsewhere(known.get((*cell.at[:3], name)), said)}." for name in clusters]
                command = _command(framework, cell.version, cell.failure, _runs(cell))
                lines.append(f"* {title}, {said}: {_code(why)}. {' '.join(there)} {command}")
            continue
        here = known.get((*cell.at[:3], HERE))
        for said in cell.verdicts:
            if said != HELD and (here is None or said not in here.verdicts):
                rate = NOT_RUN if here is None else here.text
                command = _command(framework, cell.version, cell.failure, _runs(cell), upstream=True)
                lines.append(
                    f"* {title}, {said}, on {cell.broker} only: {_elsewhere(cell, said)}. Here: {rate}. {command}"
                )
    lines += ["", "| framework | what its documentation promises | measured |", "|---|---|---|"]
    for framework in frameworks:
        dates = sorted({cell.date for cell in cells if cell.framework == framework.name})
        measured = " to ".join(dict.fromkeys((dates[0], dates[-1]))) if dates else NOT_RUN
        lines.append(f"| {framework.title} | {framework.promise} ([source]({framework.link})) | {measured} |")
    return "\n".join(lines) + "\n"


def _runs(measured: Cell | None) -> int:
    return 0 if measured is None else measured.runs


def _command(framework: Framework, version: str, failure: str, runs: int, *, upstream: bool = False) -> str:
    """What repeats a cell with as many runs."""
    words = [f"minibroker museum scoreboard {framework.name} --client {framework.client}=={version}"]
    words += [f"--failure {failure}", *([f"--times {runs}"] if runs else [])]
    return f"`{' '.join([*words, *(['--upstream HOST:PORT'] if upstream else [])])}`"


def _elsewhere(other: Cell | None, said: str) -> str:
    """The rate on another broker, with the reason for the same verdict, which need not be the same one."""
    if other is None:
        return NOT_RUN
    return f"{other.text}, {_code(other.why[said])}" if said in other.why else other.text


def _code(text: str) -> str:
    return f"`{text.replace('`', '')}`"


def outcome(cells: Sequence[Cell]) -> int:
    """The exit status: whether a run did not hold, else whether one has no verdict, which is no failure."""
    said = {said for cell in cells for said in cell.verdicts}
    return EXIT_BROKEN if said - {HELD, NO_VERDICT} else EXIT_UNDECIDED if NO_VERDICT in said else EXIT_HELD
