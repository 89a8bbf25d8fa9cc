"""A decoded request as faults and traces see it: with its bytes, and an answer that they may read, change or drop."""

from __future__ import annotations

from typing import Any, ClassVar

from minibroker.kernel.deferred import Deferred
from minibroker.requests.answers import later
from minibroker.requests.api import Api
from minibroker.requests.context import Frames, Handler, RequestContext
from minibroker.requests.response_frames import frames_of
from minibroker_protocol.dsl import Request, Response
from minibroker_protocol.fields import Buffer


class TappedRequest:
    """One decoded request.

    onward: the rest of the chain.
    between_brokers: no client sent it.
    """

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
    def receiver(self) -> int:
        """Node id of the broker that the request is for."""
        return self.context.broker.node_id

    @property
    def size(self) -> int:
        """Size of the request in bytes, without the size field."""
        return self.context.size

    @property
    def frame(self) -> Buffer:
        """The request's bytes, empty once they are released; a handler may change those of record batches."""
        return self.context.frame

    @property
    def body(self) -> Buffer:
        """The request's bytes without the header."""
        return memoryview(self.frame)[self.context.position :]

    def with_body(self, body: Buffer) -> TappedRequest:
        """The same request with another body. Raises Malformed for one that cannot be read."""
        position = self.context.position
        frame = bytearray(memoryview(self.frame)[:position]) + body
        request = self.api.request.decode(frame, self.version, position)
        return TappedRequest(self.api, self.context, request, self._onward)

    def copy(self) -> TappedRequest:
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
