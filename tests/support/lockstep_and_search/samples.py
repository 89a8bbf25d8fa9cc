"""Random instances of any declared message, valid in a given version."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from minibroker_protocol import fields, metadata_records, registry
from minibroker_protocol.dsl import Message
from minibroker_protocol.fields import Field
from minibroker_protocol.shapes import Kind, Shapes
from minibroker_protocol.structs import Struct

INTEGER_BITS = {"b": 8, "h": 16, "i": 32, "q": 64}
ALPHABET = "abcXYZ019-_. äß→漢字🜁"


def message_versions() -> Iterator[tuple[type[Message], int]]:
    """Every version of every declared message, in an order that does not depend on what was imported first."""
    assert metadata_records  # the only ones that nothing but taking over a Kafka's directory loads
    for message in sorted(registry.all_messages(), key=lambda message: (message.__module__, message.__name__)):
        if message.__module__.startswith("minibroker_protocol."):
            for version in range(message.__versions__[0], message.__versions__[1] + 1):
                yield message, version


def sample(message: type[Message], version: int, rng: Random) -> Message:
    """A message whose every field has a value that the version can carry."""
    made = _Sampler(Shapes(message, version), rng).struct(message, 0)
    assert isinstance(made, Message)
    return made


class _Sampler:
    def __init__(self, shapes: Shapes, rng: Random) -> None:
        self.shapes = shapes
        self.rng = rng

    def struct(self, cls: type[Struct], depth: int) -> Struct:
        shapes = self.shapes
        values = {f.name: shapes.default(f) for f in cls.__fields__}
        for field in shapes.present(cls):
            values[field.name] = self.field(field, depth)
        for field in shapes.tagged(cls):
            if self.rng.random() < 0.6:
                values[field.name] = self.field(field, depth)
        return cls(**values)

    def field(self, field: Field, depth: int) -> Any:
        kind = self.shapes.kind(field)
        if self.shapes.nullable(field) and self.rng.random() < 0.3:
            return None
        if not kind.array:
            return self.value(kind, depth)
        long = kind.struct is None and self.rng.random() < 0.1
        count = self.rng.choice((126, 127, 128, 300)) if long else self.rng.randrange(0, 4 if depth < 2 else 3)
        element = Kind(kind.code, kind.struct, False)
        return [self.value(element, depth) for _ in range(count)]

    def value(self, kind: Kind, depth: int) -> Any:
        rng = self.rng
        if kind.struct is not None:
            return self.struct(kind.struct, depth + 1)
        if kind.code == "string":
            return "".join(rng.choices(ALPHABET, k=self.length()))
        if kind.code in ("bytes", "records"):
            return rng.randbytes(self.length() * (20 if rng.random() < 0.1 else 1))
        if kind.code == "16s":
            return rng.choice((fields.NO_ID, rng.randbytes(16)))
        if kind.code == "?":
            return rng.random() < 0.5
        if kind.code == "d":
            return rng.choice((0.0, -1.5, 1e300, rng.random()))
        return self.integer(kind.code)

    def integer(self, code: str) -> int:
        bits = INTEGER_BITS[code.lower()]
        low, high = (0, 2**bits - 1) if code.isupper() else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        return self.rng.choice((low, high, 0, 1, self.rng.randint(low, high), self.rng.randint(0, 100)))

    def length(self) -> int:
        return self.rng.choice((0, 1, 5, 12, 12, 12, 126, 127, 128)) if self.rng.random() < 0.3 else 6
