"""Functions that are written as text and compiled: their lines, their names, and the fields each line is about."""

from __future__ import annotations

import linecache
import struct
from collections.abc import Iterable
from types import FunctionType
from typing import Any, Protocol, cast

from minibroker_protocol.fields import Buffer, Field


class Decoder(Protocol):
    """``(buffer, pos)`` → the message and the position after it; ``most``: bytes of objects that it may build."""

    source: str
    fields: dict[int, list[tuple[str, int]]]

    def __call__(self, buffer: Buffer, pos: int, most: int = ..., /) -> tuple[Any, int]: ...


class Encoder(Protocol):
    """``(message, out, buffers)``: append to ``buffers`` what was in ``out`` and then the message."""

    source: str
    fields: dict[int, list[tuple[str, int]]]

    def __call__(self, message: Any, out: bytearray, buffers: list[Buffer], /) -> None: ...


SHORT_ARRAY = 9
"""Arrays of fewer numbers have a ``struct.Struct`` kept for each length."""


class Broken(ValueError):
    """Raised by generated code; becomes ``Malformed`` or ``EncodeError`` once the field is known."""


class Source:
    """Lines of a function being written, the names it uses, and the fields each line is about."""

    def __init__(self, signature: str, names: dict[str, Any]) -> None:
        self.lines = [signature]
        self.names = names
        self.fields: dict[int, list[tuple[str, int]]] = {}
        self.indent = 1
        self._unique = 0

    def put(self, line: str, fields: list[tuple[str, int]] | None = None) -> None:
        """Add a line; ``fields`` are (path, bytes) of the fields it reads or writes, in order."""
        self.lines.append("    " * self.indent + line)
        if fields:
            self.fields[len(self.lines)] = fields

    def fresh(self, prefix: str) -> str:
        """A local variable name not used yet."""
        self._unique += 1
        return f"{prefix}{self._unique}"

    def name(self, prefix: str, value: Any) -> str:
        """A global name for a value; the same one for the same value."""
        for known, other in self.names.items():
            if other is value:
                return known
        name = f"{prefix}{len(self.names)}"
        self.names[name] = value
        return name

    def packer(self, letters: str, what: str) -> str:
        """A global name for ``struct.Struct(letters).pack`` or ``.unpack_from``."""
        name = f"{what}_{letters}".replace("?", "z")
        if name not in self.names:
            self.names[name] = getattr(struct.Struct(">" + letters), "pack" if what == "pack" else "unpack_from")
        return name

    def array_packer(self, letter: str, what: str) -> str:
        """An expression for the packer or unpacker of ``n`` values; short arrays use a cached one."""
        name = f"{what}_array_{letter}".replace("?", "z")
        method = "pack" if what == "pack" else "unpack_from"
        if name not in self.names:
            self.names[name] = [getattr(struct.Struct(f">{n}{letter}"), method) for n in range(SHORT_ARRAY)]
        return f"({name}[n] if n < {SHORT_ARRAY} else Struct(f'>{{n}}{letter}').{method})"

    def compile(self, filename: str) -> FunctionType:
        source = "\n".join(self.lines) + "\n"
        linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
        exec(compile(source, filename, "exec"), self.names)
        function = cast(FunctionType, self.names[self.lines[0].split("(")[0].removeprefix("def ")])
        function.source = source  # type: ignore[attr-defined]
        function.fields = self.fields  # type: ignore[attr-defined]
        return function


def compile_init(name: str, fields: Iterable[Field]) -> Any:
    """The keyword constructor of the struct called `name`. A list default is a new list each time."""
    parameters = []
    names: dict[str, Any] = {}
    body = []
    for field in fields:
        value = field.name
        if field.required:
            parameters.append(field.name)
        elif field.default == [] and isinstance(field.default, list):
            parameters.append(f"{field.name}=_new")
            value = f"[] if {field.name} is _new else {field.name}"
        else:
            parameters.append(f"{field.name}={field.default!r}")
        body.append(f"self.{field.name} = {value}")
    source = Source(f"def __init__(self{', *, ' if parameters else ''}{', '.join(parameters)}):", names)
    names["_new"] = object()
    for line in body or ["pass"]:
        source.put(line)
    return source.compile(f"<constructor of {name}>")
