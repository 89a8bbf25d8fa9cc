"""Paths into a decoded response.

`a.b[0].c`, `a[name=$t].b`; `..f` every `f` anywhere in order (a list, or the one there is) and `a..f` those below `a`;
`#path` the length, `sorted path` with lists put in order. `records` are batches in short form, `recordsFull` in full.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from .batches import ReceivedRecords
from .values import ABSENT, resolve

_PART = re.compile(r"\.\.(?P<anywhere>\w+)|\[(?P<select>[^\]]*)\]|\.?(?P<field>[^.\[\]]+)")
_INDEX = re.compile(r"-?\d+")


def lookup(response: Any, path: str, variables: Mapping[str, Any]) -> Any:
    """What is at `path`, as plain values; ABSENT when nothing is.

    What follows a `..f` that occurs several times is not looked at: the list of all is the answer.
    """
    if path.startswith("sorted "):
        return in_order(lookup(response, path.removeprefix("sorted "), variables))
    if path.startswith("#"):
        value = lookup(response, path[1:], variables)
        return len(value) if isinstance(value, list | str | dict) and value != ABSENT else value
    full = "recordsFull" in path
    value = response
    for part in _PART.finditer(path.replace("recordsFull", "records")):
        if isinstance(value, ReceivedRecords):
            value = plain(value, full=full)
        if part["anywhere"]:
            hits = _anywhere(value, part["anywhere"])
            if len(hits) > 1:
                return plain(hits, full=full)
            value = hits[0] if hits else ABSENT
        elif part["field"]:
            value = value.get(part["field"], ABSENT) if isinstance(value, dict) else ABSENT
        else:
            value = _select(value, part["select"], variables)
        if value is ABSENT:
            return ABSENT
    return plain(value, full=full)


def _select(items: Any, selector: str, variables: Mapping[str, Any]) -> Any:
    if not isinstance(items, list):
        return ABSENT
    if _INDEX.fullmatch(selector):
        index = int(selector)
        return items[index] if -len(items) <= index < len(items) else ABSENT
    key, _, value = selector.partition("=")
    wanted = str(resolve(value, variables))
    return next((item for item in items if isinstance(item, dict) and str(item.get(key)) == wanted), ABSENT)


def _anywhere(value: Any, name: str) -> list[Any]:
    """Every field of this name, outermost first; not those inside one that was found."""
    if isinstance(value, list):
        return [hit for item in value for hit in _anywhere(item, name)]
    if not isinstance(value, dict):
        return []
    hits: list[Any] = []
    for key, item in value.items():
        hits += [item] if key == name else _anywhere(item, name)
    return hits


def plain(value: Any, *, full: bool = False) -> Any:
    """`value` with its record batches as lists of mappings."""
    if isinstance(value, ReceivedRecords):
        return value.batches(full=full)
    if isinstance(value, dict):
        return {key: plain(item, full=full) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item, full=full) for item in value]
    return value


def in_order(value: Any) -> Any:
    """`value` with every list sorted, by the text of its items."""
    if isinstance(value, dict):
        return {key: in_order(item) for key, item in value.items()}
    if isinstance(value, list):
        return sorted(
            (in_order(item) for item in value), key=lambda item: json.dumps(item, sort_keys=True, default=str)
        )
    return value


def is_error_field(name: str) -> bool:
    """Whether a field holds an error code, by its name."""
    return name == "errorCode" or name.endswith("ErrorCode")


def error_names(response: Any) -> list[Any]:
    """Every error code in a response, NONE included."""
    if isinstance(response, list):
        return [name for item in response for name in error_names(item)]
    if not isinstance(response, dict):
        return []
    names: list[Any] = []
    for key, item in response.items():
        if is_error_field(key) and isinstance(item, str | int):
            names.append(item)
        else:
            names += error_names(item)
    return names
