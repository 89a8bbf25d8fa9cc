"""From a frame to the buffers of its answer (Kafka's RequestContext and KafkaApis.handle)."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from minibroker.broker.connection import ConnectionInfo
from minibroker.handlers.api import Api
from minibroker.handlers.context import RequestContext, settled
from minibroker.kernel.deferred import Deferred, failed, resolved, spawn
from minibroker.kernel.garbage import without_full_collections
from minibroker_protocol.dsl import Request, Response
from minibroker_protocol.errors import ApiError, ErrorCode, LongMessage, Malformed
from minibroker_protocol.fields import Buffer
from minibroker_protocol.headers import encode_response_header, parse_request_header

if TYPE_CHECKING:
    from minibroker.broker.broker import Broker

API_VERSIONS_KEY = 18
_pack_size = struct.Struct(">i").pack
_SMALL_RESPONSE_BYTES = 4096
_AT_ONCE_BYTES = 256 * 1024
"""Of objects that a request may become in the loop itself, some thousand partitions: 2 to 4 ms."""
MOST_REQUEST_BYTES = 32 * 1024 * 1024
"""Of objects that a request may become at all, by the estimate of ``Shapes.weight``: some 75,000 partitions of a fetch,
250,000 names of topics."""


class CloseConnection(Exception):
    """The connection must be closed without an answer; the text says why."""


Answered = list[Buffer] | None
"""The buffers of a response frame, size prefix included; None for a request without an answer."""

AnswerWatcher = Callable[[Response | None, int], None]
"""Told of the response that leaves, None where there is none, and of the bytes of its frame, size prefix included."""

Dispatch = Callable[[Buffer, ConnectionInfo], Answered | Deferred[Answered]]
"""What serves the frames of a connection (`Dispatcher.dispatch`)."""


class Exchange:
    """One decoded request whose answer a tap may read or change. between_brokers: no client sent it. watchers: told of
    the answer when it is encoded; a copy of the exchange has none."""

    between_brokers: ClassVar[bool] = False
    __slots__ = (
        "_dispatcher", "_frame", "_position", "api", "context", "correlation_id", "request", "version", "watchers",
    )  # fmt: skip

    def __init__(
        self,
        dispatcher: Dispatcher,
        frame: Buffer,
        position: int,
        api: Api,
        correlation_id: int,
        context: RequestContext,
        request: Request,
    ) -> None:
        self._dispatcher = dispatcher
        self._frame = frame
        self._position = position
        self.api = api
        self.version = context.api_version
        self.correlation_id = correlation_id
        self.context = context
        self.request = request
        self.watchers: tuple[AnswerWatcher, ...] = ()

    @property
    def asked(self) -> int:
        """Node id of the broker that is asked."""
        return self.context.broker.node_id

    @property
    def size(self) -> int:
        """Bytes of the request, without their count."""
        return len(self._frame)

    @property
    def frame(self) -> Buffer:
        """The request's bytes; a handler may change those of record batches."""
        return self._frame

    @property
    def body(self) -> Buffer:
        """The request's bytes without the header."""
        return memoryview(self._frame)[self._position :]

    def with_body(self, body: Buffer) -> Exchange:
        """The same exchange with another body. Raises Malformed for one that cannot be read."""
        frame = bytearray(memoryview(self._frame)[: self._position]) + body
        request = self.api.request.decode(frame, self.version, self._position)
        return Exchange(self._dispatcher, frame, self._position, self.api, self.correlation_id, self.context, request)

    def copy(self) -> Exchange:
        """The same request once more. To be made before `apply`, which may write into the frame."""
        return self.with_body(self.body)

    def apply(self) -> Deferred[Any]:
        """Have the handler serve it: the response, None when there is none (Produce with acks=0).

        Raises, or fails with, CloseConnection.
        """
        answer = settled(self.context, self.api.handler(self.context, self.request))
        return answer if isinstance(answer, Deferred) else resolved(answer)

    def encode(self, response: Response | None) -> Answered:
        """The buffers of a response to this request."""
        buffers = None if response is None else framed(self.api, self.version, self.correlation_id, response)
        if self.watchers:
            size = sum(map(len, buffers)) if buffers is not None else 0
            for watcher in self.watchers:
                watcher(response, size)
        return buffers

    def serve(self) -> Answered | Deferred[Answered]:
        """Apply and encode, as without a tap."""
        answer = self.apply()
        if answer.done:
            return self.encode(answer.result())
        return spawn(self._when_answered(answer))

    async def _when_answered(self, answer: Deferred[Response | None]) -> Answered:
        return self.encode(await answer)


def framed(api: Api, version: int, correlation_id: int, response: Response) -> list[Buffer]:
    """A response frame, size prefix included."""
    buffers = response.encode_buffers(version, encode_response_header(api.key, version, correlation_id))
    if len(buffers) == 1:
        only = buffers[0]
        if len(only) <= _SMALL_RESPONSE_BYTES:
            return [_pack_size(len(only)) + only]
    return [_pack_size(sum(map(len, buffers))), *buffers]


class Tap(Protocol):
    """Stands between the decoded request and its handler."""

    def serve(self, exchange: Exchange) -> Answered | Deferred[Answered]: ...


