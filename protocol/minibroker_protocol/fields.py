"""What a message is declared with: field types, and what `f` says about a field."""

from __future__ import annotations

from typing import Any, Final

Buffer = bytes | bytearray | memoryview

# What a field may be annotated with, besides ``list[...]`` of these, a nested struct, and ``... | None``.
# A type checker sees the Python type; codegen goes by the name.
int8 = int
int16 = int
uint16 = int
int32 = int
uint32 = int
int64 = int
float64 = float
bool_ = bool
uuid = bytes
"""16 raw bytes, most significant first; ``NO_ID`` when absent."""
string = str
bytes_ = bytes
Records = Buffer
"""Record batches: decoded to a memoryview into the input, encoded by reference."""
RecordBuffers = Buffer | list[Buffer]
"""Record batches that a response may gather from several buffers; decoded to one memoryview."""

NO_ID: Final = bytes(16)
NEVER: Final = 1 << 15
"""``__flexible__`` of a message that has no flexible version; above every version."""
_REQUIRED: Final = object()


class Field:
    """One field of a message: its name, annotation (as text) and what ``f`` said about it.

    ``versions``, ``nullable`` and ``tagged`` are inclusive ``(low, high)`` ranges of message versions, or None.
    """

    __slots__ = ("annotation", "default", "doc", "flexible", "ignorable", "name", "nullable", "tag", "versions")

    def __init__(
        self,
        versions: str | None,
        nullable: str | None,
        tag: int | None,
        default: object,
        ignorable: bool,
        flexible: bool,
        doc: str,
    ) -> None:
        self.name = ""
        self.annotation = ""
        self.versions = parse_versions(versions) if versions else (0, NEVER)
        self.nullable = parse_versions(nullable) if nullable else None
        self.tag = tag
        self.default = default
        self.ignorable = ignorable
        self.flexible = flexible
        self.doc = doc

    @property
    def required(self) -> bool:
        """Whether a constructor must be given the field."""
        return self.default is _REQUIRED

    def __repr__(self) -> str:
        return f"Field({self.name}: {self.annotation})"


def f(
    versions: str | None = None,
    *,
    nullable: str | None = None,
    tag: int | None = None,
    default: Any = _REQUIRED,
    ignorable: bool = False,
    flexible: bool = True,
    doc: str = "",
) -> Any:
    """Say more about a field than its annotation does.

    ``versions`` and ``nullable`` are ranges of message versions ("3", "2-5", "4+"). A field with a ``tag`` is written
    as a tagged field, and only when it differs from its ``default``; a tagged struct has the default None, meaning
    absent. (Without a default, absence means a struct of defaults, and null is written.) A field that a version lacks
    may hold only its default there, unless it is ``ignorable``.
    ``flexible=False`` keeps the old length prefix in flexible versions too (RequestHeader.clientId).
    """
    return Field(versions, nullable, tag, default, ignorable, flexible, doc)


def parse_versions(text: str) -> tuple[int, int]:
    """``"3"`` → (3, 3), ``"2-5"`` → (2, 5), ``"4+"`` → (4, NEVER)."""
    if text.endswith("+"):
        return int(text[:-1]), NEVER
    low, _, high = text.partition("-")
    return int(low), int(high or low)


def undescribed() -> Field:
    """A field of which only its annotation is known."""
    return Field(None, None, None, _REQUIRED, False, True, "")
