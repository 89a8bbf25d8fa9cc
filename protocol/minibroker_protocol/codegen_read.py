"""Writes decoders.

Consecutive fields of fixed size, and the length prefix after them, are read by one unpack straight into the slots of
the new objects. Nested structs are inlined, so no input can grow the stack. Every length is checked against the bytes
left before anything is allocated for it; what arrays may build in all is limited by ``BUDGET``.
"""

from __future__ import annotations

import struct
from typing import Any

from minibroker_protocol.errors import LongMessage
from minibroker_protocol.fields import Buffer, Field
from minibroker_protocol.shapes import Kind, Shapes
from minibroker_protocol.source import Broken, Source
from minibroker_protocol.structs import Struct, Versioned, struct_types

BUDGET = 128 * 1024 * 1024
"""Bytes of objects one message may build, by the estimate of ``Shapes.weight``: about 300,000 partitions of a fetch."""

MAX_STRING = 32767

TAG_WEIGHT = 64
"""What a tagged field counts against the budget: an undeclared one builds nothing, but takes its time."""


def more(buf: Buffer, n: int, pos: int) -> tuple[int, int]:
    """Go on with an unsigned varint whose first byte ``n`` had its high bit set."""
    n &= 0x7F
    for shift in (7, 14, 21, 28):
        byte = buf[pos]
        pos += 1
        n |= (byte & 0x7F) << shift
        if byte < 0x80:
            if n > 0x7FFFFFFF:
                break
            return n, pos
    raise Broken("a varint above 2147483647")


def varint(buf: Buffer, pos: int) -> tuple[int, int]:
    """Read an unsigned varint."""
    n = buf[pos]
    return (n, pos + 1) if n < 0x80 else more(buf, n, pos + 1)


def bad_length(n: int, available: int, smallest: int = 1) -> Broken:
    """Why a length (−1 for null) was refused; ``smallest`` is the least bytes an element takes."""
    if n == -1:
        return Broken("is null, which this version does not allow")
    if n < 0:
        return Broken(f"length {n}")
    if n * smallest > available:
        return Broken(f"length {n}, but {available} bytes are left")
    return Broken(f"length {n} is above {MAX_STRING}")


def over_budget(n: int, most: int, what: str = "elements") -> Exception:
    """Why ``n`` more elements were refused: they are too many, or only more than ``most`` bytes of objects."""
    reason = f"{n} {what} would make the message too large"
    return LongMessage(reason) if most < BUDGET else Broken(reason)


def write_decoder(message: type[Versioned], version: int) -> Source:
    """The decoder of one version, not compiled yet."""
    return _Reader(Shapes(message, version)).write()


