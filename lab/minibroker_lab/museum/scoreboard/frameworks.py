"""Frameworks of the scoreboard: folders of ``museum/frameworks``, within this package's data in a wheel.

Each has ``framework.toml`` with the fields of `Framework`, and ``program.*``, which copies INPUT_TOPIC to OUTPUT_TOPIC
as the framework's documentation shows.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from minibroker.kernel.words import reason
from minibroker_lab.museum import cases
from minibroker_lab.museum.cases import CaseError, by_name

_FILE, _PROGRAM = "framework.toml", "[pP]rogram.*"
GROUP_OFFSETS, OUTPUT_RECORDS = "group", "output"


@dataclass(frozen=True, slots=True)
class Framework:
    """title: for the page.
    client: a name of `minibroker_lab.museum.clients`.
    versions: the newest first.
    promise: what the documentation at `link` says, in our words.
    program: the framework whose program it shares.
    environment: variables of the program, beside those of `feed`.
    transaction_timeout_ms: the producer's transaction.timeout.ms; 0: it has no transactions.
    transactional_id: pattern of the ids that failures are about, for one that has others beside its copy's.
    progress: where it is seen how far the program is: ``group``, its offsets, or ``output``, for one that keeps its
        offsets elsewhere.
    """

    title: str
    promise: str
    link: str
    client: str
    versions: tuple[str, ...]
    program: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    transaction_timeout_ms: int = 60_000
    transactional_id: str = "*"
    progress: str = GROUP_OFFSETS
    folder: Path = Path()

    @property
    def name(self) -> str:
        """The folder's."""
        return self.folder.name

    @property
    def sources(self) -> list[Path]:
        """The program's file, to be started."""
        return sorted((self.folder.parent / (self.program or self.name)).glob(_PROGRAM))


def place() -> Path:
    """Where they are. Raises CaseError."""
    for tried in cases.INSTALLED:
        folder = tried.parent / "frameworks"
        if folder.is_dir():
            return folder
    raise CaseError("the frameworks did not come with the package")


def read_all(folder: Path) -> list[Framework]:
    """By name. Raises CaseError."""
    return [read(path.parent) for path in sorted(folder.glob(f"*/{_FILE}"))]


def read(folder: Path) -> Framework:
    """Raises CaseError."""
    path = folder / _FILE
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        framework = Framework(**{**table, "versions": tuple(table.get("versions", ())), "folder": folder})
    except OSError as error:
        raise CaseError(reason(error)) from None
    except (ValueError, TypeError) as error:
        raise CaseError(f"{path}: {error}") from None
    if not (framework.versions and framework.sources):
        raise CaseError(f"{folder}: a framework has versions and a program")
    if framework.progress not in (GROUP_OFFSETS, OUTPUT_RECORDS):
        raise CaseError(f"{path}: progress is {GROUP_OFFSETS} or {OUTPUT_RECORDS}, not {framework.progress!r}")
    return framework


def chosen(every: Sequence[Framework], name: str) -> Framework:
    """The framework of this name. Raises CaseError."""
    return by_name("framework", {framework.name: framework for framework in every}, name)
