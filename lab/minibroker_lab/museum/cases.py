"""Cases of the museum: folders of data beside the packages, within this one in a wheel; each is a bug of a client.

A case is ``ID/case.toml``, ``ID/script.toml`` (failures, as `minibroker_lab.judge.scripts` has them), and the program
that meets them: a plan for the shared program of the client in ``museum/programs``, or ``ID/client.*``. ``case.toml``
has the fields of `Case`. ``rates.json`` beside the folder of cases has how often each was seen.
"""

from __future__ import annotations

import json
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from minibroker.kernel.words import near, reason
from minibroker.rules.rules import RULES
from minibroker_lab.judge.lineage import lineage_of
from minibroker_lab.judge.scripts import Script, ScriptError, load
from minibroker_lab.museum.clients import library
from minibroker_lab.museum.plan import check

T = TypeVar("T")
PLACE = Path("museum", "cases")
# Beside the packages in a tree; in a wheel, hatch_build.py put the whole museum here.
INSTALLED = (Path(__file__).parents[3] / PLACE, Path(__file__).parent / "data" / "cases")
_CASE, _SCRIPT, _PROGRAM = "case.toml", "script.toml", "client.*"
_PLAN = "minibroker_lab.museum.plan"
_RATES = "rates.json"
_LOCK_TRIES, _LOCK_SECONDS = 100, 0.05
_TIMEOUT_SECONDS = 60


class CaseError(ValueError):
    """A case that is invalid or missing; the text is one line that says why."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The rule was broken in `broken` of `runs` runs of this version.

    failures: False when nothing was made to fail.
    """

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
    """A bug.

    happens: what a user sees.
    thread: ``owner/repository#number``.
    client: a name of `clients.LIBRARIES`, or a Python package.
    affected, fixed: versions, in words; fixed is empty for what is open upstream.
    bad, good: versions to run, the one that shows it best first; ``@RELEASE`` behind one names the broker's release.
        Without good ones the rule must hold when nothing fails.
    rule: the judge's rule that is broken.
    plan, settings: steps for the program that the client's cases share, and options of the client.
    failures: a script, relative to the folder.
    lineage: ``IN=OUT``, as `minibroker judge` has it.
    broker: other options of `Minibroker`, such as as_version.
    timeout: seconds that the program may take from its first request on.
    """

    about: str
    happens: str
    thread: str
    client: str
    affected: str
    fixed: str
    rule: str
    bad: tuple[str, ...]
    good: tuple[str, ...]
    topics: Mapping[str, int]
    broker: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, str] = field(default_factory=dict)
    timeout: float = _TIMEOUT_SECONDS
    plan: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    failures: str = _SCRIPT
    lineage: tuple[str, ...] = ()
    measured: tuple[Measured, ...] = ()
    folder: Path = Path()

    @property
    def id(self) -> str:
        """The folder's name."""
        return self.folder.name

    @property
    def sources(self) -> tuple[Path, ...]:
        """The files of the client program, the one to start first; none when there is no program."""
        own = tuple(sorted(self.folder.glob(_PROGRAM)))
        shared = library(self.client).programs if self.plan else ()
        return own or tuple(self.folder.parent.parent / "programs" / name for name in shared)

    def command(self, program: Sequence[str]) -> list[str]:
        """What runs the case with a program of `sources`: the program alone, or a plan that has it do its steps."""
        if not self.plan:
            return [*program]
        # -P: no module of the current directory, which may be a shared one.
        return [sys.executable, "-P", "-m", _PLAN, json.dumps(self.plan), *program, json.dumps(self.settings)]

    @property
    def shown_on(self) -> str:
        """The version that shows it best."""
        return self.bad[0]

    @property
    def column(self) -> list[tuple[str, bool]]:
        """What to measure: versions, each with whether something fails; where nothing has to, each run has the bug."""
        versions = [(version, True) for version in (*self.bad, *self.good)]
        return versions if self.good or not self.script().steps else [*versions, (self.shown_on, False)]

    def script(self) -> Script:
        """The failures. Raises CaseError."""
        try:
            return load(str(self.folder / self.failures))
        except ScriptError as error:
            raise CaseError(str(error)) from None


def find(named: str | None) -> Path:
    """The folder of cases: the one that is given, else ``museum/cases`` of the working directory or what came with us.

    Raises CaseError.
    """
    tried = [Path(named)] if named else [PLACE, *INSTALLED]
    for place in tried:
        if place.is_dir() and any(place.glob(f"*/{_CASE}")):
            return place
    if named:
        raise CaseError(f"there are no cases in {named}: each is a folder with a {_CASE}")
    raise CaseError(f"there are no cases in {PLACE}, nor with the package; --cases DIR names a folder")