class Dispatcher:
    """Serves frames for one broker from the handler table. tap: None, or what every request goes through first."""

    def __init__(
        self,
        broker: Broker,
        apis: dict[int, Api],
        unsupported_api_versions: Callable[[], Response],
        *,
        between_brokers: dict[int, Api] | None = None,
    ) -> None:
        self._broker = broker
        self._apis = apis
        self._between_brokers = between_brokers or apis
        self._unsupported_api_versions = unsupported_api_versions
        self._unstable = broker.settings.bool("unstable.api.versions.enable")
        self.tap: Tap | None = None

    def dispatch(self, frame: Buffer, connection: ConnectionInfo) -> Answered | Deferred[Answered]:
        """Buffers of the whole response frame, size prefix included; None when the request has no response.

        Raises CloseConnection for what Kafka answers by closing: unknown API, unsupported version, broken bytes,
        an error under acks=0.
        """
        try:
            api_key, version, correlation_id, client_id, position = parse_request_header(frame)
        except Malformed as error:
            raise CloseConnection(str(error)) from None
        api = self._apis.get(api_key)
        if api is None:
            raise CloseConnection(f"API key {api_key} is not served")
        if not self._serves(api, version):
            if api_key == API_VERSIONS_KEY:
                return framed(api, 0, correlation_id, self._unsupported_api_versions())
            raise CloseConnection(f"{api.name} v{version} is not served, only {api.min_version}-{api.max_version}")
        context = RequestContext(self._broker, api_key, version, client_id, connection)
        try:
            request = api.request.decode_within(_AT_ONCE_BYTES, frame, version, position)
        except Malformed as error:
            raise CloseConnection(str(error)) from None
        except LongMessage:
            return spawn(self._decode_elsewhere(frame, position, api, correlation_id, context))
        return self._serve(frame, position, api, correlation_id, context, request)

    async def _decode_elsewhere(
        self, frame: Buffer, position: int, api: Api, correlation_id: int, context: RequestContext
    ) -> Answered:
        """Serve a long request, which is decoded on the thread for what computes."""
        context.long = True
        with without_full_collections():
            request = await self._decoded(frame, position, api, context.api_version)
            answer = self._serve(frame, position, api, correlation_id, context, request)
            del request
            return await answer if isinstance(answer, Deferred) else answer

    async def _decoded(self, frame: Buffer, position: int, api: Api, version: int) -> Request:
        try:
            return await self._broker.executor.compute(
                lambda _: api.request.decode_within(MOST_REQUEST_BYTES, frame, version, position)
            )
        except Malformed as error:
            raise CloseConnection(str(error)) from None
        except LongMessage as error:
            raise CloseConnection(f"{api.name} v{version}: {error}, above {MOST_REQUEST_BYTES} bytes") from None

    def _serve(
        self, frame: Buffer, position: int, api: Api, correlation_id: int, context: RequestContext, request: Request
    ) -> Answered | Deferred[Answered]:
        version = context.api_version
        if self.tap is not None:
            return self.tap.serve(Exchange(self, frame, position, api, correlation_id, context, request))
        answer = settled(context, api.handler(context, request))
        if isinstance(answer, Deferred):
            if not answer.done:
                return spawn(self._when_answered(api, correlation_id, context, answer))
            answer = answer.result()
        if answer is None:
            return None
        if context.long:
            return self._encode_elsewhere(api, correlation_id, context, answer)
        return framed(api, version, correlation_id, answer)

    async def _when_answered(
        self, api: Api, correlation_id: int, context: RequestContext, pending: Deferred[Any]
    ) -> Answered:
        answer = await pending
        if answer is None:
            return None
        if context.long:
            return await self._encode_elsewhere(api, correlation_id, context, answer)
        return framed(api, context.api_version, correlation_id, answer)

    def _encode_elsewhere(
        self, api: Api, correlation_id: int, context: RequestContext, answer: Response
    ) -> Deferred[Answered]:
        """A long answer, which nothing else has in hand, is encoded on the thread for what computes."""
        version = context.api_version
        return self._broker.executor.compute(lambda _: framed(api, version, correlation_id, answer))

    def _serves(self, api: Api, version: int) -> bool:
        if not api.min_version <= version <= api.max_version:
            return False
        return api.unstable_from is None or version < api.unstable_from or self._unstable

    # -- between brokers ---------------------------------------------------------------------------------------------

    def handle(self, request: Request, api_version: int) -> Deferred[Response]:
        """A request object that another broker of the cluster sent (`cluster.transport.Node`)."""
        api = self._between_brokers.get(request.__api_key__)
        if api is None:
            return failed(ApiError(ErrorCode.UNSUPPORTED_VERSION, f"{type(request).__name__} is not served"))
        context = RequestContext(
            self._broker, api.key, api_version, None, ConnectionInfo(listener="INTERNAL"), inter_broker=True
        )
        try:
            answer = settled(context, api.handler(context, request))
        except Exception as error:
            return failed(error)
        if isinstance(answer, Deferred):
            return answer
        assert isinstance(answer, Response)
        return resolved(answer)
