"""Request and response headers, and the two functions that every request passes through.

Which header version goes with which API and version: Kafka's ``ApiMessageType``, live-checked. ApiVersions responses
always have header version 0, because a client reads them before it knows what the broker speaks (KIP-511).
"""

from __future__ import annotations

import struct

from minibroker_protocol.codegen_read import varint
from minibroker_protocol.dsl import APIS, Request, Response
from minibroker_protocol.errors import Malformed
from minibroker_protocol.fields import NEVER, Buffer
from minibroker_protocol.messages.headers import RequestHeader
from minibroker_protocol.registry import registry

API_VERSIONS = 18


MOST_TAGS = 1024
"""Tagged fields that the header of a request may have: there is none yet, and clients send none."""
_START = struct.Struct(">hhih").unpack_from
_PLAIN = struct.Struct(">i").pack
_FLEXIBLE = struct.Struct(">ix").pack
_flexible_from: dict[int, int] = {}


def first_flexible_version(api_key: int) -> int:
    """The first version of an API with header version 2; above all versions for an undeclared API."""
    if not _flexible_from:
        _flexible_from.update({key: request.__flexible__ for key, (request, _) in registry().items()})
    return _flexible_from.get(api_key, NEVER)


def parse_request_header(frame: Buffer) -> tuple[int, int, int, str | None, int]:
    """``(api_key, api_version, correlation_id, client_id, position of the body)`` of a frame.

    The header of an unknown API is read as version 1. Raises ``Malformed``.
    """
    try:
        api_key, api_version, correlation_id, n = _START(frame, 0)
        pos = 10
        client_id = None
        if n >= 0:
            pos += n
            if pos > len(frame):
                raise Malformed(f"RequestHeader of API {api_key} v{api_version}: client_id: length {n}")
            client_id = str(frame[10:pos], "utf-8", "replace")
        elif n != -1:
            raise Malformed(f"RequestHeader of API {api_key} v{api_version}: client_id: length {n}")
        if api_version >= (_flexible_from.get(api_key) or first_flexible_version(api_key)):
            if frame[pos] == 0:
                return api_key, api_version, correlation_id, client_id, pos + 1
            pos = _skip_tags(frame, pos)
    except (struct.error, IndexError):
        raise Malformed(f"RequestHeader: {len(frame)} bytes are too short") from None
    except Malformed:
        raise
    except ValueError as error:
        raise Malformed(f"RequestHeader: tagged fields: {error}") from None
    return api_key, api_version, correlation_id, client_id, pos


def _skip_tags(frame: Buffer, pos: int) -> int:
    count, pos = varint(frame, pos)
    if count > MOST_TAGS:
        raise ValueError(f"{count}, which is above {MOST_TAGS}")
    for _ in range(count):
        _, pos = varint(frame, pos)
        size, pos = varint(frame, pos)
        pos += size
        if pos > len(frame):
            raise IndexError
    return pos


def encode_request(request: Request, version: int, correlation_id: int, client_id: str | None) -> bytes:
    """The frame of a request, without its size."""
    key = request.__api_key__
    header = RequestHeader(
        request_api_key=key, request_api_version=version, correlation_id=correlation_id, client_id=client_id
    )
    encoded: bytes = header.encode(2 if version >= first_flexible_version(key) else 1)
    return encoded + request.encode(version)


def decode_response(frame: Buffer, api_key: int, version: int) -> Response:
    """The response in a frame without its size; the correlation id is not checked. Raises ``Malformed``."""
    response: Response = APIS[api_key]["response"].decode(
        frame, version, len(encode_response_header(api_key, version, 0))
    )
    return response


def encode_response_header(api_key: int, api_version: int, correlation_id: int) -> bytes:
    """The header of the response to a request."""
    if api_version < (_flexible_from.get(api_key) or first_flexible_version(api_key)) or api_key == API_VERSIONS:
        return _PLAIN(correlation_id)
    return _FLEXIBLE(correlation_id)
