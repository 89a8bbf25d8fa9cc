"""Writes 26-matrix-versions.yaml: every transactional request in every version it has, in every state.

    matrix_scenarios.py HOST:PORT [HOST:PORT]

asks an Apache Kafka, and a minibroker that follows the KIPs whose other answers go under `kip`. Versions with the same
answers are written together.
"""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from minibroker_lab.conformance import scenario as scenarios
from minibroker_lab.conformance.cluster import ClusterUnderTest
from minibroker_lab.conformance.runner import Options, ScenarioRun
from minibroker_lab.conformance.scenario import RELEASE_EXPECTATIONS, Scenario, Step, parse

FILE = Path(scenarios.__file__).parent / "scenarios" / "26-matrix-versions.yaml"
HEAD = """\
# Recorded from Apache Kafka 4.4.0: one KRaft node, plaintext, transaction.version 2.
# docs/reference/conformance.md describes the language. Every transactional request in every version, in every state;
# written by tests/support/recordings/matrix_scenarios.py.
"""
ID = "'${x}-${v}'"
UNKNOWN = "nothing"


@dataclass(frozen=True)
class State:
    """How a transactional id gets there, and which epoch its producer holds then; the one before is the last one.
    stays: no request changes it, so that one id does for all versions."""

    name: str
    label: str
    epoch: int
    steps: tuple[str, ...]
    stays: bool = False


def _init(epoch: int) -> str:
    held = "" if epoch == 0 else f", producerId: $pid, producerEpoch: {epoch - 1}"
    saved = "save: {pid: producerId}, " if epoch == 0 else ""
    return (
        f"{{call: InitProducerId v4, req: {{transactionalId: {ID}, transactionTimeoutMs: 60000{held}}}, retry: true,"
        f" {saved}expect: {{errorCode: NONE, producerEpoch: {epoch}}}}}"
    )


def _producer(epoch: int, pid: str = "$pid") -> str:
    return f"transactionalId: {ID}, producerId: {pid}, producerEpoch: {epoch}"


def _end(version: int, epoch: int, committed: str) -> str:
    return (
        f"{{call: EndTxn v{version}, req: {{{_producer(epoch)}, committed: {committed}}}, retry: true,"
        " expect: {errorCode: NONE}}"
    )


def _described(wanted: str) -> str:
    return (
        f"{{call: DescribeTransactions v0, req: {{transactionalIds: [{ID}]}}, until: {{..transactionState: {wanted}}}}}"
    )


ADDED = (
    f"{{call: AddPartitionsToTxn v3, at: t/0, req: {{{_producer(1)}}}, retry: true,"
    " expect: {..partitionErrorCode: NONE}}"
)
ADDED_FIRST = ADDED.replace("producerEpoch: 1", "producerEpoch: 0")
# A higher epoch on the partition refuses the marker, so that the transaction stays where it is.
STUCK = "{call: Produce v9, at: t/0, batch: {pid: $pid, epoch: 100, seq: 0, values: [a]}, expect: {..errorCode: NONE}}"
STATES = (
    State("empty", "Empty", 1, (_init(0), _init(1))),
    State("ongoing", "Ongoing", 1, (_init(0), _init(1), ADDED)),
    *(
        State(
            f"prepare-{name}",
            f"Prepare{name.title()}",
            1,
            (_init(0), _init(1), ADDED, STUCK, _end(3, 1, word), _described(f"Prepare{name.title()}")),
            stays=True,
        )
        for name, word in (("commit", "true"), ("abort", "false"))
    ),
    *(
        State(
            f"complete-{name}",
            f"Complete{name.title()}",
            1,
            (_init(0), ADDED_FIRST, _end(5, 0, word), _described(f"Complete{name.title()}")),
        )
        for name, word in (("commit", "true"), ("abort", "false"))
    ),
)


@dataclass(frozen=True)
class Request:
    """fields: what stands after `call:`; {p} is the producer and {pid}, {epoch} its parts. paths: what is compared, and
    from which version on. alone: a cell for every producer, as one changes what the next meets."""

    name: str
    api: str
    versions: range
    fields: str
    paths: tuple[tuple[int, str], ...]
    alone: bool = False


