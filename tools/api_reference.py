"""The blocks of docs/reference/api.md: classes of the Python API, and commands of the control API."""

from __future__ import annotations

import inspect
import re
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any


def api_classes() -> list[type]:
    """The public classes whose names docs/reference/api.md lists, in its order."""
    from minibroker import Minibroker, Proxy
    from minibroker.control import client
    from minibroker.control.reading import Controlled
    from minibroker.testing.life_cycle import Embedded
    from minibroker.testing.running_cluster import RunningCluster

    return [
        Minibroker,
        Proxy,
        Embedded,
        Controlled,
        client.Faults,
        client.Fault,
        client.Clock,
        client.State,
        RunningCluster,
        client.Control,
    ]


def api_python() -> str:
    """Every public class with its properties and methods."""
    return "\n".join(_class(kind) for kind in api_classes())


def api_commands() -> str:
    """Every command of HTTP and `minibroker control`, but those that are methods of `State`; what a command with a
    Python method of the same name does is said there."""
    from minibroker.control import client
    from minibroker.control.listing import listed_commands
    from minibroker.control.reading import Controlled

    classes = {"fault": (client.Faults, client.Fault), "clock": (client.Clock,), "read": (Controlled,)}

    lines = []
    for entry in listed_commands():
        if entry.name.startswith("state."):
            continue  # a method of `State` each
        group, _, method = entry.name.partition(".")
        twins = [kind.__name__ for kind in classes.get(group, (client.Control,)) if method in vars(kind)]
        parameters = "".join(f" `{parameter}`" for parameter in entry.parameters)
        text = f"`{twins[0]}.{method}`" if twins else _cell(entry.summary)
        lines.append(f"- `{entry.name}`{parameters}: {text}")
    return "\n".join(lines) + "\n"


def api_actions() -> str:
    """The actions of fault rules."""
    from minibroker.faults.actions import ACTIONS

    lines = ["| class of `minibroker.faults` | as JSON | |", "|---|---|---|"]
    for name, kind in ACTIONS.items():
        known = ", ".join(field.name for field in fields(kind))  # type: ignore[arg-type]
        text = _cell(" ".join((kind.__doc__ or "").split()))
        lines.append(f"| `{kind.__name__}({known})` | `{name}` | {text} |")
    return "\n".join(lines) + "\n"


def fault_actions() -> str:
    """The actions of fault rules with their defaults, in a sentence each."""
    from minibroker.faults.action_fields import needed_by
    from minibroker.faults.actions import ACTIONS

    lines = ["| action | effect |", "|---|---|"]
    for kind in ACTIONS.values():
        needed = needed_by(kind)
        shown = [f.name if f.name in needed else f"{f.name}={_default(f)!r}" for f in fields(kind)]  # type: ignore[arg-type]
        sentence = re.split(r"(?<=\.)\s", " ".join((kind.__doc__ or "").split()))[0]
        lines.append(f"| `{kind.__name__}({', '.join(shown)})` | {_cell(sentence)} |")
    return "\n".join(lines) + "\n"


def _default(known: Field[Any]) -> object:
    return known.default_factory() if known.default_factory is not MISSING else known.default


def _class(kind: type) -> str:
    lines = [f"### {kind.__name__}", "", _text(kind), ""]
    if "__init__" in vars(kind) and kind.__name__ == "Minibroker":
        signature = _signature(kind.__init__)  # type: ignore[misc]
        lines += [f"`{kind.__name__}{signature}`", ""]
    if is_dataclass(kind):
        return "\n".join([*lines, *(f"- `{field.name}`: `{field.type}`" for field in fields(kind))]) + "\n"
    from minibroker.control.client import State
    from minibroker.control.reading import Controlled

    listed = vars({"RunningCluster": State, "Control": Controlled}.get(kind.__name__, object))
    for name, member in vars(kind).items():
        if name.startswith("_") or name in listed:
            continue
        if isinstance(member, property):
            lines.append(f"- `.{name}` → `{_type(inspect.signature(member.fget).return_annotation)}`: {_doc(member)}")  # type: ignore[arg-type]
        elif inspect.isfunction(member) and name.removesuffix("_async") not in vars(kind).keys() - {name}:
            awaited = "await " if inspect.iscoroutinefunction(member) else ""
            lines.append(f"- `{awaited}.{name}{_signature(member)}`: {_doc(member)}")
    return "\n".join(lines) + "\n"


def _signature(function: Any) -> str:
    declared = inspect.signature(function)
    texts = []
    keywords = False
    for name, parameter in declared.parameters.items():
        if name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not keywords:
            keywords = True
            texts.append("*")
        texts.append(_parameter(name, parameter))
    result = _type(declared.return_annotation)
    return f"({', '.join(texts)})" + ("" if result == "None" else f" → {result}")


def _parameter(name: str, parameter: inspect.Parameter) -> str:
    """`name: type`, `name=default`, or `name: type=None`, which leaves out that None is of the type."""
    kind = _type(parameter.annotation)
    if parameter.default is parameter.empty:
        return f"{name}: {kind}"
    if parameter.default is None:
        return f"{name}: {kind.removesuffix(' | None')}=None"
    return f"{name}={parameter.default!r}"


def _type(annotation: Any) -> str:
    return str(annotation)


def _doc(member: Any) -> str:
    return _plain(" ".join((inspect.getdoc(member) or "").split()))


def _text(kind: type) -> str:
    """A docstring as Markdown: one line a paragraph."""
    paragraphs = (inspect.getdoc(kind) or "").split("\n\n")
    return "\n\n".join(_plain(" ".join(paragraph.split())) for paragraph in paragraphs)


def _cell(text: str) -> str:
    return _plain(text).replace("|", "\\|")


def _plain(text: str) -> str:
    text = re.sub(r":\w+:`~?([\w.]+)`", r"`\1`", text)
    return text.replace("``", "`")
