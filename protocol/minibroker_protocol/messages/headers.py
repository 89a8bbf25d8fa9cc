"""The headers of requests and responses."""

from __future__ import annotations

from minibroker_protocol.dsl import Header
from minibroker_protocol.fields import f, int16, int32, string


class RequestHeader(Header, versions="1-2", flexible="2+"):
    """What precedes every request body."""

    request_api_key: int16
    request_api_version: int16
    correlation_id: int32
    client_id: string | None = f(nullable="1+", flexible=False)


class ResponseHeader(Header, versions="0-1", flexible="1+"):
    """What precedes every response body."""

    correlation_id: int32
