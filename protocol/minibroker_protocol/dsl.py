"""Declare a message once; its codecs for every version follow from the declaration.

A message is a class whose annotations are its fields, in wire order::

    class EndTxnMarker(Data, versions="0"):
        coordinator_epoch: int32

    class Example(Request, key=12, versions="0-4", flexible="4+"):
        class Topic(Struct):
            name: string
            partitions: list[int32] = f(default=[])

        group_id: string
        topics: list[Example.Topic] | None = f("2+", nullable="3+", default=None, ignorable=True)

Field names are the snake case of Kafka's schema names. A struct is a class nested in the message, named as its type
in Kafka's schema. Encoders and decoders are generated per message and version on first use (see ``codegen``).

Rules of the format: Kafka's message README (clients/src/main/resources/common/message/README.md) and KIP-482.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, dataclass_transform

from minibroker_protocol.errors import EncodeError, Malformed

if TYPE_CHECKING:
    from minibroker_protocol.codegen import Decoder, Encoder

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
HAS_ANNOTATIONLIB = sys.version_info >= (3, 14)
"""Whether class bodies keep their annotations as a function (PEP 749)."""


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


def _annotations(namespace: dict[str, Any]) -> dict[str, str]:
    """The annotations of a class body as text: Python 3.14 keeps them as a function (PEP 649), older ones as a dict."""
    if "__annotations__" in namespace or not HAS_ANNOTATIONLIB:
        found: dict[str, object] = namespace.get("__annotations__", {})
    else:
        annotationlib = import_module("annotationlib")
        annotate = annotationlib.get_annotate_from_class_namespace(namespace)
        if annotate is None:
            return {}
        found = annotationlib.call_annotate_function(annotate, annotationlib.Format.STRING)
    for name, value in found.items():
        if not isinstance(value, str) and not name.startswith("__"):
            raise TypeError(f"{namespace['__qualname__']}.{name}: put `from __future__ import annotations` on top")
    return {name: text for name, text in found.items() if isinstance(text, str) and not text.startswith("ClassVar")}


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
            field = namespace.pop(field_name, None) or Field(None, None, None, _REQUIRED, False, True, "")
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
        from minibroker_protocol.codegen import compile_init

        cls = type(self)
        cls.__init__ = compile_init(cls)  # type: ignore[method-assign]
        cls.__init__(self, **values)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, field.name) == getattr(other, field.name) for field in self.__fields__)

    def __repr__(self) -> str:
        values = ", ".join(f"{field.name}={getattr(self, field.name)!r}" for field in self.__fields__)
        return f"{type(self).__qualname__}({values})"


class Message(Struct, base=True):
    """What has versions and bytes of its own. Declare with ``versions="0-5"``, ``flexible="3+"``."""

    __versions__: ClassVar[tuple[int, int]]
    __flexible__: ClassVar[int]
    __decoders__: ClassVar[dict[int, Decoder]]
    __encoders__: ClassVar[dict[int, Encoder]]

    def __init_subclass__(cls, *, versions: str = "0", flexible: str = "", **options: Any) -> None:
        super().__init_subclass__(**options)
        if not cls.__fields__ and cls.__module__ == __name__:
            return
        cls.__versions__ = parse_versions(versions)
        cls.__flexible__ = parse_versions(flexible)[0] if flexible else NEVER
        cls.__decoders__ = {}
        cls.__encoders__ = {}
        _MESSAGES.append(cls)

    @classmethod
    def decode(cls, buffer: Buffer, version: int, pos: int = 0) -> Self:
        """The message that starts at ``pos``. Bytes after it are tolerated, as Kafka does. Raises ``Malformed``."""
        return cls.decode_from(buffer, version, pos)[0]

    @classmethod
    def decode_from(cls, buffer: Buffer, version: int, pos: int = 0) -> tuple[Self, int]:
        """The message that starts at ``pos`` and the position after it. Raises ``Malformed``."""
        decoder = cls.__decoders__.get(version)
        if decoder is None:
            decoder = cls.decoder(version)
        try:
            return decoder(buffer, pos)
        except Exception as error:
            from minibroker_protocol.codegen import malformed

            raise malformed(cls, version, decoder, error) from None

    def encode(self, version: int) -> bytes:
        """The bytes of the message. Raises ``EncodeError`` for a value that the version cannot carry."""
        return b"".join(self.encode_buffers(version))

    def encode_buffers(self, version: int, head: Buffer = b"") -> list[Buffer]:
        """``head`` and the message as buffers to write in order; records and large bytes are not copied."""
        encoder = self.__encoders__.get(version)
        if encoder is None:
            encoder = self.encoder(version)
        buffers: list[Buffer] = []
        try:
            encoder(self, bytearray(head), buffers)
        except Exception as error:
            from minibroker_protocol.codegen import unencodable

            raise unencodable(type(self), version, encoder, error) from error
        return buffers

    @classmethod
    def decoder(cls, version: int) -> Decoder:
        """The compiled decoder of a version; its ``source`` attribute is its text."""
        from minibroker_protocol.codegen import compile_decoder

        if not cls.__versions__[0] <= version <= cls.__versions__[1]:
            raise Malformed(f"{cls.__name__} has no version {version}")
        if version not in cls.__decoders__:
            cls.__decoders__[version] = compile_decoder(cls, version)
        return cls.__decoders__[version]

    @classmethod
    def encoder(cls, version: int) -> Encoder:
        """The compiled encoder of a version; its ``source`` attribute is its text."""
        from minibroker_protocol.codegen import compile_encoder

        if not cls.__versions__[0] <= version <= cls.__versions__[1]:
            raise EncodeError(f"{cls.__name__} has no version {version}")
        if version not in cls.__encoders__:
            cls.__encoders__[version] = compile_encoder(cls, version)
        return cls.__encoders__[version]


class Api(Message, base=True):
    """A request or a response. ``latest_unstable`` marks a highest version that Kafka does not advertise,
    ``private`` an API that is not Kafka's."""

    __api_key__: ClassVar[int]
    __latest_unstable__: ClassVar[bool]
    __private__: ClassVar[bool]

    def __init_subclass__(
        cls, *, key: int = -1, latest_unstable: bool = False, private: bool = False, **options: Any
    ) -> None:
        super().__init_subclass__(**options)
        if key < 0:
            return
        cls.__api_key__ = key
        cls.__latest_unstable__ = latest_unstable
        cls.__private__ = private
        _APIS.setdefault(key, {})["request" if issubclass(cls, Request) else "response"] = cls


