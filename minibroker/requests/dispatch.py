"""From a frame to the buffers of its answer (Kafka's RequestContext and KafkaApis.handle)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from minibroker.broker.connection import ConnectionInfo
from minibroker.kernel.deferred import Deferred, after, failed, mapped, spawn
from minibroker.kernel.garbage import without_full_collections
from minibroker.requests.answers import later
from minibroker.requests.api import Api, stable
from minibroker.requests.chain import Chain, Link, Place
from minibroker.requests.context import Answer, CloseConnection, Frames, Handler, RequestContext
from minibroker.requests.not_served import description
from minibroker.requests.response_frames import framed, frames_of, watched
from minibroker_protocol.dsl import Request, Response
from minibroker_protocol.errors import ApiError, ErrorCode, LongMessage, Malformed
from minibroker_protocol.fields import Buffer
from minibroker_protocol.headers import parse_request_header
from minibroker_protocol.shapes import refers_to_input

if TYPE_CHECKING:
    from minibroker.broker.broker import Broker

API_VERSIONS_KEY = 18
_AT_ONCE_BYTES = 256 * 1024
"""The largest size of a request's objects that is decoded in the loop itself: some thousand partitions, 2 to 4 ms."""
MOST_REQUEST_BYTES = 32 * 1024 * 1024
"""The largest size of a request's objects, as ``Shapes.weight`` estimates it: about 75,000 partitions of a fetch,
250,000 names of topics."""

Answered = Frames | None
"""The buffers of a response frame, size prefix included; None for a request without an answer."""

Dispatch = Callable[[Buffer, ConnectionInfo], Answered | Deferred[Answered]]
"""What serves the frames of a connection (`Dispatcher.dispatch`)."""


