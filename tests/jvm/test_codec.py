"""Every message and version, byte for byte and field for field, against the classes Kafka generates for itself."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from random import Random
from typing import Any

import pytest
from jvm import NEWEST, run_java
from samples import message_versions, sample

from minibroker_protocol.dsl import Message
from minibroker_protocol.structs import Struct

pytestmark = pytest.mark.jvm

SAMPLES = 12
OUR_OWN = {"LiteralTransactionLogValue"}
"""Records that the semantics `kip` writes, which Kafka has no class for."""


def is_kafkas(message: type[Message]) -> bool:
    return not getattr(message, "__private__", False) and message.__name__ not in OUR_OWN


@pytest.fixture(scope="module")
def echoes(programs: Path) -> list[tuple[Message, int, bytes, str]]:
    """Random messages with the bytes we make of them and the line Kafka's classes answer to those."""
    rng = Random(20260701)
    made: list[tuple[Message, int, bytes]] = []
    for message, version in message_versions():
        if is_kafkas(message):
            for _ in range(SAMPLES):
                instance = sample(message, version, rng)
                made.append((instance, version, instance.encode(version)))
    lines = [f"{type(instance).__name__} {version} {data.hex()}" for instance, version, data in made]
    done = run_java("CodecEcho", extra=(programs,), stdin="\n".join(lines) + "\n", release=NEWEST)
    answers = done.stdout.splitlines()
    assert len(answers) == len(made), done.stderr
    return [(*one, answer) for one, answer in zip(made, answers, strict=True)]


def test_kafka_encodes_the_same_bytes(echoes: list[tuple[Message, int, bytes, str]]) -> None:
    wrong = [
        f"{type(instance).__name__} v{version}: sent {data.hex()}, Kafka answers {answer[:2000]}"
        for instance, version, data, answer in echoes
        if answer.split(" ", 1)[0] != data.hex()
    ]
    assert len(echoes) > 1000
    assert wrong[:20] == []


def test_kafka_sees_the_same_fields(echoes: list[tuple[Message, int, bytes, str]]) -> None:
    checked = 0
    wrong: list[str] = []
    for instance, version, _, answer in echoes:
        text = answer.partition(" ")[2]
        if text.startswith("{"):
            checked += 1
            wrong += [
                f"{type(instance).__name__} v{version} {line}" for line in differences(instance, json.loads(text))
            ]
    assert checked > 1000
    assert wrong[:20] == []


def differences(ours: Struct, theirs: dict[str, Any]) -> list[str]:
    """Where a message differs from what Kafka printed of it. Fields that Kafka leaves out have their defaults."""
    found: list[str] = []
    for key, value in theirs.items():
        if key == "records":
            continue  # Kafka prints an empty string for them
        name = snake_case(key)
        if not hasattr(ours, name):
            found.append(f".{name}: no such field of ours")
            continue
        found += [f".{name}{line}" for line in value_differences(getattr(ours, name), value)]
    return found


def value_differences(ours: Any, theirs: Any) -> list[str]:
    if isinstance(ours, Struct):
        return differences(ours, theirs)
    if isinstance(ours, list):
        if len(ours) != len(theirs):
            return [f": {len(ours)} elements, Kafka has {len(theirs)}"]
        return [
            f"[{i}]{line}" for i, pair in enumerate(zip(ours, theirs, strict=True)) for line in value_differences(*pair)
        ]
    if isinstance(ours, bytes) and isinstance(theirs, str):
        theirs = base64.b64decode(theirs) if len(theirs) % 4 == 0 else base64.urlsafe_b64decode(theirs + "==")
    return [] if ours == theirs else [f": {ours!r}, Kafka has {theirs!r}"]


def snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
