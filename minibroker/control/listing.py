"""Every command with its parameters, for people: on the command line and in the documentation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any, NamedTuple

from minibroker.control.commands import all_commands
from minibroker.control.exchange_commands import Command
from minibroker.control.openapi import RULE_PROPERTIES
from minibroker.faults.actions import ACTIONS
from minibroker.faults.operations import parameters

_NAMES = {"str": "text", "int": "number", "float": "number", "bool": "true or false"}


class Listed(NamedTuple):
    """One command. parameters: as they are written on the command line, those that may be left out in brackets."""

    name: str
    parameters: list[str]
    summary: str


def listed_commands() -> Iterator[Listed]:
    """All commands, in the order of their groups."""
    for name, command in all_commands().items():
        summary = " ".join((command.__doc__ or "").split())
        yield Listed(name, _rule() if name == "fault.add" else _parameters(command), summary)


def listing() -> str:
    """One paragraph a command."""
    paragraphs = [" ".join([entry.name, *entry.parameters]) + f"\n    {entry.summary}" for entry in listed_commands()]
    actions = ", ".join(f"{name}{_fields(name)}" for name in sorted(ACTIONS))
    return "\n".join(
        [*paragraphs, f"ACTION is one of {actions}", '    a name alone, or JSON: action=\'{"name":"delay","ms":50}\'']
    )


def _parameters(command: Command) -> list[str]:
    texts = []
    for name, parameter in parameters(command).items():
        if parameter.default is parameter.empty:
            texts.append(f"{name}={_kind(str(parameter.annotation))}")
        elif parameter.default is None or parameter.default == "":
            texts.append(f"[{name}={_kind(str(parameter.annotation))}]")
        else:
            texts.append(f"[{name}={_json(parameter.default)}]")
    return texts


def _kind(annotation: str) -> str:
    return _NAMES.get(annotation.removesuffix(" | None"), annotation).replace(" ", "-").upper()


def _json(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _rule() -> list[str]:
    return ["action=ACTION", *(f"[{name}=…]" for name in RULE_PROPERTIES if name != "action")]


def _fields(action: str) -> str:
    names = [known.name for known in fields(ACTIONS[action])]  # type: ignore[arg-type]
    return f" ({', '.join(names)})" if names else ""