class Dispatcher:
    """Serves frames for one broker from the handler table.

    apis: for clients.
    apis_of_brokers: for other brokers.

    Each has a chain of its own.
    """

    def __init__(
        self,
        broker: Broker,
        apis: dict[int, Api],
        unsupported_api_versions: Callable[[], Response],
        *,
        apis_of_brokers: dict[int, Api],
        explain: Link | None,
        rights: Link | None,
        not_yet: Link | None = None,
        slices: Link | None = None,
    ) -> None:
        self._broker = broker
        unstable = broker.settings.get_boolean("unstable.api.versions.enable")
        self._apis = apis if unstable else {key: stable(api) for key, api in apis.items()}
        self._unsupported_api_versions = unsupported_api_versions
        self._chain = Chain()
        self._chain.put(Place.EXPLAIN, explain)
        self._apis_of_brokers = apis_of_brokers
        self._chain_of_brokers = Chain()
        self._chain_of_brokers.put(Place.EXPLAIN, explain)
        for chain in (self._chain, self._chain_of_brokers):
            chain.put(Place.NOT_YET, not_yet)
            chain.put(Place.SLICES, slices)
        self._chain.put(Place.RIGHTS, rights)
        self._handlers: dict[int, Handler] = {}  # of the APIs requested since a link was added or removed
        self._handlers_of_brokers: dict[int, Handler] = {}
        self._frames_are_sent_again = False

    def link(self, place: Place, link: Link | None) -> None:
        """Put `link` at a place of the clients' chain, for requests that arrive from now on; None leaves it empty."""
        if link is self._chain.at(place):
            return
        self._chain.put(place, link)
        self._handlers = {}
        # A request that waits for the end of a pause has yet to meet the link that may send its frame again.
        self._frames_are_sent_again = None not in (self._chain.at(Place.PAUSE), self._chain.at(Place.FAULTS_AND_TRACE))

    def link_at(self, place: Place) -> Link | None:
        """The link at a place of the clients' chain; None where it is empty."""
        return self._chain.at(place)

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
            raise CloseConnection(description(api_key))
        if not api.min_version <= version <= api.max_version:
            if api_key == API_VERSIONS_KEY:
                return framed(api, 0, correlation_id, self._unsupported_api_versions())
            raise CloseConnection(f"{api.name} v{version} is not served, only {api.min_version}-{api.max_version}")
        context = RequestContext(self._broker, api_key, version, client_id, connection, correlation_id, frame, position)
        try:
            request = api.request.decode_within(_AT_ONCE_BYTES, frame, version, position)
        except Malformed as error:
            raise CloseConnection(str(error)) from None
        except LongMessage:
            return spawn(self._decode_elsewhere(api, context))
        context.request = request
        answer = (self._handlers.get(api_key) or self._bind(api))(context, request)
        if type(answer) is api.response and not context.watchers:  # as most are: at once, at the cost of no call
            return framed(api, version, correlation_id, answer)
        return self._answered(api, context, answer)

    def _bind(self, api: Api) -> Handler:
        handler = self._handlers[api.key] = self._chain.bound(api)
        return handler

    async def _decode_elsewhere(self, api: Api, ctx: RequestContext) -> Answered:
        """Serve a long request, which is decoded on the computing thread."""
        ctx.long = True
        with without_full_collections():
            request = await self._decoded(api, ctx)
            ctx.request = request
            answer = self._answered(api, ctx, (self._handlers.get(api.key) or self._bind(api))(ctx, request))
            return await answer if isinstance(answer, Deferred) else answer

    async def _decoded(self, api: Api, ctx: RequestContext) -> Request:
        version = ctx.api_version
        try:
            return await self._broker.executor.compute(
                lambda _: api.request.decode_within(MOST_REQUEST_BYTES, ctx.frame, version, ctx.position),
                ctx.wanted,
                keep=True,  # Kafka does what was received, also for a client that did not wait
            )
        except Malformed as error:
            raise CloseConnection(str(error)) from None
        except LongMessage as error:
            raise CloseConnection(f"{api.name} v{version}: {error}, above {MOST_REQUEST_BYTES} bytes") from None

    def _answered(self, api: Api, ctx: RequestContext, answer: Answer) -> Answered | Deferred[Answered]:
        if type(answer) is not Deferred:
            return self._framed(api, ctx, answer)  # type: ignore[return-value]
        if answer.done:
            return self._framed(api, ctx, answer.result())  # type: ignore[return-value]
        if not self._frames_are_sent_again and not refers_to_input(api.request):
            ctx.release_frame()
        return after(answer, lambda: self._framed(api, ctx, answer.result()))  # type: ignore[arg-type, return-value]

    def _framed(self, api: Api, ctx: RequestContext, answer: Any) -> Answer:
        """The frame of an answer. A long one is made on the computing thread."""
        if type(answer) is list:
            return answer or None
        if answer is None or not ctx.long:
            return frames_of(api, ctx, answer)
        version, correlation_id = ctx.api_version, ctx.correlation_id
        made = self._broker.executor.compute(
            lambda _: framed(api, version, correlation_id, answer), ctx.wanted, keep=bool(ctx.watchers)
        )
        return mapped(made, lambda frames: watched(ctx, answer, frames)) if ctx.watchers else made

    # -- between brokers ---------------------------------------------------------------------------------------------

    def handle(self, request: Request, api_version: int) -> Deferred[Response]:
        """A request object that another broker of the cluster sent."""
        key = request.__api_key__
        handler = self._handlers_of_brokers.get(key)
        if handler is None:
            if key not in self._apis_of_brokers:
                return failed(ApiError(ErrorCode.UNSUPPORTED_VERSION, f"{type(request).__name__} is not served"))
            handler = self._chain_of_brokers.bound(self._apis_of_brokers[key])
            self._handlers_of_brokers[key] = handler
        connection = ConnectionInfo(listener="INTERNAL")
        return later(
            RequestContext(self._broker, key, api_version, None, connection, inter_broker=True), handler, request
        )
