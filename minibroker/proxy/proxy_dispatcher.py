"""From the frame of a client to the frame of the upstream's answer."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, cast

from minibroker.handlers.api_versions import unsupported
from minibroker.kernel.deferred import Deferred, after, mapped, spawn
from minibroker.proxy.asked_node import AskedNode
from minibroker.proxy.endpoints import carries_address, moved, offered
from minibroker.proxy.sasl_tokens import GSSAPI, REFUSED, TOKENS, RawTokens
from minibroker.proxy.upstream_connection import UpstreamConnection
from minibroker.requests.api import Api
from minibroker.requests.chain import Link, Place
from minibroker.requests.context import CloseConnection, Frames, RequestContext
from minibroker.requests.dispatch import Answered, Dispatcher
from minibroker.requests.response_frames import framed
from minibroker_protocol import messages as m
from minibroker_protocol.codegen_read import varint
from minibroker_protocol.dsl import Request, Response
from minibroker_protocol.errors import ErrorCode, Malformed
from minibroker_protocol.fields import Buffer
from minibroker_protocol.headers import decode_response, encode_request, parse_request_header
from minibroker_protocol.registry import registry

if TYPE_CHECKING:
    from minibroker.broker.broker import Broker
    from minibroker.broker.connection import ConnectionInfo
    from minibroker.requests.context import Handler

_PRODUCE: Final = m.ProduceRequest.__api_key__
_PRODUCE_WITH_ID: Final = 3
_PRODUCE_FLEXIBLE: Final = m.ProduceRequest.__flexible__
_WITH_RECORDS: Final = (_PRODUCE, m.FetchRequest.__api_key__, m.ShareFetchRequest.__api_key__)
_METADATA: Final = m.MetadataRequest.__api_key__
_HANDSHAKE: Final = m.SaslHandshakeRequest.__api_key__
_API_VERSIONS: Final = m.ApiVersionsRequest.__api_key__
_CHANGED: Final = (_API_VERSIONS, _HANDSHAKE)
"""APIs whose answers are changed where they carry no address."""
_CORRELATION_BYTES: Final = 4
_UNSUPPORTED: Final = ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big")
_AT_ONCE_BYTES: Final = 64 * 1024
"""Size up to which an answer is read on the event loop: some thousand partitions, 2 to 4 ms."""
_LARGEST_API_KEY: Final = 1023
"""Above every API of Kafka. A first frame with a key above it is a token of GSSAPI, or no request at all."""

_key_and_version = struct.Struct(">hh").unpack_from
_int16_at = struct.Struct(">h").unpack_from
_pack_size = struct.Struct(">i").pack

Connect = Callable[[AskedNode, Callable[[str], None]], UpstreamConnection]
"""Begins a connection to the broker behind a listener; the other argument is called when it is lost."""


Concerned = Callable[[str], bool]


def _all(_: str) -> bool:
    return True


class _ClientLink:
    """What belongs to one connection of a client.

    over: called once, when the client is gone and no request of it is in the chain any longer.
    """

    __slots__ = ("_chained", "_gone", "_over", "tokens", "upstream")

    def __init__(self, upstream: UpstreamConnection, over: Callable[[], None]) -> None:
        self.upstream = upstream
        self.tokens = RawTokens()
        self._chained = 0
        self._gone = False
        self._over = over

    def enters(self, answer: Deferred[Any]) -> None:
        """A request of the client is in the chain until this is resolved."""
        self._chained += 1
        answer.then(self._leaves)

    def _leaves(self, _: Deferred[Any]) -> None:
        self._chained -= 1
        self._end_if_over()

    def client_gone(self) -> None:
        self._gone = True
        self._end_if_over()

    def _end_if_over(self) -> None:
        if self._gone and not self._chained:
            self._over()


class ProxyDispatcher:
    """Serves one listener (`requests.dispatch.Dispatch`): what arrives goes on to the broker behind it.

    client_id: that of the proxy's own requests; one that arrives here has gone in a circle, so `circle` is called.

    While no link of the chain is in place, a frame passes as it came. Of an answer only those parts are read and
    changed that carry addresses, versions or mechanisms.
    """

    def __init__(self, node: AskedNode, connect: Connect, client_id: str, circle: Callable[[], None]) -> None:
        self.node = node
        self._connect = connect
        self._client_id = client_id
        self._circle = circle
        self._links: dict[int, _ClientLink] = {}  # by the identity of the connection, which outlives it
        self._chained = False
        self._concerned: Concerned = _all
        apis = known_apis(self._go_on)
        self._highest_api_versions = apis[_API_VERSIONS].max_version
        # The chain and its links use only those parts of a broker that `AskedNode` has.
        self._decoding = Dispatcher(
            cast("Broker", node), apis, self._unsupported, apis_of_brokers={}, explain=None, rights=None
        )

    def link(self, place: Place, link: Link | None, concerned: Concerned = _all) -> None:
        """Put a link at a place of the chain, for requests that arrive from now on; None leaves it empty.

        concerned: asked for every request, by the name of its API, whether it has to pass the chain.
        """
        self._concerned = concerned
        self._decoding.link(place, link)
        self._chained = any(self._decoding.link_at(each) is not None for each in Place)

    def dispatch(self, frame: Buffer, connection: ConnectionInfo) -> Answered | Deferred[Answered]:
        """The buffers of the upstream's answer; None for a request without one. Raises, or fails with,
        CloseConnection."""
        link = self._links.get(id(connection)) or self._opened(connection)
        if link.tokens.expected:
            return self._token(link, frame)
        try:
            key, version = _key_and_version(frame, 0)
        except struct.error:
            raise CloseConnection(f"a request of {len(frame)} bytes has no header") from None
        if not 0 <= key <= _LARGEST_API_KEY:
            raise CloseConnection(f"API key {key} is none of Kafka's (a token of GSSAPI has no way through a proxy)")
        if key == _API_VERSIONS:
            self._refuse_circle(frame)
            if version > self._highest_api_versions:
                return self._decoding.dispatch(frame, connection)
        if self._chained and _is_known(key, version) and self._concerned(_framing(key).name):
            answer = self._decoding.dispatch(frame, connection)
            if type(answer) is Deferred and not answer.done:
                link.enters(answer)
            return answer
        waiting = self._ask(link, frame, key, version)
        return after(waiting, lambda: self._framed_answer(connection, key, version, waiting.result()))

    # -- connections ---------------------------------------------------------------------------------------------------

    def _opened(self, connection: ConnectionInfo) -> _ClientLink:
        def lost(_: str) -> None:
            if connection.channel is not None:
                connection.channel.close()

        def over() -> None:
            del self._links[id(connection)]
            link.upstream.close()

        link = self._links[id(connection)] = _ClientLink(self._connect(self.node, lost), over)
        # A broker does what it has received also for a client that did not wait: what a rule holds still goes on.
        connection.on_gone = link.client_gone
        connection.on_late = link.enters
        return link

    def _refuse_circle(self, frame: Buffer) -> None:
        try:
            client_id = parse_request_header(frame)[3]
        except Malformed as error:
            raise CloseConnection(str(error)) from None
        if client_id == self._client_id:
            self._circle()
            raise CloseConnection("a request of this proxy came back to it")

    def _unsupported(self) -> Response:
        return unsupported(self._highest_api_versions)

    # -- requests ------------------------------------------------------------------------------------------------------

    def _token(self, link: _ClientLink, token: Buffer) -> Deferred[Answered]:
        link.tokens.sent()

        def answered(answer: Buffer) -> Answered:
            link.tokens.answered(bytes(answer))
            return [_pack_size(len(answer)), answer]

        return mapped(link.upstream.send(token), answered)

    def _ask(self, link: _ClientLink, frame: Buffer, key: int, version: int) -> Deferred[Buffer]:
        """The frame of the upstream's answer, an empty one for a request that has none."""
        if key == _PRODUCE:
            return link.upstream.send(frame, answered=not _wants_no_answer(frame, version))
        if key == _HANDSHAKE and _is_known(key, version):
            return self._handshake(link, frame, version)
        return link.upstream.send(frame)

    def _handshake(self, link: _ClientLink, frame: Buffer, version: int) -> Deferred[Buffer]:
        try:
            _, _, correlation_id, client_id, position = parse_request_header(frame)
            request = m.SaslHandshakeRequest.decode(frame, version, position)
        except Malformed as error:
            raise CloseConnection(str(error)) from None
        if request.mechanism == GSSAPI or (version == 0 and request.mechanism not in TOKENS):
            request.mechanism = REFUSED
            frame = encode_request(request, version, correlation_id, client_id)

        def answered(answer: Buffer) -> Buffer:
            if version == 0 and not _read(_HANDSHAKE, version, answer).error_code:
                link.tokens.begin(request.mechanism)
            return answer

        return mapped(link.upstream.send(frame), answered)

    def _go_on(self, context: RequestContext, request: Request) -> Deferred[Response | None]:
        """The handler of every API, at the end of the chain: the upstream's answer."""
        link = self._links.get(id(context.connection))
        if link is None:
            raise CloseConnection(f"a {type(request).__name__} is not passed on: its client is gone")
        key, version = context.api_key, context.api_version
        if request is context.request and context.frame:
            frame = bytes(context.frame)  # its buffer is given back while the answer is on its way
        else:  # a rule made it of another, or it waited so long that its bytes were given back
            frame = encode_request(request, version, context.correlation_id, context.client_id)

        def answered(answer: Buffer) -> Any:
            if not answer:
                return None
            if _is_long(key, answer):
                context.takes_long()
                return spawn(self._read_elsewhere(context.connection, key, version, answer))
            if _refuses_version(key, answer):
                context.api_version = 0  # that of the answer, whatever was asked (KIP-511)
                refusal: Response = _read(key, 0, answer)
                return refusal
            response: Response = _read(key, version, answer)
            self._change(context.connection, key, version, response)
            return response

        waiting = self._ask(link, frame, key, version)
        return after(waiting, lambda: answered(waiting.result()))

    # -- answers -------------------------------------------------------------------------------------------------------

    def _framed_answer(
        self, connection: ConnectionInfo, key: int, version: int, answer: Buffer
    ) -> Answered | Deferred[Answered]:
        if not answer:
            return None
        if (key in _CHANGED or carries_address(key, version)) and _is_known(key, version):
            if _refuses_version(key, answer):
                return [_pack_size(len(answer)), answer]
            if _is_long(key, answer):
                return spawn(self._framed_elsewhere(connection, key, version, answer))
            response = _read(key, version, answer)
            if self._change(connection, key, version, response):
                return _frames(key, version, answer, response)
        return [_pack_size(len(answer)), answer]

    async def _read_elsewhere(self, connection: ConnectionInfo, key: int, version: int, answer: Buffer) -> Response:
        """A long answer, which is decoded on the computing thread."""
        response: Response = await self.node.executor.compute(
            lambda _: _read(key, version, answer), lambda: not connection.gone
        )
        self._change(connection, key, version, response)
        return response

    async def _framed_elsewhere(self, connection: ConnectionInfo, key: int, version: int, answer: Buffer) -> Answered:
        response = await self._read_elsewhere(connection, key, version, answer)
        return await self.node.executor.compute(
            lambda _: _frames(key, version, answer, response), lambda: not connection.gone
        )

    def _change(self, connection: ConnectionInfo, key: int, version: int, response: Any) -> bool:
        """Have the client come through the proxy again; whether anything of the answer changed."""
        if key == _API_VERSIONS:
            return offered(response)
        if key == _HANDSHAKE:
            if GSSAPI not in response.mechanisms:
                return False
            response.mechanisms.remove(GSSAPI)
            return True
        if key == _METADATA:
            for topic in response.topics:
                if topic.name is not None:
                    self.node.nodes.named(bytes(topic.topic_id), topic.name)
        return carries_address(key, version) and moved(key, response, partial(self.node.local, connection))