class _Reader:
    def __init__(self, shapes: Shapes) -> None:
        self.shapes = shapes
        self.source = Source(
            "def decode(buf, pos, most=BUDGET):",
            {
                "new": object.__new__,
                "Struct": struct.Struct,
                "memoryview": memoryview,
                "more": more,
                "varint": varint,
                "bad_length": bad_length,
                "Broken": Broken,
                "BUDGET": BUDGET,
                "over_budget": over_budget,
            },
        )
        self.put = self.source.put
        self.run: list[tuple[str, str, str]] = []  # (target, struct letter, path) not read yet

    def write(self) -> Source:
        cls = self.shapes.message
        self.put("end_of_buf = len(buf)")
        self.put("left = most")
        if any(self.shapes.kind(f).code == "records" for s in self._all_structs() for f in self.shapes.present(s)):
            self.put("view = memoryview(buf)")
        self.struct(cls, "m", "")
        self.flush()
        self.put("return m, pos")
        return self.source

    def _all_structs(self) -> list[type[Struct]]:
        return [self.shapes.message, *struct_types(self.shapes.message).values()]

    def flush(self, *prefix: tuple[str, str, str]) -> None:
        """Read the fixed fields collected so far, and what is given."""
        run = [*self.run, *prefix]
        self.run = []
        if not run:
            return
        fields = [(path, struct.calcsize(">" + letter)) for _, letter, path in run]
        if len(run) == 1 and run[0][1] == "B":
            self.put(f"{run[0][0]} = buf[pos]", fields)
        else:
            unpack = self.source.packer("".join(letter for _, letter, _ in run), "unpack")
            targets = ", ".join(target for target, _, _ in run) + ("," if len(run) == 1 else "")
            self.put(f"{targets} = {unpack}(buf, pos)", fields)
        self.put(f"pos += {sum(size for _, size in fields)}")

    def struct(self, cls: type[Struct], var: str, path: str) -> None:
        """Read a struct into a new local variable. Leaves its last fixed fields in the run."""
        shapes = self.shapes
        self.put(f"{var} = new({self.source.name('C', cls)})")
        tagged = shapes.tagged(cls)
        for field in [*shapes.absent(cls), *tagged]:
            self.put(f"{var}.{field.name} = {self.default(field)}")
        for field in shapes.present(cls):
            self.field(field, f"{var}.{field.name}", join_path(path, field.name))
        if shapes.flexible:
            self.tags(tagged, var, path)

    def default(self, field: Field) -> str:
        value: Any = self.shapes.default(field)
        if isinstance(value, Struct):
            return self.source.name("D", value)
        return repr(value)

    def tags(self, tagged: list[Field], var: str, path: str) -> None:
        """Read a tagged section; undeclared tags are skipped (KIP-482)."""
        where = [(join_path(path, "tagged fields"), 1)]
        n = self.source.fresh("n")
        self.flush((n, "B", where[0][0]))
        self.put(f"if {n}:")
        self.source.indent += 1
        self.put(f"if {n} > 127: {n}, pos = more(buf, {n}, pos)", where)
        self.put(f"left -= {n} * {TAG_WEIGHT}")
        self.put(f"if left < 0: raise over_budget({n}, most, 'of them')", where)
        tag, end = self.source.fresh("tag"), self.source.fresh("end")
        self.put(f"for _ in range({n}):")
        self.source.indent += 1
        self.put(f"{tag}, pos = varint(buf, pos)", where)
        self.put(f"{end}, pos = varint(buf, pos)", where)
        self.put(f"if {end} > end_of_buf - pos: raise bad_length({end}, end_of_buf - pos)", where)
        self.put(f"{end} += pos")
        for i, field in enumerate(tagged):
            self.put(f"{'el' if i else ''}if {tag} == {field.tag}:")
            self.source.indent += 1
            name = join_path(path, field.name)
            self.field(field, f"{var}.{field.name}", name)
            self.flush()
            self.put(f"if pos != {end}: raise Broken('its size says otherwise')", [(name, 0)])
            self.source.indent -= 1
        self.put(f"else: pos = {end}" if tagged else f"pos = {end}")
        self.source.indent -= 2

    def field(self, field: Field, target: str, path: str) -> None:
        kind = self.shapes.kind(field)
        nullable = self.shapes.nullable(field)
        compact = self.shapes.compact(field)
        if kind.fixed:
            self.run.append((target, kind.code, path))
        elif kind.array:
            self.array(kind, target, path, nullable, compact)
        elif kind.struct is not None:
            self.nested(kind.struct, target, path, nullable, "n < 0" if field.tag is None else "n < 1")
        else:
            self.variable(kind.code, target, path, nullable, compact)

    def nested(self, cls: type[Struct], target: str, path: str, nullable: bool, is_null: str) -> None:
        var = self.source.fresh("o")
        if not nullable:
            self.struct(cls, var, path)
            self.put(f"{target} = {var}")
            return
        self.flush(("n", "b", path))
        self.put(f"if {is_null}: {target} = None")
        self.put("else:")
        self.source.indent += 1
        self.struct(cls, var, path)
        self.flush()
        self.put(f"{target} = {var}")
        self.source.indent -= 1

    def length(self, letter: str, path: str, compact: bool) -> None:
        """Read a length prefix into ``n``; below 0 is null, as for Kafka's generated readers, which take −2 for −1."""
        self.flush(("n", "B" if compact else letter, path))
        if compact:
            self.put("if n > 127: n, pos = more(buf, n, pos)", [(path, 1)])
            self.put("n -= 1")

    def null(self, target: str, nullable: bool) -> None:
        """Open the branch for a value that is there, if it may be null."""
        if nullable:
            self.put(f"if n < 0: {target} = None")
            self.put("else:")
            self.source.indent += 1

    def variable(self, code: str, target: str, path: str, nullable: bool, compact: bool) -> None:
        self.length("h" if code == "string" else "i", path, compact)
        self.null(target, nullable)
        self.put("end = pos + n")
        limit = f" or n > {MAX_STRING}" if compact and code == "string" else ""
        self.put(f"if not pos <= end <= end_of_buf{limit}: raise bad_length(n, end_of_buf - pos)", [(path, 0)])
        if code == "bytes":  # they are copied
            self.put("left -= n")
            self.put("if left < 0: raise over_budget(n, most, 'bytes')", [(path, 0)])
        value = {
            # As Kafka does, bytes that are no UTF-8 are replaced, not refused.
            "string": "str(buf[pos:end], 'utf-8', 'replace')",
            "bytes": "bytes(buf[pos:end])",
            "records": "view[pos:end]",
        }[code]
        self.put(f"{target} = {value}")
        self.put("pos = end")
        self.source.indent -= nullable

    def array(self, kind: Kind, target: str, path: str, nullable: bool, compact: bool) -> None:
        self.length("i", path, compact)
        self.null(target, nullable)
        smallest = self.shapes.smallest(kind, compact)
        refuse = f"raise bad_length(n, end_of_buf - pos, {smallest})"
        self.put(f"if n < 0 or n * {smallest} > end_of_buf - pos: {refuse}", [(path, 0)])
        self.put(f"left -= n * {self.shapes.weight(kind)}")
        self.put("if left < 0: raise over_budget(n, most)", [(path, 0)])
        if kind.code == "16s":
            self.put(f"{target} = [bytes(buf[at : at + 16]) for at in range(pos, pos + n * 16, 16)]")
            self.put("pos += n * 16")
        elif kind.struct is None and kind.code not in ("string", "bytes"):
            self.put(f"{target} = list({self.source.array_packer(kind.code, 'unpack')}(buf, pos))", [(path, 0)])
            self.put(f"pos += n * {smallest}")
        else:
            self.elements(kind, target, path, compact)
        self.source.indent -= nullable

    def elements(self, kind: Kind, target: str, path: str, compact: bool) -> None:
        items = self.source.fresh("v")
        self.put(f"{items} = {target} = []")
        self.put("for _ in range(n):")
        self.source.indent += 1
        var = self.source.fresh("o")
        if kind.struct is None:
            self.variable(kind.code, var, path, False, compact)
        else:
            self.struct(kind.struct, var, path)
            self.flush()
        self.put(f"{items}.append({var})")
        self.source.indent -= 1


def join_path(path: str, name: str) -> str:
    """The path of a field, as errors show it: ``topics.partitions.index``."""
    return f"{path}.{name}" if path else name