VERIFIED = "{{transactions: [{{{p}, verifyOnly: {only}, topics: [{{name: $t, partitions: [0]}}]}}]}}"
REQUESTS = (
    Request(
        "init-producer-id",
        "InitProducerId",
        range(6),
        "req: {{{p}, transactionTimeoutMs: 60000}}",
        ((0, "errorCode"), (0, "producerEpoch")),
        alone=True,
    ),
    Request("add-partitions", "AddPartitionsToTxn", range(4), "at: t/0, req: {{{p}}}", ((0, "..partitionErrorCode"),)),
    *(
        Request(
            name,
            "AddPartitionsToTxn",
            range(4, 6),
            "req: " + VERIFIED.replace("{only}", only),
            ((4, "..partitionErrorCode"),),
        )
        for name, only in (("verify-partitions", "true"), ("add-partitions-batched", "false"))
    ),
    Request("add-offsets", "AddOffsetsToTxn", range(5), "req: {{{p}, groupId: '${{g}}-${{v}}'}}", ((0, "errorCode"),)),
    *(
        Request(
            f"end-{name}",
            "EndTxn",
            range(6),
            f"req: {{{{{{p}}, committed: {word}}}}}",
            ((0, "errorCode"), (5, "producerEpoch")),
            alone=True,
        )
        for name, word in (("commit", "true"), ("abort", "false"))
    ),
    Request(
        "txn-offset-commit",
        "TxnOffsetCommit",
        range(6),
        "at: t/0@1, req: {{{p}, groupId: '${{g}}-${{v}}'}}",
        ((0, "..errorCode"),),
    ),
    Request(
        "produce",
        "Produce",
        range(3, 14),
        "at: t/1, batch: {{pid: {pid}, epoch: {epoch}, seq: 0, values: [a], txn: true}}, req: {{transactionalId: "
        + ID.replace("{", "{{").replace("}", "}}")
        + "}}",
        ((3, "..errorCode"),),
    ),
)


@dataclass(frozen=True)
class Who:
    name: str
    pid: str
    below: int


OTHER = "$neighbour"
WHOS = (
    Who("another producer id", OTHER, 0),
    Who("the epoch before", "$pid", 1),
    Who("the current epoch", "$pid", 0),
)


@dataclass(frozen=True)
class Cell:
    """A state and a request, and the producers that make it one after the other."""

    name: str
    why: str
    state: State
    request: Request
    whos: tuple[Who, ...]


def cells() -> list[Cell]:
    cells = []
    for state in STATES:
        for request in REQUESTS:
            if request.alone:
                words = ("other-id", "last-epoch", "current-epoch")
                cells += [
                    Cell(
                        f"versions-{state.name}-{request.name}-{word}",
                        f"{state.label}: {request.api} in every version with {who.name}",
                        state,
                        request,
                        (who,),
                    )
                    for word, who in zip(words, WHOS, strict=True)
                ]
            else:
                why = f"{state.label}: {request.api} in every version, by three producers"
                cells.append(Cell(f"versions-{state.name}-{request.name}", why, state, request, WHOS))
    return cells


Answers = dict[int, list[dict[str, Any]]]
"""Version → for each producer, path → what came back."""


def text(cell: Cell, groups: list[tuple[list[int], list[str]]], defined: set[str], catches: Sequence[str] = ()) -> str:
    """A cell, behind the head of its state's matrix where it is the first.

    groups: versions, and what stands behind each call. catches: names of defects.
    """
    state = cell.state.name
    lines = []
    if state not in defined:
        lines += ["", f"- matrix: versions-{state}", f"  why: {cell.state.label}", "  proves: [kip-98]"]
        lines += ["  tags: [transactions, matrix]", "  topics: {t: {partitions: 2}}", "  names: [x, g]", "  cells:"]
    lines += [f"    {cell.name.removeprefix(f'versions-{state}-')}:"]
    lines += [f"      why: {cell.why.removeprefix(f'{cell.state.label}: ')}"]
    lines += [f"      catches: [{', '.join(catches)}]"] if catches else []
    lines += ["      neighbour: true"] if any(who.pid == OTHER for who in cell.whos) else []
    lines += ["      steps:"]
    begin = [f"*{state}"] if state in defined else [f"&{state}", *(f"  - {step}" for step in cell.state.steps)]
    begin = [f"- {begin[0]}", *begin[1:]]
    if cell.state.stays:
        defined.add(state)
        lines += [f"      {line}" for line in begin]
        begin = []
    for versions, expectations in groups:
        calls = []
        for who, expected in zip(cell.whos, expectations, strict=True):
            epoch = cell.state.epoch - who.below
            fields = cell.request.fields.format(p=_producer(epoch, who.pid), pid=who.pid, epoch=epoch)
            calls.append(f"{{call: {cell.request.api} $v, {fields}, {expected}}}")
        if len(begin) <= 1 and len(calls) == 1:
            first = "" if cell.state.stays else f"*{state}, "
            lines.append(f"      - {{versions: {versions}, steps: [{first}{calls[0]}]}}")
            continue
        lines += [f"      - versions: {versions}", "        steps:"]
        lines += [f"        {line}" for line in (*begin, *(f"- {call}" for call in calls))]
        if begin:
            defined.add(state)
            begin = [f"- *{state}"]
    whole = "\n".join(lines) + "\n"
    return whole.replace(ID, "$x") if cell.state.stays else whole


