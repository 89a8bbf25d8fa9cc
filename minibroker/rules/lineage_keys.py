"""What ties an output record to its input record: the values of `--lineage-key`, of the audit and of the judge."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

POSITION = "position:"
HOW = "key, value, header:NAME, field:NAME, position:header:NAME or position:field:NAME"
_PLACE = re.compile(r"([a-zA-Z0-9._-]+)-(\d+)@(\d+)")


def checked_key(how: str) -> str:
    """`how`, if it is one of HOW. Raises ValueError."""
    kind, _, name = how.removeprefix(POSITION).partition(":")
    named = kind in ("header", "field") and bool(name)
    if not named and (how.startswith(POSITION) or how not in ("key", "value")):
        raise ValueError(f"--lineage-key {how}: expected {HOW}")
    return how


def values_of(
    how: str, key: bytes | None, value: bytes | None, headers: Iterable[tuple[object, bytes | None]]
) -> Iterator[Any]:
    """The values of a record: none where it has none, several where a field has a list.

    how: one of HOW, what is behind `POSITION` where it begins so.
    """
    kind, _, name = how.removeprefix(POSITION).partition(":")
    if kind == "header":
        yield from (value for header, value in headers if header == name and value is not None)
    elif kind == "field":
        field = _field(value, name)
        yield from field if isinstance(field, list) else [] if field is None else [field]
    else:
        content = key if how == "key" else value
        if content is not None:
            yield content


def _field(value: bytes | None, name: str) -> Any:
    """A field of a JSON object, by its path with dots; None where there is none."""
    try:
        value_at = json.loads(value or b"")
    except ValueError:
        return None
    for step in name.split("."):
        value_at = value_at.get(step) if isinstance(value_at, dict) else None
    return value_at


def place_of(value: Any) -> tuple[str, int, int] | None:
    """(topic, partition, offset) of a text `TOPIC-PARTITION@OFFSET` or an object with these three; None for others."""
    if isinstance(value, dict):
        value = "{topic}-{partition}@{offset}".format_map({"topic": "", "partition": "", "offset": "", **value})
    match = _PLACE.fullmatch(value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value))
    return None if match is None else (match[1], int(match[2]), int(match[3]))


def bytes_of(value: Any) -> bytes:
    """A value as it is compared."""
    return value if isinstance(value, bytes) else json.dumps(value, sort_keys=True).encode()
