"""A declaration in one version: its fields, their encoding, and the smallest and largest size."""

from __future__ import annotations

import struct
from functools import cache
from typing import Any, NamedTuple

from minibroker_protocol.fields import NO_ID, Field
from minibroker_protocol.structs import Struct, Versioned, struct_types

FIXED = {
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "bool_": "?",
    "uuid": "16s",
}
"""Types of a fixed size, and their letter in the struct module."""

VARIABLE = {"string": "string", "bytes_": "bytes", "Records": "records", "RecordBuffers": "records"}

_ZERO: dict[str, Any] = {"string": "", "bytes": b"", "16s": NO_ID, "d": 0.0, "?": False, "records": None}

# What CPython 3.11 takes for an object, in bytes; only the order of magnitude matters, for ``Shapes.weight``.
_WEIGHT = {"b": 0, "?": 0, "h": 28, "H": 28, "i": 32, "I": 32, "q": 32, "d": 24, "16s": 56}
_VARIABLE_WEIGHT = {"string": 56, "bytes": 40, "records": 200}


@cache
def refers_to_input(message: type[Versioned]) -> bool:
    """Whether a decoded message has views of the bytes it was read from, instead of copies (Kafka's
    ApiKeys.requiresDelayedAllocation, for which any byte array is a view)."""
    structs = (message, *struct_types(message).values())
    return any(VARIABLE.get(field.element) == "records" for struct_ in structs for field in struct_.__fields__)


class Kind(NamedTuple):
    """The type of a field: ``code`` is a struct letter, "string", "bytes", "records" or "" for a struct."""

    code: str
    struct: type[Struct] | None
    array: bool

    @property
    def fixed(self) -> bool:
        return not self.array and self.code in _WEIGHT


class Shapes:
    """One message in one version."""

    def __init__(self, message: type[Versioned], version: int) -> None:
        self.message = message
        self.version = version
        self.flexible = version >= message.__flexible__
        self._structs = struct_types(message)
        self._sizes: dict[type[Struct], tuple[int, int]] = {}
        self._kinds: dict[str, Kind] = {}

    def kind(self, field: Field) -> Kind:
        """What an annotation says: ``list[Message.Topic] | None`` → an array of that struct."""
        kind = self._kinds.get(field.annotation)
        if kind is None:
            kind = self._kinds[field.annotation] = self._kind(field)
        return kind

    def _kind(self, field: Field) -> Kind:
        array, name = field.array, field.element
        if name in FIXED:
            return Kind(FIXED[name], None, array)
        if name in VARIABLE:
            return Kind(VARIABLE[name], None, array)
        if name in self._structs:
            return Kind("", self._structs[name], array)
        raise TypeError(f"{self.message.__name__}.{field.name}: no wire type is called {field.annotation!r}")

    def present(self, cls: type[Struct]) -> list[Field]:
        """The untagged fields of this version, in wire order."""
        return [f for f in cls.__fields__ if f.tag is None and self._has(f)]

    def tagged(self, cls: type[Struct]) -> list[Field]:
        """The tagged fields of this version, by tag."""
        return sorted((f for f in cls.__fields__ if f.tag is not None and self._has(f)), key=lambda f: f.tag or 0)

    def absent(self, cls: type[Struct]) -> list[Field]:
        """The fields that this version lacks."""
        return [f for f in cls.__fields__ if not self._has(f)]

    def _has(self, field: Field) -> bool:
        return field.versions[0] <= self.version <= field.versions[1]

    def nullable(self, field: Field) -> bool:
        """Whether the wire can carry null for the field in this version."""
        return field.nullable is not None and field.nullable[0] <= self.version <= field.nullable[1]

    def compact(self, field: Field) -> bool:
        """Whether lengths are unsigned varints, shifted by one (KIP-482)."""
        return self.flexible and field.flexible

    def default(self, field: Field) -> Any:
        """The value a field has where it is not on the wire; Kafka's type default when nothing is declared."""
        if not field.required:
            return field.default
        kind = self.kind(field)
        if kind.array:
            return []
        if kind.struct is not None:
            return self.default_struct(kind.struct)
        return _ZERO.get(kind.code, 0)

    def default_struct(self, cls: type[Struct]) -> Struct:
        """A struct with every field at its default: a tagged struct equal to it is not written."""
        return cls(**{f.name: self.default(f) for f in cls.__fields__})

    def smallest(self, kind: Kind, compact: bool) -> int:
        """The least bytes one element of this kind takes on the wire."""
        if kind.struct is not None:
            return self._size(kind.struct)[0]
        if kind.code in _WEIGHT:
            return struct.calcsize(">" + kind.code)
        return 1 if compact else 2 if kind.code == "string" else 4

    def weight(self, kind: Kind) -> int:
        """Estimated bytes of memory of one decoded element, without the contents of its strings and byte fields."""
        if kind.struct is not None:
            return self._size(kind.struct)[1]
        # Arrays of numbers are a tuple before they are a list, hence two pointers.
        return 16 + (_WEIGHT.get(kind.code) or _VARIABLE_WEIGHT.get(kind.code, 0))

    def _size(self, cls: type[Struct]) -> tuple[int, int]:
        size = self._sizes.get(cls)
        if size is None:
            size = self._sizes[cls] = self._measure(cls)
        return size

    def _measure(self, cls: type[Struct]) -> tuple[int, int]:
        smallest = 1 if self.flexible else 0
        weight = 48
        for field in self.present(cls):
            kind = self.kind(field)
            compact = self.compact(field)
            if kind.array:
                smallest += 1 if compact else 4
                weight += 64
                continue
            if kind.struct is not None and self.nullable(field):
                smallest += 1
            else:
                smallest += self.smallest(kind, compact)
            weight += self.weight(kind)
        for field in [*self.tagged(cls), *self.absent(cls)]:
            weight += 64 if isinstance(field.default, list) else 8
        return smallest, weight
