"""Every message and version, byte for byte and field for field, against the classes Kafka generates for itself."""

from __future__ import annotations

import base64
import json
import re
from collections import defaultdict
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
from jvm import NEWEST, POMS, run_java
from samples import message_versions, sample

from minibroker_protocol.dsl import Message
from minibroker_protocol.errors import EncodeError
from minibroker_protocol.fields import Field
from minibroker_protocol.shapes import Shapes
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


# -- what is not given -------------------------------------------------------------------------------------------------

Fields = dict[str, dict[str, str]]
"""Struct → field → what a new object of Kafka's has."""


class Theirs(NamedTuple):
    """What Kafka's classes of one release say. encoded: version → bytes of a new object, None where it has none."""

    release: str
    fields: dict[str, Fields]
    encoded: dict[str, dict[int, bytes | None]]


def versions_of_messages() -> dict[str, tuple[type[Message], list[int]]]:
    found: dict[str, tuple[type[Message], list[int]]] = {}
    for message, version in message_versions():
        if is_kafkas(message):
            found.setdefault(message.__name__, (message, []))[1].append(version)
    return found


@pytest.fixture(scope="module", params=list(POMS))
def theirs(request: pytest.FixtureRequest, programs: Path) -> Theirs:
    names = "".join(f"{name}\n" for name in versions_of_messages())
    done = run_java("FieldDefaults", extra=(programs,), stdin=names, release=request.param)
    assert done.returncode == 0, done.stderr
    fields: dict[str, Fields] = defaultdict(lambda: defaultdict(dict))
    encoded: dict[str, dict[int, bytes | None]] = defaultdict(dict)
    for line in done.stdout.splitlines():
        name, kind, *rest = line.split(" ", 4)
        if kind == "field":
            struct, field, value = rest
            fields[name][struct][snake_case(field)] = value
        elif kind == "bytes":
            encoded[name][int(rest[0])] = None if rest[1] == "-" else bytes.fromhex(rest[1][1:])
        else:
            assert request.param != NEWEST, f"Kafka {NEWEST} has no {name}"
    return Theirs(request.param, fields, encoded)


NULL_ON_SUCCESS = {
    "AlterConfigsResponse", "AlterPartitionReassignmentsResponse", "AlterUserScramCredentialsResponse",
    "CreateTopicsResponse", "DeleteAclsResponse", "ElectLeadersResponse", "IncrementalAlterConfigsResponse",
    "ListPartitionReassignmentsResponse", "UpdateFeaturesResponse",
}  # fmt: skip
"""Their error messages are '' in a new object, and Kafka 4.4.0 sets null in every answer without an error."""
OF_TRUNK = {("TransactionLogValue", "last_producer_epoch")}
"""Fields that a release does not have yet."""


def told(shapes: Shapes, field: Field) -> str:
    """Our default as `FieldDefaults` writes a value."""
    value: Any = shapes.default(field)
    if value is None and field.tag is not None and field.nullable is None:
        return "struct"  # None is how a tagged struct is left out (`fields.f`)
    if value is None and field.error_message and shapes.message.__name__ in NULL_ON_SUCCESS:
        return "''"
    if field.records or value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"'{value}'"
    if isinstance(value, list):
        return f"list:{len(value)}"
    if isinstance(value, Struct):
        return "struct"
    if shapes.kind(field).code == "16s":
        high, low = (int.from_bytes(half, "big", signed=True) for half in (value[:8], value[8:]))
        return f"uuid:{high},{low}"
    return f"bytes:{value.hex()}" if isinstance(value, bytes) else str(value)


def structs_in(shapes: Shapes, cls: type[Struct], found: dict[str, type[Struct]]) -> dict[str, type[Struct]]:
    """Those that a message has fields of, by name, with the message."""
    if cls.__name__ not in found:
        found[cls.__name__] = cls
        for field in cls.__fields__:
            struct = shapes.kind(field).struct
            if struct is not None:
                structs_in(shapes, struct, found)
    return found


def test_every_field_has_kafkas_default_in_every_version(theirs: Theirs) -> None:
    checked, wrong = 0, []
    for name, (message, versions) in versions_of_messages().items():
        for version in sorted(set(versions) & theirs.encoded[name].keys()):
            shapes = Shapes(message, version)
            for struct, cls in structs_in(shapes, message, {}).items():
                known = theirs.fields[name].get(struct)
                for field in cls.__fields__:
                    if known is None or field.name not in known:
                        if theirs.release == NEWEST and (struct, field.name) not in OF_TRUNK:
                            wrong.append(f"{name} v{version} {struct}.{field.name}: Kafka has no such field")
                        continue
                    checked += 1
                    ours = told(shapes, field)
                    if ours != known[field.name]:
                        wrong.append(f"{name} v{version} {struct}.{field.name}: {ours}, Kafka has {known[field.name]}")
    assert checked > 5000
    assert wrong[:20] == []


def test_a_message_of_defaults_has_kafkas_bytes_in_every_version(theirs: Theirs) -> None:
    checked, wrong = 0, []
    for name, (message, versions) in versions_of_messages().items():
        for version in sorted(set(versions) & theirs.encoded[name].keys()):
            expected, made = theirs.encoded[name][version], Shapes(message, version).default_struct(message)
            assert isinstance(made, Message)
            if name in NULL_ON_SUCCESS and hasattr(made, "error_message"):
                made.error_message = ""
            checked += 1
            try:
                data: bytes | None = made.encode(version)
            except EncodeError:
                data = None
            if data != expected:
                wrong.append(f"{name} v{version}: {data!r}, Kafka writes {expected!r}")
            elif data is not None and message.decode(bytearray(data), version) != made:
                wrong.append(f"{name} v{version}: what is read is not what was written")
    assert checked > 300
    assert wrong[:20] == []
