"""A decoded request as faults and traces see it: with its bytes, and an answer that they may read, change or drop."""

from __future__ import annotations

import struct
from typing import Any, ClassVar

from minibroker.handlers.api import Api
from minibroker.handlers.context import Frames, Handler, RequestContext, later
from minibroker.kernel.deferred import Deferred
from minibroker_protocol.dsl import Request, Response
from minibroker_protocol.fields import Buffer
from minibroker_protocol.headers import encode_response_header

_pack_size = struct.Struct(">i").pack
_SMALL_RESPONSE_BYTES = 4096


def framed(api: Api, version: int, correlation_id: int, response: Response) -> Frames:
    """A response frame, size prefix included."""
    buffers = response.encode_buffers(version, encode_response_header(api.key, version, correlation_id))
    if len(buffers) == 1:
        only = buffers[0]
        if len(only) <= _SMALL_RESPONSE_BYTES:
            return [_pack_size(len(only)) + only]
    return [_pack_size(sum(map(len, buffers))), *buffers]


def frames_of(api: Api, ctx: RequestContext, response: Response | None) -> Frames | None:
    """The frame of the response to a request; None for None. Calls the request's watchers."""
    frames = None if response is None else framed(api, ctx.api_version, ctx.correlation_id, response)
    return watched(ctx, response, frames)


def watched(ctx: RequestContext, response: Response | None, frames: Frames | None) -> Frames | None:
    """Call the watchers and return the frames."""
    if ctx.watchers:
        size = 0 if frames is None else sum(map(len, frames))
        for watcher in ctx.watchers:
            watcher(response, size)
    return frames


class Exchange:
    """One decoded request. onward: the rest of the chain. between_brokers: no client sent it."""

    between_brokers: ClassVar[bool] = False
    __slots__ = ("_onward", "api", "context", "correlation_id", "request", "version")

    def __init__(self, api: Api, context: RequestContext, request: Request, onward: Handler) -> None:
        self._onward = onward
        self.api = api
        self.version = context.api_version
        self.correlation_id = context.correlation_id
        self.context = context
        self.request = request

    @property
    def asked(self) -> int:
        """Node id of the broker that is asked."""
        return self.context.broker.node_id

    @property
    def size(self) -> int:
        """Size of the request in bytes, without the size field."""
        return len(self.frame)

    @property
    def frame(self) -> Buffer:
        """The request's bytes; a handler may change those of record batches."""
        return self.context.frame

    @property
    def body(self) -> Buffer:
        """The request's bytes without the header."""
        return memoryview(self.frame)[self.context.position :]

    def with_body(self, body: Buffer) -> Exchange:
        """The same exchange with another body. Raises Malformed for one that cannot be read."""
        position = self.context.position
        frame = bytearray(memoryview(self.frame)[:position]) + body
        request = self.api.request.decode(frame, self.version, position)
        return Exchange(self.api, self.context, request, self._onward)

    def copy(self) -> Exchange:
        """A copy of the request. Make it before `apply`, which may write into the frame."""
        return self.with_body(self.body)

    def apply(self) -> Deferred[Any]:
        """Have the rest of the chain serve it: the response, None when there is none (Produce with acks=0).

        Fails with CloseConnection.
        """
        return later(self.context, self._onward, self.request)

    def encode(self, response: Response | None) -> Frames | None:
        """The frame of a response to this request; None for None."""
        return frames_of(self.api, self.context, response)
