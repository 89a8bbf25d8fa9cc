"""Scenario files: read, checked, and turned into steps.

A file is a YAML list of scenarios: `name`, `why`, `proves` (seed ids and KIPs, or `protocol-guide`), `catches` (names
of deliberate defects that make it fail), `tags`, `only` (expectations it is for, `kafka` for those of every release, by
default all), `topics` (variable → partitions and configs, made before the steps and deleted after), `names` (variables
for unique strings), `needs` (capabilities), `alone`, `neighbour` (a second producer, `$neighbour`, that has a
transaction open meanwhile; neighbour.yaml), `steps`.

Scenarios that share most of this are a `matrix`, a name, with `cells`, the rest of its name → what is its own; `before`
are its first steps, `why` begins the cell's, and a tag `$cell` is the cell's name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from itertools import takewhile
from pathlib import Path
from typing import Any

from minibroker.kernel.extras import hint
from minibroker.kernel.words import reason
from minibroker.releases.chain import RELEASES

from .batches import BATCH_KEYS
from .failure import ScenarioError
from .messages import apis
from .requests import APIS_WITH_SHORT_FORM
from .weighing import batch_key, breaks, is_promise, possible
from .weight import Breach, Weight, heaviest

_NUMBER = (int, float)
_SEND_OPTIONS: dict[str, tuple[type, ...]] = {
    "call": (str,),
    "at": (str, list, dict),
    "batch": (dict,),
    "batches": (list,),
    "part": (dict,),
    "req": (dict,),
    "header": (dict,),
    "rawBody": (str,),
    "cut": (int,),
    "tail": (str,),
    "sizeDelta": (int,),
    "to": (str,),
    "conn": (str,),
}
_ANY_RELEASE = "kafka"
RELEASE_EXPECTATIONS = tuple(f"{_ANY_RELEASE}-{name}" for name in reversed(list(RELEASES)))
"""Apache Kafka's releases, the newest first."""
KAFKA, KIP = RELEASE_EXPECTATIONS[0], "kip"
EXPECTATIONS = (*RELEASE_EXPECTATIONS, KIP)
"""What a broker can be compared with: what a release of Apache Kafka answered, or what the KIPs say."""

_ANSWER_OPTIONS: dict[str, tuple[type, ...]] = {
    "expect": (dict,),
    **dict.fromkeys(EXPECTATIONS[1:], (dict,)),
    "may": (dict,),
    "unless": (dict,),
    "breaks": (str,),
    "weight": (str,),
    "save": (dict,),
    "timeout": _NUMBER,
}
_CALL_OPTIONS = (
    _SEND_OPTIONS
    | _ANSWER_OPTIONS
    | {
        "until": (dict,),
        "within": _NUMBER,
        "every": _NUMBER,
        "retry": (bool, list),
        "async": (str,),
        "outcome": (str,),
        "noResponse": (bool,),
    }
)
_OPTIONS: dict[str, dict[str, tuple[type, ...]]] = {
    "call": _CALL_OPTIONS,
    "recv": {"recv": (str,), "call": (str,)} | _ANSWER_OPTIONS,
    "raw": {"raw": (str, dict), "conn": (str,), "outcome": (str,), "timeout": _NUMBER, "weight": (str,)},
    "pipeline": {"pipeline": (list,)},
    "sleep": {"sleep": _NUMBER},
    "set": {"set": (dict,)},
    "restart": {"restart": (bool,)},
    "loop": {"loop": (int, str), "as": (str,), "steps": (list,)},
    "versions": {"versions": (list,), "steps": (list,)},
}
"""Kind of step → the options it may have. `note` may stand anywhere."""
_OUTCOMES = frozenset({"closed", "silent"})
_HEADER_OPTIONS = frozenset(
    {
        "apiKey",
        "apiVersion",
        "version",
        "correlationId",
        "clientId",
        "tags",
        "responseVersion",
        "responseApi",
        "responseHeaderVersion",
    }
)
_CALL = re.compile(r"(\w+) (?:v(\d+)|\$v)")
ANY_VERSION = -1
"""Of a call in a step `versions`, which is made once in each of them."""
_ROUTES = frozenset({"bootstrap", "leader", "txn", "group", "controller"})
_SCENARIO_OPTIONS = frozenset(
    {"name", "why", "proves", "catches", "tags", "only", "topics", "names", "needs", "alone", "neighbour", "steps"}
)
_MATRIX_OPTIONS, _CELL = ("matrix", "before", "cells"), "$cell"
RESTART = "restart"
"""The capability that a step `restart` needs."""
_GROUP = re.compile(r"^\d+-")
NEIGHBOUR_TOPICS: dict[str, tuple[int, dict[str, Any]]] = {"neighbour_topic": (1, {})}
NEIGHBOUR_NAMES = ("neighbour_id",)
_MATCHERS = frozenset({"any", "pos", "nonneg", "uuid", "str", "now"})
_STATES = "DescribeTransactions"
_RESERVED = _MATCHERS | {"clock", "v", "neighbour", *NEIGHBOUR_TOPICS, *NEIGHBOUR_NAMES}


