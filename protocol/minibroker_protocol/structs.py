"""Structs: classes whose annotations are their fields, in wire order."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any, ClassVar, dataclass_transform

from minibroker_protocol.fields import Field, f
from minibroker_protocol.source import compile_init


def _annotations(namespace: dict[str, Any]) -> dict[str, str]:
    """The annotations of a class body as text: Python 3.14 keeps them as a function (PEP 649), older ones as a dict."""
    if "__annotations__" in namespace or tuple(sys.version_info) < (3, 14):
        annotations: dict[str, object] = namespace.get("__annotations__", {})
    else:
        annotationlib = import_module("annotationlib")
        annotate = annotationlib.get_annotate_from_class_namespace(namespace)
        if annotate is None:
            return {}
        annotations = annotationlib.call_annotate_function(annotate, annotationlib.Format.STRING)
    for name, value in annotations.items():
        if not isinstance(value, str) and not name.startswith("__"):
            raise TypeError(f"{namespace['__qualname__']}.{name}: put `from __future__ import annotations` on top")
    return {
        name: text for name, text in annotations.items() if isinstance(text, str) and not text.startswith("ClassVar")
    }


@dataclass_transform(kw_only_default=True, eq_default=True, field_specifiers=(f,))
class _StructMeta(type):
    """Turns annotations into slots and ``__fields__``."""

    def __new__(
        mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], *, base: bool = False, **options: Any
    ) -> _StructMeta:
        if base:
            namespace.setdefault("__slots__", ())
            return super().__new__(mcs, name, bases, namespace)
        fields = []
        for field_name, annotation in _annotations(namespace).items():
            field = namespace.pop(field_name, None) or f()
            field.name = field_name
            field.annotation = annotation
            fields.append(field)
        namespace["__slots__"] = tuple([field.name for field in fields])
        namespace["__fields__"] = tuple(fields)
        return super().__new__(mcs, name, bases, namespace, **options)


class Struct(metaclass=_StructMeta, base=True):
    """A group of fields within a message. Keyword constructor; equal when all fields are."""

    __fields__: ClassVar[tuple[Field, ...]] = ()

    def __init__(self, **values: Any) -> None:
        # The first construction compiles the real constructor and puts it in place of this one.

        cls = type(self)
        cls.__init__ = compile_init(cls.__qualname__, cls.__fields__)  # type: ignore[method-assign]
        cls.__init__(self, **values)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, field.name) == getattr(other, field.name) for field in self.__fields__)

    def __repr__(self) -> str:
        values = ", ".join(f"{field.name}={getattr(self, field.name)!r}" for field in self.__fields__)
        return f"{type(self).__qualname__}({values})"


class Versioned(Struct, base=True):
    """A struct with versions.

    __versions__: first and last.
    __flexible__: the first flexible one, or NEVER.
    """

    __versions__: ClassVar[tuple[int, int]]
    __flexible__: ClassVar[int]


def struct_types(message: type[Struct]) -> Mapping[str, type[Struct]]:
    """The struct classes nested in a message, by name."""
    return {
        name: value for name, value in vars(message).items() if isinstance(value, type) and issubclass(value, Struct)
    }


def struct_of(message: type[Struct], field: Field) -> type[Struct] | None:
    """The struct that a field of `message`, or of a struct in it, holds or lists; None for plain values."""
    return struct_types(message).get(field.element)


@cache
def named_by(kind: type[Struct], entity: str) -> str | None:
    """The field of a struct whose one value names such a thing, as `f(entity=…)` says; None without one."""
    return next((field.name for field in kind.__fields__ if field.entity == entity and not field.array), None)


@cache
def lists_about(message: type[Struct], kind: type[Struct], entities: tuple[str, ...]) -> tuple[str, ...]:
    """The lists of `kind`, `message` itself or a struct in it, each of whose items is about one of these entities."""
    names = []
    for field in kind.__fields__:
        item = struct_of(message, field)
        about = entities_of(item) if item is not None else (field.entity,)
        if field.array and not set(about).isdisjoint(entities):
            names.append(field.name)
    return tuple(names)


@cache
def entities_of(kind: type[Struct]) -> tuple[str, ...]:
    """The entities (topic, group, …) that a struct names. Lists of plain values do not count: they are fields of a
    struct, not its items."""
    return tuple(field.entity for field in naming(kind) if field.entity is not None)


@cache
def naming(kind: type[Struct]) -> tuple[Field, ...]:
    """The fields that say what a struct is about."""
    return tuple(
        field for field in kind.__fields__ if field.entity and not (field.array and field.element[0].islower())
    )