def ask(cluster: ClusterUnderTest, cell: Cell, token: str) -> Answers:
    """What the broker answers."""
    blank = {p: UNKNOWN for _, p in cell.request.paths}
    groups = [([version], [_flow("expect", blank)] * len(cell.whos)) for version in cell.request.versions]
    (scenario,) = parse(text(cell, groups, set()), "-")
    answers: Answers = {version: [{} for _ in cell.whos] for version in cell.request.versions}
    places = {
        id(step): (outer.get("versions")[0], index)
        for outer in scenario.steps
        if outer.kind == "versions"
        for index, step in enumerate(outer.steps[-len(cell.whos) :])
    }

    def note(step: Step, path: str, answer: Any) -> None:
        if id(step) not in places:
            raise AssertionError(f"{cell.name}: set-up: {path} is {answer}")
        version, index = places[id(step)]
        if any(since <= version and path == known_path for since, known_path in cell.request.paths):
            answers[version][index][path] = answer

    run = ScenarioRun(cluster, scenario, token, Options(), lambda: time.time_ns() // 1_000_000, recorder=note)
    why = run.run()
    if why:
        raise AssertionError(f"{cell.name}: {why}")
    return answers


def _flow(key: str, expected: Mapping[str, Any]) -> str:
    return f"{key}: {{{', '.join(f'{path}: {value}' for path, value in expected.items())}}}"


def _expectation(kafka: Mapping[str, Any], kip: Mapping[str, Any]) -> str:
    other = {path: value for path, value in kip.items() if value != kafka.get(path)}
    return _flow("expect", kafka) + (f", {_flow('kip', other)}" if other else "")


def _of_older_releases(before: Scenario | None, count: int) -> list[str]:
    """What stood behind the calls of each of `count` producers for older releases, which neither broker can tell."""
    if before is None:
        return [""] * count
    steps = next(step for step in before.steps if step.kind == "versions").steps[-count:]
    return [
        "".join(f", {_flow(key, _quoted(step.get(key)))}" for key in RELEASE_EXPECTATIONS[1:] if step.get(key))
        for step in steps
    ]


def _quoted(expected: Mapping[str, Any]) -> dict[str, str]:
    return {path: f"'{value}'" if "," in str(value) else str(value) for path, value in expected.items()}


def _cluster(address: str) -> ClusterUnderTest:
    cluster = ClusterUnderTest(address, timeout=10, patience=30)
    cluster.warm_up(secrets.token_hex(3))
    return cluster


def main(arguments: list[str]) -> int:
    kafka, *others = map(_cluster, arguments)
    before = parse(FILE.read_text(encoding="utf-8"), FILE.name) if FILE.exists() else []
    catches = {scenario.name: scenario.catches for scenario in before}
    by_name = {scenario.name: scenario for scenario in before}
    defined: set[str] = set()
    written = [HEAD]
    for number, cell in enumerate(cells()):
        token = f"{secrets.token_hex(3)}-{number}"
        answers = ask(kafka, cell, token)
        kip = ask(others[0], cell, token) if others else answers
        expected = {
            version: [_expectation(a, b) for a, b in zip(answers[version], kip[version], strict=True)]
            for version in cell.request.versions
        }
        older = _of_older_releases(by_name.get(cell.name), len(cell.whos))
        for keys in expected.values():
            keys[:] = [key + more for key, more in zip(keys, older, strict=True)]
        groups = [(list(same), key) for key, same in groupby(cell.request.versions, key=lambda v: expected[v])]
        written.append(text(cell, groups, defined, catches.get(cell.name, ())))
        print(cell.name, flush=True)
    FILE.write_text("".join(written), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
