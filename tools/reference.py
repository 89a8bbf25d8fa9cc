"""Tables of the documentation, generated from the code they describe.

``PYTHONPATH=tools python -m reference FILE…`` rewrites the parts of Markdown files between
``<!-- begin NAME -->`` and ``<!-- end NAME -->``; with ``--check`` it only says which are out of date.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from api_reference import api_actions, api_commands, api_python, fault_actions

from minibroker.config.keys import BROKER_KEYS, SEMANTICS_PREFIX, TOPIC_KEYS
from minibroker.config.types import ConfigKey, Scope
from minibroker.requests.not_served import NOT_SERVED
from minibroker_lab.museum.cases import Case, Measured, read_all
from minibroker_lab.museum.scoreboard.cells import as_markdown, read_cells
from minibroker_lab.museum.scoreboard.failures import FAILURES
from minibroker_lab.museum.scoreboard.frameworks import read_all as read_all_frameworks

ROOT = Path(__file__).resolve().parents[1]
PROJECT = ROOT / "pyproject.toml"
FRAMEWORKS = ROOT / "museum" / "frameworks"
_SOURCE = re.compile(r"git\+https?://[^\s\"'@#`]+")
_BLOCK = re.compile(r"(<!-- begin (?P<name>[a-z-]+) -->\n)(?P<body>.*?)(<!-- end (?P=name) -->)", re.DOTALL)


def api_table() -> str:
    """Every API that is served, with its versions, from the handler table."""
    from minibroker.handlers.table import apis

    lines = []
    for key, api in sorted(apis().items()):
        high = api.max_version if api.unstable_from is None else api.unstable_from - 1
        remarks = []
        if api.advertised_min is not None:
            remarks.append(f"listed from {api.advertised_min}, as Kafka does")
        if api.unstable_from is not None:
            remarks.append(f"v{api.unstable_from} behind `unstable.api.versions.enable`")
        if not api.advertised:
            remarks.append("served, but not listed in ApiVersions by default")
        lines.append(f"- {api.name} ({key}): {'; '.join([f'{api.min_version}–{high}', *remarks])}")
    return "\n".join(lines) + "\n"


def not_served_table() -> str:
    """APIs that a Kafka 4.4 broker lists and this one does not."""
    from minibroker.handlers.table import apis

    served = apis()
    missing = [f"{name} ({key})" for key, name in sorted(NOT_SERVED.items()) if key not in served]
    return "Not served, and absent from ApiVersions: " + ", ".join(missing) + ".\n"


def settings_table() -> str:
    """Every setting of the registry; the fields of the semantics are in their own table."""
    fields = (
        f"`{SEMANTICS_PREFIX}FIELD`, for every FIELD of the [table of semantics](semantics.md): overrides the preset.\n"
    )
    return f"{_settings('Broker', BROKER_KEYS.values())}- {fields}\n{_settings('Topic', TOPIC_KEYS.values())}"


def deviations_table() -> str:
    """Settings whose default is not Kafka's, with the reason."""
    lines = ["| setting | why |", "|---|---|"]
    lines += [f"| `{key.name}` | {key.deviation} |" for key in BROKER_KEYS.values() if key.deviation]
    return "\n".join(lines) + "\n"


def semantics_table() -> str:
    """Where the two semantics differ, from the semantics object."""
    from minibroker.releases.semantics import FIELDS, KAFKA, KIP

    rows = [(f.name, _text(f.of(KAFKA)), _text(f.of(KIP)), f.seeds, f.doc) for f in FIELDS]
    lines = ["| field | `kafka` | `kip` | seeds | meaning |", "|---|---|---|---|---|"]
    lines += [f"| `{field}` | {kafka} | {kip} | {seeds} | {doc} |" for field, kafka, kip, seeds, doc in rows]
    return "\n".join(lines) + "\n"


