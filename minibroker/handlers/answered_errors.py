"""The errors in an answer, wherever its API keeps them: at the top, per topic, partition, group, resource."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Final, NamedTuple

from minibroker_protocol.structs import Struct


class AnsweredError(NamedTuple):
    """One error of an answer. subject: names on the way to it, "" when it is about the whole; message: if there is."""

    subject: str
    code: int
    message: str | None


class _Shape(NamedTuple):
    """Names of fields. naming: texts that say what the struct is about; below: those that hold structs."""

    codes: tuple[str, ...]
    message: str | None
    naming: tuple[str, ...]
    partitions: tuple[str, ...]
    below: tuple[str, ...]


@cache
def _shape(cls: type[Struct]) -> _Shape:
    fields = cls.__fields__
    single = [field for field in fields if not field.array]
    return _Shape(
        tuple(field.name for field in fields if field.error),
        next((field.name for field in fields if field.error_message), None),
        tuple(field.name for field in single if field.element == "string" and (field.entity or field.map_key)),
        tuple(field.name for field in single if field.entity == "partition"),
        tuple(field.name for field in fields if field.element[0].isupper() and not field.records),
    )


_LOOKED_AT_ONCE: Final = 256
"""Topics, partitions and the like of an answer that are looked at without a pause: some 0.1 ms."""


def errs(answer: Struct) -> bool:
    """Whether there may be an error in an answer: False for a short one without any."""
    return _left(answer, _LOOKED_AT_ONCE) < 0


def _left(struct: Struct, most: int) -> int:
    """How many structs fewer than `most` there are; -1 with an error, or with more."""
    codes, below = _errors(type(struct))
    for name in codes:
        if getattr(struct, name):
            return -1
    for name in below:
        value = getattr(struct, name)
        if type(value) is list:
            most -= len(value)
            if most < 0:
                return -1
            for item in value:
                most = _left(item, most)
                if most < 0:
                    return -1
        elif value is not None:
            most = _left(value, most)
            if most < 0:
                return -1
    return most


@cache
def _errors(cls: type[Struct]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of fields: those with codes, and those with structs that have any."""
    codes, _, _, _, below = _shape(cls)
    return codes, below


def errors_in(answer: Struct) -> list[AnsweredError]:
    """Every error code but NONE, from the outside in."""
    return [error for error in looked_through(answer) if error is not None]


def looked_through(struct: Struct, subject: str = "") -> Iterator[AnsweredError | None]:
    """The same one after the other, and None for each struct that was looked at."""
    yield None
    shape = _shape(type(struct))
    for field in shape.codes:
        code = getattr(struct, field)
        if code:
            message = getattr(struct, shape.message) if shape.message is not None else None
            yield AnsweredError(_subject(struct, subject, shape), int(code), message or None)
    inner = None
    for field in shape.below:
        value = getattr(struct, field)
        for item in value if isinstance(value, list) else (value,):
            if isinstance(item, Struct):
                if inner is None:
                    inner = _subject(struct, subject, shape)
                yield from looked_through(item, inner)


def _subject(struct: Struct, subject: str, shape: _Shape) -> str:
    for field in shape.naming:
        value = getattr(struct, field)
        if isinstance(value, str) and value:
            subject = f"{subject} {value}" if subject else value
            break
    for field in shape.partitions:
        value = getattr(struct, field)
        if isinstance(value, int):
            return f"{subject}-{value}"
    return subject