@dataclass(frozen=True, slots=True)
class Step:
    """One step. `kind` is the option that names it; `api` and `version` are of its `call`, `ANY_VERSION` for ``$v``.

    set_up: it brings the broker to where the scenario's subject begins.
    breach: what every difference in its answer breaks, where the scenario says so.
    dispensable: it only looks at a transaction's state, which the scenario can do without where the broker does not
        tell it.
    """

    kind: str
    options: Mapping[str, Any]
    api: str = ""
    version: int = ANY_VERSION
    steps: tuple[Step, ...] = ()
    set_up: bool = False
    breach: Breach | None = None
    dispensable: bool = False

    def get(self, name: str, default: Any = None) -> Any:
        return self.options.get(name, default)

    def expected(self, expectation: str) -> Mapping[str, Any]:
        """Path → value that must come back: those of the newest release, and beside or in place of them those of `kip`,
        or of every older release down to the one asked for."""
        older = RELEASE_EXPECTATIONS[1:]
        chain = (KIP,) if expectation == KIP else older[: RELEASE_EXPECTATIONS.index(expectation)]
        expected: dict[str, Any] = {}
        for name in ("expect", *chain):
            expected |= self.get(name) or {}
        return expected

    def used_versions(self) -> Iterator[tuple[str, int]]:
        """(API, version) of every request the broker is to serve; those it should refuse are left out."""
        header = self.get("header") or {}
        if self.dispensable:
            return
        if self.kind == "call" and not self.get("outcome") and not header.keys() & {"apiKey", "apiVersion", "version"}:
            yield self.api, self.version
        for step in self.steps:
            for api, version in step.used_versions():
                if version == ANY_VERSION and self.kind == "versions":
                    yield from ((api, version) for version in self.get("versions"))
                else:
                    yield api, version


@dataclass(frozen=True, slots=True)
class Scenario:
    """A named sequence of requests and what is to come back.

    topics: variable → (partitions, configs).
    before, after: the steps of a neighbour, around its own.
    """

    file: str
    name: str
    why: str
    tags: frozenset[str]
    steps: tuple[Step, ...]
    topics: Mapping[str, tuple[int, dict[str, Any]]] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    alone: bool = False
    proves: tuple[str, ...] = ()
    catches: tuple[str, ...] = ()
    only: tuple[str, ...] = EXPECTATIONS
    before: tuple[Step, ...] = ()
    after: tuple[Step, ...] = ()

    @property
    def group(self) -> str:
        """The file it is in, without number and ending: what is counted together in a matrix."""
        return _GROUP.sub("", Path(self.file).stem)

    @property
    def labels(self) -> frozenset[str]:
        """What it can be chosen by: tags, group, and what it proves."""
        return self.tags | {self.group, *self.proves}

    @property
    def heaviest(self) -> Weight:
        """What the worst answers to what it is about would break."""
        if self.after:  # a neighbour's transaction is harmed
            return Weight.EXACTLY_ONCE
        sent: set[str] = set()
        breaches: list[Breach] = []
        offsets = any(step.api == "TxnOffsetCommit" for step in every_step(self.steps))
        for step in every_step(self.steps):
            batch = batch_key(step.options)
            request = {**(step.get("req") or {}), "at": step.get("at")}
            expected = {} if step.set_up else {**(step.get("until") or {}), **step.expected(self.only[0])}
            for path, value in expected.items():
                weight = possible(step.api, path, value, request, repeated=batch in sent, offsets=offsets)
                breaches.append(step.breach or Breach(weight))
            sent |= {batch} - {""}
        return heaviest(breaches).weight

    def used_versions(self) -> frozenset[tuple[str, int]]:
        """(API, version) of every request the broker is to serve."""
        return frozenset(used for step in (*self.before, *self.steps, *self.after) for used in step.used_versions())


def every_step(steps: Iterable[Step]) -> Iterator[Step]:
    """These steps and those inside of them."""
    for step in steps:
        yield step
        yield from every_step(step.steps)


