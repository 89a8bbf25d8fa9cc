"""The errors in an answer, wherever its API keeps them: at the top, per topic, partition, group, resource."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final, NamedTuple

from minibroker_protocol.source import Source
from minibroker_protocol.structs import Struct, struct_of


class AnsweredError(NamedTuple):
    """One error of an answer.

    subject: names on the way to it, "" when it is about the whole answer.
    message: None without one.
    """

    subject: str
    code: int
    message: str | None


class _Shape(NamedTuple):
    """Names of fields.

    naming: fields with the name of what the struct is about.
    below: fields that hold structs.
    """

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
"""Topics, partitions and the like of an answer that are looked at without a pause: about 0.1 ms."""


@cache
def may_err(response: type[Struct]) -> Callable[[Any], bool]:
    """Whether there may be an error in an answer of this type: False for a short one without any. It reads nothing but
    error codes, because most answers have no error."""
    source = Source("def errs(m):", {})
    source.put(f"left = {_LOOKED_AT_ONCE}")
    _write_look(source, response, response, "m")
    source.put("return False")
    return source.compile(f"<look for errors in {response.__name__}>")


def _write_look(source: Source, message: type[Struct], cls: type[Struct], var: str) -> None:
    for name in _shape(cls).codes:
        source.put(f"if {var}.{name}: return True")
    for field in cls.__fields__:
        inner = struct_of(message, field)
        if inner is None or not _has_codes(message, inner):
            continue
        item = source.fresh("o")
        if field.array:
            items = source.fresh("v")
            source.put(f"{items} = {var}.{field.name} or ()")
            source.put(f"left -= len({items})")
            source.put("if left < 0: return True")
            source.put(f"for {item} in {items}:")
        else:
            source.put(f"{item} = {var}.{field.name}")
            source.put(f"if {item} is not None:")
        source.indent += 1
        _write_look(source, message, inner, item)
        source.indent -= 1


def _has_codes(message: type[Struct], cls: type[Struct]) -> bool:
    """Whether a struct of a message, or one in it, has a field for an error code."""
    inner = [struct_of(message, field) for field in cls.__fields__]
    return bool(_shape(cls).codes) or any(cls_in is not None and _has_codes(message, cls_in) for cls_in in inner)


def errors_in(answer: Struct) -> list[AnsweredError]:
    """Every error code but NONE, from the outside in."""
    return [error for error in looked_through(answer) if error is not None]


def looked_through(struct: Struct, subject: str = "") -> Iterator[AnsweredError | None]:
    """The same errors one by one, and None for each struct, so that the caller can pause."""
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