def _text(value: object) -> str:
    from minibroker.releases.semantics import API_NAMES
    from minibroker_protocol.errors import ErrorCode

    if isinstance(value, tuple):
        names = {key: name for name, key in API_NAMES.items()}
        rows = (
            f"{names[row.api_key]} v{row.since}+{f' {row.ending}' if row.ending else ''}: {row.code}" for row in value
        )
        return ", ".join(rows) or "none"
    return value.name if isinstance(value, ErrorCode) else str(value)


def difference_rows() -> Iterator[tuple[str, str, str, str]]:
    """(release, APIs that it lacks, behaviour, what is not emulated) for the documentation, the newest first: each is
    what the release has otherwise than the row before, and the newest otherwise than this broker."""
    from minibroker.releases.chain import CHAIN

    for release in reversed(CHAIN):
        apis = release.apis if release.next is not None else {}
        absent = [name for name, highest in apis.items() if highest is None]
        yield release.name, ", ".join(absent), "; ".join(release.does_otherwise), "; ".join(release.not_emulated)


def releases_table() -> str:
    """Older releases this broker can answer as."""
    lines = ["| `--as-version` | lacks | does otherwise | not emulated |", "|---|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in difference_rows()]
    return "\n".join(lines) + "\n"


def audit_rules_table() -> str:
    """The rules of the audit."""
    from minibroker.rules.rules import RULES

    lines = ["| rule | what it promises | source | a notice for |", "|---|---|---|---|"]
    for rule in RULES.values():
        notice = "everything" if rule.severity == "notice" else rule.notice
        lines.append(f"| `{rule.id}` | {rule.promise} | {rule.source} | {notice} |")
    return "\n".join(lines) + "\n"


def urls() -> dict[str, str]:
    """The project's addresses by name, from pyproject.toml."""
    urls: dict[str, str] = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["urls"]
    return urls


def addresses_table() -> str:
    """Where the project is."""
    lines = ["| what | where |", "|---|---|"]
    return "\n".join([*lines, *(f"| {name.lower()} | <{url}> |" for name, url in urls().items())]) + "\n"


def _settings(title: str, keys: Iterable[ConfigKey]) -> str:
    lines = [f"### {title} settings", ""]
    shown = [key for key in keys if not key.name.startswith(SEMANTICS_PREFIX)]
    idle = [key for key in shown if not key.effect or key.doc.endswith("accepted without effect.")]
    defaults = [key for key in shown if key not in idle and key.scope is Scope.TOPIC and key.synonyms]
    lines += [f"- {_setting(key)}: {key.doc}" for key in shown if key not in idle and key not in defaults]
    if defaults:
        lines += [
            "",
            "As the first broker setting behind ← that is set, which gives the default (in brackets: if none is):",
            "",
        ]
        lines += [f"- {_name(key)} ← {_origin(key)}" for key in defaults if key.name != key.synonyms[0]]
        lines.append(f"- of the same name: {', '.join(_name(key) for key in defaults if key.name == key.synonyms[0])}")
    lines.append(f"- without effect: {', '.join(_setting(key) for key in idle)}")
    return "\n".join(lines) + "\n"


def _name(key: ConfigKey) -> str:
    return f"`{key.name}`" + ("\\*" if key.dynamic else "")


def _origin(key: ConfigKey) -> str:
    """The broker settings from the finest to the coarsest, where the finest has no default, with the topic's own."""
    own = BROKER_KEYS[key.synonyms[0]]
    names = ", ".join(f"`{name}`" for name in (own.name, *own.synonyms))
    return f"`{own.name}`" if own.default is not None else f"{names} (`{key.format(key.default)}`)"


def _setting(key: ConfigKey) -> str:
    """Name and default; a type in brackets where there is no default."""
    default = key.format(key.default)
    shown = f"– ({key.type.name.lower()})" if default is None else f"`{default}`"
    return f"{_name(key)} {shown}"


def judge_codes_table() -> str:
    """The error codes that a search draws."""
    from minibroker_lab.judge.draw import APPLIED, DENIED, REFUSED

    lines = ["| API | without the change | after the change | for good |", "|---|---|---|---|"]
    for api in REFUSED:
        cells = (", ".join(map(str, codes.get(api, ()))) for codes in (REFUSED, APPLIED, DENIED))
        lines.append(f"| {' | '.join((api, *cells))} |")
    return "\n".join(lines) + "\n"


def judge_readers_table() -> str:
    """The topics for consumers."""
    from minibroker_lab.judge.readers import unpack

    with tempfile.TemporaryDirectory() as place:
        rows = [f"| `{topic.name}` | {topic.about} |" for topic in unpack(Path(place))]
    return "\n".join(["| topic | what it has |", "|---|---|", *rows]) + "\n"


def judge_scripts_table() -> str:
    """The scripts that come with the judge."""
    from minibroker_lab.judge.scripts import bundled, load

    rows = [f"| `{name}` | {load(name).about} |" for name in bundled()]
    return "\n".join(["| script | what happens |", "|---|---|", *rows]) + "\n"


def museum_table() -> str:
    """The cases of the museum, and how often each was seen."""
    lines = ["| case | what happens | rule | seen | never seen | thread |", "|---|---|---|---|---|---|"]
    for case in museum():
        seen = [measured for measured in case.measured if measured.broken]
        never = [measured for measured in case.measured if not measured.broken]
        fixed = f"fixed in {case.fixed}" if case.fixed else "open"
        thread = f"{case.thread}, {fixed}" if case.thread else fixed
        lines.append(
            f"| `{case.id}` | {case.client} {case.affected}: {case.about} | `{case.rule}` | {_rates(seen)} | "
            f"{_rates(never)} | {thread} |"
        )
    return "\n".join(lines) + "\n"


def _rates(measured: Sequence[Measured]) -> str:
    return "; ".join(f"{rate.version}{'' if rate.failures else ' without failures'}: {rate.rate}" for rate in measured)


def museum() -> list[Case]:
    return read_all(ROOT / "museum" / "cases")


def scoreboard_table() -> str:
    """What frameworks kept."""
    return as_markdown(read_all_frameworks(FRAMEWORKS), read_cells(FRAMEWORKS))


def scoreboard_failures_table() -> str:
    """What frameworks meet."""
    rows = [f"| `{name}` | {failure.title} | {failure.about} |" for name, failure in FAILURES.items()]
    return "\n".join(["| `--failure` | column | what happens |", "|---|---|---|", *rows]) + "\n"


TABLES: dict[str, Callable[[], str]] = {
    "api-actions": api_actions,
    "api-commands": api_commands,
    "api-python": api_python,
    "apis": api_table,
    "apis-not-served": not_served_table,
    "audit-rules": audit_rules_table,
    "deviations": deviations_table,
    "fault-actions": fault_actions,
    "judge-codes": judge_codes_table,
    "judge-readers": judge_readers_table,
    "judge-scripts": judge_scripts_table,
    "museum": museum_table,
    "releases": releases_table,
    "scoreboard": scoreboard_table,
    "scoreboard-failures": scoreboard_failures_table,
    "semantics": semantics_table,
    "settings": settings_table,
    "addresses": addresses_table,
}


def rewritten(text: str) -> str:
    """`text` with every block replaced by its table, and where pip gets minibroker by the project's repository;
    KeyError for a block without a table."""
    return with_repository(_BLOCK.sub(lambda m: f"{m[1]}{TABLES.get(m['name'], lambda: m['body'])()}{m[4]}", text))


def with_repository(text: str) -> str:
    """`text` with the project's repository in every `git+https://…`."""
    return _SOURCE.sub(f"git+{urls()['Repository']}", text)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m reference", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when a file is out of date")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    options = parser.parse_args(argv)
    stale = 0
    for file in options.files:
        before = file.read_text(encoding="utf-8")
        after = rewritten(before)
        if after == before:
            continue
        stale += 1
        if options.check:
            print(f"{file} is out of date", file=sys.stderr)
        else:
            file.write_text(after, encoding="utf-8")
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
