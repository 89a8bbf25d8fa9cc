"""The control API described as OpenAPI 3.1, made from the table of commands."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from minibroker.faults.action_fields import kinds_of, needed_by
from minibroker.faults.actions import ACTIONS
from minibroker.faults.operations import parameters
from minibroker.version import __version__

if TYPE_CHECKING:
    from minibroker.control.exchange_commands import Command

_TYPES = {"str": "string", "int": "integer", "bool": "boolean", "float": "number"}


def describe(commands: Mapping[str, Command]) -> dict[str, Any]:
    """The description of `commands`, by name."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "minibroker control",
            "version": __version__,
            "description": "Faults, clock, state and exchanges of a running broker. Started with --control HOST:PORT.",
        },
        "paths": {f"/v1/{name.replace('.', '/')}": _path(name, command) for name, command in sorted(commands.items())},
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Rule": _rule(), "Action": {"oneOf": [_action(name) for name in ACTIONS]}, "Error": _error()},
        },
        "security": [{"token": []}],
    }


def _path(name: str, command: Command) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Rule"} if name == "fault.add" else _object(parameters(command))
    answer = {"type": "object", "properties": {"result": {}}, "required": ["result"]}
    errors = {
        "400": "the arguments make no sense",
        "401": "the token is missing or wrong",
        "403": "asked by a web page, or under a name that is no address",
        "404": "there is no such command",
        "409": "the cluster refused, with Kafka's error as code",
        "413": "the body is too large",
        "415": "the body is not application/json",
    }
    return {
        "post": {
            "operationId": name,
            "summary": _doc(command),
            "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
            "responses": {
                "200": {"description": "done", "content": {"application/json": {"schema": answer}}},
                **{
                    status: {
                        "description": text,
                        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
                    }
                    for status, text in errors.items()
                },
            },
        }
    }


def _object(known: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
    required = [name for name, parameter in known.items() if parameter.default is parameter.empty]
    properties = {}
    for name, parameter in known.items():
        properties[name] = _typed(str(parameter.annotation))
        if parameter.default is not parameter.empty:
            properties[name]["default"] = parameter.default
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**schema, "required": required} if required else schema


def _typed(annotation: str) -> dict[str, Any]:
    kinds = [_TYPES.get(part, "object") for part in annotation.removesuffix(" | None").split(" | ")]
    types: list[str] = [*kinds, "null"] if annotation.endswith(" | None") else kinds
    return {"type": types[0] if len(types) == 1 else types}


_NAME = {"type": "string", "description": "an exact name, or a pattern with * and ?"}
_BOUNDS = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}
RULE_PROPERTIES: Final[Mapping[str, Any]] = {
    "action": {"$ref": "#/components/schemas/Action"},
    "api": {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
    "versions": _BOUNDS,
    "sequence": _BOUNDS,
    **dict.fromkeys(("client_id", "topic", "group", "transactional_id"), _NAME),
    **{name: {"type": "integer"} for name in ("partition", "producer_id", "producer_epoch", "broker")},
    "between_brokers": {"type": "boolean", "default": False},
    "nth": {"type": "integer", "minimum": 1, "default": 1},
    "times": {"type": ["integer", "null"], "minimum": 1, "default": 1},
    "probability": {"type": "number", "exclusiveMinimum": 0, "maximum": 1, "default": 1},
    "seed": {"type": "integer", "default": 0},
}


def _rule() -> dict[str, Any]:
    return {"type": "object", "properties": RULE_PROPERTIES, "required": ["action"], "additionalProperties": False}


def _action(name: str) -> dict[str, Any]:
    kind = ACTIONS[name]
    properties: dict[str, Any] = {"name": {"const": name}}
    for field, its_kind in kinds_of(kind).items():
        properties[field] = its_kind.schema
    return {
        "type": "object",
        "description": _doc(kind),
        "properties": properties,
        "required": ["name", *needed_by(kind)],
        "additionalProperties": False,
    }


def _error() -> dict[str, Any]:
    text = {"type": "string"}
    inner = {"type": "object", "properties": {"code": text, "message": text}, "required": ["code", "message"]}
    return {"type": "object", "properties": {"error": inner}, "required": ["error"]}


def _doc(described: Any) -> str:
    return " ".join((described.__doc__ or "").split())
