"""Requests and responses as scenarios have them: mappings with Kafka's camelCase field names.

Error codes are names, uuids text, records `ReceivedRecords`. A field that is left out takes its default, one that the
version lacks is not sent.
"""

from __future__ import annotations

import functools
import uuid
from typing import Any

from minibroker_protocol.dsl import Message, Request, Response
from minibroker_protocol.errors import EncodeError, ErrorCode, Malformed
from minibroker_protocol.fields import Field
from minibroker_protocol.headers import first_flexible_version
from minibroker_protocol.messages.headers import RequestHeader, ResponseHeader
from minibroker_protocol.registry import registry
from minibroker_protocol.shapes import Shapes
from minibroker_protocol.structs import Struct

from .batches import ReceivedRecords
from .failure import ScenarioError, ScenarioFailed
from .paths import is_error_field
from .values import NO_UUID, as_bytes

API_VERSIONS = "ApiVersions"


@functools.cache
def apis() -> dict[str, tuple[type[Request], type[Response]]]:
    """API name → its request and response classes."""
    return {request.__name__.removesuffix("Request"): (request, response) for request, response in registry().values()}


def api_key(api: str) -> int:
    """The number of an API."""
    return apis()[api][0].__api_key__


@functools.cache
def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in rest)


@functools.cache
def _shapes(message: type[Message], version: int) -> Shapes:
    return Shapes(message, version)


def encode_request(
    api: str,
    version: int,
    body: dict[str, Any],
    *,
    correlation_id: int,
    client_id: str | None,
    header: dict[str, Any] | None = None,
    raw_body: bytes | None = None,
) -> bytes:
    """A request frame without its size. `header` may set apiKey, apiVersion, version (of the header) and tags (hex) to
    wrong values; `raw_body` stands in for the encoded body."""
    header = header or {}
    key = api_key(api)
    header_version = header.get("version", 2 if version >= first_flexible_version(key) else 1)
    head = RequestHeader(
        request_api_key=header.get("apiKey", key),
        request_api_version=header.get("apiVersion", version),
        correlation_id=correlation_id,
        client_id=client_id,
    ).encode(header_version)
    if header_version >= 2 and "tags" in header:
        head = head[:-1] + bytes.fromhex(header["tags"])
    return head + (encode_body(api, version, body) if raw_body is None else raw_body)


def encode_body(api: str, version: int, body: dict[str, Any]) -> bytes:
    """A request's body. A version that Kafka 4.3 does not have is written like the nearest one it has."""
    request = apis()[api][0]
    low, high = request.__versions__
    version = min(max(version, low), high)
    try:
        encoded: bytes = _struct(_shapes(request, version), request, body, api).encode(version)
    except EncodeError as exc:
        raise ScenarioError(str(exc)) from None
    return encoded


def _struct(shapes: Shapes, cls: Any, body: Any, where: str) -> Any:
    if not isinstance(body, dict):
        raise ScenarioError(f"{where}: a mapping of fields is wanted, not {body!r}")
    known = {_camel(field.name): field for field in cls.__fields__}
    if odd := [key for key in body if key not in known]:
        raise ScenarioError(f"{where} has no field {odd[0]!r}; there are {', '.join(known)}")
    sent = {field.name for field in [*shapes.present(cls), *shapes.tagged(cls)]}
    values = {}
    for name, field in known.items():
        if name in body and field.name in sent:
            values[field.name] = _value(shapes, field, body[name], f"{where}.{name}")
        else:
            values[field.name] = _default(shapes, field)
    return cls(**values)


def _default(shapes: Shapes, field: Field) -> Any:
    kind = shapes.kind(field)
    if field.required and kind.code == "records":
        return b""
    return shapes.default(field)


def _value(shapes: Shapes, field: Field, value: Any, where: str) -> Any:
    kind = shapes.kind(field)
    if value is None:
        return None
    if not kind.array:
        return _single(shapes, kind.code, kind.struct, value, where)
    items = value if isinstance(value, list) else [value]
    return [_single(shapes, kind.code, kind.struct, item, f"{where}[{index}]") for index, item in enumerate(items)]


def _single(shapes: Shapes, code: str, struct: type[Struct] | None, value: Any, where: str) -> Any:
    try:
        if struct is not None:
            return _struct(shapes, struct, value, where)
        if code == "string":
            return str(value)
        if code in ("bytes", "records"):
            return as_bytes(value)
        if code == "16s":
            return uuid.UUID(str(value)).bytes
        if code == "?":
            return bool(value)
        if code == "d":
            return float(value)
        if not isinstance(value, int):
            raise ScenarioError(f"{where}: a number is wanted, not {value!r}")
        return value
    except ValueError as exc:
        raise ScenarioError(f"{where}: {exc}") from None


def decode_response(
    frame: bytearray, api: str, version: int, *, header_version: int | None = None
) -> tuple[int, dict[str, Any]]:
    """The correlation id and the body of a response frame. Raises ScenarioFailed for bytes that are not such a
    response, and for bytes after it."""
    response = apis()[api][1]
    if header_version is None:  # ApiVersions always has 0 (KIP-511), others 1 in flexible versions
        header_version = int(api != API_VERSIONS and version >= first_flexible_version(api_key(api)))
    try:
        header, pos = ResponseHeader.decode_from(frame, header_version)
        body, end = response.decode_from(frame, version, pos)
    except Malformed as exc:
        raise ScenarioFailed(f"response is malformed: {exc}") from None
    if end != len(frame):
        raise ScenarioFailed(f"{len(frame) - end} bytes left over after the {api} v{version} response")
    return header.correlation_id, _fields(_shapes(response, version), body)


def _fields(shapes: Shapes, message: Struct) -> dict[str, Any]:
    """The fields that the version has, in wire order; tagged ones at the end and only when not at their default."""
    cls = type(message)
    out = {}
    for field in shapes.present(cls):
        out[_camel(field.name)] = _plain(shapes, field, getattr(message, field.name))
    for field in shapes.tagged(cls):
        value = getattr(message, field.name)
        if value != shapes.default(field):
            out[_camel(field.name)] = _plain(shapes, field, value)
    return out


def _plain(shapes: Shapes, field: Field, value: Any) -> Any:
    kind = shapes.kind(field)
    if kind.code == "records":
        return ReceivedRecords(None if value is None else bytes(value))
    if isinstance(value, list):
        return [_plain_single(shapes, kind.code, field, item) for item in value]
    return _plain_single(shapes, kind.code, field, value)


def _plain_single(shapes: Shapes, code: str, field: Field, value: Any) -> Any:
    if isinstance(value, Struct):
        return _fields(shapes, value)
    if code == "16s":
        return str(uuid.UUID(bytes=bytes(value))) if value else NO_UUID
    if code == "bytes" and value is not None:
        return bytes(value)
    if isinstance(value, int) and is_error_field(_camel(field.name)):
        try:
            return ErrorCode(value).name
        except ValueError:
            return value
    return value
