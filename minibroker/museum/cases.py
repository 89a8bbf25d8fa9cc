"""Cases of the museum: folders of data beside the package, each one bug of one client.

A case is ``ID/case.toml``, ``ID/script.toml`` (failures, as `minibroker.judge.scripts` has them) and ``ID/client.py``,
the program that meets them. ``case.toml`` has the fields of `Case`, and one ``[[measured]]`` for each `Measured`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from minibroker.judge.scripts import Script, ScriptError, load
from minibroker.kernel.words import near, reason
from minibroker.rules.rules import RULES

PLACE = Path("museum", "cases")
_CASE, _SCRIPT, _PROGRAM = "case.toml", "script.toml", "client.py"
_TIMEOUT_SECONDS = 60


class CaseError(ValueError):
    """A case that cannot be, or is not there; the text is one line that says why."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The rule was broken in `broken` of `runs` runs of this version. failures: False when nothing was made to fail."""

    version: str
    runs: int
    broken: int
    date: str
    failures: bool = True

    @property
    def rate(self) -> str:
        """``9 of 10``."""
        return f"{self.broken} of {self.runs}"


@dataclass(frozen=True, slots=True)
class Case:
    """A bug. happens: to a user. thread: ``owner/repository#number``. client: a Python package. affected, fixed:
    versions, in words; fixed is empty for what is open upstream. rule: the one of the judge's that is broken.
    timeout: seconds that the program may take."""

    about: str
    happens: str
    thread: str
    client: str
    affected: str
    fixed: str
    rule: str
    measured: tuple[Measured, ...]
    topics: Mapping[str, int]
    brokers: int = 1
    config: Mapping[str, str] = field(default_factory=dict)
    timeout: float = _TIMEOUT_SECONDS
    folder: Path = Path()

    @property
    def id(self) -> str:
        """The folder's name."""
        return self.folder.name

    @property
    def program(self) -> Path:
        """The file of the client program."""
        return self.folder / _PROGRAM

    @property
    def shown_on(self) -> str:
        """The version that shows it most often."""
        return max(self.measured, key=lambda one: one.broken / one.runs).version

    def script(self) -> Script:
        """The failures. Raises CaseError."""
        try:
            return load(str(self.folder / _SCRIPT))
        except ScriptError as error:
            raise CaseError(str(error)) from None


def find(given: str | None) -> Path:
    """The folder of cases: the one that is given, else ``museum/cases`` of the working directory or beside the package.

    Raises CaseError.
    """
    tried = [Path(given)] if given else [PLACE, Path(__file__).parents[2] / PLACE]
    for place in tried:
        if place.is_dir() and any(place.glob(f"*/{_CASE}")):
            return place
    if given:
        raise CaseError(f"there are no cases in {given}: each is a folder with a {_CASE}")
    raise CaseError(f"there are no cases in {PLACE}: they are in the project's repository; --cases DIR names a folder")


def read_all(place: Path) -> list[Case]:
    """Every case, by its id. Raises CaseError."""
    return [read(path.parent) for path in sorted(place.glob(f"*/{_CASE}"))]


def chosen(cases: list[Case], name: str) -> Case:
    """The case of this id. Raises CaseError."""
    for case in cases:
        if case.id == name:
            return case
    known = [case.id for case in cases]
    others = f"; there are {', '.join(known)}"
    raise CaseError(f"there is no case {name!r}{near(name, known) or others}")


def read(folder: Path) -> Case:
    """Raises CaseError."""
    path = folder / _CASE
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
        measured = tuple(_made(Measured, one, _MEASURED) for one in given.pop("measured", []))
        case: Case = _made(Case, {**given, "measured": measured, "folder": folder}, _CASE_FIELDS)
    except OSError as error:
        raise CaseError(reason(error)) from None
    except (ValueError, TypeError) as error:
        raise CaseError(f"{path}: {error}") from None
    if not measured or any(one.runs < 1 for one in measured):
        raise CaseError(f"{path}: a case says how often it was measured: [[measured]], with runs of 1 or more")
    if case.rule not in RULES:
        raise CaseError(f"{path}: there is no rule {case.rule!r}{near(case.rule, RULES)}")
    if not case.program.is_file():
        raise CaseError(f"{folder}: a case has a {_PROGRAM}")
    return case


_KINDS: Mapping[str, Callable[[Any], bool]] = {
    "str": lambda value: isinstance(value, str),
    "int": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "float": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "bool": lambda value: isinstance(value, bool),
}
_MEASURED = {one.name: str(one.type) for one in fields(Measured)}
_CASE_FIELDS = {one.name: str(one.type) for one in fields(Case)}


def _made(kind: type[Any], given: Any, known: Mapping[str, str]) -> Any:
    for name, value in given.items():
        if name not in known:
            raise ValueError(f"{kind.__name__} has no {name!r}{near(name, known)}")
        if known[name].startswith("Mapping") and not isinstance(value, dict):
            raise ValueError(f"{name} is a table, not {value!r}")
        if not _KINDS.get(known[name], lambda value: True)(value):
            raise ValueError(f"{name} cannot be {value!r}")
    try:
        return kind(**given)
    except TypeError as error:
        raise ValueError(str(error).partition("() ")[2]) from None