def read_all(place: Path) -> list[Case]:
    """Every case, by its id, with its rates. Raises CaseError."""
    rates = _read_rates(place)
    cases = [read(path.parent) for path in sorted(place.glob(f"*/{_CASE}"))]
    return [replace(case, measured=rates.get(case.id, ())) for case in cases]


def save(place: Path, case: str, measured: Measured) -> None:
    """Write a rate down, in place of an older one of the same version. Raises CaseError."""
    with alone(place.parent / _RATES):
        rates = _read_rates(place)
        kept = [
            row for row in rates.get(case, ()) if (row.version, row.failures) != (measured.version, measured.failures)
        ]
        rates[case] = (*kept, measured)
        lines = [
            f"  {json.dumps(name)}: [\n    " + ",\n    ".join(json.dumps(asdict(row)) for row in rates[name]) + "\n  ]"
            for name in sorted(rates)
        ]
        (place.parent / _RATES).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Several runs measure at the same time, and all write one file. Raises CaseError."""
    mark = path.with_name(f".{path.name}.lock")
    for _ in range(_LOCK_TRIES):
        try:
            mark.touch(exist_ok=False)
            break
        except FileExistsError:
            time.sleep(_LOCK_SECONDS)
    else:
        raise CaseError(f"another run writes {path.name}; if there is none, remove {mark}")
    try:
        yield
    finally:
        mark.unlink(missing_ok=True)


def _read_rates(place: Path) -> dict[str, tuple[Measured, ...]]:
    path = place.parent / _RATES
    try:
        rates = json.loads(path.read_text(encoding="utf-8"))
        return {case: tuple(_made(Measured, row, _MEASURED) for row in every) for case, every in rates.items()}
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise CaseError(reason(error)) from None
    except (ValueError, TypeError, AttributeError) as error:
        raise CaseError(f"{path}: {error}") from None


def chosen(cases: list[Case], name: str) -> Case:
    """The case of this id. Raises CaseError."""
    return by_name("case", {case.id: case for case in cases}, name)


def by_name(what: str, entries: Mapping[str, T], name: str) -> T:
    """The entry of this name.

    what: the kind of entry, for the error.

    Raises CaseError.
    """
    if name in entries:
        return entries[name]
    others = f"; there are {', '.join(entries)}"
    raise CaseError(f"there is no {what} {name!r}{near(name, entries) or others}")


def read(folder: Path) -> Case:
    """Raises CaseError."""
    path = folder / _CASE
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        lists = {name: _texts(table, name) for name in ("bad", "good", "plan", "lineage")}
        for step in lists["plan"]:
            check(step)
        for text in lists["lineage"]:
            lineage_of(text, "value")
        case: Case = _made(Case, {**table, **lists, "folder": folder}, _CASE_FIELDS)
    except OSError as error:
        raise CaseError(reason(error)) from None
    except (ValueError, TypeError) as error:
        raise CaseError(f"{path}: {error}") from None
    if not case.bad:
        raise CaseError(f"{path}: bad names the versions that have the bug, one at least")
    if case.rule not in RULES:
        raise CaseError(f"{path}: there is no rule {case.rule!r}{near(case.rule, RULES)}")
    if not case.sources:
        raise CaseError(f"{folder}: a case has a {_PROGRAM}, or a plan for a client that has a program for plans")
    return case


def _texts(table: Mapping[str, Any], name: str) -> tuple[str, ...]:
    texts = table.get(name, [])
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{name} is a list of texts, not {texts!r}")
    return tuple(texts)


_KINDS: Mapping[str, Callable[[Any], bool]] = {
    "str": lambda value: isinstance(value, str),
    "int": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "float": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "bool": lambda value: isinstance(value, bool),
}
_MEASURED = {known_field.name: str(known_field.type) for known_field in fields(Measured)}
_CASE_FIELDS = {known_field.name: str(known_field.type) for known_field in fields(Case)}


def _made(kind: type[Any], values: Any, known: Mapping[str, str]) -> Any:
    for name, value in values.items():
        if name not in known:
            raise ValueError(f"{kind.__name__} has no {name!r}{near(name, known)}")
        if known[name].startswith("Mapping") and not isinstance(value, dict):
            raise ValueError(f"{name} is a table, not {value!r}")
        if not _KINDS.get(known[name], lambda value: True)(value):
            raise ValueError(f"{name} cannot be {value!r}")
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(str(error).partition("() ")[2]) from None
