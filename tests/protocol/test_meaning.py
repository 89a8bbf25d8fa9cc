"""Fields mean what Kafka says they mean: its entityType and mapKey, and errors where Kafka has them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from minibroker_protocol.dsl import Message
from minibroker_protocol.fields import Field
from minibroker_protocol.registry import all_messages, registry
from minibroker_protocol.structs import Struct, entities_of, struct_types

KAFKA: dict[str, dict[str, str]] = json.loads(
    (Path(__file__).parents[1] / "support" / "recordings" / "meaning_in_kafka.json").read_text()
)
"""Message → field, or struct and field → entityType and "mapKey", of the message definitions of Kafka 4.3.1; of
4.4.0 those of share groups."""
OURS = frozenset(
    [
        "coordinatorKey",
        "coordinatorType",
        "feature",
        "generation",
        "groupInstanceId",
        "logDir",
        "memberId",
        "partition",
        "producerEpoch",
        "quotaEntity",
        "resourceName",
        "resourceType",
        "topicId",
        "user",
    ]
)
"""What Kafka has no entityType for."""
MESSAGES = {message.__name__: message for pair in registry().values() for message in pair}


def fields(message: type[Message]) -> Iterator[tuple[str, type[Struct], Field]]:
    """Every field of a message with its path and the struct that has it."""
    for prefix, kind in [("", message), *((f"{name}.", struct) for name, struct in struct_types(message).items())]:
        for field in kind.__fields__:
            yield prefix + field.name, kind, field


@pytest.mark.parametrize("name", MESSAGES)
def test_entities_and_map_keys_are_those_of_kafka(name: str) -> None:
    for path, _, field in fields(MESSAGES[name]):
        words = KAFKA.get(name, {}).get(path, "").split()
        assert field.map_key or "mapKey" not in words, path
        if words and words[0] != "mapKey":
            assert field.entity == words[0], path
        elif not MESSAGES[name].__private__:
            assert field.entity is None or field.entity in OURS, path


@pytest.mark.parametrize(
    ("name", "struct", "about"),
    [
        ("DescribeLogDirsRequest", "DescribableLogDirTopic", ("topicName",)),
        ("ListConfigResourcesRequest", "", ()),
        ("MetadataRequest", "MetadataRequestTopic", ("topicId", "topicName")),
    ],
)
def test_a_struct_is_about_what_its_single_values_name(name: str, struct: str, about: tuple[str, ...]) -> None:
    """And not about each of a list of numbers or names."""
    message = MESSAGES[name]
    assert entities_of(struct_types(message)[struct] if struct else message) == about


@pytest.mark.parametrize("name", MESSAGES)
def test_every_field_that_kafka_gives_a_meaning_is_there(name: str) -> None:
    assert KAFKA.get(name, {}).keys() <= {path for path, _, _ in fields(MESSAGES[name])}


def test_what_is_called_an_error_or_a_throttle_time_is_declared_as_one() -> None:
    # Kafka's field names: every *ErrorCode and ErrorMessage is an int16 or a string under exactly these.
    expected = {"error_code": "error", "partition_error_code": "error", "error_message": "error_message",
                "throttle_time_ms": "throttle"}  # fmt: skip
    for message in all_messages():
        for path, _, field in fields(message):
            meant = expected.get(field.name)
            if meant is not None and message.__name__ in MESSAGES:
                assert getattr(field, meant), f"{message.__name__}.{path}"


def test_what_is_called_a_secret_is_declared_as_one() -> None:
    # Proofs and keys; the value beside a setting's name, of which the setting says whether it is one.
    always = {"auth_bytes", "hmac", "salt", "salted_password", "token_id", "salted_passwords"}
    for message in MESSAGES.values():
        for path, kind, field in fields(message):
            of_setting = "Config" in kind.__name__ and field.name == "value" and field.element == "string"
            assert field.secret == (True if field.name in always else "name" if of_setting else False), path
            assert not isinstance(field.secret, str) or field.secret in {one.name for one in kind.__fields__}, path


def test_an_error_is_a_number_and_its_message_a_text() -> None:
    for message in all_messages():
        for path, _, field in fields(message):
            wanted = {"int16": field.error, "string": field.error_message, "int32": field.throttle}
            assert not any(wanted.values()) or wanted.get(field.element), f"{message.__name__}.{path}"


def test_what_a_list_of_results_answers_is_in_the_request() -> None:
    for request, response in registry().values():
        known = {field.name for field in request.__fields__}
        for path, _, field in fields(response):
            assert field.answers is None or set(field.answers.split()) <= known, path
