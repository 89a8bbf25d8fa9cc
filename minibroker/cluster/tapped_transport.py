"""Requests between brokers and the controller, observed or changed by a tap."""

from __future__ import annotations

from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, Any, Protocol

from minibroker.broker.connection import ConnectionInfo
from minibroker.handlers.table import apis_of_brokers, rows
from minibroker.kernel.deferred import Deferred, failed
from minibroker.requests.context import CloseConnection, RequestContext
from minibroker.requests.tapped_request import TappedRequest
from minibroker_protocol.dsl import Request, Response
from minibroker_protocol.errors import ApiError, ErrorCode, Malformed
from minibroker_protocol.fields import Buffer
from minibroker_protocol.headers import decode_response, encode_request

if TYPE_CHECKING:
    from minibroker.broker.broker import Broker
    from minibroker.kernel.transport import Transport

_frame_start = Struct(">ii").unpack_from


class SentTap(Protocol):
    """Called with each request of a broker before it is sent."""

    def serve(self, tapped: TappedRequest) -> Deferred[Any]:
        """The response, its frame, or None where none comes."""


class TappedTransport:
    """A broker's transport.

    tap: called with every request before it is sent, or None.
    """

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self._lines: dict[int, _Line] = {}
        self._closed = False
        self.broker: Broker | None = None
        self.tap: SentTap | None = None

    def send(self, node_id: int, request: Request, api_version: int) -> Deferred[Response]:
        if self.tap is None or self.broker is None:
            return self._inner.send(node_id, request, api_version)
        line = self._lines.get(node_id)
        if line is None:
            line = self._lines[node_id] = _Line(node_id)
        tapped = _Sent(self, self.broker, line, request, api_version)
        answer = line.expect(tapped)
        self.tap.serve(tapped).then(partial(line.served, tapped))
        return answer

    @property
    def direct(self) -> bool:
        return self.tap is None and self._inner.direct

    def forward(self, node_id: int, request: Request, api_version: int) -> Deferred[Response]:
        """Send it on to its receiver; fails when the broker has ended in the meantime."""
        if self._closed:
            return failed(CloseConnection("fault: the broker that sent this is gone"))
        return self._inner.send(node_id, request, api_version)

    def close(self) -> None:
        """The broker has ended: drop the requests that are still held."""
        self._closed = True
        self.tap = None


class _Line:
    """The connection of one broker to another node, with the requests that wait for their answers (`Channel`)."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.info = ConnectionInfo(listener="INTERNAL", channel=self)
        self._count = 0
        self._waiting: dict[int, tuple[_Sent, Deferred[Response]]] = {}

    def number(self) -> int:
        self._count = (self._count + 1) & 0x7FFFFFFF
        return self._count

    def answer_room(self) -> int | None:
        return None

    def hold(self, size: int) -> None:
        """Brokers read what they are sent."""

    def expect(self, tapped: _Sent) -> Deferred[Response]:
        answer: Deferred[Response] = Deferred()
        self._waiting[tapped.correlation_id] = (tapped, answer)
        return answer

    def served(self, tapped: _Sent, done: Deferred[Any]) -> None:
        try:
            answer = done.result()
            buffers = answer if type(answer) is list else tapped.encode(answer)
        except Exception as error:
            self.fail(tapped, error)
        else:
            if buffers is not None:
                self.push(buffers)

    def fail(self, tapped: _Sent, error: Exception) -> None:
        _, answer = self._waiting.pop(tapped.correlation_id, (tapped, None))
        if answer is not None:
            answer.fail(error if isinstance(error, ApiError) else _broken(str(error)))

    def push(self, buffers: list[Buffer]) -> None:
        data = b"".join(buffers)
        position = 0
        while len(data) - position >= 8:
            size, correlation_id = _frame_start(data, position)
            end = position + 4 + size
            waiting = self._waiting.get(correlation_id)
            if end > len(data):
                return  # cut off: the end of the connection that follows says the rest
            if waiting is None:  # to nothing that was asked: no client trusts such a connection any further
                self.reset()
                return
            tapped, answer = self._waiting.pop(correlation_id)
            try:
                answer.resolve(tapped.decode(data[position + 4 : end]))
            except (Malformed, ValueError) as error:
                answer.fail(_broken(f"the answer to {tapped.api.name} cannot be read: {error}"))
            position = end

    def reset(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for _, answer in waiting.values():
            answer.fail(_broken("fault: the connection ended"))

    def close(self) -> None:
        self.reset()

    def mute(self, ms: int) -> None:
        raise NotImplementedError("brokers are not throttled")


class _Sent(TappedRequest):
    """A request on its way from one broker to another."""

    __slots__ = ("_bytes", "_line", "_transport")
    between_brokers = True

    def __init__(
        self, transport: TappedTransport, broker: Broker, line: _Line, request: Request, api_version: int
    ) -> None:
        api = apis_of_brokers().get(request.__api_key__) or rows()[request.__api_key__]
        client_id = f"broker-{broker.node_id}"
        context = RequestContext(broker, api.key, api_version, client_id, line.info, inter_broker=True)
        context.correlation_id = line.number()
        super().__init__(api, context, request, self._forward)
        self._transport = transport
        self._line = line
        self._bytes: bytes | None = None

    @property
    def receiver(self) -> int:
        """Node id of the broker that the request is for; -1 for the controller."""
        return self._line.node_id

    @property
    def frame(self) -> Buffer:
        if self._bytes is None:
            self._bytes = encode_request(self.request, self.version, self.correlation_id, self.context.client_id)
        return self._bytes

    def copy(self) -> TappedRequest:
        assert self._transport.broker is not None
        request = self.api.request.decode(self.request.encode(self.version), self.version)
        return _Sent(self._transport, self._transport.broker, self._line, request, self.version)

    def _forward(self, _: RequestContext, request: Request) -> Deferred[Response]:
        return self._transport.forward(self._line.node_id, request, self.version)

    def decode(self, data: bytes) -> Response:
        """The response in a frame, without its size."""
        return decode_response(data, self.api.key, self.version)


def _broken(text: str) -> ApiError:
    return ApiError(ErrorCode.NETWORK_EXCEPTION, text)