@cache
def bundled() -> tuple[Scenario, ...]:
    """The scenarios in this package, by file and place; read once."""
    folder = resources.files(__package__) / "scenarios"
    files = sorted((entry for entry in folder.iterdir() if entry.name.endswith(".yaml")), key=lambda entry: entry.name)
    return tuple(
        _distinct(scenario for entry in files for scenario in parse(entry.read_text(encoding="utf-8"), entry.name))
    )


def load(paths: Iterable[Path]) -> list[Scenario]:
    """The scenarios in these files. Raises ScenarioError."""
    scenarios: list[Scenario] = []
    for path in paths:
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as exc:
            raise ScenarioError(reason(exc)) from None
        except UnicodeDecodeError as exc:
            raise ScenarioError(f"{path}: {exc}") from None
        scenarios += parse(text, str(path))
    return _distinct(scenarios)


@cache
def neighbour_steps() -> tuple[tuple[Step, ...], tuple[Step, ...]]:
    """The first and the last steps of a scenario that has a neighbour."""
    file = resources.files(__package__) / "neighbour.yaml"
    parts = _yaml(file.read_text(encoding="utf-8"), file.name)
    return _steps([parts["before"]], file.name, ""), _steps(parts["after"], file.name, "")


def _distinct(scenarios: Iterable[Scenario]) -> list[Scenario]:
    by_name: dict[str, Scenario] = {}
    for scenario in scenarios:
        if scenario.name in by_name:
            raise ScenarioError(
                f"{scenario.file}: {scenario.name}: there is one of this name in {by_name[scenario.name].file}"
            )
        by_name[scenario.name] = scenario
    return list(by_name.values())


def parse(text: str, file: str) -> list[Scenario]:
    """The scenarios in YAML text; `file` is for messages. Raises ScenarioError."""
    document = _yaml(text, file)
    if document is None:
        return []
    if not isinstance(document, list):
        raise ScenarioError(f"{file}: a list of scenarios is wanted")
    return [_scenario(entry, file, number) for number, entry in enumerate(_spread(document, file), 1)]