class Request(Api, base=True):
    """The body of a request."""


class Response(Api, base=True):
    """The body of a response."""


class Header(Message, base=True):
    """A request or response header; its version depends on the API and its version (``headers``)."""


class Data(Message, base=True):
    """A record or a blob inside one: markers, group metadata, transaction state. ``record_type`` is the number that
    starts the key of a coordinator's record."""

    __record_type__: ClassVar[int | None]

    def __init_subclass__(cls, *, record_type: int | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.__record_type__ = record_type


_MESSAGES: list[type[Message]] = []
_APIS: dict[int, dict[str, Any]] = {}


def registry() -> Mapping[int, tuple[type[Request], type[Response]]]:
    """API key → (request class, response class), of every declared API."""
    _declare_all()
    return MappingProxyType({key: (_APIS[key]["request"], _APIS[key]["response"]) for key in sorted(_APIS)})


def all_messages() -> Iterator[type[Message]]:
    """Every declared message class: requests, responses, headers and on-disk records."""
    _declare_all()
    return iter(_MESSAGES)


def struct_types(message: type[Message]) -> Mapping[str, type[Struct]]:
    """The struct classes nested in a message, by name."""
    return {
        name: value for name, value in vars(message).items() if isinstance(value, type) and issubclass(value, Struct)
    }


def _declare_all() -> None:
    import minibroker_protocol.coordinator_records
    import minibroker_protocol.headers
    import minibroker_protocol.messages  # noqa: F401
