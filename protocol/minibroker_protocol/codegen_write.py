"""Writes encoders.

Small values go into one growing bytearray, consecutive fields of fixed size by one pack. Record batches and large
byte strings are put between such bytearrays as they are.
"""

from __future__ import annotations

import struct
from typing import Any

from minibroker_protocol.codegen_read import MAX_STRING, join_path
from minibroker_protocol.fields import Field
from minibroker_protocol.shapes import Kind, Shapes
from minibroker_protocol.source import Broken, Source
from minibroker_protocol.structs import Struct, Versioned

BY_REFERENCE = 1024
"""Bytes from which a value is passed on as a buffer of its own instead of being copied."""


def varint(n: int) -> bytes:
    """An unsigned varint."""
    out = bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


def string_length(n: int) -> bytes:
    """The prefix of a compact string of ``n - 1`` bytes, checked as Kafka does."""
    if n > MAX_STRING + 1:
        raise Broken(f"{n - 1} bytes are too long for a string")
    return varint(n)


def write_encoder(message: type[Versioned], version: int) -> Source:
    """The encoder of one version, not compiled yet."""
    return _Writer(Shapes(message, version)).write()


class _Writer:
    def __init__(self, shapes: Shapes) -> None:
        self.shapes = shapes
        self.source = Source(
            "def encode(m, out, buffers):",
            {
                "Struct": struct.Struct,
                "varint": varint,
                "string_length": string_length,
                "Broken": Broken,
            },
        )
        self.put = self.source.put
        self.run: list[tuple[str, str, str]] = []  # (expression, struct letter, path) not written yet
        self.tag_depth = 0

    def write(self) -> Source:
        self.struct(self.shapes.message, "m", "")
        self.flush()
        self.put("buffers.append(out)")
        return self.source

    def packed(self, *prefix: tuple[str, str, str]) -> tuple[str, list[tuple[str, int]]]:
        """An expression for the bytes of the fixed fields collected so far and what is given."""
        run = [*self.run, *prefix]
        fields = [(path, 0) for _, _, path in run]
        if not run:
            return "b''", fields
        letters = "".join(letter for _, letter, _ in run)
        values = ", ".join(value for value, letter, _ in run if letter != "x")
        return f"{self.source.packer(letters, 'pack')}({values})", fields

    def flush(self, *prefix: tuple[str, str, str]) -> None:
        run = [*self.run, *prefix]
        if [letter for _, letter, _ in run] == ["x"]:
            self.put("out.append(0)")
        elif run:
            expression, fields = self.packed(*prefix)
            self.put(f"out += {expression}", fields)
        self.run = []

    def struct(self, cls: type[Struct], var: str, path: str) -> None:
        """Write a struct. Leaves its last fixed fields in the run."""
        shapes = self.shapes
        for field in shapes.absent(cls):
            if not field.ignorable:
                name = join_path(path, field.name)
                differs = self.differs(field, f"{var}.{field.name}")
                self.put(f"if {differs}: raise Broken('this version does not have it')", [(name, 0)])
        for field in shapes.present(cls):
            self.field(field, f"{var}.{field.name}", join_path(path, field.name))
        if shapes.flexible:
            self.tags(shapes.tagged(cls), var, path)

    def differs(self, field: Field, value: str) -> str:
        """An expression: the value is not the field's default."""
        kind = self.shapes.kind(field)
        default: Any = self.shapes.default(field)
        if default is None:
            test = f"{value} is not None"
            if kind.struct is not None and not kind.array and not self.shapes.nullable(field):
                zero = self.source.name("D", self.shapes.default_struct(kind.struct))
                test += f" and {value} != {zero}"
            return test
        if kind.array and not self.shapes.nullable(field):
            return value
        if isinstance(default, Struct):
            return f"{value} != {self.source.name('D', default)}"
        return f"{value} != {default!r}"

    def tags(self, tagged: list[Field], var: str, path: str) -> None:
        if not tagged:
            self.run.append(("", "x", path))
            return
        values = [self.source.fresh("t") for _ in tagged]
        self.put("; ".join(f"{value} = {var}.{field.name}" for value, field in zip(values, tagged, strict=True)))
        tests = [self.differs(field, value) for field, value in zip(tagged, values, strict=True)]
        self.put("n = " + " + ".join(f"(1 if {test} else 0)" for test in tests))
        self.flush(("n", "B", path))
        self.put("if n:")
        self.source.indent += 1
        for field, value, test in zip(tagged, values, tests, strict=True):
            self.put(f"if {test}:")
            self.source.indent += 1
            self.tag(field, value, join_path(path, field.name))
            self.source.indent -= 1
        self.source.indent -= 1

    def tag(self, field: Field, value: str, path: str) -> None:
        """Number, size and value of a tagged field."""
        number = varint(field.tag or 0)
        kind = self.shapes.kind(field)
        if kind.fixed and kind.code != "16s":  # its size is known, so it needs no buffer of its own
            start = number + varint(struct.calcsize(f">{kind.code}"))
            self.put(f"out += {start!r} + {self.source.packer(kind.code, 'pack')}({value})", [(path, 0)])
            return
        outer = self.source.fresh("outer")
        self.put(f"{outer} = out")
        self.put("out = bytearray()")
        self.tag_depth += 1
        self.field(field, value, path)
        self.flush()
        self.tag_depth -= 1
        self.put(f"{outer} += {number!r} + varint(len(out)) + out")
        self.put(f"out = {outer}")

    def field(self, field: Field, value: str, path: str) -> None:
        kind = self.shapes.kind(field)
        nullable = self.shapes.nullable(field)
        compact = self.shapes.compact(field)
        if kind.fixed:
            if kind.code == "16s":
                # struct would silently cut or pad another length.
                self.put(f"if len({value}) != 16: raise Broken('not 16 bytes')", [(path, 0)])
            self.run.append((value, kind.code, path))
        elif not kind.array and kind.struct is not None:
            # In a tagged field the marker is a varint: 0 for null, not Kafka's usual -1.
            self.nested(kind.struct, value, path, nullable, "-1" if field.tag is None else "0")
        else:
            self.prefixed(kind, value, path, nullable, compact)

    def nested(self, cls: type[Struct], value: str, path: str, nullable: bool, null_marker: str) -> None:
        var = self.source.fresh("o")
        self.put(f"{var} = {value}", [(path, 0)])
        if not nullable:
            self.struct(cls, var, path)
            return
        null, _ = self.packed((null_marker, "b", path))
        self.put(f"if {var} is None: out += {null}")
        self.put("else:")
        self.source.indent += 1
        self.flush(("1", "b", path))
        self.struct(cls, var, path)
        self.flush()
        self.source.indent -= 1

    def prefixed(self, kind: Kind, value: str, path: str, nullable: bool, compact: bool) -> None:
        """Strings, bytes, records and arrays: a length, then so many bytes or elements."""
        var = self.source.fresh("v")
        letter = "h" if kind.code == "string" and not kind.array else "i"
        self.put(f"{var} = {value}", [(path, 0)])
        if nullable:
            null, fields = self.packed(("", "x", path) if compact else ("-1", letter, path))
            self.put(f"if {var} is None: " + (f"out += {null}" if self.run or not compact else "out.append(0)"), fields)
            self.put("else:")
            self.source.indent += 1
        if kind.code == "string" and not kind.array:
            self.put(f"{var} = {var}.encode()", [(path, 0)])
        if kind.code == "records":
            self.put(f"n = sum(map(len, {var})) if type({var}) is list else len({var})", [(path, 0)])
        else:
            self.put(f"n = len({var})", [(path, 0)])
        self.length("string_length" if kind.code == "string" and not kind.array else "varint", letter, path, compact)
        if kind.array:
            self.elements(kind, var, path, compact)
        else:
            self.body(kind.code, var)
        self.source.indent -= nullable

    def length(self, helper: str, letter: str, path: str, compact: bool) -> None:
        """Write ``n`` as a length prefix, in one pack with the fields before it."""
        if not compact:
            self.flush(("n", letter, path))
            return
        short, fields = self.packed(("n + 1", "B", path))
        long, _ = self.packed()
        self.put(f"if n < 127: out += {short}" if self.run else "if n < 127: out.append(n + 1)", fields)
        self.put(f"else: out += {long} + {helper}(n + 1)" if self.run else f"else: out += {helper}(n + 1)", fields)
        self.run = []

    def body(self, code: str, var: str) -> None:
        if code == "string" or self.tag_depth:
            self.put(f"out += {var}")
            return
        self.put(f"if n < {BY_REFERENCE}:")
        if code == "records":
            self.put(f"    if type({var}) is list:")
            self.put(f"        for part in {var}: out += part")
            self.put(f"    else: out += {var}")
        else:
            self.put(f"    out += {var}")
        self.put("else:")
        self.put("    buffers.append(out)")
        if code == "records":
            self.put(f"    if type({var}) is list: buffers += {var}")
            self.put(f"    else: buffers.append({var})")
        else:
            self.put(f"    buffers.append({var})")
        self.put("    out = bytearray()")

    def elements(self, kind: Kind, var: str, path: str, compact: bool) -> None:
        if kind.struct is None and kind.code not in ("string", "bytes", "16s"):
            self.put(f"out += {self.source.array_packer(kind.code, 'pack')}(*{var})", [(path, 0)])
            return
        item = self.source.fresh("o")
        self.put(f"for {item} in {var}:")
        self.source.indent += 1
        if kind.struct is not None:
            self.struct(kind.struct, item, path)
            self.flush()
        elif kind.code == "16s":
            self.put(f"if len({item}) != 16: raise Broken('not 16 bytes')", [(path, 0)])
            self.put(f"out += {item}")
        else:
            self.prefixed(Kind(kind.code, None, False), item, path, False, compact)
        # A body of nothing (a struct without fields in this version) still needs a statement.
        self.put("pass")
        self.source.indent -= 1
