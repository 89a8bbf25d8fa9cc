"""Our messages as kio's, a codec nobody here wrote, to compare the two."""

from __future__ import annotations

import datetime
import re
import typing
from dataclasses import fields
from importlib import import_module
from typing import Any
from uuid import UUID

from kio.index import load_payload_module
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.static.constants import EntityType

from minibroker_protocol.dsl import ApiMessage, Header, Message, Request
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.fields import NO_ID, Field
from minibroker_protocol.shapes import Shapes
from minibroker_protocol.structs import Struct

_RENAMED = {"generation_id": "generation_id_or_member_epoch"}
"""Of a field of TxnOffsetCommit, in Kafka 4.4."""


def kio_class(message: type[Message], version: int) -> Any:
    """kio's class for the same message and version."""
    if issubclass(message, ApiMessage):
        kind: Any = EntityType.request if issubclass(message, Request) else EntityType.response
        return getattr(load_payload_module(message.__api_key__, version, kind), message.__name__)
    snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", message.__name__).lower()
    part = "header" if issubclass(message, Header) else "data"
    return getattr(import_module(f"kio.schema.{snake}.v{version}.{part}"), message.__name__)


class Bridge:
    """Turns our message into kio's. Values that kio's types exclude are replaced in ours first."""

    def __init__(self, shapes: Shapes) -> None:
        self.shapes = shapes

    def struct(self, ours: Struct, theirs: Any) -> Any:
        shapes = self.shapes
        absent = shapes.absent(type(ours))
        mine = [field for field in type(ours).__fields__ if field not in absent]
        kios = fields(theirs)
        assert len(mine) == len(kios), (mine, kios)
        hints = typing.get_type_hints(theirs)
        values = {}
        for field, other in zip(mine, kios, strict=True):
            # Milliseconds are a duration there, and have no unit in their name; "type" has an underscore.
            name = other.name.removesuffix("_ms").rstrip("_")
            assert field.name.removesuffix("_ms") in (name, _RENAMED.get(name))
            kind = other.metadata.get("kafka_type")
            values[other.name] = self.value(ours, field, kind, hints[other.name], other)
        return theirs(**values)

    def value(self, ours: Struct, field: Field, kind: str | None, hint: Any, other: Any) -> Any:
        value = getattr(ours, field.name)
        shape = self.shapes.kind(field)
        if shape.array:
            if value is None:
                return None
            if shape.struct is not None:
                return tuple(self.struct(element, entity_in(hint)) for element in value)
            return tuple(self.scalar(element, kind) for element in value)
        if shape.struct is not None:
            if value is None:
                return None if self.shapes.nullable(field) else other.default
            return self.struct(value, entity_in(hint))
        if kind == "error_code":
            value = ErrorCode(value % 135 - 1)
        elif kind == "datetime_i64":
            # A far later time would be rounded on its way through a float.
            value = -1 if value < 0 else value % 10**12
        elif kind == "timedelta_i64":
            value %= 10**12
        setattr(ours, field.name, value)
        return self.scalar(value, kind)

    def scalar(self, value: Any, kind: str | None) -> Any:
        if kind == "uuid":
            return None if value == NO_ID else UUID(bytes=value)
        if kind == "error_code":
            return KioErrorCode(value)
        if kind in ("timedelta_i32", "timedelta_i64"):
            return datetime.timedelta(milliseconds=value)
        if kind == "datetime_i64":
            epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
            return None if value == -1 else epoch + datetime.timedelta(milliseconds=value)
        return value


def entity_in(hint: Any) -> Any:
    """The dataclass in ``tuple[X, ...] | None``."""
    if hasattr(hint, "__dataclass_fields__"):
        return hint
    return next((entity for part in typing.get_args(hint) if (entity := entity_in(part)) is not None), None)
