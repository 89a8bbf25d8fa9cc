"""Random requests with the answers that a real Kafka gave, kept in a file for tests without a Kafka.

Run as a program it asks Kafka, and this broker in memory in lockstep, and writes the file anew. It keeps what both
answer alike, and what this broker answers alike again when the requests come from the file.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from lockstep import ANSWER_SECONDS, Lockstep, Side
from lockstep_integers import ask_all, sample_of
from lockstep_requests import Batch
from memory_cluster import MemoryCluster

from minibroker.handlers.table import apis
from minibroker.requests.context import CloseConnection
from minibroker_protocol.dsl import Request
from minibroker_protocol.shapes import Shapes
from minibroker_protocol.structs import Struct

GOLDEN = Path(__file__).parents[2] / "golden"
FILE = GOLDEN / "answers-of-kafka-4.4.0.json"
INTEGERS = GOLDEN / "integers-of-clients-kafka-4.4.0.json"
"""The same for requests of `lockstep_integers`, a few of each API."""
BOTH = {"offsets.topic.num.partitions": "4", "transaction.state.log.num.partitions": "4"}
OURS = BOTH | {"group.consumer.assignment.interval.ms": "1000"}
_STEP_MS = 5.0
_ROUNDS_OF_INTEGERS = 1
"""What is kept of an API: each begins with several other requests."""

Step = list[Any]
"""API, version, request, answer."""
Rounds = list[tuple[str, list[Step]]]
"""The number of each, which its names have in them, and its steps."""


def read(file: Path = FILE) -> dict[str, Rounds]:
    """By the API that was tried, with others of its family in between."""
    return {api: [(number, steps) for number, steps in rounds] for api, rounds in json.loads(file.read_text()).items()}


def write(kept: dict[str, Rounds], file: Path) -> None:
    """A step a line."""

    def of_round(number: str, steps: list[Step]) -> str:
        return f'["{number}", [\n' + ",\n".join(json.dumps(step, separators=(",", ":")) for step in steps) + "]]"

    apis_ = [f'"{api}": [' + ",\n".join(of_round(*round_) for round_ in rounds) + "]" for api, rounds in kept.items()]
    file.write_text("{" + ",\n".join(apis_) + "}\n")


class MemorySide(Side):
    """This broker without sockets, under manual time."""

    def __init__(self) -> None:
        super().__init__("memory")
        self.cluster = MemoryCluster(OURS)

    def ask(self, request: Request, version: int) -> Any:
        self.cluster.broker.refusals.clear()  # the reason of an error is its own, not that of one before
        try:
            pending, waited = self.cluster.send(request, version), 0.0
            while not pending.done and waited < 1000 * ANSWER_SECONDS:
                self.wait(_STEP_MS / 1000)
                waited += _STEP_MS
            return pending.result() if pending.done else "silence"
        except CloseConnection:
            return "closed"

    def wait(self, seconds: float) -> None:
        self.cluster.timers.advance(1000 * seconds)

    def close(self) -> None:
        self.cluster.stop()


def as_json(value: Any) -> Any:
    if isinstance(value, Struct):
        return {field.name: as_json(getattr(value, field.name)) for field in value.__fields__}
    if isinstance(value, Batch):
        return {"batch": [getattr(value, name) for name in Batch.__annotations__]}
    if isinstance(value, dict):
        return {name: as_json(field) for name, field in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(item) for item in value]
    return {"hex": bytes(value).hex()} if isinstance(value, (bytes, bytearray, memoryview)) else value


def from_json(shapes: Shapes, struct: type[Struct] | None, value: Any) -> Any:
    if isinstance(value, list):
        return [from_json(shapes, struct, item) for item in value]
    if not isinstance(value, dict):
        return value
    if "hex" in value:
        return bytes.fromhex(value["hex"])
    if "batch" in value:
        return Batch(*value["batch"])
    assert struct is not None
    kinds = {field.name: shapes.kind(field) for field in struct.__fields__}
    return struct(**{name: from_json(shapes, kinds[name].struct, field) for name, field in value.items()})


def replayed(api: str, rounds: Rounds) -> Rounds:
    """The same steps with what this broker answers."""
    messages = {api_row.name: api_row.request for api_row in apis().values()}
    lockstep = Lockstep([MemorySide()], 0)
    (side,) = lockstep.sides
    replayed_rounds = []
    for number, steps in rounds:
        answered: list[Step] = []
        with lockstep.round(api, number) as world:
            for name, version, request, _ in steps:
                made = from_json(Shapes(messages[name], version), messages[name], request)
                answered.append([name, version, request, as_json(Lockstep.answer(side, made, version))])
                lockstep.settle(name, world)
        replayed_rounds.append((number, answered))
    side.close()
    return replayed_rounds


class Recording(Lockstep):
    """Notes the steps of each round; of one at which the two differ the answer is missing."""

    def __init__(self, kafka: str, seed: int) -> None:
        super().__init__([MemorySide(), Side(kafka)], seed)
        self.rounds: Rounds = []

    def answered(self, name: str, version: int, request: Struct, ours: Any, theirs: Any) -> None:
        number = self.sides[0].number
        if not self.rounds or self.rounds[-1][0] != number:
            self.rounds.append((number, []))
        if ours == theirs:
            self.rounds[-1][1].append([name, version, as_json(request), as_json(theirs)])


def _reproducible(api: str, rounds: Rounds) -> Rounds:
    """Each round up to the first step that this broker answers otherwise when asked again."""
    same_rounds = []
    for (number, steps), (_, again) in zip(rounds, replayed(api, rounds), strict=True):
        same = next((at for at, (a, b) in enumerate(zip(steps, again, strict=True)) if a != b), len(steps))
        if same < len(steps):
            print(f"{api} {number}: {steps[same][:3]}\n  {steps[same][3]}\n  {again[same][3]}", file=sys.stderr)
        if same:
            same_rounds.append((number, steps[:same]))
    return same_rounds


def main() -> None:
    from real_kafka import real_kafka

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--requests", type=int, default=12, help="of each API")
    parser.add_argument("--integers", action="store_true", help="of lockstep_integers, into their own file")
    parser.add_argument("--api", metavar="NAME", help="only this one; the file keeps what it has of the others")
    arguments = parser.parse_args()
    file = INTEGERS if arguments.integers else FILE
    kept = {} if arguments.api is None else read(file)
    with real_kafka("".join(f"{name}={value}\n" for name, value in BOTH.items())) as kafka:
        table = Recording(kafka, 0).table
        for number, api in enumerate(table):
            if arguments.api not in (None, api):
                continue
            recording = Recording(kafka, 1000 * arguments.seed + number)
            if arguments.integers:
                ask_all(recording, sample_of(*recording.table[api], arguments.requests))
            else:
                recording.run(api, arguments.requests)
            rounds = recording.rounds[:_ROUNDS_OF_INTEGERS] if arguments.integers else recording.rounds
            kept[api] = _reproducible(api, rounds)
            if not kept[api]:
                del kept[api]  # without an integer
                continue
            steps = sum(len(steps) for _, steps in kept[api])
            print(f"{api}: {steps} of {sum(recording.report.requests.values())} steps", flush=True)
            write(kept, file)


if __name__ == "__main__":
    main()
