"""Turns declarations into functions: one decoder and one encoder per message and version, one constructor per struct.

The functions are compiled on first use (about 0.3 ms) and carry their text as ``source``. Nothing in them locates an
error while all goes well; when one fails, the line it failed on leads to the field.
"""

from __future__ import annotations

import linecache
import struct
from types import FunctionType, TracebackType
from typing import Any, Protocol, cast

from minibroker_protocol.dsl import Buffer, Message, Struct
from minibroker_protocol.errors import EncodeError, Malformed


class Decoder(Protocol):
    """``(buffer, pos)`` → the message and the position after it."""

    source: str
    fields: dict[int, list[tuple[str, int]]]

    def __call__(self, buffer: Buffer, pos: int, /) -> tuple[Any, int]: ...


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
        """An expression for the packer or unpacker of ``n`` values; a short array finds its own ready-made."""
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


def compile_decoder(message: type[Message], version: int) -> Decoder:
    """Generate and compile the decoder of one version."""
    from minibroker_protocol.codegen_read import write_decoder

    source = write_decoder(message, version)
    return cast(Decoder, source.compile(f"<decoder of {message.__name__} v{version}>"))


def compile_encoder(message: type[Message], version: int) -> Encoder:
    """Generate and compile the encoder of one version."""
    from minibroker_protocol.codegen_write import write_encoder

    source = write_encoder(message, version)
    return cast(Encoder, source.compile(f"<encoder of {message.__name__} v{version}>"))


def compile_init(cls: type[Struct]) -> Any:
    """The keyword constructor of a struct. A list default is a new list each time."""
    parameters = []
    names: dict[str, Any] = {}
    body = []
    for field in cls.__fields__:
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
    return source.compile(f"<constructor of {cls.__qualname__}>")


def malformed(message: type[Message], version: int, decoder: Decoder, error: Exception) -> Exception:
    """``Malformed`` naming the field that a decoder failed on, or the error itself if the bytes are not at fault."""
    if not isinstance(error, (Broken, struct.error, IndexError)):
        return error
    frame = _frame(error.__traceback__, decoder)
    if frame is None:
        return error
    line, local = frame
    path = _field(decoder.fields, line, len(local["buf"]) - local["pos"])
    what = str(error) if isinstance(error, Broken) else f"the bytes end at {len(local['buf'])}"
    return Malformed(f"{message.__name__} v{version}: {path}: {what}")


def unencodable(message: type[Message], version: int, encoder: Encoder, error: Exception) -> Exception:
    """What a failed encoder means, with the field that could not be written."""
    frame = _frame(error.__traceback__, encoder)
    if frame is None:
        return error
    line, _ = frame
    fields = encoder.fields.get(line, [])
    return EncodeError(f"{message.__name__} v{version}: {' or '.join(name for name, _ in fields) or '?'}: {error}")


def _frame(trace: TracebackType | None, function: Any) -> tuple[int, dict[str, Any]] | None:
    while trace is not None:
        if trace.tb_frame.f_code is function.__code__:
            return trace.tb_lineno, trace.tb_frame.f_locals
        trace = trace.tb_next
    return None


def _field(fields: dict[int, list[tuple[str, int]]], line: int, left: int) -> str:
    """The field of a line that does not fit into the bytes left; the nearest line above that has fields counts."""
    while line > 0 and line not in fields:
        line -= 1
    candidates = fields.get(line) or [("?", 0)]
    for path, size in candidates:
        left -= size
        if left < 0:
            return path
    return candidates[-1][0]