def _yaml(text: str, file: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise ScenarioError(hint("the conformance suite", "yaml")) from None
    try:
        # libyaml's loader, where PyYAML was built with it, is ten times as fast.
        return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as exc:
        raise ScenarioError(f"{file}: {' '.join(str(exc).split())}") from None


def _spread(entries: list[Any], file: str) -> Iterator[Any]:
    """The entries, and in the place of a `matrix` a scenario for each of its cells."""
    for entry in entries:
        if not isinstance(entry, dict) or "matrix" not in entry:
            yield entry
            continue
        shared = {key: value for key, value in entry.items() if key not in _MATRIX_OPTIONS}
        name, before, cells = (entry.get(key) for key in _MATRIX_OPTIONS)
        if not isinstance(cells, dict) or not all(isinstance(cell, dict) for cell in cells.values()):
            raise ScenarioError(f"{file}: matrix {name}: cells: a mapping of scenarios by name is wanted")
        if not isinstance(before or [], list):
            raise ScenarioError(f"{file}: matrix {name}: before: a list of steps is wanted")
        for place, cell in cells.items():
            made = {**shared, **cell, "name": f"{name}-{place}"}
            made["why"] = f"{shared['why']}: {cell['why']}" if "why" in shared and "why" in cell else made.get("why")
            if isinstance(made.get("tags"), list):
                made["tags"] = [place if tag == _CELL else tag for tag in made["tags"]]
            if isinstance(cell.get("steps"), list):
                made["steps"] = [before or [], *cell["steps"]]
            yield made


def _scenario(entry: Any, file: str, number: int) -> Scenario:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise ScenarioError(f"{file}: scenario {number}: a mapping with a name is wanted")
    where = f"{file}: {entry['name']}"
    if odd := entry.keys() - _SCENARIO_OPTIONS:
        raise ScenarioError(f"{where}: no such key: {', '.join(sorted(map(str, odd)))}")
    if not isinstance(entry.get("steps"), list) or not entry["steps"]:
        raise ScenarioError(f"{where}: a list of steps is wanted")
    topics = _topics(entry.get("topics") or {}, where)
    names = _texts(entry, "names", where)
    if taken := _RESERVED & {*topics, *names}:
        raise ScenarioError(f"{where}: ${min(taken)} has a meaning of its own")
    only = _only(entry, where)
    steps = _with_dispensable(_with_set_up(_steps(entry["steps"], where, "")))
    needs = _texts(entry, "needs", where)
    restarts = any(step.kind == RESTART for step in every_step(steps))
    if restarts and not (RESTART in needs and entry.get("alone")):
        raise ScenarioError(f"{where}: a restart needs `needs: [{RESTART}]` and `alone: true`")
    before, after = neighbour_steps() if entry.get("neighbour") else ((), ())
    if before:
        topics, names = topics | NEIGHBOUR_TOPICS, (*names, *NEIGHBOUR_NAMES)
    return Scenario(
        file=file,
        name=entry["name"],
        why=str(entry.get("why", "")),
        tags=frozenset(_texts(entry, "tags", where)),
        steps=steps,
        topics=topics,
        names=names,
        needs=needs,
        alone=bool(entry.get("alone", False)),
        proves=_texts(entry, "proves", where),
        catches=_texts(entry, "catches", where),
        only=only or EXPECTATIONS,
        before=before,
        after=after,
    )


def _only(entry: Mapping[str, Any], where: str) -> tuple[str, ...]:
    named = _texts(entry, "only", where)
    if odd := set(named) - {*EXPECTATIONS, _ANY_RELEASE}:
        raise ScenarioError(f"{where}: only: {min(odd)} is none of {', '.join((_ANY_RELEASE, *EXPECTATIONS))}")
    return tuple(
        expectation
        for expectation in EXPECTATIONS
        if expectation in named or (_ANY_RELEASE in named and expectation != KIP)
    )


def _texts(entry: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    value = entry.get(key) or []
    if not isinstance(value, list):
        raise ScenarioError(f"{where}: {key}: a list is wanted, not {value!r}")
    return tuple(map(str, value))


def _topics(topics: Any, where: str) -> dict[str, tuple[int, dict[str, Any]]]:
    if not isinstance(topics, dict):
        raise ScenarioError(f"{where}: topics: a mapping is wanted, not {topics!r}")
    made = {}
    for name, spec in topics.items():
        spec = spec or {}
        if not isinstance(spec, dict) or spec.keys() - {"partitions", "configs"}:
            raise ScenarioError(f"{where}: topics: {name}: partitions and configs are wanted, not {spec!r}")
        made[str(name)] = (int(spec.get("partitions", 1)), dict(spec.get("configs") or {}))
    return made


def _steps(entries: list[Any], where: str, prefix: str, *, any_version: bool = False) -> tuple[Step, ...]:
    """A list among them, as YAML's aliases make one, stands for the steps in it, which are set-up."""
    flat = [
        (step, isinstance(entry, list)) for entry in entries for step in (entry if isinstance(entry, list) else [entry])
    ]
    made = (
        (_step(entry, f"{where}: step {prefix}{number}", f"{prefix}{number}.", any_version=any_version), set_up)
        for number, (entry, set_up) in enumerate(flat, 1)
    )
    return tuple(replace(step, set_up=True) if set_up else step for step, set_up in made)


def _with_set_up(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """The first steps that repeat or keep an answer for later ones are set-up too, if all they ask for is a success;
    not the last one but for looks at a state."""
    calls = [number for number, step in enumerate(steps) if step.api != _STATES] or [len(steps) - 1]
    count = len(list(takewhile(_only_prepares, steps[: calls[-1]])))
    return (*(replace(step, set_up=True) for step in steps[:count]), *steps[count:])


def _only_prepares(step: Step) -> bool:
    if step.set_up:
        return True
    if step.kind != "call" or not (step.get("save") or step.get("retry")) or step.get("async"):
        return False
    if step.api == "Fetch":  # what a reader gets is a subject
        return False
    expected = step.get("expect") or {}
    if any(isinstance(value, list | dict) for value in expected.values()):  # more than a success
        return False
    return all(value == "NONE" for path, value in expected.items() if path.lower().endswith("errorcode"))


def _with_dispensable(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """The steps, with those marked that only look at a state: in the set-up, and behind steps that are the subject.

    None is marked where only such a look shows that a transaction waits for its markers or has timed out.
    """
    apis = {step.api for step in every_step(steps) if not step.set_up and step.kind == "call"} - {_STATES}
    return _marked(steps, "")[0] if apis and not any(map(_must_look, every_step(steps))) else steps


def _marked(steps: tuple[Step, ...], before: str) -> tuple[tuple[Step, ...], str]:
    """before: the API that was called last; also returned."""
    made = []
    for step in steps:
        inner, last = _marked(step.steps, before)
        looks = step.api == _STATES and (step.set_up or not step.get("until") or before == "EndTxn")
        made.append(replace(step, steps=inner, dispensable=looks))
        before = step.api if step.kind == "call" and not looks else last
    return tuple(made), before


def _must_look(step: Step) -> bool:
    """Whether it looks at the states as such, or nothing else can tell what it waits for."""
    wanted = str([step.get(key) for key in ("expect", "until")])
    return step.api == _STATES and (bool(step.get("save")) or (step.set_up and "Prepare" in wanted))


def _step(entry: Any, where: str, prefix: str, *, any_version: bool) -> Step:
    if not isinstance(entry, dict):
        raise ScenarioError(f"{where}: a mapping is wanted, not {entry!r}")
    kind = next((kind for kind in ("recv", *_OPTIONS) if kind in entry), None)
    if kind is None:
        raise ScenarioError(f"{where}: none of {', '.join(_OPTIONS)}")
    allowed = _OPTIONS[kind]
    for option, value in entry.items():
        if option == "note":
            continue
        if option not in allowed:
            raise ScenarioError(f"{where}: {option!r} is no option of a {kind} step; there are {', '.join(allowed)}")
        if value is not None and not isinstance(value, allowed[option]):
            names = " or ".join(kind.__name__ for kind in allowed[option])
            raise ScenarioError(f"{where}: {option}: {names} is wanted, not {value!r}")
    api, version = _call(entry["call"], where) if "call" in entry else ("", ANY_VERSION)
    if "call" in entry and version == ANY_VERSION and not any_version:
        raise ScenarioError(f"{where}: call: $v is for the steps of `versions`")
    if kind == "versions" and not all(isinstance(version, int) for version in entry["versions"]):
        raise ScenarioError(f"{where}: versions: numbers are wanted")
    if kind == "call":
        _check_call(entry, api, where)
    if entry.get("outcome", "closed") not in _OUTCOMES:
        raise ScenarioError(f"{where}: outcome: {entry['outcome']!r} is none of {', '.join(sorted(_OUTCOMES))}")
    inner = entry.get("steps") or entry.get("pipeline") or []
    if kind in ("loop", "pipeline", "versions") and not inner:
        raise ScenarioError(f"{where}: a {kind} without steps")
    any_version = any_version or kind == "versions"
    steps = _steps(inner, where.rpartition(": step ")[0], prefix, any_version=any_version)
    if kind == "pipeline" and any(step.kind != "call" for step in steps):
        raise ScenarioError(f"{where}: only calls can be pipelined")
    return Step(kind, entry, api, version, steps, breach=_breach(entry, where))


def _breach(entry: Mapping[str, Any], where: str) -> Breach | None:
    if "breaks" in entry:
        if not is_promise(entry["breaks"]):
            raise ScenarioError(f"{where}: breaks: there is no promise {entry['breaks']}")
        return breaks(entry["breaks"])
    if "weight" not in entry:
        return None
    weights = [weight.value for weight in Weight if weight is not Weight.EXACTLY_ONCE]
    if entry["weight"] not in weights:
        raise ScenarioError(f"{where}: weight: {entry['weight']!r} is none of {', '.join(weights)}")
    return Breach(Weight(entry["weight"]))


def _call(text: str, where: str) -> tuple[str, int]:
    match = _CALL.fullmatch(text)
    if match is None:
        raise ScenarioError(f"{where}: call: {text!r} is not like 'Produce v9'")
    if match[1] not in apis():
        raise ScenarioError(f"{where}: call: there is no API {match[1]}")
    return match[1], ANY_VERSION if match[2] is None else int(match[2])


def _check_call(entry: Mapping[str, Any], api: str, where: str) -> None:
    if odd := (entry.get("header") or {}).keys() - _HEADER_OPTIONS:
        raise ScenarioError(f"{where}: header: no such key: {', '.join(sorted(odd))}")
    if entry.get("to", "bootstrap").partition(":")[0] not in _ROUTES:
        raise ScenarioError(f"{where}: to: {entry['to']!r} is none of {', '.join(sorted(_ROUTES))}")
    if "at" in entry and api not in APIS_WITH_SHORT_FORM:
        raise ScenarioError(f"{where}: at: {api} has no short form")
    batches = [entry.get("batch"), *(entry.get("batches") or [])]
    if isinstance(entry.get("at"), dict):
        batches += entry["at"].values()
    for batch in batches:
        if isinstance(batch, dict) and (odd := batch.keys() - BATCH_KEYS):
            raise ScenarioError(f"{where}: batch: no such key: {', '.join(sorted(odd))}")
