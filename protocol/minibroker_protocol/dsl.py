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

from typing import Any, ClassVar, Self

from minibroker_protocol.codegen import compile_decoder, compile_encoder, malformed, unencodable
from minibroker_protocol.errors import EncodeError, Malformed
from minibroker_protocol.fields import NEVER, Buffer, parse_versions
from minibroker_protocol.source import Decoder, Encoder
from minibroker_protocol.structs import Versioned

DECLARED: list[type[Message]] = []
"""Every message class, in the order of declaration; see `registry.all_messages`."""
APIS: dict[int, dict[str, Any]] = {}
"""API key → "request" and "response" → class; see `registry.registry`."""


class Message(Versioned, base=True):
    """A versioned unit of the wire format. Declare with ``versions="0-5"``, ``flexible="3+"``."""

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
        DECLARED.append(cls)

    @classmethod
    def decode(cls, buffer: Buffer, version: int, pos: int = 0) -> Self:
        """The message that starts at ``pos``. Bytes after it are tolerated, as Kafka does. Raises ``Malformed``."""
        return cls.decode_from(buffer, version, pos)[0]

    @classmethod
    def decode_within(cls, most: int, buffer: Buffer, version: int, pos: int = 0) -> Self:
        """`decode`, limited to ``most`` bytes of objects. Raises ``LongMessage`` for what does."""
        decoder = cls.__decoders__.get(version)
        if decoder is None:
            decoder = cls.decoder(version)
        try:
            message: Self = decoder(buffer, pos, most)[0]
        except Exception as error:
            raise malformed(cls, version, decoder, error) from None
        return message

    @classmethod
    def decode_from(cls, buffer: Buffer, version: int, pos: int = 0) -> tuple[Self, int]:
        """The message that starts at ``pos`` and the position after it. Raises ``Malformed``."""
        decoder = cls.__decoders__.get(version)
        if decoder is None:
            decoder = cls.decoder(version)
        try:
            return decoder(buffer, pos)
        except Exception as error:
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
            raise unencodable(type(self), version, encoder, error) from error
        return buffers

    @classmethod
    def decoder(cls, version: int) -> Decoder:
        """The compiled decoder of a version; its ``source`` attribute is its text."""

        if not cls.__versions__[0] <= version <= cls.__versions__[1]:
            raise Malformed(f"{cls.__name__} has no version {version}")
        if version not in cls.__decoders__:
            cls.__decoders__[version] = compile_decoder(cls, version)
        return cls.__decoders__[version]

    @classmethod
    def encoder(cls, version: int) -> Encoder:
        """The compiled encoder of a version; its ``source`` attribute is its text."""

        if not cls.__versions__[0] <= version <= cls.__versions__[1]:
            raise EncodeError(f"{cls.__name__} has no version {version}")
        if version not in cls.__encoders__:
            cls.__encoders__[version] = compile_encoder(cls, version)
        return cls.__encoders__[version]


class ApiMessage(Message, base=True):
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
        APIS.setdefault(key, {})["request" if issubclass(cls, Request) else "response"] = cls


class Request(ApiMessage, base=True):
    """The body of a request."""


class Response(ApiMessage, base=True):
    """The body of a response."""


class Header(Message, base=True):
    """A request or response header; its version depends on the API and its version (``headers``)."""


class Data(Message, base=True):
    """A record or a blob inside one: markers, group metadata, transaction state. ``record_type`` is the number that
    starts the key of a coordinator's record; -1 for anything else."""

    __record_type__: ClassVar[int]

    def __init_subclass__(cls, *, record_type: int = -1, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.__record_type__ = record_type