def known_apis(handler: Handler) -> dict[int, Api]:
    """A row for every API that is declared, in all its versions."""
    return {
        key: Api(
            key=key,
            name=request.__name__.removesuffix("Request"),
            request=request,
            response=response,
            handler=handler,
            min_version=request.__versions__[0],
            max_version=request.__versions__[1],
        )
        for key, (request, response) in registry().items()
    }


@cache
def _framing(key: int) -> Api:
    return known_apis(no_handler)[key]


def no_handler(context: RequestContext, request: Any) -> None:
    """Of a row that is only looked at."""
    raise AssertionError("only its messages are asked for")


def _is_known(key: int, version: int) -> bool:
    classes = registry().get(key)
    return classes is not None and classes[0].__versions__[0] <= version <= classes[0].__versions__[1]


def _refuses_version(key: int, answer: Buffer) -> bool:
    """Whether a broker does not know the version of ApiVersions that it was asked for."""
    return key == _API_VERSIONS and bytes(answer[_CORRELATION_BYTES : _CORRELATION_BYTES + 2]) == _UNSUPPORTED


def _is_long(key: int, answer: Buffer) -> bool:
    """Whether reading it would hold the loop up. Records are not looked into, so their size does not matter."""
    return len(answer) > _AT_ONCE_BYTES and key not in _WITH_RECORDS


def _frames(key: int, version: int, answer: Buffer, response: Response) -> Frames:
    """The frame of a response in place of the upstream's."""
    return framed(_framing(key), version, int.from_bytes(answer[:_CORRELATION_BYTES], "big", signed=True), response)


def _read(key: int, version: int, answer: Buffer) -> Any:
    """Raises CloseConnection for what is no answer to a request of this kind."""
    try:
        return decode_response(answer, key, version)
    except Malformed as error:
        raise CloseConnection(f"the answer of the upstream cannot be read: {error}") from None


def _wants_no_answer(frame: Buffer, version: int) -> bool:
    """Whether a Produce has acks=0. Its transactional id stands before it."""
    try:
        position = parse_request_header(frame)[4]
        if version >= _PRODUCE_FLEXIBLE:
            size, position = varint(frame, position)
            position += max(size - 1, 0)
        elif version >= _PRODUCE_WITH_ID:
            position += 2 + max(_int16_at(frame, position)[0], 0)
        return bool(_int16_at(frame, position)[0] == 0)
    except (Malformed, struct.error, IndexError, ValueError):
        return False  # the broker closes the connection
