"""The errors in an answer, wherever its API keeps them: at the top, per topic, partition, group, resource."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Final, NamedTuple

from minibroker_protocol.structs import Struct

_CODES: Final = ("error_code", "partition_error_code", "error")
_NAMES: Final = (
    "name",
    "topic",
    "topic_name",
    "group_id",
    "transactional_id",
    "resource_name",
    "key",
    "user",
    "feature",
    "member_id",
)
_INDEXES: Final = ("partition_index", "index", "partition", "partition_id")


class AnsweredError(NamedTuple):
    """One error of an answer. subject: names on the way to it, "" when it is about the whole; message: if there is."""

    subject: str
    code: int
    message: str | None


@cache
def _shape(cls: type[Struct]) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """(fields with codes, with names, with indexes, with structs below)."""
    fields = {field.name: field.annotation for field in cls.__fields__}
    bare = {name: annotation.removeprefix("list[") for name, annotation in fields.items()}
    below = (name for name, text in bare.items() if text[0].isupper() and not text.startswith("Records"))

    def of(wanted: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for name in wanted if name in fields)

    return of(_CODES), of(_NAMES), of(_INDEXES), tuple(below)


def errors_in(answer: Struct) -> list[AnsweredError]:
    """Every error code but NONE, from the outside in."""
    return [error for error in looked_through(answer) if error is not None]


def looked_through(struct: Struct, subject: str = "") -> Iterator[AnsweredError | None]:
    """The same one after the other, and None for each struct that was looked at."""
    yield None
    codes, names, indexes, below = _shape(type(struct))
    for field in codes:
        code = getattr(struct, field)
        if code:
            message = getattr(struct, "error_message", None)
            yield AnsweredError(_subject(struct, subject, names, indexes), int(code), message or None)
    inner = None
    for field in below:
        value = getattr(struct, field)
        for item in value if isinstance(value, list) else (value,):
            if isinstance(item, Struct):
                if inner is None:
                    inner = _subject(struct, subject, names, indexes)
                yield from looked_through(item, inner)


def _subject(struct: Struct, subject: str, names: tuple[str, ...], indexes: tuple[str, ...]) -> str:
    for field in names:
        value = getattr(struct, field)
        if isinstance(value, str) and value:
            subject = f"{subject} {value}" if subject else value
            break
    for field in indexes:
        value = getattr(struct, field)
        if isinstance(value, int):
            return f"{subject}-{value}"
    return subject
